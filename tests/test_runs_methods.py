"""From a spec file to a run folder and back, for methods of every kind, through the command line."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
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
