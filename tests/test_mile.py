"""Microcanonical Langevin ensembles: chains from the members of an ensemble, against exact posteriors and NUTS."""

import numpy as np
import pytest
import torch
from exact import linear_posterior, with_ones
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn.inference.data import make_source
from pyrobnn.inference.mcmc.chains import Target

X = torch.linspace(-1, 1, 24)[:, None]
DATA = bnn.Data(X, torch.sin(3 * X[:, 0]))
MODEL = bnn.BNN(
    bnn.MLP(1, [5], 1, activation="tanh"), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.3)
)
POINTS = bnn.SVI(guide="map", steps=50, lr=0.05)


def run(method, model=MODEL, data=DATA, **arguments):
    given = {"seed": 0, "progress": False, "device": "cpu", "engine": "captured"} | arguments
    return bnn.fit(model, data, method, **given)


def test_chains_start_at_the_members():
    """The start of each chain is the point of the member of that number, in the unconstrained latents of the model."""
    members = run(bnn.Ensemble(POINTS, members=3)).members
    target = Target(MODEL, make_source(DATA, MODEL, None, seed=0), "cpu", 0, members)
    starts = target.starts(3)
    for start, member in zip(starts, members, strict=True):
        values = member.draw(1)
        assert torch.equal(start, torch.cat([values[site.name].flatten() for site in target.sites]))
    assert not torch.equal(starts[0], starts[1])


def test_members_are_those_of_an_ensemble_of_the_same_method(monkeypatch):
    seen = []
    infer = bnn.Ensemble.infer
    monkeypatch.setattr(bnn.Ensemble, "infer", lambda self, *given: seen.append(self) or infer(self, *given))
    run(bnn.MILE(num_chains=3, num_draws=4, warmup=40, method=POINTS))
    assert seen == [bnn.Ensemble(POINTS, members=3)]


def test_chains_recover_a_linear_regression():
    """Means and deviations of two weights and the bias; 1600 draws, at least 400 independent: 5 standard errors."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator)
    y = x @ torch.tensor([1.0, -0.5]) + 0.5 * torch.randn(30, generator=generator)
    model = bnn.BNN(nn.Linear(2, 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.5))
    # members of a network that is given start together; the noise of their batches is what tells them apart
    method = bnn.MILE(num_chains=4, num_draws=400, method=bnn.SVI(guide="map", steps=50, batch_size=10))
    posterior = run(method, model, bnn.Data(x, y))
    mean, covariance = linear_posterior(with_ones(x), y, 0.5)
    draws = posterior.guide.draws.double().numpy().reshape(-1, 3)
    scales = np.sqrt(np.diag(covariance))
    assert np.abs((draws.mean(0) - mean) / scales).max() < 5 / 400**0.5
    assert np.abs(draws.std(0) / scales - 1).max() < 5 / 800**0.5
    assert bnn.function_rhat(posterior, x[:5]).rhat.max() < 1.02


@pytest.mark.slow
def test_chains_agree_with_nuts_in_the_functions_of_a_network():
    """Means and deviations of the curve at 9 inputs; some 1000 independent draws of each, 5 standard errors."""
    probes = torch.linspace(-1.5, 1.5, 9)[:, None]
    found = run(bnn.MILE(num_chains=8, num_draws=250))
    exact = run(bnn.NUTS(num_draws=500, warmup=500))
    convergence = bnn.function_rhat(found, probes)
    assert convergence.rhat.max() < 1.02
    assert convergence.ess_bulk.min() > 1000
    ours, theirs = (posterior.predict(probes, num_draws=2000) for posterior in (found, exact))
    distance = (ours.draw_means.mean(0) - theirs.draw_means.mean(0)) / theirs.draw_means.std(0)
    assert float(distance.abs().max()) < 5 * (2 / 1000) ** 0.5
    ratio = ours.draw_means.std(0) / theirs.draw_means.std(0)
    assert float((ratio - 1).abs().max()) < 5 * (1 / 1000) ** 0.5


def test_the_record_has_the_method_and_its_members():
    posterior = run(bnn.MILE(num_chains=2, num_draws=4, warmup=40, thinning=2, method=POINTS))
    assert posterior.record.method["type"] == "mile"
    assert posterior.record.method["method"]["steps"] == 50
    assert posterior.record.num_steps == 48
    assert posterior.guide.draws.shape[:2] == (2, 4)
    assert list(posterior.guide.sample_stats()) == ["diverging", "energy_error", "step_size", "n_steps"]


def test_methods_that_cannot_run_side_by_side_are_refused():
    with pytest.raises(InputError, match="MILE: `method` must fit several posteriors at once"):
        bnn.MILE(method=bnn.NUTS())
    with pytest.raises(InputError, match="leave `patience` out"):
        bnn.MILE(method=bnn.SVI(guide="map", steps=10, patience=2))
