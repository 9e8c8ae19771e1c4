"""Columns that give the target away are asked about, and ordinary ones are not."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import rankdata
from typer.testing import CliRunner

import pyrobnn as bnn
from pyrobnn.cli import app
from pyrobnn.data.given_away import _ranks, given_away

RNG = np.random.default_rng


def found(x, y, columns=None):
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    return [one.column for one in given_away(x, y, columns or {str(place): [place] for place in range(x.shape[1])})]


def noise(num, width=3, seed=0):
    return RNG(seed).normal(size=(num, width))


@pytest.mark.parametrize("change", [lambda y: 2 * y, lambda y: -y, np.exp, lambda y: y + 1e-4 * noise(80)[:, 0]])
def test_a_copy_of_real_targets_is_found(change):
    x, y = noise(80), noise(80, seed=1)[:, 0]
    x[:, 1] = change(y)
    assert found(x, y) == ["1"]
    assert found(x[:, 1:2], y) == []  # nothing is left without it
    assert found(x[:9], y[:9]) == []


def test_a_near_copy_and_a_far_point_are_no_copies():
    x, y = noise(80), noise(80, seed=1)[:, 0]
    x[:, 1] = y + 0.03 * noise(80, seed=2)[:, 0]
    assert found(x, y) == []
    x[0], y[0] = 1e6, 1e6
    x[1:, 1] = noise(79)[:, 0]
    assert found(x, y) == []


@pytest.mark.parametrize("num", [10, 20, 60])
def test_noise_is_never_asked_about(num):
    for seed in range(50):
        rng = RNG(seed)
        whole = rng.integers(0, num, (num, 20)).astype(float)
        assert found(noise(num, 20, seed), rng.normal(size=num)) == []
        assert found(whole, rng.integers(0, 4, num).astype(float)) == []
        assert found(whole, np.arange(num) % 2) == []


def test_columns_that_tell_all_classes_apart_are_found():
    y = np.arange(90) % 3
    x = noise(90, 5)
    x[:, 0] = 10 * y + RNG(1).uniform(size=90)
    x[:, 1:4] = np.eye(3)[(y + 1) % 3]
    columns = {"number": [0], "kind": [1, 2, 3], "other": [4]}
    assert found(x, y, columns) == ["number", "kind"]
    x[5, 0], x[6, 1:4] = 10 * y[4], x[7, 1:4]
    assert found(x, y, columns) == []
    names = np.c_[np.arange(90.0), noise(90, 1)]  # each row has its own
    assert found(names, y) == []


def test_ranks_are_those_of_scipy():
    values = RNG(0).integers(0, 9, 40).astype(float)
    assert _ranks(values).tolist() == rankdata(values).tolist()


def test_estimators_ask_about_a_copy():
    x = pd.DataFrame(noise(60, 2), columns=["a", "copy"])
    with pytest.warns(bnn.PoorFitWarning, match="Column 'copy' alone gives the target almost exactly"):
        bnn.BNNRegressor(net=bnn.MLP(hidden=[4]), steps=2, random_state=0).fit(x, 3 * x["copy"] + 1)


@pytest.mark.slow
def test_the_command_line_asks_and_its_next_step_leaves_the_column_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(noise(80, 3), columns=["a", "the copy", "b"])
    y = frame["a"] + 0.5 * noise(80, 1, 5)[:, 0]
    pd.DataFrame(frame).assign(y=y, **{"the copy": 2 * y}).to_csv("my.csv", index=False)
    quick = [f"--set={one}" for one in ("fit.type=svi", "fit.steps=20", "fit.engine=eager", "net.hidden=[4]")]
    done = CliRunner().invoke(app, ["fit", "my.csv", "--target", "y", *quick])
    assert done.exit_code == 0, done.output
    question = "Column 'the copy' alone gives the target almost exactly (a line through it explains 100.00 %)"
    assert done.output.count(f"{question}: is it known when you predict?") == 2
    assert "If not, leave it out: --drop 'the copy'" in done.output
    assert "pyrobnn fit runs/my/spec.toml --drop 'the copy' --out runs/my-2" in done.output
    again = CliRunner().invoke(app, ["fit", "runs/my/spec.toml", "--drop", "the copy", "--out", "runs/my-2"])
    assert again.exit_code == 0, again.output
    assert question not in again.output
    manifest = json.loads(Path("runs/my-2/manifest.json").read_text(encoding="utf-8"))
    assert [*manifest["data"]["encoder"]["columns"]] == ["a", "b"]
