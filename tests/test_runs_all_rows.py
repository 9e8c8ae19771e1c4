"""The second fit of a run, to all rows of its table."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import pyrobnn as bnn
from pyrobnn.runs import run as runs
from pyrobnn.runs.files import folder_for_new_rows, predict_table
from pyrobnn.runs.run import resume, run
from pyrobnn.runs.spec import RunSpec

NOISE = 0.5


@pytest.fixture
def table(tmp_path):
    generator = np.random.default_rng(3)
    frame = pd.DataFrame(generator.normal(size=(40, 2)), columns=["a", "b"])
    frame["y"] = 2 * frame["a"] - frame["b"] + NOISE * generator.normal(size=40)
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def spec_of(table, **changes):
    """A linear model with known noise: its Laplace approximation is the posterior."""
    return RunSpec.from_dict(
        {
            "data": {"path": str(table), "target": "y"},
            "net": {"hidden": [], "dtype": "float64"},
            "prior": {"type": "normal", "scale": 1.0},
            "likelihood": {"type": "gaussian", "scale": NOISE},
            "guide": {"type": "laplace", "structure": "full"},
            "fit": {"type": "svi", "steps": 800},
            "predict": {"num_draws": 400},
        }
        | changes
    )


def exact(frame, new):
    """Mean and standard deviation of the function of a Bayesian linear regression in standard units, at new rows."""
    x, y = frame[["a", "b"]].to_numpy(), frame["y"].to_numpy()
    centre, spread, scale = x.mean(0), x.std(0), y.std()
    inputs, at = (np.column_stack([(rows - centre) / spread, np.ones(len(rows))]) for rows in (x, new))
    noise = NOISE / scale
    covariance = np.linalg.inv(inputs.T @ inputs / noise**2 + np.eye(3))
    mean = covariance @ inputs.T @ ((y - y.mean()) / scale) / noise**2
    return y.mean() + scale * at @ mean, scale * np.sqrt(np.einsum("ni,ij,nj->n", at, covariance, at))


def test_new_rows_are_predicted_from_all_rows(table, tmp_path):
    """Both fits have their closed form; means of 400 draws within five standard errors."""
    result = run(spec_of(table), tmp_path / "run", progress=False)
    frame, new = pd.read_csv(table), np.array([[0.3, -1.0], [2.0, 1.0]])
    pd.DataFrame(new, columns=["a", "b"]).to_csv(tmp_path / "new.csv", index=False)
    found = predict_table(tmp_path / "run", tmp_path / "new.csv")
    mean, std = exact(frame, new)
    assert result.num_learned == len(frame)
    assert (np.abs(found["mean"] - mean) < 5 * std / 20 + 1e-3).all()
    np.testing.assert_allclose(found["epistemic_std"], std, rtol=5 / np.sqrt(2 * 400))
    train = RunSpec.from_toml(tmp_path / "run" / "spec.toml").prepare().train
    rows = pd.DataFrame(train.x.numpy(), columns=["a", "b"]).assign(y=train.y.numpy())
    judged, judged_std = exact(rows, new)
    assert (np.abs(judged - mean) > std / 4).any()
    prediction = bnn.load(tmp_path / "run" / "posterior").predict(torch.tensor(new), num_draws=400)
    assert (np.abs(prediction.mean.numpy() - judged) < 5 * judged_std / 20 + 1e-3).all()
    scores = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))["scores"]
    again = bnn.score(bnn.load(tmp_path / "run" / "posterior").predict(result.test.x, num_draws=400), result.test.y)
    assert scores["rmse"]["value"] == pytest.approx(float(again["rmse"].value))
    assert f"a fit to {len(frame)} rows" in result.learned
    assert f"a fit to {len(train)}." in result.learned
    assert result.learned in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_a_category_of_held_out_rows_is_known_then(table, tmp_path):
    frame = pd.read_csv(table)
    spec = spec_of(table)
    train = spec.prepare().train.x[:, 0].numpy()
    is_held_out = ~np.isin(np.round(frame["a"], 12), np.round(train, 12))
    frame["kind"] = np.where(is_held_out, "rare", np.where(frame["b"] > 0, "up", "down"))
    frame.loc[is_held_out, "a"] += 100.0
    frame.to_csv(table, index=False)
    run(spec, tmp_path / "run", progress=False)
    frame[is_held_out].to_csv(tmp_path / "new.csv", index=False)
    assert predict_table(tmp_path / "run", tmp_path / "new.csv")["outside"].eq("").all()
    (tmp_path / "run" / "all_rows").rename(tmp_path / "other")
    assert predict_table(tmp_path / "run", tmp_path / "new.csv")["outside"].str.contains("kind").all()


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_large_tables_and_data_by_name_have_one_fit(table, tmp_path, monkeypatch):
    short = {"fit": {"type": "svi", "steps": 3}}
    named = run(spec_of(table, data={"name": "sinusoid"}, **short), tmp_path / "named", progress=False)
    monkeypatch.setattr(runs, "_MOST_ROWS_OF_A_SECOND_FIT", 39)
    large = run(spec_of(table, **short), tmp_path / "large", progress=False)
    for result in (named, large):
        assert result.final is result.posterior
        assert result.learned == ""
        assert folder_for_new_rows(result.path) == result.path


@pytest.mark.usefixtures("no_report")
def test_a_second_fit_that_went_wrong_is_not_kept(table, tmp_path, monkeypatch):
    fit, lengths = runs._fit, []

    def wrong(prepared, checkpoint, *, progress):
        lengths.append(len(prepared.train))
        return fit(prepared, checkpoint, progress=progress) if len(lengths) == 1 else of_others

    frame = pd.read_csv(table)
    frame.assign(y=-frame["y"]).to_csv(tmp_path / "negative.csv", index=False)
    of_others = fit(spec_of(tmp_path / "negative.csv").prepare(), None, progress=False)
    monkeypatch.setattr(runs, "_fit", wrong)
    result = run(spec_of(table), tmp_path / "run", progress=False)
    assert lengths == [len(result.train), 40]
    assert result.final is result.posterior
    assert not (tmp_path / "run" / "all_rows").exists()


@pytest.mark.usefixtures("no_report")
def test_an_interrupt_of_the_second_fit_leaves_the_first_and_a_resumed_run_adds_it(table, tmp_path, monkeypatch):
    fit = runs._fit

    def interrupted(prepared, checkpoint, *, progress):
        if len(prepared.train) == 40:
            raise KeyboardInterrupt
        return fit(prepared, checkpoint, progress=progress)

    monkeypatch.setattr(runs, "_fit", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        run(spec_of(table), tmp_path / "run", progress=False)
    assert "The fit itself is safe" in caught.value.__notes__[0]
    assert folder_for_new_rows(tmp_path / "run") == tmp_path / "run"
    monkeypatch.setattr(runs, "_fit", fit)
    assert resume(tmp_path / "run", progress=False).num_learned == 40
    assert folder_for_new_rows(tmp_path / "run") == tmp_path / "run" / "all_rows"
