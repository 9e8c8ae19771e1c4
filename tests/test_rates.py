"""Learning rates by the names of parameters."""

import pytest
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference import tables
from pyrobnn.inference.data import make_source
from pyrobnn.inference.method import Run
from pyrobnn.inference.training.start import start

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1).sin() + 0.1 * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
RATES = {"guide.rho": 0.002, "likelihood*": 0.05, "*": 0.01}
ENGINES = ("eager", "captured")


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian("learned"))


def fit(lr, **settings):
    return model().fit((X, Y), lr=lr, seed=0, **{"steps": 20, "device": "cpu", "progress": False} | settings)


def parts(posterior):
    named = {"guide.loc": posterior.guide.loc, "guide.rho": posterior.guide.rho}
    named["likelihood"] = posterior.bnn.likelihood.scale_unconstrained
    return {name: value.detach().clone() for name, value in named.items()}


def test_a_group_moves_as_in_a_fit_at_its_rate():
    """One step of gradient descent: bit by bit."""
    settings = {"steps": 1, "optimizer": "sgd", "engine": "eager"}
    mixed = parts(fit({"guide.rho": 2e-4, "likelihood*": 5e-3, "*": 1e-3}, **settings))
    for name, rate in {"guide.rho": 2e-4, "likelihood": 5e-3, "guide.loc": 1e-3}.items():
        assert torch.equal(mixed[name], parts(fit(rate, **settings))[name]), name


def test_a_group_moves_in_proportion_to_its_rate_in_a_recorded_step():
    """The second of two steps is recorded; the first, at the same point, moves both fits the same."""
    slow, fast = 1e-6, 1e-5
    base = {"optimizer": "sgd", "engine": "captured", "guide": "map", "device": "cpu", "progress": False, "seed": 0}

    def points(steps, rate):
        posterior = model().fit((X, Y), lr={"guide.points.0": rate, "*": slow}, steps=steps, **base)
        assert steps == 1 or posterior.record.engine.used == "captured"
        return [p.detach().clone() for p in posterior.guide.parameters()]

    (a1, b1, *_), (a2, b2, *_) = points(1, fast), points(2, fast)
    (c1, d1, *_), (c2, d2, *_) = points(1, slow), points(2, slow)
    torch.testing.assert_close((a2 - a1) / (c2 - c1), torch.full_like(a1, fast / slow), rtol=1e-3, atol=0)
    torch.testing.assert_close((b2 - b1) / (d2 - d1), torch.ones_like(b1), rtol=1e-3, atol=0)


def begun(method):
    source = make_source(bnn.Data(X, Y), model(), method.batch_size, seed=0)
    with seeded(0), fast_pyro():
        return start(model(), method, source, 0, "cpu")[1]


@pytest.mark.parametrize("schedule", [None, "cosine_annealing_lr", "one_cycle_lr", {"type": "step_lr", "step_size": 3}])
def test_schedules_multiply_the_rates_of_all_groups(schedule):
    state = begun(bnn.SVI(steps=10, lr=RATES, schedule=schedule))
    rates = torch.tensor([rates for _, *rates in state.hand_over(10)], dtype=torch.float64)
    torch.testing.assert_close(
        rates / rates[:, :1], torch.tensor([[1.0, 25.0, 5.0]], dtype=torch.float64).expand(10, 3)
    )
    alone = begun(bnn.SVI(steps=10, lr=0.002, schedule=schedule))
    torch.testing.assert_close(rates[:, 0].tolist(), [rate for _, rate in alone.hand_over(10)])
    state.cycle_factor = 0.25
    state.begin_schedule(10)
    again = torch.tensor([rates for _, *rates in state.hand_over(10)], dtype=torch.float64)
    torch.testing.assert_close(again, 0.25 * rates)


def test_replicates_may_have_other_rates():
    methods = [bnn.SVI(guide="map", steps=15, lr={"guide.points.0": rate, "*": 0.01}) for rate in (0.001, 0.02)]
    fits = [
        bnn.fit_replicates(model(), (X, Y), methods, seed=0, engine=e, progress=False, device="cpu") for e in ENGINES
    ]
    assert fits[1][0].record.engine.used == "captured"
    for one, other in zip(*fits, strict=True):
        for pair in zip(one.guide.parameters(), other.guide.parameters(), strict=True):
            torch.testing.assert_close(*pair, rtol=1e-8, atol=1e-8)
    mixed = [methods[0], bnn.SVI(guide="map", steps=15, lr=0.01)]
    with pytest.warns(UserWarning, match="replicates differ in which parameters share a learning rate"):
        bnn.fit_replicates(model(), (X, Y), mixed, seed=0, engine="captured", progress=False)


def test_they_are_settings():
    method = bnn.SVI(lr=RATES, steps=5)
    assert tables.from_table(tables.to_table(method)) == method
    assert hash(method) == hash(bnn.SVI(lr=dict(RATES), steps=5))
    assert method != bnn.SVI(lr=0.01, steps=5)
    assert bnn.SVI(lr=1).lr == 1.0
    with pytest.raises(TypeError):
        method.lr["*"] = 1.0


REFUSED = {
    "no match": (
        lambda: fit({"guide.sigma": 0.1, "*": 0.01}),
        "The learning rate pattern 'guide.sigma' matches nothing .* "
        "Names: likelihood.scale_unconstrained, guide.loc, guide.rho",
    ),
    "no match, before scales are measured": (
        lambda: bnn.SVI(lr={"guide.sigma": 0.1, "*": 0.01}).check(model(), bnn.Data(X, Y), Run(seed=0)),
        "'guide.sigma' matches",
    ),
    "a parameter without": (lambda: fit({"guide.*": 0.1}), "No learning rate for 'likelihood.scale_unconstrained':"),
    "covered before": (lambda: fit({"*": 0.1, "guide.rho": 0.01}), "'guide.rho' matches nothing that an earlier"),
    "not positive": (lambda: bnn.SVI(lr={"*": -0.1}), "`lr` must be greater than 0, got -0.1"),
    "no number": (lambda: bnn.SVI(lr="fast"), "`lr` must be a number, got 'fast'"),
    "a rate of the optimizer": (
        lambda: bnn.SVI(lr=RATES, optimizer={"type": "sgd", "lr": 0.1}),
        "`lr` has rates by name, and `lr` of the optimizer is one for all: leave it out",
    ),
    "a rate of the schedule": (
        lambda: bnn.SVI(lr=RATES, schedule={"type": "one_cycle_lr", "max_lr": 0.1}),
        "and `max_lr` of the schedule is one for all",
    ),
    "IVON": (lambda: bnn.IVON(lr={"*": 0.1}), "IVON: `lr` must be a number"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_rate_is_refused(kind):
    call, message = REFUSED[kind]
    with pytest.raises(bnn.InputError, match=message):
        call()
