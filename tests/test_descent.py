"""Modes that L-BFGS seeks: against closed forms, stationarity, and steps of Adam."""

import numpy as np
import pytest
import torch
from exact import linear_posterior
from helpers import Net
from torch import nn
from torch.autograd.functional import hessian, jacobian

import pyrobnn as bnn
from pyrobnn._torch.lbfgs import joined, polish_in_place, slope_of
from pyrobnn.verdict.checks import needs_steps

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
    return bnn.fit(declared or model(), data, method, **({"seed": 0, "progress": False} | (run or {})))


def by_lbfgs(posterior):
    return posterior.record.engine.reason.startswith("L-BFGS")


def why_steps(posterior):
    return posterior.record.engine.reason.partition("not L-BFGS: ")[2]


def slope(posterior, data=DATA):
    """Return the largest entry of the gradient of the log joint density at the point, by autograd."""
    weights = {name: value.clone().requires_grad_() for name, value in posterior.guide.mean().items()}
    x, y = (torch.as_tensor(values) for values in (data.x, data.y))
    f = posterior.bnn.outputs(weights, posterior.bnn.cast_inputs(x))
    log_joint = posterior.bnn.likelihood(f).log_prob(posterior.bnn.cast_targets(y, f)).sum()
    log_joint = log_joint - 0.5 * sum(value.square().sum() for value in weights.values())
    return max(float(g.abs().max()) for g in torch.autograd.grad(log_joint, list(weights.values())))


@pytest.mark.parametrize(("engine", "temperature"), [("auto", 1.0), ("eager", 1.0), ("auto", 0.25)])
def test_the_mode_of_a_linear_model_is_that_of_ridge(engine, temperature):
    """The temperature weighs the prior."""
    posterior = fit(model(nn.Linear(3, 1, bias=False).double()), temperature=temperature, run={"engine": engine})
    assert by_lbfgs(posterior)
    assert posterior.record.engine.used == ("captured" if engine == "auto" else "eager")
    exact, _ = linear_posterior(X, Y, 0.3, scale=temperature**-0.5)
    np.testing.assert_allclose(posterior.guide.mean()["weight"].numpy()[0], exact, rtol=1e-6)
    np.testing.assert_allclose(posterior.history.kl[-1], 0.5 * (exact**2).sum() + 1.5 * np.log(2 * np.pi), rtol=1e-6)


class Silent:
    """A point guide of another package, which says nothing of itself."""

    def build(self, model, *args):
        return bnn.guides.Map().build(model, *args)


class Says(Silent, bnn.guides.BaseGuide):
    """The same, which says what it trains."""

    seeks_mode = True


@pytest.mark.slow
def test_a_guide_of_another_package_may_say_that_it_seeks_a_mode():
    assert by_lbfgs(fit(guide=Says()))
    assert not by_lbfgs(fit(guide=Silent(), max_steps=50))


def noisy(net, x):
    return net.layer(x + 0.1 * torch.randn_like(x) if net.training else x)


STEPS = [{"steps": 60}, {"epochs": 60}, {"lr": 0.03}, {"optimizer": "adamw"}, {"batch_size": 16}, {"kl_warmup": 10}]


@pytest.mark.slow
@pytest.mark.parametrize("setting", STEPS, ids=lambda setting: next(iter(setting)))
def test_what_asks_for_steps_gets_them_and_the_record_says_so(setting):
    posterior = fit(**({"max_steps": 200} | setting))
    assert not by_lbfgs(posterior)
    assert why_steps(posterior) == f"{next(iter(setting))} asks for steps"


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (model(Net(noisy, layer=nn.Linear(3, 1))), "the network has noise"),
        (model(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.001), nn.Linear(4, 1))), "the network has noise"),
        (model(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))), "the network has noise"),
        (model(likelihood=bnn.likelihoods.Gaussian("learned")), "the model learns scales"),
        (model(prior="horseshoe"), "the network has noise or running statistics, or more than weights is inferred"),
    ],
    ids=["noise", "dropout", "running statistics", "learned noise", "latent scales"],
)
def test_networks_with_noise_and_modes_without_an_end_take_steps(declared, why):
    posterior = fit(declared, max_steps=200)
    assert not by_lbfgs(posterior)
    assert why_steps(posterior).startswith(why)


def test_validation_and_checkpoints_are_of_steps(tmp_path):
    assert why_steps(fit(max_steps=200, run={"validation": DATA})) == "validation asks for steps"
    assert why_steps(fit(max_steps=200, run={"checkpoint": tmp_path})) == "checkpoint asks for steps"


@pytest.mark.slow
def test_members_of_an_ensemble_find_modes_of_their_own():
    ensemble = bnn.fit(model(), DATA, bnn.Ensemble(bnn.SVI(guide="map"), members=2), seed=0, progress=False)
    assert all(by_lbfgs(member) and slope(member) < 1e-3 for member in ensemble.members)
    assert len({len(member.history) for member in ensemble.members}) > 1
    assert len({round(member.history.elbo[0], 3) for member in ensemble.members}) == 2


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
    assert posterior.record.num_steps == 7
    assert posterior.record.stop_reason == "not converged within max_steps=7"


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "noise"), [(60, 0.005), pytest.param(200, 0.05, marks=pytest.mark.nightly)])
def test_networks_with_kinks_in_single_precision_end_where_adam_gains_nothing(rows, noise):
    """From the point that is called converged, 2,000 steps of Adam at two rates; L-BFGS alone left 15 to 2,700 nats."""
    g = np.random.default_rng(1)
    x = g.normal(size=(rows, 4))
    data = bnn.Data(x, np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + noise * g.normal(size=rows))
    declared = bnn.BNN(bnn.MLP(4, [30], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(noise))
    found = fit(declared, data)
    assert by_lbfgs(found)
    assert found.record.convergence.converged
    x, y = found.bnn.cast_inputs(data.x), found.bnn.cast_targets(data.y, found.bnn.like)

    def loss(weights):
        log_prob = found.bnn.likelihood(found.bnn.outputs(weights, x)).log_prob(y).double().sum()
        return 0.5 * sum(value.double().square().sum() for value in weights.values()) - log_prob

    for rate in (1e-3, 1e-4):
        weights = {name: value.clone().requires_grad_() for name, value in found.guide.mean().items()}
        start = float(loss(weights).detach())
        optimizer = torch.optim.Adam(weights.values(), lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
        for _ in range(2000):
            optimizer.zero_grad()
            loss(weights).backward()
            optimizer.step()
            schedule.step()
        assert start - float(loss(weights).detach()) < 4 * found.record.convergence.tolerance


def test_numbers_that_cease_to_be_finite_are_left_to_steps(monkeypatch):
    """These go back and lower their rate, or name the layer."""
    monkeypatch.setattr("pyrobnn.inference.training.descent.recorded_slope", lambda *_: lambda: torch.zeros(43) / 0)
    posterior = fit(max_steps=200)
    assert not by_lbfgs(posterior)
    assert np.isfinite(posterior.history.elbo).all()
    monkeypatch.setattr("pyrobnn.inference.limits.MOST_AT_ONCE", 10)
    monkeypatch.setattr("pyrobnn.inference.limits.BATCH", 8)
    in_batches, given = fit(max_steps=100), fit(max_steps=100, batch_size=8)
    assert in_batches.record.batch_size == 8
    assert np.array_equal(in_batches.history.elbo, given.history.elbo)


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


def table(kind):
    """Inputs, targets and number of outputs in single precision."""
    generator = torch.Generator().manual_seed(0)
    rows, columns, outputs = (150, 2, 10) if kind == "categorical" else (2000, 4, 1)
    x, weight = (torch.randn(size, generator=generator) for size in ((rows, columns), (columns, outputs)))
    f = x @ weight
    noise = torch.randn(rows, outputs, generator=generator)
    y = {
        "categorical": (1.5 * f + noise).argmax(1),
        "bernoulli": (f + noise > 0).float()[:, 0],
        "poisson": torch.poisson((0.5 * f).exp(), generator=generator)[:, 0],
    }[kind]
    return x, y, outputs


def newton(kind, x, y, outputs):
    """The mode of a linear model under N(0, 1), in double precision by Newton's method: (outputs, inputs and bias)."""
    features = torch.cat([x, torch.ones(len(x), 1)], 1).double()

    def energy(flat):
        f = features @ flat.view(outputs, -1).T
        if kind == "categorical":
            loss = nn.functional.cross_entropy(f, y, reduction="sum")
        elif kind == "bernoulli":
            loss = nn.functional.binary_cross_entropy_with_logits(f[:, 0], y.double(), reduction="sum")
        else:
            loss = (f[:, 0].exp() - y * f[:, 0]).sum()
        return loss + 0.5 * flat.square().sum()

    flat = torch.zeros(outputs * features.shape[1], dtype=torch.float64)
    for _ in range(30):
        flat = flat - torch.linalg.solve(hessian(energy, flat), jacobian(energy, flat))
    return flat.view(outputs, -1)


METHODS = {
    "map": bnn.SVI(guide="map"),
    "laplace": bnn.SVI(guide="laplace"),
    "evidence framework": bnn.EvidenceFramework(starts=1, rounds=0),
}


@pytest.mark.one_in(2, 0)  # checks of types move Python's random numbers, which descents draw
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["categorical", "bernoulli", "poisson"])
def test_modes_in_single_precision_are_those_of_newton_in_double(kind, method):
    """The value, a sum over rows, is rounded to 1e-5 nats, and hides up to 2e-3 of a weight; its gradient does not."""
    x, y, outputs = table(kind)
    declared = bnn.BNN(nn.Linear(x.shape[1], outputs), prior=bnn.priors.Normal(1.0), likelihood=kind)
    data = bnn.Data(x, y, standardize=False)
    mode = bnn.fit(declared, data, METHODS[method], seed=0, progress=False, device="cpu").mean()
    assert mode["weight"].dtype == torch.float32
    found = torch.cat([mode["weight"], mode["bias"][:, None]], 1).double()
    torch.testing.assert_close(found, newton(kind, x, y, outputs), rtol=0, atol=1e-5)


def quadratic(center, dtype):
    """A function that is rounded, around a center."""
    center = torch.tensor(center, dtype=dtype)
    return lambda z: 1e4 + 0.5 * (torch.tensor([1.0, 100.0], dtype=dtype) * (z - center).square()).sum()


def test_polishing_goes_where_values_tell_no_difference():
    z = torch.tensor([0.301, -0.6999], requires_grad=True)
    loss = quadratic([0.3, -0.7], torch.float32)
    assert torch.equal(loss(z.detach()), loss(torch.tensor([0.3, -0.7])))
    polish_in_place(slope_of(lambda: loss(z), [z]), [z])
    torch.testing.assert_close(z.detach(), torch.tensor([0.3, -0.7]), rtol=0, atol=1e-7)


def test_polishing_leaves_double_precision_and_higher_values_as_they_are():
    z = torch.tensor([0.301, -0.6999], dtype=torch.float64, requires_grad=True)
    loss = quadratic([0.3, -0.7], torch.float64)
    polish_in_place(slope_of(lambda: loss(z), [z]), [z])
    assert z.tolist() == [0.301, -0.6999]
    w = torch.tensor([1.0], requires_grad=True)  # the gradient of this is smaller where it is larger
    polish_in_place(lambda: joined([-w.detach(), torch.ones(1) / (1 + w.detach().square())]), [w])
    assert w.tolist() == [1.0]


def test_a_mode_that_adam_had_no_time_to_improve_is_no_reason_to_warn():
    """L-BFGS ended by itself, and the steps of Adam that were left gained 2 nats of 200 rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * torch.randn(200, generator=generator)
    model = bnn.BNN(bnn.MLP(3, [20], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.3))
    fits = [model.fit((x, y), guide="map", max_steps=most, seed=0, progress=False) for most in (980, 100)]
    assert [needs_steps(fit.record) for fit in fits] == [False, True]
    assert not fits[0].record.convergence.converged
