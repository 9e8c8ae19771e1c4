"""Columns that number the rows are named, with the command that leaves them out; sorted measurements are not."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from pyrobnn.cli import app
from pyrobnn.data.row_numbers import row_numbers

ROWS = 60


def named(**columns):
    x = torch.as_tensor(np.column_stack(list(columns.values())))
    return row_numbers(x, {name: [place] for place, name in enumerate(columns)})


def test_whole_numbers_that_grow_by_one_number_the_rows():
    numbers = np.arange(ROWS) + 1.0
    a = np.random.default_rng(0).normal(size=ROWS)
    assert named(nr=numbers, a=a, late=numbers + 1000) == ["nr", "late"]
    assert named(nr=numbers) == []  # nothing is left without it
    skipped = numbers + (numbers > 30)
    assert named(a=a, sorted=np.sort(a), skipped=skipped, halves=numbers + 0.5, by_ten=10 * numbers) == []
    assert named(a=a, mixed=np.random.default_rng(0).permutation(numbers), down=-numbers) == []
    x = torch.as_tensor(np.column_stack([numbers, a, a]))
    assert row_numbers(x, {"day": [0, 1], "a": [2]}) == []


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
    line = "column 'my no': numbers the rows, 1 to 80: leave it out if it only names them (--drop 'my no')"
    assert done.output.count(line) == 1
    assert "Next: leave out what only names the rows, 'my no':" in done.output
    assert "pyrobnn fit runs/my/spec.toml --drop 'my no' --out runs/my-2" in done.output
    again = CliRunner().invoke(app, ["fit", "runs/my/spec.toml", "--drop", "my no", "--out", "runs/my-2"])
    assert again.exit_code == 0, again.output
    assert "names the rows" not in again.output
    manifest = json.loads(Path("runs/my-2/manifest.json").read_text(encoding="utf-8"))
    y = frame["a"]  # only the rows: the range is that of the targets to train on
    assert manifest["data"]["target_range"][0] < y.mean() < manifest["data"]["target_range"][1]
