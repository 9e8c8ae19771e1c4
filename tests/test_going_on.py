"""Fits that go on from a posterior: they begin at its parameters, and refuse those of other models."""

import pytest
import torch
from helpers import quick
from torch import nn

import pyrobnn as bnn
from pyrobnn import InputError, guides, likelihoods, priors

X = torch.linspace(-1, 1, 24)[:, None]
Y = (3 * X).sin()[:, 0]
STILL = {"steps": 1, "lr": 1e-30}
"""A step that moves no parameter in float32."""


def model(**parts):
    return bnn.BNN(bnn.MLP(1, [6], 1), **({"prior": priors.Normal(1.0)} | parts))


def svi(guide="mean_field", **settings):
    return bnn.SVI(guide=guide, **({"steps": 30} | settings))


def state(posterior):
    return {**posterior.bnn.state_dict(), **{f"guide.{k}": v for k, v in posterior.guide.state_dict().items()}}


def assert_same(one, other):
    assert state(one).keys() == state(other).keys()
    for name, value in state(one).items():
        assert torch.equal(value, state(other)[name]), name


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "guide",
    ["mean_field", "low_rank", "flow", "dropout", "map", "AutoIAFNormal", {"2.*": "full_rank", "*": "mean_field"}],
    ids=str,
)
def test_a_fit_begins_where_the_posterior_is(guide):
    """Under another seed, which draws other starting values and other permutations of a flow."""
    first = quick(model(), svi(guide), (X, Y))
    second = quick(model(), svi(guide, **STILL), (X, Y), start=first, seed=1)
    assert_same(first, second)
    at_first, at_second = (posterior.predict(X, num_draws=20, seed=3).mean for posterior in (first, second))
    assert torch.equal(at_first, at_second)


def test_twice_thirty_steps_of_sgd_are_sixty():
    """A point has no noise, SGD has no memory, and all data are at each step."""
    settings = {"optimizer": "sgd", "lr": 1e-4}
    whole = quick(model(), svi("map", steps=60, **settings), (X, Y))
    half = quick(model(), svi("map", **settings), (X, Y))
    assert_same(whole, quick(model(), svi("map", **settings), (X, Y), start=half, seed=7))


def test_scales_that_were_left_open_are_not_measured_later():
    asked = bnn.BNN(bnn.MLP(1, [6], 1))
    first = quick(asked, svi(), (X, Y))
    second = quick(asked, bnn.SVI(max_steps=60), (X, Y), start=first)
    assert second.record.evidence is None
    assert second.bnn.settings["prior"] == asked.settings["prior"]


@pytest.mark.slow
def test_a_converged_fit_of_open_length_keeps_the_scales_that_it_measured():
    data = bnn.Data(X, Y + 0.1 * torch.randn(24, generator=torch.Generator().manual_seed(0)), standardize=True)
    asked = bnn.BNN(bnn.MLP(1, [6], 1))
    first = bnn.fit(asked, data, bnn.SVI(), seed=0, progress=False)
    second = bnn.fit(asked, data, svi(**STILL), seed=0, progress=False, start=first)
    assert first.bnn.settings["prior"] != asked.settings["prior"]
    assert second.bnn.settings["prior"] == first.bnn.settings["prior"]
    assert_same(first, second)
    third = bnn.fit(asked, data, bnn.SVI(), seed=0, progress=False, start=first)
    assert third.record.evidence is None
    assert third.bnn.settings == first.bnn.settings
    gain = third.record.convergence.elbo - first.record.convergence.elbo
    errors = [posterior.record.convergence.elbo_error for posterior in (first, third)]
    assert gain > -first.record.convergence.tolerance - 4 * max(errors)


@pytest.mark.slow
def test_a_mode_that_lbfgs_seeks_is_sought_from_there():
    """Seeds lead to modes with other signs and orders of the units, and this one stays.

    Units that the data do not need shrink to 0, along directions where single precision hides the gain: 0.01 from 0
    costs 1e-4 nats. They stay small; the others have the same weights.
    """
    net = bnn.MLP(1, [6], 1, activation="tanh")
    known = bnn.BNN(net, prior=priors.Normal(1.0), likelihood=likelihoods.Gaussian(0.1))
    by_map = bnn.SVI(guide="map")
    first = quick(known, by_map, (X, Y), engine="auto")
    second, other = (quick(known, by_map, (X, Y), engine="auto", seed=5, start=start) for start in (first, None))
    needed = first.mean()["0.weight"].abs()[:, 0] > 0.1
    assert bool(needed.any())
    masks = {"0.weight": needed[:, None], "0.bias": needed, "2.weight": needed[None], "2.bias": torch.tensor([True])}
    for name, units in masks.items():
        value, before = second.mean()[name], first.mean()[name]
        torch.testing.assert_close(value[units], before[units], rtol=0, atol=1e-3)
        assert float(torch.cat([value[~units], before[~units], value.new_zeros(1)]).abs().max()) < 0.03
    assert -1e-3 < second.record.convergence.elbo - first.record.convergence.elbo < 1e-3
    assert not torch.allclose(other.mean()["0.weight"], first.mean()["0.weight"], atol=0.1)


def test_new_data_are_seen_in_the_units_of_the_first():
    first = quick(model(), svi(), bnn.Data(X, Y, standardize=True))
    second = quick(model(), svi(**STILL), bnn.Data(10 * X + 3, 5 * Y - 1, standardize=True), start=first)
    for name in ("x_scaler", "y_scaler"):
        for part in ("loc", "scale"):
            assert torch.equal(getattr(getattr(first, name), part), getattr(getattr(second, name), part))
    assert torch.equal(first.predict(X, seed=0).mean, second.predict(X, seed=0).mean)


def test_the_record_says_it_and_is_saved_and_a_loaded_posterior_goes_on(tmp_path):
    first = quick(model(), svi(), (X, Y), seed=4)
    second = quick(model(), svi(steps=10), (X[:12], Y[:12]), start=first)
    assert first.record.start is None
    assert second.record.start == {"seed": 4, "num_steps": 30, "num_data": 24}
    assert second.record.num_steps == 10
    loaded = bnn.load(first.save(tmp_path / "first"))
    assert_same(second, quick(model(), svi(steps=10), (X[:12], Y[:12]), start=loaded))
    assert bnn.load(second.save(tmp_path / "second")).record.start == second.record.start


@pytest.fixture(scope="module")
def first():
    return quick(model(), svi(), (X, Y))


def sequence(width=4, *, frozen=False):
    net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))
    net[0].requires_grad_(requires_grad=not frozen)
    return bnn.BNN(net, prior=priors.Normal(1.0))


ANOTHER = {
    "its network is MLP": bnn.BNN(bnn.MLP(1, [7], 1), prior=priors.Normal(1.0)),
    "it has a Sequential, not a Linear": bnn.BNN(nn.Linear(1, 1), prior=priors.Normal(1.0)),
    "its prior of '0.weight' is Normal": model(prior=priors.Normal(2.0)),
    "its prior of '2.weight' is Normal": model(prior={"2.*": priors.Normal(2.0), "*": priors.Normal(1.0)}),
    "its likelihood is Gaussian": model(likelihood="student_t"),
    r"its likelihood is Gaussian\(": model(likelihood=likelihoods.Gaussian(0.3)),
}
GUIDES = ["full_rank", "map", guides.MeanField(init_rho=-5.0), {"2.*": "full_rank", "*": "mean_field"}]
KNOWN = model(likelihood=likelihoods.Gaussian(0.1))
REFUSED = [
    *((None, other, svi(), f"of another model.*{words}.*posterior.bnn") for words, other in ANOTHER.items()),
    *((None, model(), svi(guide), "`start` has another guide") for guide in GUIDES),
    (sequence(5), sequence(), svi(steps=2), r"has shape \(5, 1\) there, and \(4, 1\) here"),
    (sequence(frozen=True), sequence(), svi(steps=2), "it infers 2.weight, 2.bias"),
    (KNOWN, KNOWN, svi("laplace"), "has nothing to train: start"),
]
"""A model of the start, or None for one of this file, another and its method, and what is said."""


@pytest.mark.parametrize(("of_start", "other", "method", "message"), REFUSED)
def test_another_model_or_guide_is_refused(first, of_start, other, method, message):
    start = first if of_start is None else quick(of_start, method, (X, Y))
    with pytest.raises(InputError, match=f"(?s){message}"):
        quick(other, method, (X, Y), start=start)


@pytest.mark.parametrize(
    "method", [None, bnn.Ensemble(svi()), bnn.EvidenceFramework(), bnn.NUTS()], ids=lambda method: type(method).__name__
)
def test_a_mixture_is_refused_and_methods_that_cannot_go_on_refuse_it_by_name(first, method):
    with pytest.raises(InputError, match="must be a Posterior, got Mixture; of a Mixture, pass one of its `members`"):
        quick(model(), svi(), (X, Y), start=bnn.Mixture([first, first]))
    said = f"{type(method).__name__} does not go on from a posterior, as SVI does"
    with pytest.raises(InputError, match="`start` goes with a method" if method is None else said):
        bnn.fit(model(), (X, Y), method, seed=0, progress=False, start=first)
