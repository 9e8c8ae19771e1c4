"""Tables of the user's own that name or hold what cannot be used."""

import dataclasses
import datetime
import decimal
import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from pyrobnn import InputError
from pyrobnn.datasets import load_features, load_table
from pyrobnn.datasets.table import encoder_of, load_rows
from pyrobnn.tables.encoder import Encoder, as_table


@pytest.mark.parametrize(
    ("value", "kind"),
    [(b"\xff", "bytes"), ([1], "ndarray"), (decimal.Decimal(1), "Decimal"), (datetime.time(1), "time")],
    ids=["bytes", "list", "decimal", "time"],
)
def test_targets_that_are_neither_text_nor_numbers_are_refused(value, kind, tmp_path):
    pd.DataFrame({"a": [0.0, 1.0], "y": [value, value]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=f"holds neither text nor numbers but .* of the kind {kind}: turn it into"):
        load_table(tmp_path / "t.parquet", "y")


@pytest.mark.parametrize("text", ["a\0b,y\n1,2\n3,4\n", "a,y\n1,k\0l\n2,m\n"], ids=["column", "class"])
def test_names_with_a_null_character_are_refused(text, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=r"has a (column|class) with a null character, '.*': rename it") as caught:
        load_table(tmp_path / "t.csv", "y")
    assert "\0" not in str(caught.value)


@pytest.mark.parametrize("text", ["a,a,y\n1,2,3\n4,5,6\n", "a,y,y\n1,2,3\n4,5,6\n"])
def test_two_columns_of_a_text_file_with_one_name_are_refused(text, tmp_path):
    """pandas would call the second a.1."""
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=r"has two columns with the name '[ay]': rename one of them"):
        load_table(tmp_path / "t.csv", "y")


# Categories and missing values

ROWS = 40
MIXED = pd.DataFrame(
    {
        "id": [f"p{i}" for i in range(ROWS)],
        "size": np.arange(ROWS) / 7,
        "age": [None if i % 11 == 3 else float(i) for i in range(ROWS)],
        "city": [None if i == 5 else ("Rome", "Oslo", "Bern")[i % 3] for i in range(ROWS)],
        "code": [i % 2 for i in range(ROWS)],
        "y": np.arange(ROWS) ** 1.5,
    }
)


def write(path, frame):
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


def by_scikit_learn(table, categories):
    """Return scikit-learn's encoder of a table with gaps."""
    numbers = list(table.select_dtypes("number"))
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    onehot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = [
        ("numbers", SimpleImputer(add_indicator=True, keep_empty_features=True), numbers),
        ("texts", onehot if categories == "onehot" else OrdinalEncoder(**unknown), [*table.columns.drop(numbers)]),
    ]
    return ColumnTransformer(steps, verbose_feature_names_out="{feature_name}").fit(table)


def encoded(encoder, table):
    """Return what scikit-learn's encoder makes of a table, with NaN in place of means."""
    x, numbers = encoder.transform(table).astype(float), table[encoder.transformers_[0][2]]
    x[:, : numbers.shape[1]] = np.where(numbers.isna(), np.nan, x[:, : numbers.shape[1]])
    return x


@pytest.mark.parametrize("categories", ["onehot", "ordinal"])
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_table_is_encoded_by_its_training_part(categories, ending, tmp_path):
    """The training part of the split gives means and categories; the stored encoder gives the same numbers again."""
    mixed = MIXED.assign(age=MIXED["age"].mask(MIXED.index % 2 == 0))  # too few rows are complete
    path = write(tmp_path / f"t{ending}", mixed)
    found = load_table(path, "y", id="id", categories=categories, missing="impute", split=2, test=0.1)
    inputs, _ = as_table(mixed.drop(columns=["id", "y"]))
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(2)).numpy()
    encoder = by_scikit_learn(inputs.iloc[order[ROWS // 10 :]], categories)
    expected = encoded(encoder, inputs)
    np.testing.assert_allclose(found.given, expected, rtol=1e-15)
    np.testing.assert_allclose(found.data.x.numpy()[~np.isnan(expected)], expected[~np.isnan(expected)], rtol=1e-15)
    assert found.data.feature_names == tuple(encoder.get_feature_names_out())
    stored = json.loads(json.dumps(found.encoder, allow_nan=False))
    again = load_features(path, (), encoder=stored)
    np.testing.assert_array_equal(again, found.given)


@pytest.mark.parametrize("categories", ["onehot", "ordinal"])
def test_inputs_know_the_column_that_they_come_from(categories, tmp_path):
    """Another value in a column of the file changes the inputs that are said to be made from it, and no others."""
    num = 40
    days = pd.date_range("2020-01-01", periods=num, freq="37D").strftime("%Y-%m-%d")
    size = [None if row == 7 else float(row) for row in range(num)]
    frame = pd.DataFrame({"kind": ["a", "b", "c", "d"] * 10, "size": size, "day": days, "day (": range(num)})
    frame["y"] = np.linspace(0, 1, num)
    found = load_table(write(tmp_path / "t.csv", frame), "y", categories=categories, missing="impute")
    columns = encoder_of(found.encoder).positions()
    assert sorted(position for each in columns.values() for position in each) == list(range(found.data.x.shape[1]))
    other = frame.assign(kind=[*"bcda"] * 10, size=size[::-1], day=days[::-1])
    for name in ("kind", "size", "day"):
        changed = write(tmp_path / f"{name}.csv", frame.assign(**{name: other[name]}))
        new = load_features(changed, found.data.feature_names, encoder=found.encoder)
        differs = ~torch.isclose(new, torch.from_numpy(found.given), rtol=0, atol=0, equal_nan=True)
        assert differs.any(0).nonzero().flatten().tolist() == columns[name]


def test_what_training_has_not_seen_is_encoded_as_the_encoder_would(tmp_path):
    table, _ = as_table(pd.DataFrame({"a": [1.0, None, 4.0], "b": [None, None, None], "c": ["u", "v", "u"]}))
    new, _ = as_table(pd.DataFrame({"a": [None, 2.0], "b": [None, None], "c": ["w", None]}))
    for categories in ("onehot", "ordinal"):
        expected = by_scikit_learn(table, categories)
        learned = Encoder.learn(table, categories, "impute")
        stored = json.loads(json.dumps(dataclasses.asdict(learned), allow_nan=False))
        rows = new.astype({"b": table["b"].dtype})
        np.testing.assert_array_equal(Encoder(**stored).matrix(rows), encoded(expected, rows))
        assert [*learned.get_feature_names_out()] == [*expected.get_feature_names_out()]


def test_all_faults_come_at_once_with_their_rows(tmp_path):
    names = [f"n{i}" for i in range(ROWS)]
    frame = MIXED.assign(
        day=[*["31.12.2020"] * (ROWS - 1), "May"], name=names, y=MIXED["y"].where(MIXED.index != 3), far=np.inf
    )
    with pytest.raises(InputError) as caught:
        load_table(write(tmp_path / "t.csv", frame), "y", id="id")
    head, *listed = str(caught.value).splitlines()
    assert head.endswith("t.csv cannot be used, for 6 reasons (row 1 is below the names):")
    for line, words in zip(
        listed,
        [
            "1. Target column 'y' has 1 missing value, in row 4: drop",
            "2. Column 'age' has 4 missing values, in rows 4, 15, 26, 37: drop",
            "3. Column 'city' has 1 missing value, in row 6: drop",
            "4. Column 'day' holds dates, but other text in row 40, such as 'May': turn",
            "5. Column 'name' holds 40 different texts in 40 rows, such as 'n0', which are no categories",
            "6. Column 'far' must be finite, and is not in rows 1, 2, 3, 4, 5 and 35 more",
        ],
        strict=True,
    ):
        assert words in line


def test_text_in_a_column_of_numbers_is_refused_for_prediction(tmp_path):
    encoder = load_table(write(tmp_path / "t.csv", MIXED), "y", id="id", missing="impute").encoder
    stored = {"raise": encoder | {"missing": "raise"}, "impute": encoder}
    for missing, text in (("raise", "big"), ("impute", "12o")):
        bad = write(tmp_path / "new.csv", MIXED.assign(size=[text, *MIXED["size"][1:]]))
        with pytest.raises(InputError, match=f"Column 'size' holds numbers, but text in row 1, such as '{text}'"):
            load_features(bad, (), encoder=stored[missing])


def test_words_among_numbers_and_dates_count_as_missing_where_missing_values_may_be(tmp_path):
    words = {3: "k.A.", 5: "k.A.", 7: "unknown"}
    days = pd.date_range("2020-01-01", periods=ROWS).strftime("%Y-%m-%d")
    frame = pd.DataFrame({"a": [words.get(i, f"{i}.5") for i in range(ROWS)], "y": np.arange(ROWS) + 0.5})
    frame["day"] = ["open" if i == 9 else day for i, day in enumerate(days)]
    path = write(tmp_path / "t.csv", frame)
    found = load_table(path, "y", missing="impute")
    assert found.notes[:2] == (
        "column 'a': 'k.A.' and 'unknown' in rows 4, 6, 8 counted as missing",
        "column 'day': 'open' in row 10 counted as missing",
    )
    empty = write(tmp_path / "empty.csv", frame.replace(["k.A.", "unknown", "open"], None))
    np.testing.assert_array_equal(found.data.x, load_table(empty, "y", missing="impute").data.x)

    encoder = json.loads(json.dumps(found.encoder, allow_nan=False))
    np.testing.assert_array_equal(load_features(path, (), encoder=encoder), found.given)
    new = frame.assign(a=["?", *frame["a"][1:]], day=["none yet", *frame["day"][1:]])
    rows = load_rows(write(tmp_path / "new.csv", new), (), encoder)
    assert rows.notes[:2] == (
        "column 'a': 'k.A.' and '?' and 'unknown' in rows 1, 4, 6, 8 counted as missing",
        "column 'day': 'none yet' and 'open' in rows 1, 10 counted as missing",
    )
    np.testing.assert_array_equal(rows.x[1:], found.given[1:])
    assert rows.x[0].isnan().sum() == np.isnan(found.given[9]).sum() + 1
    words_alone = write(tmp_path / "words.csv", frame.assign(a="warm"))
    with pytest.raises(
        InputError, match="'a' holds numbers, but text in rows 1, 2, 3, 4, 5 and 35 more, such as 'warm'"
    ):
        load_rows(words_alone, (), encoder)
    assert load_rows(write(tmp_path / "known.csv", frame.assign(a="k.A.")), (), encoder).x[:, 0].isnan().all()


@pytest.fixture
def copied(tmp_path):
    """A table of 120 rows, the last 60 of which are copies under other names."""
    generator = np.random.default_rng(0)
    half = pd.DataFrame(generator.normal(size=(60, 2)).round(3), columns=["a", "b"])
    half["kind"] = generator.choice(["u", "v", "w"], 60)
    half["y"] = half["a"] + 0.25
    whole = pd.concat([half, half], ignore_index=True).assign(name=[f"n{i}" for i in range(120)])
    return write(tmp_path / "copied.csv", whole)


@pytest.mark.parametrize("split", [0, 1])
def test_the_same_rows_are_held_out_whichever_columns_are_used(copied, split):
    settings = [{"id": "name"}, {"drop": ["name"]}, {"drop": ["name", "a"]}, {"drop": ["name", "b", "a"]}]
    found = [load_table(copied, "y", split=split, test=0.3, **setting) for setting in settings]
    parts = [dataset.split(split) for dataset in found]
    for train, test in parts:
        assert (len(train), len(test)) == (84, 36)
        assert torch.equal(test.y, parts[0][1].y)
        assert torch.equal(train.y, parts[0][0].y)
        assert not set(train.y.tolist()) & set(test.y.tolist())


# Rows without a target


@pytest.mark.parametrize("kind", ["numbers", "texts", "flags"])
def test_rows_without_a_target_are_left_out_where_gaps_may_be(tmp_path, kind):
    """All else is as of the file without them, and messages keep the rows of the file."""
    known = {
        "numbers": MIXED["y"],
        "texts": pd.Series(["yes", "no"] * (ROWS // 2)),
        "flags": pd.Series([1, 0] * (ROWS // 2)),
    }[kind]
    gone = MIXED.index.isin([3, 14, 25])
    far = pd.Series(np.arange(ROWS) % 7 / 3).where(MIXED.index != 30, 1e9)
    frame = MIXED.assign(far=far, number=np.arange(1, ROWS + 1), y=known.astype(object).where(~gone))
    found = load_table(write(tmp_path / "t.csv", frame), "y", id="id", missing="impute")
    fewer = load_table(write(tmp_path / "f.csv", frame[~gone].assign(y=known[~gone])), "y", id="id", missing="impute")
    assert "3 rows (rows 4, 15, 26) without a target: left out" in found.notes
    assert (found.task, found.class_names, len(found.data)) == (fewer.task, fewer.class_names, ROWS - 3)
    np.testing.assert_array_equal(found.data.x, fewer.data.x)
    np.testing.assert_array_equal(found.data.y, fewer.data.y)
    for given, expected in zip(found.split(0), fewer.split(0), strict=True):
        np.testing.assert_array_equal(given.x, expected.x)
