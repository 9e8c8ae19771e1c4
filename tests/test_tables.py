"""Users' tables, as files and as frames: the matrix of numbers that they become, or what is refused."""

import dataclasses
import datetime
import gzip
import json
import re
import time

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
from typer.testing import CliRunner

from pyrobnn import InputError
from pyrobnn.cli import app
from pyrobnn.data.splits import split_rows
from pyrobnn.datasets import load_table
from pyrobnn.datasets.base import test_share as share_of
from pyrobnn.tables import Reading, read
from pyrobnn.tables.encoder import Encoder

ROWS = 24
Y = np.arange(ROWS) + 1.5
KINDS = ("onehot", "ordinal")


def frame_of(**columns):
    """A frame with a target y; a column is an array, or made from the row."""
    return pd.DataFrame(
        {name: [*map(one, range(ROWS))] if callable(one) else one for name, one in columns.items()} | {"y": Y}
    )


@pytest.fixture(params=["file", "frame"])
def given(request, tmp_path):
    """Return a frame as it is, or its file."""

    def path(frame, name="t.csv", decimal=None):
        is_parquet, told = name.endswith("parquet"), {"index": False, "decimal": decimal or "."}
        frame.to_parquet(tmp_path / name) if is_parquet else frame.to_csv(tmp_path / name, **told)
        return tmp_path / name

    return path if request.param == "file" else lambda frame, name="", decimal=None: frame


def learned(source, **settings):
    """Return the table, its encoder, which went through JSON, and its matrix."""
    table = read(source, Reading(target="y", **settings))
    encoder = Encoder.learn(table.columns, table)
    again = Encoder.stored(json.loads(json.dumps(dataclasses.asdict(encoder), allow_nan=False)))
    return table, again, again.matrix(table.columns)


def german(value):
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


# Numbers


QUARTERS = [1000 + i / 4 for i in range(ROWS)]
NUMBERS = {
    "thousands": (lambda i: f"{1000 + i / 4:,.2f}", QUARTERS, None, False),
    "whole thousands": (lambda i: f"1,{i:03d}", range(1000, 1024), None, True),
    "some below a thousand": (lambda i: "1,234" if i else "999", [999, *[1234] * 23], None, True),
    "decimal comma": (lambda i: f"{i},5", np.arange(ROWS) + 0.5, ",", False),
    "three decimals": (lambda i: f"-0,{i:03d}", -np.arange(ROWS) / 1000, ",", False),
    "German": (lambda i: german(QUARTERS[i]), QUARTERS, ",", False),
    "German thousands": (lambda i: "567" if i % 2 else "1.468", [1468.0, 567.0] * 12, ",", False),
    "blanks and powers": (lambda i: f"  {i}e3 ", np.arange(ROWS) * 1e3, None, False),
    "booleans": (lambda i: i % 2 == 0, [1.0, 0.0] * 12, None, False),
}


@pytest.mark.parametrize("case", NUMBERS)
@pytest.mark.parametrize("role", ["input", "target"])
def test_numbers_and_texts_that_are_numbers(case, role, given):
    """A column that leaves thousands or decimals open is named, with the option."""
    cell, expected, decimal, is_open = NUMBERS[case]
    table = frame_of(a=cell) if role == "input" else frame_of(a=cell).rename(columns={"a": "y", "y": "a"})
    found = read(given(table, decimal=decimal), Reading(target="y", decimal=decimal, task="regression"))
    values = found.columns["a"] if role == "input" else found.target.values
    np.testing.assert_array_equal(values, np.asarray(expected, float))
    assert ["if its comma marks decimals, say that" in note for note in found.notes] == [True] * is_open


@pytest.mark.parametrize(
    "cells", [lambda i: f"{i},5", lambda i: german(QUARTERS[i]), lambda i: f"{i},5" if i < 9 else f"{i}"]
)
def test_a_decimal_comma_is_refused_with_its_option(cells, given):
    with pytest.raises(InputError, match=r"'a' holds numbers with a decimal comma, such as '.*,\d+': say that"):
        read(given(frame_of(a=cells)), Reading(target="y", missing="impute"))


OPEN = {
    "thousands": (["567", "812", "1.468"], None, [567.0, 812, 1.468], True),
    "all thousands": (["1.468", "12.500", "0"], None, [1.468, 12.5, 0], True),
    "commas": (['"567"', '"1,468"'], None, [567.0, 1468], True),
    "told": (["567", "812", "1.468"], ".", [567.0, 812, 1.468], False),
    "told commas": (["567", "812", "1.468"], ",", [567.0, 812, 1468], False),
    "decimals": (["567", "812.5", "1.468"], None, [567.0, 812.5, 1.468], False),
    "a zero": (["0.468", "1.250"], None, [0.468, 1.25], False),
    "points beside told commas": (["45.5", "1.468", "7"], ",", [45.5, 1.468, 7], False),
    "commas beside told points": (['"45,5"', '"1,468"', "7"], ".", [45.5, 1.468, 7], False),
}


@pytest.mark.parametrize("case", OPEN)
def test_columns_that_two_marks_of_decimals_suit_are_named_and_take_the_one_told(case, tmp_path):
    """Others keep their own, also in a later row that both suit."""
    cells, decimal, values, is_open = OPEN[case]
    rows = "".join(f"{cell},{i}\n" for i, cell in enumerate(cells * 8))
    (tmp_path / "t.csv").write_text(f"a,y\n{rows}")
    found, encoder, x = learned(tmp_path / "t.csv", decimal=decimal, task="regression")
    assert x[:, 0].tolist() == values * 8
    change = "1468; if its comma marks decimals" if "," in cells[-1] else "1.468; if its point marks thousands"
    such = "1,468" if "," in cells[-1] else "1.468"
    told = f"column 'a': {such!r} is read as {change}, say that commas mark decimals, `decimal=\",\"`"
    assert list(found.notes) == [told] * is_open
    (tmp_path / "new.csv").write_text(f"a,y\n{cells[-2]},0\n")
    assert encoder.transform(tmp_path / "new.csv").tolist() == [values[-2:-1]]


def test_words_among_numbers_and_dates_count_as_missing_where_missing_values_may_be(given):
    words = {3: "k.A.", 5: "k.A.", 7: "unknown"}
    days = pd.date_range("2020-01-01", periods=ROWS).strftime("%Y-%m-%d")
    table = frame_of(a=lambda i: words.get(i, f"{i}.5"), day=lambda i: "open" if i == 9 else days[i])
    source = given(table)
    with pytest.raises(InputError, match="numbers, but text in rows .*'k.A.' and 'unknown': mend it, or let it count"):
        read(source, Reading(target="y"))
    with pytest.raises(InputError, match="Target column 'a' holds numbers, but text in .*: mend it, or drop those"):
        read(source, Reading(target="a", missing="impute"))
    found, encoder, x = learned(source, missing="impute")
    assert [note.partition(" in ")[0] for note in found.notes] == [
        "column 'a': 'k.A.' and 'unknown'", "column 'day': 'open'"
    ]  # fmt: skip
    _, _, empty = learned(given(table.replace([*words.values(), "open"], None), "empty.csv"), missing="impute")
    np.testing.assert_array_equal(x, empty)
    new = encoder.read(given(table.assign(a=["?", *table["a"][1:]]), "new.csv"))
    assert new.columns["a"].isna().sum() == 4
    with pytest.raises(InputError, match="'a' holds numbers, but text in rows .* and 19 more, such as 'warm'"):
        encoder.read(given(table.assign(a="warm"), "warm.csv"))


# Categories, dates and missing values


MIXED = pd.DataFrame(
    {
        "size": np.arange(40) / 7,
        "age": [None if i % 11 == 3 else float(i) for i in range(40)],
        "city": [None if i == 5 else ("Rome", "Oslo", "Bern")[i % 3] for i in range(40)],
        "code": [i % 2 for i in range(40)],
        "y": np.arange(40) ** 1.5,
    }
)


def by_scikit_learn(table, categories):
    """Return the matrix and the names of scikit-learn's steps, with NaN in place of means."""
    numbers = list(table.select_dtypes("number"))
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    onehot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = [
        ("numbers", SimpleImputer(add_indicator=True, keep_empty_features=True), numbers),
        ("texts", onehot if categories == "onehot" else OrdinalEncoder(**unknown), [*table.columns.drop(numbers)]),
    ]
    made = ColumnTransformer(steps, verbose_feature_names_out="{feature_name}").fit(table)
    x = made.transform(table).astype(float)
    x[:, : len(numbers)] = np.where(table[numbers].isna(), np.nan, x[:, : len(numbers)])
    return x, list(made.get_feature_names_out())


@pytest.mark.parametrize("categories", KINDS)
@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_is_encoded_as_by_the_steps_of_scikit_learn(categories, name, given):
    found, encoder, x = learned(given(MIXED, name), categories=categories, missing="impute")
    expected, names = by_scikit_learn(found.columns, categories)
    np.testing.assert_array_equal(x, expected)
    assert [*encoder.get_feature_names_out()] == names
    np.testing.assert_array_equal(encoder.transform(given(MIXED, name)), expected)
    assert found.described == "numbers: size, age, code; categories: city (4)"


def test_missing_text_is_a_category_and_missing_numbers_are_refused(given):
    _, encoder, x = learned(given(MIXED.drop(columns="age")))
    assert [*encoder.get_feature_names_out()][2:] == ["city_Bern", "city_Oslo", "city_Rome", "city_None"]
    assert x[:, -1].nonzero()[0].tolist() == [5]
    with pytest.raises(
        InputError, match=r"Column 'age' has 4 missing values \(NaN\), in rows [34], .*data.missing=|missing=.imp"
    ):
        read(given(MIXED), Reading(target="y"))


@pytest.mark.parametrize("categories", KINDS)
def test_inputs_know_the_column_that_they_come_from(categories, given):
    """Another value in a column changes the inputs that are said to be made from it, and no others."""
    days = pd.date_range("2020-01-01", periods=40, freq="37D").strftime("%Y-%m-%d")
    size = [None if row == 7 else float(row) for row in range(40)]
    table = pd.DataFrame(
        {"kind": [*"abcd"] * 10, "size": size, "day": days, "day (": range(40), "kind_b": size, "y": np.arange(40) / 40}
    )
    _, encoder, x = learned(given(table), categories=categories, missing="impute")
    columns = encoder.positions()
    said = {one.name: one.said for one in encoder.layout()}
    assert categories == "ordinal" or (said["kind_b"], said["kind_b_2"]) == ("kind_b", "kind: b")
    assert said["missingindicator_size"] == "'size' is missing"
    assert sorted(position for each in columns.values() for position in each) == list(range(x.shape[1]))
    other = table.assign(kind=[*"bcda"] * 10, size=size[::-1], day=days[::-1])
    for name in ("kind", "size", "day"):
        new = encoder.transform(given(table.assign(**{name: other[name]}), f"{name}.csv"))
        differs = ~np.isclose(new, x, rtol=0, atol=0, equal_nan=True)
        assert differs.any(0).nonzero()[0].tolist() == columns[name]


def test_columns_of_numbers_may_be_named_as_categories(given):
    table = frame_of(zip=lambda i: (10115, 80331, 9)[i % 3])
    _, encoder, x = learned(given(table), categories=["zip"])
    assert [*encoder.get_feature_names_out()] == ["zip_9", "zip_10115", "zip_80331"]
    assert x.sum(1).tolist() == [1] * ROWS
    _, _, codes = learned(given(table), categories=["ordinal", "zip"])
    assert codes[:3, 0].tolist() == [1, 2, 0]
    np.testing.assert_array_equal(encoder.transform(given(table.assign(zip=table["zip"].astype(float)))), x)


LEVELS = ["low", "medium", "high"]


ORDERED = {
    "categorical": pd.Categorical(LEVELS * 8, LEVELS, ordered=True),
    "unused": pd.Categorical(LEVELS * 8, [*LEVELS, "more"], ordered=True),
    "polars": pl.Series(LEVELS * 8, dtype=pl.Enum(LEVELS)),
    "numbers": pd.Categorical([3, 1, 2] * 8, [3, 1, 2], ordered=True),
    "cut": pd.cut([1, 2, 3] * 8, 3),
}


@pytest.mark.parametrize("case", ORDERED)
def test_ordered_categories_become_numbers_in_their_order(case, tmp_path):
    values = ORDERED[case]
    table = (pl if case == "polars" else pd).DataFrame({"c": values, "y": Y})
    for categories in KINDS:
        found, encoder, x = learned(table, categories=categories)
        assert x[:, 0].tolist() == [0, 1, 2] * 8
        assert found.described == "ordered categories: c (3)"
    if case == "categorical":
        for later in (values.reorder_categories(LEVELS[::-1]), list(values), pd.Categorical(list(values))):
            np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"c": later})), x)
        with pytest.raises(InputError, match="'c' holds 'new', in row 0, and its order is low < medium < high"):
            encoder.transform(pd.DataFrame({"c": ["new", "low"]}))
        table.to_parquet(tmp_path / "t.parquet")
        found = load_table(tmp_path / "t.parquet", "c")
        assert (found.class_names, found.data.y.tolist()) == (tuple(LEVELS), [0, 1, 2] * 8)
        _, gaps, x = learned(table.assign(c=table["c"].where(table.index > 0)), categories="ordinal", missing="impute")
        assert [*gaps.get_feature_names_out(), *x[0][1:], *x[1]] == ["c", "missingindicator_c", 1, 1, 0]


KINDS_OF_COLUMNS = {
    "numbers": (
        [1, 2, 3] * 8,
        [[1.0, 2, 3] * 8, pd.Categorical([1, 2, 3] * 8), pl.Series([1, 2, 3] * 8), ["1", "2", "3"] * 8],
    ),
    "categories": (
        pd.Categorical([1, 2, 3] * 8),
        [[1, 2, 3] * 8, [1.0, 2, 3] * 8, pd.Categorical([1, 2, 3] * 8, [3, 1, 2])],
    ),
    "texts": (
        [*"abc"] * 8,
        [pd.Categorical([*"abc"] * 8), pl.Series([*"abc"] * 8), pd.Series([*"abc"] * 8, dtype="string")],
    ),
    "flags": ([True, False] * 12, [[1, 0] * 12, pd.Series([True, False] * 12, dtype="boolean"), [1.0, 0.0] * 12]),
    "nothing": ([*"ab", None] * 8, [pl.Series([*"ab", None] * 8), pd.Series([*"ab", None] * 8, dtype="category")]),
}


@pytest.mark.parametrize("case", KINDS_OF_COLUMNS)
@pytest.mark.parametrize("categories", KINDS)
def test_kinds_of_columns_and_frames_do_not_matter(case, categories):
    """What was learned of a column tells what later ones are; a number among texts is an unknown category."""
    first, others = KINDS_OF_COLUMNS[case]
    _, encoder, x = learned(pd.DataFrame({"c": first, "y": Y}), categories=categories)
    for later in others:
        frame = (pl if isinstance(later, pl.Series) else pd).DataFrame({"c": later})
        np.testing.assert_array_equal(encoder.transform(frame), x)
    if case == "texts":
        mixed = encoder.transform(pd.DataFrame({"c": [7, "?", "a"]}))
        assert (mixed[:2] == (0 if categories == "onehot" else -1)).all()
        np.testing.assert_array_equal(mixed[2], x[0])


DAYS = pd.date_range("2020-02-27", periods=ROWS, freq="37D")
FORMATS = (
    *("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%y", "%Y/%m/%d", "%d %b %Y", "%B %d, %Y", "%Y-%m-%dT%H:%M:%SZ"),
    None,
)


@pytest.mark.parametrize("form", FORMATS)
def test_dates_become_days_and_phases(form, given):
    _, encoder, x = learned(given(frame_of(a=DAYS if form is None else DAYS.strftime(form))))
    parts = {
        "a (days)": (DAYS - DAYS[0]).days,
        "a (sin of year)": np.sin(2 * np.pi * (DAYS.day_of_year - 1) / 365.25),
        "a (cos of year)": np.cos(2 * np.pi * (DAYS.day_of_year - 1) / 365.25),
        "a (sin of week)": np.sin(2 * np.pi * DAYS.day_of_week / 7),
        "a (cos of week)": np.cos(2 * np.pi * DAYS.day_of_week / 7),
    }
    assert [*encoder.get_feature_names_out()] == [*parts]
    np.testing.assert_allclose(x, np.stack([*parts.values()], 1), atol=1e-12)
    (note,) = encoder.notes
    assert (
        note == "column 'a': read as days since 2020-02-27, and sine and cosine of the day of the year and the weekday"
    )


def test_short_spans_and_times_and_gaps_of_dates(given):
    hours = pd.date_range("2021-05-03 00:30", periods=ROWS, freq="5h")
    _, encoder, x = learned(given(frame_of(a=hours.strftime("%Y-%m-%d %H:%M"))))
    assert [*encoder.get_feature_names_out()] == ["a (days)", "a (sin of hour)", "a (cos of hour)"]
    np.testing.assert_allclose(x[:, 1], np.sin(2 * np.pi * (hours.hour + 0.5) / 24), atol=1e-12)
    _, encoder, x = learned(given(frame_of(a=lambda i: None if i == 3 else f"2021-05-{i + 1:02d}")), missing="impute")
    assert np.argwhere(np.isnan(x)).tolist() == [[3, 0], [3, 1], [3, 2]]
    names = [f"missingindicator_a ({part})" for part in ("days", "sin of week", "cos of week")]
    assert [*encoder.get_feature_names_out()][3:] == names


def test_new_dates_are_read_as_in_training(given):
    _, encoder, _ = learned(given(frame_of(a=DAYS.strftime("%d/%m/%Y"))))
    for same in ("02/03/2021", "2021-03-02"):  # as in training, not the third of February
        row = given(pd.DataFrame({"a": [same]}))
        assert encoder.transform(row)[0, 0] == (pd.Timestamp("2021-03-02") - DAYS[0]).days
    for cell, message in ((7, "'a' held dates in training, and now 7: write"), ("May", "dates, but other text in row")):
        with pytest.raises(InputError, match=message):
            encoder.read(given(pd.DataFrame({"a": [cell]})))


@pytest.mark.parametrize("first", [lambda i: i + 0.5, lambda i: f"1,00{i % 9}.5"])
def test_a_decimal_comma_in_new_rows_is_refused_with_its_option(first, given):
    _, encoder, _ = learned(given(frame_of(a=first)))
    with pytest.raises(InputError, match=r"but text in row [12], such as '1,5': .*commas mark decimals, `decimal=.,.`"):
        encoder.read(given(frame_of(a=lambda i: "1,5" if i == 1 else "2.5")))


BERLIN = pd.Series(pd.date_range("2023-03-20", periods=ROWS, freq="9h", tz="Europe/Berlin"))  # summer time begins
UTC, LOCAL, BAKU = BERLIN.dt.tz_convert("UTC"), BERLIN.dt.tz_localize(None), BERLIN.dt.tz_convert("Asia/Baku")
DATES = {
    "zone": BERLIN,
    "UTC": UTC.dt.as_unit("s"),
    "texts with Z": UTC.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "texts with +0400": BAKU.dt.strftime("%Y-%m-%d %H:%M:%S%z"),
    "texts with offsets": [moment.isoformat() for moment in [*BERLIN[:12], *BAKU[12:]]],
    "objects": BAKU.map(pd.Timestamp.to_pydatetime).astype(object),
    "polars": pl.Series(BERLIN),
    "local": LOCAL,
    "local ms": LOCAL.dt.as_unit("ms"),
    "local texts": LOCAL.dt.strftime("%Y-%m-%d %H:%M:%S"),
    "local objects": LOCAL.map(pd.Timestamp.to_pydatetime).astype(object),
}


def of_dates(values):
    return (pl if isinstance(values, pl.Series) else pd).DataFrame({"at": values, "y": Y})


@pytest.mark.parametrize("name", DATES)
def test_the_same_moments_are_the_same_numbers(name, given):
    """To the last digit, whatever the zone, the unit and the container; dates without a zone are others."""
    table, is_local = of_dates(DATES[name]), name.startswith("local")
    source = table if isinstance(table, pl.DataFrame) else given(table)
    _, encoder, x = learned(source)
    for other, values in DATES.items():
        if other.startswith("local") == is_local:
            np.testing.assert_array_equal(encoder.transform(of_dates(values)), x)
            continue
        with pytest.raises(InputError, match="'at' has dates with a time zone in the fit or in these rows, not"):
            encoder.transform(of_dates(values))


# What is refused


REFUSED = {
    "words among prices": ({"a": lambda i: str(i) if i else "free"}, "numbers, but text in row [01], such as 'free'"),
    "units": ({"a": lambda i: f"{i} kg"}, "24 different texts .* without a unit or a currency"),
    "currencies": ({"a": lambda i: f"$ {i}"}, "24 different texts .* without a unit or a currency"),
    "words among dates": ({"a": lambda i: "2020-01-31" if i else "soon"}, "dates, but other text in row [01]"),
    "day or month": ({"a": lambda i: f"{i % 12 + 1}/2/2020"}, "'1/2/2020', which can be 2020-02-01 or 2020-01-02"),
    "names of rows": ({"a": lambda i: f"name{max(i, 1)}"}, "or dates, leave it out, or say .*, `categories=..a..`"),
    "no value": ({"a": [None] * ROWS}, r"'a' has no value in any row \(NaN\): leave it out"),
    "infinite": ({"a": lambda i: np.inf if i == 2 else 1.0 * i}, "'a' must be finite, and is inf in row [23]: drop"),
    "some zones": (
        {"a": lambda i: f"2023-03-{i + 1:02d}T00:00" + "+02:00" * (i % 2)},
        "'a' holds dates with a time zone, as '2023-03-02T00:00.02:00', and without, as '2023-03-01T00:00': write",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_columns_that_cannot_be_used_are_refused(case, given):
    columns, message = REFUSED[case]
    for missing in ("raise", "impute")[: 1 + (case in ("no value", "infinite"))]:
        with pytest.raises(InputError, match=message) as caught:
            learned(given(frame_of(**columns)), missing=missing)
        assert "--" not in str(caught.value)  # options of the command line


def test_all_faults_come_at_once_with_their_rows(given):
    names = [f"n{i}" for i in range(40)]
    days = [*["31.12.2020"] * 39, "May"]
    table = MIXED.assign(day=days, name=names, far=np.inf, y=MIXED["y"].where(MIXED.index != 3))
    source = given(table)
    with pytest.raises(InputError, match="cannot be used, for 5 reasons") as caught:
        read(source, Reading(target="y"))
    words = (
        "Target",
        "'age' has 4 missing",
        "but other text in row",
        "40 different texts in 40",
        "rows .* and 35 more",
    )
    for number, (line, expected) in enumerate(zip(str(caught.value).splitlines()[1:], words, strict=True), 1):
        assert re.search(rf"{number}\. .*{expected}", line)


BYTES_AND_TIMES = [b"\xff", datetime.time(1), datetime.timedelta(1), 1j]


@pytest.mark.parametrize("value", BYTES_AND_TIMES, ids=["bytes", "time", "span", "complex"])
def test_frames_and_kinds_that_are_no_tables(value):
    for frame in (MIXED.set_axis([*"aabcy"], axis=1), pl.from_pandas(MIXED).lazy()):
        with pytest.raises(InputError, match="more than one column of the name 'a'|has no values yet: collect it"):
            read(frame, Reading(target="y"))
    for role in ("a", "y"):
        with pytest.raises(InputError, match="has dtype|holds neither|only one class"):
            learned(frame_of(a=Y).assign(**{role: pd.Series([value] * ROWS)}))


# Targets


def test_the_task_follows_from_the_target(given):
    for values, classes, labels in (
        (["b", "a", "c", "b"], ("a", "b", "c"), [1, 0, 2, 1]),
        ([True, False, True, True], ("False", "True"), [1, 0, 1, 1]),
        ([10, 2, 2, -1], ("-1", "2", "10"), [2, 1, 1, 0]),
    ):
        found = read(given(frame_of(a=Y).assign(y=values * 6)), Reading(target="y")).target
        assert (found.task, found.classes, found.values.tolist()) == ("classification", classes, labels * 6)
    counts = frame_of(a=Y).assign(y=[3, 1, 4, 1] * 6)
    assert '`task="regression"`' in read(given(counts), Reading(target="y")).target.reason
    found = read(given(counts), Reading(target="y", task="regression")).target
    assert (found.task, found.values.tolist()) == ("regression", [3.0, 1.0, 4.0, 1.0] * 6)
    codes = read(given(counts.assign(y=counts["y"] * 1.0)), Reading(target="y", task="classification")).target
    assert codes.classes == ("1", "3", "4")


WHOLE = [(300, 5, 150, False), (300, 5, 17, False), (1000, 5, 10, True), (36, 82, 36, False), (36, 83, 36, True)]


@pytest.mark.parametrize(("rows", "least", "values", "is_clear"), [*WHOLE, (36, 1000, 36, True), (36, -300, 36, False)])
def test_many_whole_numbers_need_a_task_unless_they_are_amounts(rows, least, values, is_clear):
    """Up to ten are classes, and those from a median of 100 on are amounts."""
    table = pd.DataFrame({"area": np.arange(rows) / 7, "y": least + np.arange(rows) % values})
    if is_clear:
        found = read(table, Reading(target="y")).target
        assert len(found.classes) == values if values <= 10 else found.reason == "whole numbers"
    else:
        message = f"'y' holds {values} different whole numbers, {least} to .*`task=.regression"
        with pytest.raises(InputError, match=message):
            read(table, Reading(target="y"))
    assert len(read(table, Reading(target="y", task="classification")).target.classes) == values


OF_TARGETS = {
    "missing": ([None, *Y[1:]], None, r"'y' has 1 missing value \(NaN\), in row [01]: drop those rows"),
    "constant": ([2.5] * ROWS, None, "'y' is 2.5 in all 24 rows: there is nothing to"),
    "infinite": ([np.inf, *Y[1:]], None, "'y' must be finite"),
    "dates": (DAYS, None, "'y' holds dates: turn them"),
    "text": ([*"abcd"] * 6, "regression", "'y' must be numeric for a regression, and holds text, such as 'a' in rows"),
    "reals": (Y, "classification", "must hold whole numbers or text for a classification"),
    "task": (Y, "ranking", "`task` must be 'regression' or 'classification', got 'ranking'"),
    "prices": (
        [f"1.{i:03} €" for i in range(60)],
        None,
        "such as '1.000 €', too many for classes: remove '€' from its num",
    ),
    "names": ([f"k{i}" for i in range(60)], None, "holds 60 different texts in 60 rows, such as 'k0', too many for cl"),
    "null": (["a", "k\0l"] * 12, None, "has a class with a null character"),
}


@pytest.mark.parametrize("case", OF_TARGETS)
def test_targets_that_cannot_be_used_are_refused(case, given):
    values, task, message = OF_TARGETS[case]
    with pytest.raises(InputError, match=message):
        read(given(pd.DataFrame({"a": np.arange(len(values)), "y": values})), Reading(target="y", task=task))


@pytest.mark.parametrize("kind", ["numbers", "texts", "flags"])
def test_rows_without_a_target_are_left_out_where_gaps_may_be(tmp_path, kind):
    """All else is as of the file without them, and messages keep the rows of the file."""
    known = {"numbers": MIXED["y"], "texts": pd.Series([*["yes", "no"] * 20]), "flags": pd.Series([1, 0] * 20)}[kind]
    gone = MIXED.index.isin([3, 14, 25])
    table = MIXED.assign(y=known.astype(object).where(~gone))
    table.to_csv(tmp_path / "t.csv", index=False)
    table[~gone].assign(y=known[~gone]).to_csv(tmp_path / "f.csv", index=False)
    found, fewer = (load_table(tmp_path / name, "y", missing="impute") for name in ("t.csv", "f.csv"))
    assert "3 rows (rows 4, 15, 26) without a target: left out" in found.notes
    assert (found.task, found.class_names, len(found.data)) == (fewer.task, fewer.class_names, 37)
    np.testing.assert_array_equal(found.given, fewer.given)
    np.testing.assert_array_equal(found.data.y, fewer.data.y)


# Files


TEXT = frame_of(a=lambda i: i).to_csv(index=False)
FILES = {
    "semicolons": (TEXT.replace(",", ";"), "utf-8", "t.csv", {}),
    "semicolons and decimal commas": (TEXT.replace(",", ";").replace(".", ","), "utf-8", "t.csv", {"decimal": ","}),
    "bars": (TEXT.replace(",", "|"), "utf-8", "t.txt", {}),
    "blanks behind separators": (TEXT.replace(",", ", "), "utf-8", "t.csv", {}),
    "another separator": (TEXT.replace(",", "~"), "utf-8", "t.txt", {"sep": "~"}),
    "separators at the ends": (TEXT.replace("\n", ",\n").replace(",\n", "\n", 1), "utf-8", "t.csv", {}),
    "mark": (TEXT, "utf-8-sig", "t.csv", {}),
    "UTF-16": (TEXT.replace(",", ";"), "utf-16", "t.csv", {"encoding": "utf-16"}),
    "Windows": (TEXT.replace("a", "ä"), "cp1252", "t.csv", {"encoding": "cp1252"}),
    "lines between": (TEXT.replace("\n", "\n\n"), "utf-8", "t.csv", {}),
}


@pytest.mark.parametrize("case", FILES)
def test_separators_and_encodings(case, tmp_path):
    text, encoding, name, settings = FILES[case]
    (tmp_path / name).write_bytes(text.encode(encoding))
    found = read(tmp_path / name, Reading(target="y", **settings))
    assert found.target.values.tolist() == Y.tolist()
    assert found.columns.iloc[:, 0].tolist() == list(range(ROWS))
    assert list(found.columns) == (["ä"] if encoding == "cp1252" else ["a"])
    if "encoding" in settings:
        with pytest.raises(InputError, match="is not text of this encoding .*: name another, `encoding=.cp1252"):
            read(tmp_path / name, Reading(target="y"))


def test_excel_files_need_openpyxl(tmp_path, monkeypatch):
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(InputError, match=r"t.xlsx cannot be read as a table \(.*: mend it, or save it as CSV"):
        read(tmp_path / "t.xlsx", Reading(target="y"))
    table = pd.DataFrame({"y": Y, 7: np.arange(ROWS)})
    monkeypatch.setattr(pd, "read_excel", lambda _, header=0, nrows=None: pd.DataFrame([[*table]]) if nrows else table)
    assert list(read(tmp_path / "t.xlsx", Reading(target="y")).columns) == ["7"]


BROKEN = {
    "empty.csv": (b"", "cannot be read as a table"),
    "ragged.csv": (b"a,b\n1,2\n1,2,3,4\n", "cannot be read as a table"),
    "plain.csv.gz": (b"a,b\n1,2\n", "cannot be read as a table"),
    "cut.csv.gz": (gzip.compress(b"a,b\n" + b"1,2\n" * 1000)[:30], "cannot be read as a table"),
    "no.parquet": (b"a,b\n1,2\n", "cannot be read as a table"),
    "rows.csv": (b"a,b\n", "has no rows"),
    "twice.csv": (b"a,a,b\n1,2,3\n4,5,6\n", "has two columns with the name 'a': rename one of them"),
    "null.csv": (b"a\0b,b\n1,2\n3,4\n", "has a column with a null character, '.*': rename it"),
    "index.csv": (b",a,b\n0,1.5,2.5\n1,2.5,3.5\n", "Column 'Unnamed: 0' has no name in the file: name it"),
    "near.csv": (b"a,bb\n1,2\n", "has no column 'b'. Did you mean 'bb'"),
    "data.csv": (b"1.5,2\n3,4\n", "has no column 'b'. The columns of its first line: 1.5, 2"),
    "one.csv": (b"a~b\n1~2\n", r"first line: a~b. If they are one column, name the separator, `sep=.;"),
    "only.csv": (b"b\n1.5\n2.5\n", "has no feature columns, only the target 'b'"),
    "t.ods": (b"", "t.ods must end in .csv, .csv.gz, .tsv, .txt, .xlsx, .parquet"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_are_no_tables(name, tmp_path):
    content, message = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path / name, Reading(target="b"))
    assert "\0" not in str(caught.value)
    with pytest.raises(InputError, match="There is no file .*absent.csv"):
        read(tmp_path / "absent.csv", Reading(target="b"))


@pytest.mark.parametrize("case", ["words among prices", "units", "day or month"])
def test_the_command_line_names_the_cause_in_one_line_at_once(case, tmp_path, monkeypatch):
    columns, message = REFUSED[case]
    frame_of(**columns).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    command = ["fit", "t.csv", "--target", "y", "--set", "data.missing=raise"]
    done = CliRunner(env={"COLUMNS": "400"}).invoke(app, command)
    assert done.exit_code == 2
    assert re.search(message, done.stderr)
    assert "`" not in done.stderr  # code
    assert time.process_time() - started < 2


# Data sets


def test_a_data_set_is_learned_from_its_training_part(tmp_path):
    """The training part of the split gives means and categories."""
    MIXED.to_csv(tmp_path / "study.csv", index=False)
    found = load_table(tmp_path / "study.csv", "y", missing="impute", split=2, test=0.1)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2)).numpy()
    table = read(MIXED, Reading(target="y", missing="impute"))
    encoder = Encoder.learn(table.columns.iloc[np.sort(order[4:])], table)
    np.testing.assert_array_equal(found.given, encoder.matrix(table.columns))
    assert (found.name, found.task, found.num_splits, found.described) == ("study", "regression", 20, table.described)
    (doubt,) = found.doubts
    assert doubt.startswith("column 'age': missing in ")


@pytest.mark.parametrize("split", [0, 1])
def test_the_same_rows_are_held_out_whichever_columns_are_used(tmp_path, split):
    """The last 60 rows are copies under other names."""
    half = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)).round(3), columns=["a", "b"])
    half = half.assign(kind=[*"uvw"] * 20, y=half["a"] + 0.25)
    whole = pd.concat([half, half], ignore_index=True).assign(name=[f"n{i}" for i in range(120)])
    whole.to_csv(tmp_path / "t.csv", index=False)
    settings = [{"id": "name"}, {"drop": ["name"]}, {"drop": ["name", "a"]}, {"drop": ["name", "b", "a"]}]
    tables = [load_table(tmp_path / "t.csv", "y", split=split, test=0.3, **each) for each in settings]
    assert all("60 rows given again: in one part" in table.notes for table in tables)
    parts = [table.split(split) for table in tables]
    for train, test in parts:
        assert (len(train), len(test)) == (84, 36)
        assert torch.equal(test.y, parts[0][1].y)
        assert not set(train.y.tolist()) & set(test.y.tolist())


@pytest.mark.parametrize(
    ("num", "rare", "share"),
    [
        *((380, 23, 10.5 / 23), (380, 20, 0.2), (1_250, 400, 0.16), (4_000, 2_000, 0.1), (20_000, 50, 0.1)),
        *((24, None, 10.5 / 24), (59, None, 0.2), (60, None, 1 / 3), (80, None, 0.25), (50_000, None, 0.1)),
    ],
)
def test_small_tables_hold_out_enough_to_judge_a_fit(num, rare, share):
    y = torch.arange(num, dtype=torch.float64) if rare is None else (torch.arange(num) < rare).long()
    assert share_of(y) == pytest.approx(share)
    _, part = split_rows(torch.arange(num), y, share_of(y), seed=0)
    assert rare is None or share <= 0.2 or int((y[part] == 1).sum()) >= 10
    assert rare is not None or not 60 <= num <= 100 or len(part) == 20


# Outside of training


def test_what_lies_outside_of_training_is_counted_in_a_table(given):
    day = pd.date_range("2021-01-01", periods=ROWS).strftime("%d.%m.%Y")
    table = frame_of(price=lambda i: 1000.5 + i, kind=lambda i: "uv"[i % 2], day=day)
    _, encoder, _ = learned(given(table), missing="impute")
    days = ["03.01.2021", "05.03.2021", "04.12.2020"]
    new = pd.DataFrame({"price": [1005.5, 1100.5, None], "kind": [*"vwu"], "day": days})
    columns = encoder.read(given(new, "new.csv")).columns
    wider, (table, rows) = encoder.widened(columns).columns, encoder.outside(columns)
    assert (wider["price"].range, wider["kind"]) == ((1000.5, 1100.5), encoder.columns["kind"])
    assert rows == ["", "price, kind, day", "price, day"]
    assert table[["unknown", "missing", "beyond"]].to_numpy().tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 2]]
    assert table["such_as"].tolist() == ["1100.5", "w", "2021-03-05"]
    assert table["had"].tolist() == ["1000.5 to 1023.5", "2 categories", "2021-01-01 to 2021-01-24"]


def test_a_number_is_beyond_by_more_than_half_of_the_range_and_the_first_column_of_some_is_named(given):
    _, encoder, _ = learned(given(frame_of(a=lambda i: i % 9, b=lambda i: i % 2)))
    new = pd.DataFrame({"a": [-4, 12, -4.1, 12.1, 40, 0], "b": [0, 1, 0, 1.6, 0, None]})
    found = encoder.outside(encoder.read(given(new.fillna(0))).columns, first=1)
    assert found.rows == ["", "", "a", "a, b", "a", ""]
    assert found.warning.startswith("Column 'a' has 40 in row 5, far from the 0 to 8 of the fit, like 'b': ")
    assert encoder.outside(encoder.read(given(new[:2])).columns).warning == ""


@pytest.mark.parametrize("draw", ["uniform", "normal", "exponential"])
def test_rows_like_those_of_training_are_not_marked(draw):
    generator = np.random.default_rng(0)
    train, new = (pd.DataFrame(getattr(generator, draw)(size=(240, 6)), columns=[*"abcdey"]) for _ in range(2))
    assert learned(train)[1].outside(new).warning == ""


def test_columns_of_an_earlier_version_are_refused():
    stored = {"categories": "onehot", "missing": "raise", "columns": {}, "decimal": None}
    assert Encoder.stored(stored) == Encoder("onehot", "raise", {}, None)
    for column in ({"kind": "numbers", "start": "2020-01-01"}, {"kind": "texts"}, {"lacks": True}, ["a"]):
        with pytest.raises(InputError, match="stored by an earlier version of pyrobnn: fit it again"):
            Encoder.stored(stored | {"columns": {"a": column}})
    for wrong in ({"range": [1.0]}, {"range": ["a", "b"]}, {"lacks": "some"}, {"decimal": ";"}):
        with pytest.raises(InputError, match="columns of this run were changed"):
            Encoder.stored(stored | {"columns": {"a": {"kind": "numbers"} | wrong}})
    for wrong in ({"start": "long ago"}, {"phases": ["moon"]}):
        with pytest.raises(InputError, match="columns of this run were changed"):
            Encoder.stored(stored | {"columns": {"a": {"kind": "dates"} | wrong}})
    assert Encoder.stored(None, ["b", "a"]).transform(pd.DataFrame({"a": [1.0], "b": [2.0]})).tolist() == [[2.0, 1.0]]
