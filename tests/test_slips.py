"""A value far beyond all others is named before the fit, and long tails, counts and categories have none."""

import re

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pyrobnn.cli import app
from pyrobnn.data.slips import slip_in
from pyrobnn.datasets import load_table

TAILS = {
    "log-normal": lambda rng, num: rng.lognormal(0, 2, num),
    "student t": lambda rng, num: rng.standard_t(2, num),
    "exponential": lambda rng, num: rng.exponential(size=num),
    "rare one": lambda rng, num: 1.0 * (np.arange(num) == rng.integers(num)),
    "counts": lambda rng, num: 1.0 * rng.poisson(0.02, num),
}


@pytest.mark.parametrize("kind", TAILS)
def test_long_tails_counts_and_rare_categories_have_no_slips(kind):
    rng = np.random.default_rng(0)
    samples = (TAILS[kind](rng, num) for num in range(50, 2051, 10))
    assert [slip for sample in samples if (slip := slip_in("a", sample)) is not None] == []


@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_is_named_from_a_thousand_ranges_of_the_others_on(sign):
    values = sign * np.linspace(0.0, 2.0, 20) + 0.0  # not -0
    values[3] = np.nan
    values[7] = sign * 2001.0
    assert slip_in("a", values) is None
    values[7] = sign * 2003.0
    slip = slip_in("a", values)
    low, high = sorted((0.0, sign * 2.0))
    said = f"Column 'a': row 8 is {sign * 2003}, the others are {low:g} to {high:g}: is it a slip?"
    assert slip is not None
    assert slip.text == said
    assert slip_in("a", values[:9]) is None  # too few
    twice = slip_in("a", np.append(values, sign * 2003.0))
    assert twice is not None
    assert f"rows 8 and 21 are {sign * 2003}, the others are " in twice.text
    assert "leave rows 8 and 21 out of the file, or mend their 'a'" in twice.answer
    assert slip_in("a", np.append(values, [sign * 2003.0] * 2)) is None  # a code


def frame_with(column, row, value):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"load": rng.uniform(-2, 2, 60), "kind": ["u", "v"] * 30, "y": rng.normal(size=60)})
    frame.loc[row - 1, column] = value
    return frame


@pytest.mark.parametrize("column", ["load", "y"])
def test_a_table_names_its_row_and_value(tmp_path, column):
    frame_with(column, 21, 1e9).to_csv(tmp_path / "t.csv", index=False)
    (line,) = (line for line in load_table(tmp_path / "t.csv", "y").doubts if "slip" in line)
    said = rf"Column '{column}': row 21 is 1e\+09, the others are -[\d.]+ to [\d.]+: is it a slip\? "
    assert re.fullmatch(said + rf"If so, leave row 21 out of the file, or mend its '{column}'\.", line)


@pytest.mark.slow
def test_the_next_step_is_to_look_at_the_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame_with("load", 21, 1e9).to_csv("my.csv", index=False)
    quick = [f"--set={one}" for one in ("fit.type=svi", "fit.steps=20", "fit.engine=eager", "net.hidden=[4]")]
    done = CliRunner().invoke(app, ["fit", "my.csv", "--target", "y", *quick])
    assert done.exit_code == 0, done.output
    assert done.output.count("Column 'load': row 21 is 1e+09, the others are ") == 1
    assert "Next: leave row 21 out of the file, or mend its 'load'." in done.output


def test_equal_columns_are_named(tmp_path):
    frame = frame_with("load", 1, 0.5)
    frame["copy"], frame["again"], frame["other"] = frame["load"], frame["load"], -frame["load"]
    frame["sort"] = frame["kind"]
    frame.to_csv(tmp_path / "t.csv", index=False)
    lines = [line for line in load_table(tmp_path / "t.csv", "y").doubts if "same" in line]
    assert lines == [
        "columns 'load', 'copy', 'again': the same in all rows to train on: keep one (--drop copy --drop again)",
        "columns 'kind', 'sort': the same in all rows to train on: keep one (--drop sort)",
    ]
