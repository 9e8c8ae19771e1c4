"""From a spec file to a run folder and back, for methods of every kind, through the command line."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize
from typer.testing import CliRunner

import pyrobnn as bnn
from pyrobnn.cli import app
from pyrobnn.metrics import score
from pyrobnn.runs.spec import RunSpec

SPEC = """
[data]
name = "sinusoid"
[net]
hidden = [3]
[likelihood]
type = "gaussian"
scale = 1.0
[predict]
num_draws = 12
[fit]
device = "cpu"
"""
METHODS = {
    "svi": (
        'type = "svi"\nsteps = 5',
        "How far the fit has moved from the prior (ELBO)",
    ),
    "ensemble": (
        'type = "ensemble"\nmembers = 2\n[fit.method]\nsteps = 5\n[guide]\ntype = "mean_field"',
        "The 2 members",
    ),
    "swag": (
        'type = "swag"\nsteps = 8\nevery = 2\nrank = 2\n[fit.method]\nsteps = 5',
        "How far the fit has moved from the prior (ELBO)",
    ),
    "nuts": (
        'type = "nuts"\nnum_draws = 6\nwarmup = 4\nnum_chains = 2\nmax_tree_depth = 2\nengine = "eager"',
        "The Markov chains",
    ),
    "sgld": (
        'type = "sgld"\nstep_size = 1e-4\nnum_draws = 5\nburn_in = 2\nthinning = 1\nnum_chains = 2',
        "The Markov chains",
    ),
}
SECTIONS = {"How far the fit has moved from the prior (ELBO)", "The 2 members", "The Markov chains"}


def invoke(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.one_in(6)
@pytest.mark.usefixtures("quick_check")
@pytest.mark.parametrize(("section", "heading"), METHODS.values(), ids=METHODS.keys())
@pytest.mark.filterwarnings("ignore:.* draws diverged")
def test_a_run_from_its_file_to_predictions(section, heading, tmp_path, monkeypatch):
    import xarray

    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC + section, encoding="utf-8")
    assert "RMSE" in invoke("fit", "spec.toml", "--out", "run").output
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert {heading for heading in SECTIONS if f"<h3>{heading}</h3>" in page} == {heading}
    spec = RunSpec.from_toml("run/spec.toml")
    assert spec.method == RunSpec.from_toml("spec.toml").method
    posterior = bnn.load(tmp_path / "run" / "posterior")
    test = spec.prepare().test
    scores = score(posterior.predict(test.x, num_draws=12), test.y)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["scores"]["rmse"]["value"] == scores["rmse"].value
    with xarray.open_datatree("run/posterior.nc", engine="h5netcdf") as tree:
        assert tree["posterior"].sizes["chain"] == (
            1 if "num_chains" not in section and "members" not in section else 2
        )
    (tmp_path / "new.csv").write_text("x0\n0.1\n-0.3\n", encoding="utf-8")
    invoke("predict", "run", "new.csv", "--out", "p.csv")
    expected = posterior.predict(torch.tensor([[0.1], [-0.3]], dtype=torch.float64), num_draws=12)
    np.testing.assert_allclose(pd.read_csv("p.csv")["mean"], expected.mean.numpy(), rtol=1e-4)


@pytest.mark.slow
def test_counts_through_the_command_line_are_a_poisson_regression(tmp_path, no_report, monkeypatch):
    """A linear net, its point estimate against scipy's minimum of the same penalised objective in float64."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 20, size=80)
    y = generator.poisson(np.exp(0.5 + 0.1 * x))
    pd.DataFrame({"x": x, "y": y}).to_csv("counts.csv", index=False)
    text = '[data]\npath = "counts.csv"\ntarget = "y"\ntask = "regression"\n[net]\nhidden = []\n[guide]\ntype = "map"\n'
    fit = "[fit]\nsteps = 350\nlr = 0.1\nschedule = {type = 'exponential_lr', gamma = 0.975}\nengine = 'eager'\n"
    (tmp_path / "spec.toml").write_text(text + fit, encoding="utf-8")
    assert "RMSE" in invoke("fit", "spec.toml", "--out", "run", "--set", "likelihood.type=poisson").output

    inputs, counts = x, y  # new rows are predicted by a fit to all
    standard = (inputs - inputs.mean()) / inputs.std()
    assert set(counts) <= set(range(100))

    def objective(w):
        f = w[0] * standard + w[1]
        return (np.exp(f) - counts * f).sum() + 0.5 * (w**2).sum()

    best = optimize.minimize(objective, [0.0, 0.0], tol=1e-10).x
    new = np.array([1.0, 10.0, 19.0])
    pd.DataFrame({"x": new}).to_csv("new.csv", index=False)
    invoke("predict", "run", "new.csv", "--out", "p.csv")
    expected = np.exp(best[0] * (new - inputs.mean()) / inputs.std() + best[1])
    found = pd.read_csv("p.csv")
    np.testing.assert_allclose(found["mean"], expected, rtol=2e-3)
    np.testing.assert_allclose(found["std"], np.sqrt(expected), rtol=2e-3)
