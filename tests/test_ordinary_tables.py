"""Tables as people have them: what reaches the data set, or the one line that names the cause, at once."""

import json
import re
import time

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn._core import table_files
from pyrobnn.cli import app
from pyrobnn.data.splits import split_rows
from pyrobnn.datasets import load_features, load_table
from pyrobnn.datasets.base import test_share as share_of
from pyrobnn.datasets.outside import range_of
from pyrobnn.datasets.table import load_rows
from pyrobnn.runs.predictions import _far_line
from pyrobnn.runs.spec import RunSpec

ROWS = 24
NUMBERS = [1.5 + i for i in range(ROWS)]


def table(separator=",", **columns):
    """The text of a table with a target y, 1.5, 2.5 and so on; a column is a list of cells, or made from the row."""
    cells = {name: [cell(i) for i in range(ROWS)] if callable(cell) else cell for name, cell in columns.items()}
    cells = {"y": [str(value) for value in NUMBERS]} | cells
    lines = [separator.join(cells), *(separator.join(row) for row in zip(*cells.values(), strict=True))]
    return "\n".join(lines) + "\n"


def write(folder, text, encoding="utf-8", name="t.csv"):
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


def quoted(form):
    return lambda i: f'"{form(1000.0 + i / 4)}"'


def german(value):
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


QUARTERS = [1000 + i / 4 for i in range(ROWS)]
TEXTS = {
    "thousands": (quoted(lambda v: f"{v:,.2f}"), QUARTERS, "column 'a': read as numbers, without ','"),
    "whole thousands": (lambda i: f'"1,{i:03d}"', range(1000, 1024), "column 'a': read as numbers, without ','"),
    "some below a thousand": (lambda i: '"1,234"' if i else "999", [999, *[1234] * 23], "without ','"),
    "euro before": (lambda i: f"€{3.2 + i:.2f}", np.arange(ROWS) + 3.2, "column 'a': read as numbers, without '€'"),
    "euro behind": (lambda i: f"{3.2 + i:.2f} €", np.arange(ROWS) + 3.2, "column 'a': read as numbers, without '€'"),
    "some with a currency": (lambda i: f"£{i}" if i % 2 else str(i), range(ROWS), "without '£'"),
    "dollars": (quoted(lambda v: f"${v:,.2f}"), QUARTERS, "column 'a': read as numbers, without '$' and ','"),
    "losses": (lambda i: f"(${i}.50)" if i % 2 else f"-${i}.50", [-i - 0.5 for i in range(ROWS)], "without '$'"),
    "code": (lambda i: f"USD {i}.5", np.arange(ROWS) + 0.5, "without 'USD'"),
    "per cent": (lambda i: f"{i} %", range(ROWS), "column 'a': read as numbers, without '%'"),
    "unit": (lambda i: f"{i}.5 m²", np.arange(ROWS) + 0.5, "column 'a': read as numbers, without 'm²'"),
    "decimal comma": (lambda i: f'"{i},5"', np.arange(ROWS) + 0.5, "column 'a': read as numbers with a decimal comma"),
    "three decimals": (lambda i: f'"0,{i:03d}"', np.arange(ROWS) / 1000, "numbers with a decimal comma"),
    "German": (quoted(german), QUARTERS, "column 'a': read as numbers with a decimal comma, without '.'"),
    "Swiss": (quoted(lambda v: f"{v:,.2f}".replace(",", "’")), QUARTERS, 'without "\'"'),
    "French": (quoted(lambda v: german(v).replace(".", "\u202f")), QUARTERS, "with a decimal comma, without ' '"),
    "powers": (lambda i: f"{i}e3 kg", np.arange(ROWS) * 1e3, "without 'kg'"),
    "blanks": (lambda i: f"  {i} ", range(ROWS), None),
}


@pytest.mark.parametrize("case", TEXTS)
@pytest.mark.parametrize("role", ["input", "target"])
def test_numbers_that_are_texts_are_read_with_a_line_that_says_so(case, role, tmp_path):
    cell, expected, note = TEXTS[case]
    if role == "input":
        found = load_table(write(tmp_path, table(a=cell)), "y")
        values = found.data.x[:, found.data.feature_names.index("a")]
    else:
        found = load_table(write(tmp_path, table(a=cell)), "a", task="regression")
        values = found.data.y
    assert values.tolist() == pytest.approx(list(expected), rel=1e-15, abs=0)
    assert found.notes == () if note is None else note in found.notes[0]


def test_a_target_of_amounts_makes_a_regression(tmp_path):
    assert load_table(write(tmp_path, table(a=lambda i: f"€{i % 3}")), "a").task == "regression"
    assert load_table(write(tmp_path, table(a=TEXTS["whole thousands"][0])), "a").task == "regression"
    with pytest.raises(InputError, match="24 different whole numbers, 0 to 23: say whether"):
        load_table(write(tmp_path, table(a=str)), "a")


def test_columns_beside_decimal_commas_have_points_for_thousands(tmp_path):
    text = table(";", a=lambda i: f"1.{i:03d}", b=lambda i: f"{i},25", c=lambda i: f"3,{i:03d}", d=lambda i: f"{i}.5")
    found = load_table(write(tmp_path, text), "y").data
    assert found.feature_names == ("a", "b", "c", "d")
    assert found.x[5].tolist() == [1005, 5.25, 3.005, 5.5]
    plain = load_table(write(tmp_path, text.replace(",", ".")), "y").data
    assert plain.x[5].tolist() == [1.005, 5.25, 3.005, 5.5]


# Files

FILES = {
    "semicolons": (table(";", a=str), "utf-8", "t.csv"),
    "semicolons and decimal commas": (table(";", a=str).replace(".", ","), "utf-8", "t.csv"),
    "tabs": (table("\t", a=str), "utf-8", "t.tsv"),
    "bars": (table("|", a=str), "utf-8", "t.txt"),
    "a comma in the names": (table(";", **{"a, in m": str}), "utf-8", "t.csv"),
    "a comma in all lines, and names": (table(";", **{"a, in m": str}).replace(".", ","), "utf-8", "t.csv"),
    "blanks behind separators": (table(", ", a=str), "utf-8", "t.csv"),
    "separators at the ends": (table(a=str).replace("\n", ",\n").replace(",\n", "\n", 1), "utf-8", "t.csv"),
    "mark": (table(a=str), "utf-8-sig", "t.csv"),
    "UTF-16": (table(";", a=str), "utf-16", "t.csv"),
    "lines of Windows": (table(a=str).replace("\n", "\r\n"), "utf-8", "t.CSV"),
    "lines between": (table(a=str).replace("\n", "\n\n"), "utf-8", "t.csv"),
}


@pytest.mark.parametrize("case", FILES)
def test_separators_and_encodings_are_found(case, tmp_path):
    found = load_table(write(tmp_path, *FILES[case]), "y").data
    assert found.y.tolist() == NUMBERS
    assert found.x[:, 0].tolist() == list(range(ROWS))
    assert found.feature_names == (("a, in m",) if "names" in case else ("a",))


def test_text_of_windows_is_read_and_said(tmp_path):
    text = table(städte=lambda i: ("Köln", "Łódź", "Zürich")[2 * (i % 2)])
    found = load_table(write(tmp_path, text, "cp1252"), "y")
    assert found.data.feature_names == ("städte_Köln", "städte_Zürich")
    assert "t.csv: its text is not UTF-8, and was read as Windows text (cp1252)." in found.notes[0]
    assert load_table(write(tmp_path, text), "y").notes == ()


def test_excel_files_need_openpyxl(tmp_path, monkeypatch):
    path = write(tmp_path, "", name="t.xlsx")
    monkeypatch.setattr(table_files, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="t.xlsx is an Excel file, which openpyxl reads: install it, or save"):
        load_table(path, "y")
    frame = pd.DataFrame({"y": NUMBERS, "a": pd.date_range("2020-01-01", periods=ROWS), 7: ["3,5"] * 12 + ["4,5"] * 12})
    head = pd.DataFrame([list(frame.columns)])
    monkeypatch.setattr(table_files, "find_spec", lambda name: name)
    monkeypatch.setattr(pd, "read_excel", lambda path, engine, header=0, nrows=None: frame if nrows is None else head)
    found = load_table(path, "y").data
    assert (found.feature_names[0], found.feature_names[-1]) == ("a (days)", "7")
    assert found.x[-1, -1] == 4.5
    assert found.y.tolist() == NUMBERS


def test_rare_classes_counts_and_few_rows(tmp_path):
    rare = load_table(write(tmp_path, table(a=lambda i: "yes" if i == 7 else "no")), "a")
    assert (rare.class_names, rare.data.y.tolist()) == (("no", "yes"), [int(i == 7) for i in range(ROWS)])
    counts = load_table(write(tmp_path, table(a=lambda i: str(i % 4))), "a")
    assert counts.class_names == ("0", "1", "2", "3")
    assert "if they are counts, likelihood.type=poisson" in counts.reason
    few = load_table(write(tmp_path, "\n".join(table(a=str).splitlines()[:9])), "y")
    assert few.data.x.tolist() == [[float(i)] for i in range(8)]
    same = load_table(write(tmp_path, table(a="7" * ROWS, b=str)), "y")
    assert same.data.x[:, 0].tolist() == [7.0] * ROWS
    gaps = load_table(write(tmp_path, table(a=lambda i: "" if i % 3 == 0 else str(i))), "y", missing="impute")
    assert gaps.data.x[3].tolist() == [pytest.approx(12, abs=20), 1.0]
    (line,) = gaps.doubts
    assert re.fullmatch(
        r"column 'a': missing in \d of 1\d rows to train on, drawn given the other columns: leave it .* \(--drop a\)",
        line,
    )


def test_rows_of_a_frame_with_names_of_rows_count_from_one(tmp_path):
    frame = pd.DataFrame({"a": np.arange(30.0), "d": pd.date_range("2020-01-01", periods=30), "y": np.arange(30.0)})
    frame.index = [f"k{i}" for i in range(30)]
    frame.to_parquet(tmp_path / "t.parquet")
    assert torch.equal(load_table(tmp_path / "t.parquet", "y").data.x[:, 0].sort().values, torch.arange(30.0).double())


def test_held_out_rows_beyond_the_range_of_training_are_named(tmp_path):
    where = r"well outside of the range in training, \d to 2\d, such as 1000 in row {}"
    said = f"held-out rows, column a: 1 row {where}: predictions for them go beyond the data"

    def is_named(row):
        dataset = load_table(write(tmp_path, table(a=lambda i: str(1000 if i == row else i))), "y")
        return any(re.fullmatch(said.format(row + 1), line) for line in dataset.doubts)

    held_out = [row for row in range(ROWS) if is_named(row)]
    assert len(held_out) == round(ROWS * share_of(torch.arange(ROWS, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("num", "rare", "share"),
    [
        (380, 23, 10.5 / 23),
        (380, 20, 0.2),
        (380, 100, 0.2),
        (999, 200, 0.2),
        (1_250, 400, 0.16),
        (4_000, 2_000, 0.1),
        (4_000, 84, 0.125),
        (20_000, 50, 0.1),
        (24, None, 10.5 / 24),
        (20, None, 0.2),
        (59, None, 0.2),
        (60, None, 1 / 3),
        (80, None, 0.25),
        (300, None, 0.2),
        (50_000, None, 0.1),
    ],
)
def test_small_tables_hold_out_enough_to_judge_a_fit(num, rare, share):
    y = torch.arange(num, dtype=torch.float64) if rare is None else (torch.arange(num) < rare).long()
    assert share_of(y) == pytest.approx(share)
    if rare is None and 60 <= num <= 100:
        _, part = split_rows(torch.arange(num), y, share_of(y), seed=0)
        assert len(part) == 20
    if rare is not None and share > 0.2:
        _, part = split_rows(torch.arange(num), y, share_of(y), seed=0)
        assert int((y[part] == 1).sum()) >= 10


def test_a_positive_skewed_target_is_log_normal_and_named(tmp_path):
    def prepared(make, **likelihood):
        data = {"path": str(write(tmp_path, table(a=lambda i: f"{make(i)}"))), "target": "a", "task": "regression"}
        return RunSpec.from_dict({"data": data} | likelihood).prepare()

    skewed = prepared(lambda i: 1.5 * 1.4**i)
    assert skewed.spec.likelihood == bnn.likelihoods.LogNormal()
    assert "'a' is positive and skewed (`--set likelihood.type=gaussian` takes it otherwise)" in skewed.sentence
    told = prepared(lambda i: 1.5 * 1.4**i, likelihood={"type": "gaussian"})
    assert told.spec.likelihood == bnn.likelihoods.Gaussian()
    assert "skewed" not in told.sentence
    for make in (lambda i: 0.5 + i, lambda i: -(1.5 * 1.4**i), lambda i: 1.5 * 1.4**i - 2, lambda i: 1 + i // 20):
        assert prepared(make).spec.likelihood == bnn.likelihoods.Gaussian()


def test_estimators_take_log_normal_targets_as_tables_do():
    g = np.random.default_rng(0)
    x = g.normal(size=(40, 2))
    y = 1000 * np.exp(2 * x[:, 0])
    fitted = bnn.BNNRegressor(random_state=0).fit(x, y)
    assert fitted.posterior_.bnn.settings["likelihood"].__class__ is bnn.likelihoods.LogNormal
    lower, _ = fitted.predict_interval(x, level=0.99)
    assert (lower > 0).all()
    assert fitted.score(x, y) > 0.9


def test_columns_are_dropped(tmp_path):
    path = write(tmp_path, table(a=lambda i: f"name{i}", b=str, c=lambda i: "" if i else "1"))
    assert load_table(path, "y", drop=["a", "c"]).data.feature_names == ("b",)
    with pytest.raises(InputError, match="has no column 'd'"):
        load_table(path, "y", drop=["d"])


# Dates

DAYS = pd.date_range("2020-02-27", periods=ROWS, freq="37D")
FORMATS = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%y", "%Y/%m/%d", "%d %b %Y", "%B %d, %Y", "%Y-%m-%dT%H:%M:%SZ"]


def test_a_column_named_as_one_of_a_date_is_refused(tmp_path):
    path = tmp_path / "table.csv"
    days = pd.date_range("2026-01-01", periods=40).strftime("%Y-%m-%d")
    pd.DataFrame({"when": days, "when (days)": range(40), "y": np.arange(40) / 3}).to_csv(path, index=False)
    with pytest.raises(InputError, match=r"has a column 'when \(days\)', and its dates make one of this name: rename"):
        load_table(path, target="y")


@pytest.mark.parametrize("form", FORMATS)
def test_dates_become_days_and_phases(form, tmp_path):
    found = load_table(write(tmp_path, table("\t", a=list(DAYS.strftime(form)))), "y")
    x = found.data.x.numpy()
    start = pd.Timestamp(found.encoder["read"]["a"]["start"])
    assert x[:, 0].tolist() == [(day - start).days for day in DAYS]
    parts = {
        "a (sin of year)": np.sin(2 * np.pi * (DAYS.day_of_year - 1) / 365.25),
        "a (cos of year)": np.cos(2 * np.pi * (DAYS.day_of_year - 1) / 365.25),
        "a (sin of week)": np.sin(2 * np.pi * DAYS.day_of_week / 7),
        "a (cos of week)": np.cos(2 * np.pi * DAYS.day_of_week / 7),
    }
    assert found.data.feature_names == ("a (days)", *parts)
    for column, expected in enumerate(parts.values(), 1):
        np.testing.assert_allclose(x[:, column], expected, atol=1e-12)
    line = "column 'a': read as days since 2020-02-27, and sine and cosine of the day of the year and the weekday"
    assert found.notes == (line,) or start != DAYS[0]


def test_the_first_date_of_training_counts_days_again_for_new_rows(tmp_path):
    path = write(tmp_path, table(a=list(DAYS.strftime("%d/%m/%Y"))))
    stored = json.loads(json.dumps(load_table(path, "y").encoder, allow_nan=False))
    days = (pd.Timestamp("2021-03-02") - pd.Timestamp(stored["read"]["a"]["start"])).days
    for same in ("02/03/2021", "2021-03-02"):  # as in training, not the third of February
        new = load_features(write(tmp_path, f"a\n{same}\n", name="new.csv"), (), encoder=stored)
        assert new[0, 0] == days
    with pytest.raises(InputError, match="Column 'a' held dates in training, and now 7: write it alike"):
        load_features(write(tmp_path, "a\n7\n", name="new.csv"), (), encoder=stored)
    with pytest.raises(InputError, match="Column 'a' holds dates, but other text in row 1, such as 'May'"):
        load_features(write(tmp_path, "a\nMay\n", name="new.csv"), (), encoder=stored)


def test_short_spans_and_times(tmp_path):
    hours = pd.date_range("2021-05-03 00:30", periods=ROWS, freq="5h")
    found = load_table(write(tmp_path, table(a=list(hours.strftime("%Y-%m-%d %H:%M")))), "y").data
    assert found.feature_names == ("a (days)", "a (sin of hour)", "a (cos of hour)")
    np.testing.assert_allclose(found.x[:, 1], np.sin(2 * np.pi * (hours.hour + 0.5) / 24), atol=1e-12)
    frame = pd.DataFrame({"y": NUMBERS, "a": hours.tz_localize("Europe/Oslo"), "b": hours.date})
    frame.to_parquet(tmp_path / "t.parquet")
    typed = load_table(tmp_path / "t.parquet", "y").data
    assert typed.feature_names == (*found.feature_names, "b (days)")
    assert typed.x[1, 0] - typed.x[0, 0] == pytest.approx(5 / 24)
    gaps = load_table(
        write(tmp_path, table(a=lambda i: "" if i == 3 else f"2021-05-{i + 1:02d}")), "y", missing="impute"
    )
    assert np.argwhere(np.isnan(gaps.given)).tolist() == [[3, 0], [3, 1], [3, 2]]
    assert gaps.data.feature_names[1:3] == ("a (sin of week)", "a (cos of week)")
    days = table(a=lambda i: f"2021-05-{i % 7 + 1:02d}")
    assert load_table(write(tmp_path, days), "y").data.feature_names == ("a (days)",)


# One line, at once

MANY = "a,y\n" + "".join(f"{i},k{i}\n" for i in range(290))
REFUSED = {
    "text as a target": (MANY, "y", "'y' holds 290 different texts in 290 rows, such as 'k0', too many for classes"),
    "words among prices": (
        table(a=lambda i: f"€{i}" if i else "free"),
        "y",
        "numbers, but text in row 1, such as 'free'",
    ),
    "two currencies": (
        table(a=lambda i: f"{'€$'[i % 2]}{i}"),
        "y",
        "'a' holds numbers with '€' and '$'; expected '€' or '$', in the whole column: write all",
    ),
    "per cent in part": (
        table(a=lambda i: f"{i}%" if i else "0.5"),
        "y",
        "'%', not in all rows; expected '%', in the whole column: write all of them in",
    ),
    "dates as a target": (table(a=list(DAYS.strftime("%d.%m.%Y"))), "a", "Target column 'a' holds dates: turn them"),
    "words among dates": (table(a=lambda i: "2020-01-31" if i else "soon"), "y", "dates, but other text in row 1"),
    "day or month": (
        table(a=lambda i: f"{i % 12 + 1}/2/2020"),
        "y",
        "'1/2/2020', which can be 2020-02-01 or 2020-01-02: expected a day above 12",
    ),
    "no names, and a cell as the target": (
        "1.5,2.5,a\n" * 9,
        "2.5",
        "has '2.5' as the name of a column, and its first row looks like data, not names (1.5, 2.5, a): add a line of",
    ),
    "no names": ("1.5,2.5\n" * 9, "y", "has no column 'y', and its first row looks like data, not names (1.5, 2.5)"),
    "a name twice": ("a,a,y\n" + "1,2,3\n" * 9, "y", "has two columns with the name 'a': rename one of them"),
    "more values than names": (
        "a,y\n" + "1,2,3\n" * 9,
        "y",
        "has more values in its rows than names in its first line",
    ),
    "a row of more values": (
        "a,b,y\n1,2,3\n1,2,3,4\n1,2,3\n",
        "y",
        "line 3 has 4 values, and the lines above it have 3. Put a text that holds ',' between quotation marks",
    ),
    "an open quotation": (
        'a,y\n1,2\n"3,4\n5,6\n',
        "y",
        "a quotation mark in row 2 below the names has no other: close",
    ),
    "empty": ("", "y", "cannot be read as a table (it is empty)"),
    "names alone": ("a,y\n", "y", "has no rows: pass a table with at least one row"),
    "gaps": (
        table(a=lambda i: "" if i == 3 else str(i)),
        "y",
        "'a' has 1 missing value, in row 4: drop those rows, or",
    ),
    "no target": (table(a=str), "z", "has no column 'z'. Its columns: y, a"),
    "constant target": (table(a=lambda i: "3"), "a", "'a' has only one class, '3'"),
    "names of rows": (
        table(a=lambda i: f"name{max(i, 1)}"),
        "y",
        "no categories: turn it into numbers, drop it (--drop a), or",
    ),
    "a unit without a space": (
        table(a=lambda i: f"{i}kg"),
        "y",
        "(such as 12.5, 1,234.50, €3.20, 12 % or 80 kg), drop",
    ),
    "words in few numbers": (
        table(a=lambda i: ["k.A.", "?", "unbekannt", "", "1"][i] if i < 5 else str(i % 2)),
        "y",
        "'a' holds numbers, but text in rows 1, 2, 3, such as 'k.A.' and '?' and 'unbekannt' (1 more is empty): turn "
        "it into numbers, or let it count as missing, as empty cells do (--set data.missing=impute)",
    ),
    "more words than numbers": (
        "a,y\n" + "".join(f"{i}.25,{i}.5\nk.A.,1.5\n?,2.5\n" for i in range(25)),
        "y",
        "'a' holds numbers, but text in rows 2, 3, 5, 6, 8 and 45 more, such as 'k.A.' and '?': turn",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_command_line_names_the_cause_in_one_line_at_once(case, tmp_path, monkeypatch):
    text, target, message = REFUSED[case]
    write(tmp_path, text)
    monkeypatch.chdir(tmp_path)
    started = time.process_time()
    told = ["--target", target, "--set", "data.missing=raise"]  # as load_table and spec files do
    done = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["fit", "t.csv", *told])
    assert done.exit_code == 2
    assert message in done.stderr
    assert all(line.startswith(f"  pyrobnn fit t.csv --target {target} --") for line in done.stderr.splitlines()[1:])
    assert time.process_time() - started < 2
    with pytest.raises(InputError):
        load_table(tmp_path / "t.csv", target)


def test_changes_and_options_are_checked_before_the_table_is_read(tmp_path, monkeypatch):
    write(tmp_path, table(a=lambda i: f"name{i}"))
    monkeypatch.chdir(tmp_path)
    for options, message in {
        ("--set", "data.mising=impute"): "[data] unknown setting `mising`",
        ("--set", "fit.stepz=3"): "[fit] unknown setting `stepz`",
        ("--categories", "many"): "must be 'onehot' or 'ordinal', got 'many'",
        ("--drop", "b"): "t.csv has no column 'b'",
    }.items():
        done = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["fit", "t.csv", "--target", "y", *options])
        assert (done.exit_code, message in done.stderr) == (2, True), done.output
    write(tmp_path, "1.5,2.5\n" * 9)
    done = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["fit", "t.csv"])
    assert "with --target, if the first row has names at all, and not data" in done.stderr


# Prediction


def test_new_rows_are_read_as_in_training_and_what_lies_outside_is_said(tmp_path):
    day = list(pd.date_range("2021-01-01", periods=ROWS).strftime("%d.%m.%Y"))
    text = table(";", price=lambda i: f"€{1000 + i},5", share=lambda i: f"{i}%", kind=lambda i: "uv"[i % 2], day=day)
    encoder = load_table(write(tmp_path, text), "y").encoder
    stored = json.loads(json.dumps(encoder, allow_nan=False))
    low, high = stored["read"]["price"]["range"]
    new = "price;share;kind;day\n€1.005,5;5%;v;03.01.2021\n1100,5;6%;w;05.03.2021\n-€7;4%;u;04.12.2020\n"
    rows = load_rows(write(tmp_path, new, name="new.csv"), (), stored)
    assert rows.x[:, 0].tolist() == [1005.5, 1100.5, -7]
    assert rows.x[:, 1].tolist() == [5, 6, 4]
    assert rows.outside == ["", "price, kind, day", "price, day"]
    assert rows.notes[:2] == (
        f"price: 2 rows well outside of the range in training, {low:g} to {high:g}, such as 1100.5 in row 2",
        "kind: 1 row of a category unknown in training, such as 'w'",
    )
    first = stored["read"]["day"]["start"][:10]
    assert rows.notes[2].startswith(f"day: 2 rows well outside of the range in training, {first} to 2021-01-2")
    assert rows.notes[2].endswith(", such as 2021-03-05 in row 2")
    for cell, message in {
        "5": "'share' held numbers with '%' in training, and now 5: write it alike",
        "5 kg": "'share' holds numbers with 'kg'; expected '%', as in training: write all of them in one unit",
    }.items():
        with pytest.raises(InputError) as caught:
            load_rows(write(tmp_path, f"price;share;kind;day\n1;{cell};v;03.01.2021\n", name="new.csv"), (), stored)
        assert message in str(caught.value)


def test_a_value_is_outside_if_it_is_beyond_the_range_by_more_than_the_outermost_values_spread(tmp_path):
    """The range itself says little: half of it beyond its end a smooth function has turned, and tails differ."""
    encoder = load_table(write(tmp_path, table(a=lambda i: str(i**2), b=lambda i: str(i % 2 * 10))), "y").encoder
    train = load_table(tmp_path / "t.csv", "y")
    rows = sorted(split_rows(train.groups, train.data.y, train.test, seed=0)[0].tolist())
    assert len(rows) == 14  # the outermost 4, the root of 14 rounded up, tell the spread
    first, fourth, last_but_three, last = (rows[place] ** 2 for place in (0, 3, -4, -1))
    ends = (2 * first - fourth, 2 * last - last_but_three)
    cells = [f"{end},0" for end in ends] + [f"{ends[0] - 0.1},0", f"{ends[1] + 0.1},0", f"{last},10.1", f"{last},-0.1"]
    new = write(tmp_path, "\n".join(["a,b", *cells]), name="new.csv")
    assert load_rows(new, (), encoder).outside == ["a (just)", "a (just)", "a", "a", "b", "b"]
    inside = write(tmp_path, f"a,b\n{first},0\n{last},10\n", name="inside.csv")
    assert load_rows(inside, (), encoder).outside == ["", ""]
    of_a, of_b, just = load_rows(new, (), encoder).notes
    where = f"outside of the range in training, {first:g} to {last:g}"
    assert of_a == f"a: 2 rows well {where}, such as {ends[0] - 0.1:g} in row 3"
    assert of_b == "b: 2 rows well outside of the range in training, 0 to 10, such as 10.1 in row 5"
    spread = "just outside of the range in training, by less than the outermost values spread"
    furthest = f"{ends[0]:g} in row 1 ({first:g} to {last:g} in training)"
    assert just == f"2 rows {spread}: a (2); the furthest is a, {furthest}"
    assert load_rows(new, ("a", "b"), None).outside is None


def test_rows_just_outside_in_several_columns_are_told_in_one_line(tmp_path):
    """Each row counts once; the furthest is that by most of the spread of its column, not by most units."""
    names = "abcdefg"
    made = {name: (lambda i, scale=10**place: str(i * scale)) for place, name in enumerate(names)}
    encoder = load_table(write(tmp_path, table(**made)), "y").encoder
    ends = {name: encoder["read"][name]["range"] for name in names}
    margins = {name: encoder["read"][name]["margins"] for name in names}

    def beyond(name, share):
        return ends[name][1] + share * margins[name][1] if share > 0 else ends[name][0] + share * margins[name][0]

    rows = [{"a": 0.2, "b": 0.9, "c": 0.8}, {"a": -0.95, "c": 0.1}, {name: 0.3 for name in names}, {}]
    cells = [[beyond(name, row[name]) if name in row else ends[name][0] for name in names] for row in rows]
    new = tmp_path / "new.csv"
    pd.DataFrame(cells, columns=[*names]).to_csv(new, index=False)
    (said,) = load_rows(new, (), encoder).notes
    low, high = ends["a"]
    assert said == (
        "3 rows just outside of the range in training, by less than the outermost values spread: a (3), c (3), b (2), "
        f"d (1), e (1), 2 other columns; the furthest is a, {beyond('a', -0.95):g} in row 2 ({low:g} to {high:g} in "
        "training)"
    )


def test_means_far_from_every_target_are_counted():
    """Ten ranges of the targets above or below them; old runs do not know the range."""
    frame = pd.DataFrame({"mean": [5.0, 110.0, 110.2, -100.2, 2.8e13]})
    assert _far_line(frame, [0.0, 10.0]) == (
        "mean: 3 rows beyond the targets in training, 0 to 10, by more than 10 times their range, such as 110 in "
        "row 3: do not use these"
    )
    assert _far_line(frame[:2], [0.0, 10.0]) == _far_line(frame, None) == ""


def test_rows_like_those_of_training_are_seldom_marked(tmp_path):
    generator = np.random.default_rng(0)
    for draw, most in ((generator.uniform, 0.005), (generator.normal, 0.015), (generator.lognormal, 0.02)):
        names = [*"abcdey"]
        for name in ("t.csv", "new.csv"):
            pd.DataFrame(draw(size=(240, 6)), columns=names).to_csv(tmp_path / name, index=False)
        rows = load_rows(tmp_path / "new.csv", (), load_table(tmp_path / "t.csv", "y").encoder)
        marks = [[mark for mark in said.split(", ") if mark] for said in rows.outside]
        assert np.mean([any("(just)" not in mark for mark in row) for row in marks]) <= most
        share = np.mean([sum("(just)" in mark for mark in row) for row in marks])
        assert abs(share - 6 * 2 / 193) < 0.035  # a new value is the largest or the smallest of 193


def test_how_often_values_of_an_exponential_tail_are_marked():
    """2 / ((k + 1) (N + 1)), k = sqrt(N) rounded up, here 0.0133; 10,000 samples, within 4 standard errors."""
    samples = np.sort(np.random.default_rng(0).exponential(size=(10_000, 24)))
    ends = [range_of(sample) for sample in samples]
    shares = np.exp([-end["range"][1] - end["margins"][1] for end in ends])
    error = shares.std() / 100
    assert abs(shares.mean() - 2 / (6 * 25)) < 4 * error
    assert error < 3e-4


def test_many_columns_together_are_marked_as_seldom_as_ten():
    """In all just outside 10 / (N + 1), and well outside 10 * 2 / ((k + 1) (N + 1)); within 4 standard errors."""
    samples = np.sort(np.random.default_rng(1).exponential(size=(10_000, 24)))
    for num in (4, 40):
        ends = [range_of(sample, num) for sample in samples]
        for key, expected in {"tolerances": 1 / 25, "margins": 2 / (6 * 25)}.items():
            shares = num * np.exp([-end["range"][1] - end[key][1] for end in ends])
            assert abs(shares.mean() - min(num, 10) * expected) < 4 * shares.std() / 100
    assert range_of(samples[0], 1) == range_of(samples[0], 10)


def test_only_the_columns_furthest_outside_are_named(tmp_path):
    """Three of each kind; those of numbers by the distance and not by the rows, with the others counted."""
    names = [*"abcde"]
    made = {name: str for name in names} | {f"k{name}": lambda i: "uv"[i % 2] for name in names}
    rows = {name: [value, 2.5] for name, value in zip(names, (1e3, 200, 1e5, 200, 1e4), strict=True)}
    rows |= {"b": [200, 200]} | {f"k{name}": ["w", "u"] for name in names}
    encoder = load_table(write(tmp_path, table(**made)), "y").encoder
    pd.DataFrame(rows).to_csv(tmp_path / "new.csv", index=False)
    told = load_rows(tmp_path / "new.csv", (), encoder)
    assert [note.partition(":")[0] for note in told.notes[:6]] == ["a", "c", "e", "ka", "kb", "kc"]
    assert told.notes[6:] == ("4 more columns have rows outside: see the column `outside`",)
    assert told.outside[1] == "b"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_from_a_table_to_predictions_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = table(";", price=lambda i: f"€{1000 + i},5", kind=lambda i: "uv"[i % 2], name=lambda i: f"n{i}")
    write(tmp_path, text, "cp1252", "my.csv")
    quick = [word for one in ("fit.type=svi", "fit.steps=3", "predict.num_draws=5") for word in ("--set", one)]
    options = ["--drop", "name", "--categories", "ordinal", *quick]
    done = CliRunner().invoke(app, ["fit", "my.csv", "--target", "price", *options])
    assert done.exit_code == 0, done.output
    assert "column 'price': read as numbers with a decimal comma, without '€'\n" in done.output
    assert "\nA regression: " in done.output
    write(tmp_path, "kind;y\nv;2,5\nw;100\n", name="new.csv")
    done = CliRunner().invoke(app, ["predict", "runs/my", "new.csv", "--out", "p.csv"])
    assert done.stdout == "Predictions of 2 rows: p.csv\n"
    assert "y: 1 row well outside of the range in training, " in done.stderr
    predictions = pd.read_csv("p.csv")
    assert predictions["row"].tolist() == [1, 2]
    assert predictions["outside"].fillna("").tolist() == ["", "y, kind"]
    assert predictions["mean"].between(500, 1500).all()


def test_what_is_held_out_of_a_small_table_is_said(tmp_path):
    def sentence(num, **data):
        lines = "".join(f"{i},{'yes' if i < num // 2 - 8 else 'no'}\n" for i in range(num))
        path = str(write(tmp_path, f"a,y\n{lines}"))
        return RunSpec.from_dict({"data": {"path": path, "target": "y"} | data}).prepare().sentence

    said = "26 to test on (33%, to have ten of each class; `--set data.test=0.2` holds out fewer): "
    assert said in sentence(80)
    assert "16 to test on: " in sentence(80, test=0.2)
    assert "40 to test on: " in sentence(200)
