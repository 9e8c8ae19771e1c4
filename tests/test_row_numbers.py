"""Columns that name the rows are asked about, with the command that leaves them out; measurements are not."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pyrobnn.cli import app
from pyrobnn.data.row_numbers import _chance, names_of_rows


def said(values):
    found = names_of_rows("no", np.asarray(values))
    return None if found is None else found.text


def test_whole_numbers_that_grow_by_one_number_the_rows():
    numbers = np.arange(10) + 1001.0
    text = "Column 'no' numbers the rows, 1001 to 1010: does it only name them? New rows then lie beyond all that was "
    assert said(numbers) == text + "learned."
    gap = np.where(numbers == 1003, np.nan, numbers)
    assert said(numbers + 0.5) is said(10 * numbers) is said(-numbers) is said(gap) is None


def test_numbers_that_do_not_repeat_are_named_where_independent_draws_would_have():
    """Customers with gaps between them; the chance is counted out for six draws from eight."""
    customers = np.random.default_rng(0).choice(17_000, 700, replace=False)
    assert said(customers).startswith("Column 'no' has 700 different whole numbers from ")
    assert said(customers / 10) is None  # not whole
    assert said(np.append(customers, customers[0])) is None  # one twice
    assert said(np.random.default_rng(0).choice(100_000, 700, replace=False)) is None  # a measurement may look like it
    draws = np.array(list(itertools.product(range(8), repeat=6)))
    share = np.mean([len(set(row)) == 6 for row in draws[::7]])
    assert math.exp(_chance(6, 8.0)) == pytest.approx(math.perm(8, 6) / 8**6) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("kind", ["uniform", "normal", "log-normal", "sorted", "seconds"])
def test_measurements_that_were_rounded_are_not_named(kind):
    """2,000 tables of 20 to 500 rows, seed 0."""
    rng = np.random.default_rng(0)
    for _ in range(2000):
        num, scale = int(rng.integers(20, 500)), 10 ** rng.uniform(1, 7)
        values = {
            "uniform": rng.uniform(0, 1, num),
            "normal": rng.normal(size=num),
            "log-normal": np.exp(2 * rng.normal(size=num)),
            "sorted": np.sort(rng.normal(size=num)),
            "seconds": rng.exponential(1, num).cumsum() / num,
        }[kind]
        assert said((scale * values).round()) is None


@pytest.mark.slow
def test_the_next_step_leaves_a_number_of_the_row_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"my no": np.arange(1, 81), "a": rng.normal(size=80), "b": rng.normal(size=80)})
    frame["day"] = pd.date_range("2020-01-01", periods=80).strftime("%Y-%m-%d")
    frame.assign(y=frame["a"] + 0.5 * rng.normal(size=80)).to_csv("my.csv", index=False)
    quick = [f"--set={one}" for one in ("fit.type=svi", "fit.steps=20", "fit.engine=eager", "net.hidden=[4]")]
    done = CliRunner().invoke(app, ["fit", "my.csv", "--target", "y", *quick])
    assert done.exit_code == 0, done.output
    line = "Column 'my no' numbers the rows, 1 to 80: does it only name them? New rows then lie beyond all that was "
    assert done.output.count(f"{line}learned. If so, leave it out: --drop 'my no'") == 1
    assert "Next: leave out what only names the rows, 'my no':" in done.output
    assert "pyrobnn fit runs/my/spec.toml --drop 'my no' --out runs/my-2" in done.output
    again = CliRunner().invoke(app, ["fit", "runs/my/spec.toml", "--drop", "my no", "--out", "runs/my-2"])
    assert again.exit_code == 0, again.output
    assert "names the rows" not in again.output
    manifest = json.loads(Path("runs/my-2/manifest.json").read_text(encoding="utf-8"))
    y = frame["a"]  # only the rows: the range is that of the targets to train on
    assert manifest["data"]["target_range"][0] < y.mean() < manifest["data"]["target_range"][1]
