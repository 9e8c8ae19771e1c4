"""Modes that L-BFGS seeks: against closed forms, stationarity, and steps of Adam."""

import numpy as np
import pytest
import torch
from torch import nn

import pyrobnn as bnn

G = np.random.default_rng(0)
X = G.normal(size=(60, 3))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.2 * G.normal(size=60)
DATA = bnn.Data(X, Y)
NET = bnn.MLP(3, [8], 1, activation="tanh", dtype="float64")
KNOWN = {"prior": bnn.priors.Normal(1.0), "likelihood": bnn.likelihoods.Gaussian(0.3)}


def model(net=None, **parts):
    return bnn.BNN(net or NET, **(KNOWN | parts))


def fit(declared=None, data=DATA, *, run=None, **settings):
    method = bnn.SVI(**({"guide": "map"} | settings))
    return bnn.fit(declared or model(), method, data, **({"seed": 0, "progress": False} | (run or {})))


def by_lbfgs(posterior):
    return "L-BFGS" in posterior.record.engine.reason


def slope(posterior, data=DATA):
    """Return the largest entry of the gradient of the log joint density at the point, by autograd."""
    weights = {name: value.clone().requires_grad_() for name, value in posterior.guide.mean().items()}
    x, y = (torch.as_tensor(values) for values in (data.x, data.y))
    f = posterior.bnn.outputs(weights, posterior.bnn.cast_inputs(x))
    log_joint = posterior.bnn.likelihood(f).log_prob(posterior.bnn.cast_targets(y, f)).sum()
    log_joint = log_joint - 0.5 * sum(value.square().sum() for value in weights.values())
    return max(float(g.abs().max()) for g in torch.autograd.grad(log_joint, list(weights.values())))


@pytest.mark.parametrize("engine", ["auto", "eager"])
def test_the_mode_of_a_linear_model_is_that_of_ridge(engine):
    net = nn.Linear(3, 1, bias=False).double()
    posterior = fit(model(net), run={"engine": engine})
    assert by_lbfgs(posterior)
    assert posterior.record.engine.used == ("replayed" if engine == "auto" else "eager")
    exact = np.linalg.solve(X.T @ X / 0.09 + np.eye(3), X.T @ Y / 0.09)
    np.testing.assert_allclose(posterior.guide.mean()["weight"].numpy()[0], exact, rtol=1e-6)


@pytest.mark.parametrize("guide", ["map", "laplace"])
def test_the_gradient_is_zero_at_the_mode_and_the_history_rises_to_it(guide):
    posterior = fit(guide=guide)
    record, history = posterior.record, posterior.history
    assert by_lbfgs(posterior)
    assert record.convergence.converged
    assert record.convergence.cycle_ends[-1] == record.num_steps == len(history)
    assert record.batch_size == 60
    assert record.stop_reason.startswith("converged: L-BFGS gained ")
    assert (np.diff(history.elbo) > -1e-6).all()
    assert history.elbo[-1] == pytest.approx(record.convergence.elbo)
    assert record.convergence.gain < record.convergence.tolerance
    if guide == "map":
        assert slope(posterior) < 1e-3


def test_it_ends_no_lower_than_steps_of_adam():
    """From the same start: its ELBO is at least that of the steps less their tolerance."""
    net = NET.build()
    found = fit(model(net)).record.convergence
    steps = fit(model(net), run={"engine": "captured"})
    assert not by_lbfgs(steps)
    assert found.elbo >= steps.record.convergence.elbo - steps.record.convergence.tolerance


def test_eager_and_replayed_descents_agree():
    net = NET.build()
    first, second = (fit(model(net), run={"engine": engine}) for engine in ("auto", "eager"))
    assert first.history.elbo[-1] == pytest.approx(second.history.elbo[-1], abs=1e-4)
    assert first.history.elbo[:10] == pytest.approx(second.history.elbo[:10], rel=1e-9)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x + 0.1 * torch.randn_like(x) if self.training else x)


STEPS = {
    "steps": {"steps": 60},
    "a rate": {"lr": 0.02},
    "an optimiser": {"optimizer": "adamw"},
    "mini-batches": {"batch_size": 16},
    "a warm-up": {"kl_warmup": 10},
    "other guides": {"guide": "mean_field"},
}


@pytest.mark.parametrize("name", STEPS)
def test_what_asks_for_steps_gets_them(name):
    assert not by_lbfgs(fit(**({"max_steps": 200} | STEPS[name])))


@pytest.mark.parametrize(
    "declared",
    [
        model(Noisy()),
        model(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))),
        model(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))),
        model(likelihood=bnn.likelihoods.Gaussian("learned")),
        model(prior="horseshoe"),
    ],
    ids=["noise", "dropout", "running statistics", "learned noise", "latent scales"],
)
def test_networks_with_noise_and_modes_without_an_end_take_steps(declared):
    assert not by_lbfgs(fit(declared, max_steps=200))


def test_validation_and_checkpoints_are_of_steps(tmp_path):
    assert not by_lbfgs(fit(max_steps=200, run={"validation": DATA}))
    assert not by_lbfgs(fit(max_steps=200, run={"checkpoint": tmp_path}))


def test_members_of_an_ensemble_find_modes_of_their_own():
    ensemble = bnn.fit(model(), bnn.Ensemble(bnn.SVI(guide="map"), members=3), DATA, seed=0, progress=False)
    assert all(by_lbfgs(member) and slope(member) < 1e-3 for member in ensemble.members)
    assert len({len(member.history) for member in ensemble.members}) > 1
    assert len({round(member.history.elbo[0], 3) for member in ensemble.members}) == 3


def test_callbacks_see_every_fifty_iterations_and_end_the_fit():
    seen = []

    def stop(progress):
        seen.append(progress.step)
        return progress.step == 100

    posterior = fit(bnn.BNN(bnn.MLP(3, [40], 1, dtype="float64"), **KNOWN), run={"callbacks": [stop]})
    assert seen == [50, 100]
    assert posterior.record.stop_reason == "stopped by a callback after step 100"
    assert not posterior.record.convergence.converged


def test_it_ends_after_the_largest_number_of_steps():
    posterior = fit(max_steps=7)
    assert 7 <= posterior.record.num_steps <= 8
    assert posterior.record.stop_reason == "not converged within max_steps=7"


def test_numbers_that_cease_to_be_finite_are_left_to_steps(monkeypatch):
    """These go back and lower their rate, or name the layer."""
    monkeypatch.setattr(
        "pyrobnn.inference.svi.descent.recorded_slope", lambda *given: lambda: torch.full((43,), np.nan)
    )
    posterior = fit(max_steps=200)
    assert not by_lbfgs(posterior)
    assert np.isfinite(posterior.history.elbo).all()


def test_the_temperature_weighs_the_prior():
    net = nn.Linear(3, 1, bias=False).double()
    posterior = fit(model(net), temperature=0.25)
    exact = np.linalg.solve(X.T @ X / 0.09 + 0.25 * np.eye(3), X.T @ Y / 0.09)
    np.testing.assert_allclose(posterior.guide.mean()["weight"].numpy()[0], exact, rtol=1e-6)
    np.testing.assert_allclose(posterior.history.kl[-1], 0.5 * (exact**2).sum() + 1.5 * np.log(2 * np.pi), rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "hidden", "asked", "expected"),
    [
        (500, 10, None, 500),
        (501, 10, None, 128),
        (500, 300, None, 128),
        (100, 700, None, 100),
        (900, 10, "all", 900),
        (900, 10, 64, 64),
        (30, 10, 64, 30),
    ],
)
def test_mini_batches_follow_from_sizes(rows, hidden, asked, expected):
    data = bnn.Data(G.normal(size=(rows, 3)), G.normal(size=rows))
    declared = bnn.BNN(bnn.MLP(3, [hidden, hidden], 1), **KNOWN)
    posterior = fit(declared, data, guide="mean_field", steps=2, batch_size=asked, run={"engine": "eager"})
    assert posterior.record.batch_size == expected
