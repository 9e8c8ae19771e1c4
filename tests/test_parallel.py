"""Data-parallel fits: two processes against one, against closed forms, and what happens when one of them fails."""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import parallel_checks as checks
import pytest
import torch

import pyrobnn as bnn
from pyrobnn import InputError
from pyrobnn._torch.processes import is_main_process
from pyrobnn.inference.several import data_parallel

X, Y = checks.problem(20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def run(folder):
    """The end of both processes, of which one failed while the other was in the middle of a long fit."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    root = str(Path(bnn.__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    command = [*torchrun, checks.__file__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert (folder / "found.json").exists(), done.stderr
    return done, time.time() - (folder / "found.json").stat().st_mtime


@pytest.fixture(scope="module")
def both(run, folder):
    return json.loads((folder / "found.json").read_text())


def alone(method, data=None, **settings):
    """The same fit in this process, without `DataParallel`."""
    settings = {"seed": 0, "engine": "eager", "progress": False} | settings
    return bnn.fit(checks.linear(), checks.problem() if data is None else data, method, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*checks.MODES])
def test_steps_of_a_point_are_those_of_one_process_with_whole_batches(both, name):
    """No noise but the order of the batches, which is the same: equal to rounding of float64."""
    expected = checks.weights(alone(bnn.SVI(**checks.TO_THE_MODE, **checks.MODES[name]), checks.data_of(name)))
    for found in both:
        np.testing.assert_allclose(found["modes"][name], expected, rtol=1e-12)
        np.testing.assert_allclose(found["in a group of the user's"], found["modes"]["batches"], rtol=1e-12)


@pytest.mark.slow
def test_gradients_have_the_expectation_of_one_process_and_half_of_its_variance(both):
    """Of 500 draws, seed 0: means within 4.5 standard errors, variances within 4.5 of theirs.

    With A = X^T X diagonal, g_mu = (A w - X^T y) / noise^2 + mu for w = mu + s eps, and g_rho = s' (eps (A w - X^T y) /
    noise^2 + s - 1 / s). Both processes hold the same examples, so each has half of the likelihood's part, and noise of
    its own halves the variance.
    """
    found, num = both[0]["gradients"], checks.NUM_GRADIENTS
    loc, rho = (torch.tensor(part, dtype=torch.float64) for part in found["start"])
    scale, slope = torch.nn.functional.softplus(rho), rho.sigmoid()
    a, residual = (X**2).sum(0) / checks.NOISE**2, (X.T @ (X @ loc - Y)) / checks.NOISE**2
    mean = torch.cat([residual + loc, slope * (a * scale + scale - 1 / scale)])
    variance = torch.cat([(a * scale) ** 2, slope**2 * (2 * (a * scale) ** 2 + residual**2)]) / 2
    errors = (torch.tensor(found["mean"]) - mean).abs() / (variance / num).sqrt()
    assert float(errors.max()) < 4.5
    kurtosis = torch.tensor([2.0, 2.0, 14.0, 14.0])  # of the fourth moment over the squared variance, less 1, at most
    errors = (torch.tensor(found["variance"]) / variance - 1).abs() / (kurtosis / num).sqrt()
    assert float(errors.max()) < 4.5
    assert both[0]["gradients"] == both[1]["gradients"]


@pytest.mark.slow
def test_mean_field_reaches_the_exact_posterior_of_orthogonal_regression(both):
    """With the path derivative the gradient has no noise at the optimum, both processes holding the same examples."""
    precision = 1 + (X**2).sum(0) / checks.NOISE**2
    loc, scale = both[0]["regression"]
    deviation = precision.rsqrt()
    errors = (torch.tensor(loc) - X.T @ Y / checks.NOISE**2 / precision) / deviation
    assert float(errors.abs().max()) < 5e-3
    np.testing.assert_allclose(scale, deviation, rtol=5e-3)


@pytest.mark.slow
def test_processes_end_with_the_same_bits_and_say_how_they_ran(both):
    first, second = (found["posterior"] for found in both)
    assert (first["digest"], first["elbo"], first["info"]) == (second["digest"], second["elbo"], second["info"])
    assert first["info"]["data_parallel"] == {"world_size": 2, "backend": "gloo"}
    assert first["info"]["engine"]["reason"] == "gradients are averaged over processes"
    assert (first["info"]["engine"]["asked"], first["info"]["engine"]["used"]) == ("captured", "eager")
    assert first["info"]["method"]["type"] == "data_parallel"
    assert first["info"]["method"]["guide"]["type"] == "mean_field"
    assert (first["info"]["num_steps"], first["info"]["stop_reason"]) == (50, "stopped by a callback after step 50")
    assert ["averages gradients over processes" in text for text in first["warnings"]] == [True]
    assert second["warnings"] == []
    assert [found["is main"] for found in both] == [True, False]


@pytest.mark.slow
def test_laplace_has_the_evidence_of_one_process(both):
    expected = alone(checks.LAPLACE).info["laplace"]["log_evidence"]
    for found in both:
        assert math.isclose(found["laplace"], expected, rel_tol=1e-9)


@pytest.mark.slow
def test_parameters_that_did_not_stay_the_same_are_noticed(both):
    (digest, texts), (other, other_texts) = (found["meddled"] for found in both)
    assert digest == other
    assert all("ended with different parameters" in text for text in [*texts, *other_texts])
    assert texts


LOST = "lost the others of its data-parallel fit: one of them failed"
REFUSALS = {
    "seeds": ("InputError", "Processes 0 and 1 were not given the same seed", "Processes 1 and 0 were not"),
    "data": ("InputError", "not given the same data", "not given the same data"),
    "batch size": ("InputError", "must be a multiple of the number of processes, 2, .* got 7", "got 7"),
    "loader": ("InputError", "which it cannot for a DataLoader", "pass Data"),
    "too few": ("InputError", "There are 1 examples for 2 processes", "start fewer"),
    "callback": ("ZeroDivisionError", "a callback failed", LOST),
    "not finite": ("FloatingPointError", "The ELBO became -inf at step 1", "The ELBO became -inf at step 1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSALS)
def test_errors_end_both_processes_at_once(both, name):
    kind, *patterns = REFUSALS[name]
    for found, pattern in zip(both, patterns, strict=True):
        raised, message, seconds = found["refusals"][name]
        assert raised == ("RuntimeError" if pattern == LOST else kind), message
        assert re.search(pattern, message), message
        assert seconds < 20


@pytest.mark.slow
def test_an_error_that_nothing_catches_ends_the_other_process_too(run):
    done, seconds = run
    assert done.returncode != 0
    assert "TypeError: 'NoneType' object is not callable" in done.stderr
    assert seconds < 30


# In one process


def test_a_single_process_fits_as_without_and_saves(tmp_path):
    method = bnn.SVI(steps=5, batch_size=8)
    posterior, expected = alone(bnn.DataParallel(method)), alone(method)
    assert torch.equal(posterior.guide.loc, expected.guide.loc)
    assert posterior.info["data_parallel"] == {"world_size": 1, "backend": None}
    assert posterior.info["method"] == {"type": "data_parallel", "method": expected.info["method"]} | {
        "guide": expected.info["method"]["guide"]
    }
    saved = checks.fit(bnn.SVI(steps=2), model=checks.declared())
    loaded = bnn.load(bnn.save(saved, tmp_path / "fit"))
    assert torch.equal(loaded.predict(X, num_draws=5).mean, saved.predict(X, num_draws=5).mean)


def test_a_guide_that_is_no_setting_stays_in_words():
    from pyro.infer.autoguide import AutoNormal

    posterior = alone(bnn.DataParallel(bnn.SVI(guide=lambda model: AutoNormal(model, init_scale=0.2), steps=2)))
    assert "lambda" in posterior.info["method"]


def test_a_validation_score_is_refused():
    with pytest.raises(InputError, match="DataParallel: processes run the same number of steps: leave `patience` out"):
        bnn.DataParallel(bnn.SVI(patience=3))


def test_each_process_has_a_gpu_of_its_own_and_the_first_is_known_before_they_meet(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("LOCAL_RANK", "1")
    found = [data_parallel._own_device(name) for name in ("auto", "cuda", "cpu", "cuda:0")]
    assert found == ["cuda:1", "cuda:1", "cpu", "cuda:0"]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="Process 2 of this machine has no GPU for itself, there are 2"):
        data_parallel._own_device("auto")
    assert is_main_process()
    monkeypatch.setenv("RANK", "1")
    assert not is_main_process()
