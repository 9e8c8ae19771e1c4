"""Guides: where they start, and the moments that they know."""

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import transforms
from pyro.infer import autoguide
from pyro.nn import PyroModule
from pyro.poutine.messenger import unwrap
from torch import nn

import pyrobnn as bnn
from pyrobnn import guides, priors
from pyrobnn.guides.sites import latent_sites

UNIT = bnn.priors.Normal(1.0)
X = torch.linspace(-1, 1, 12).reshape(6, 2)
Y = X.sum(1)
pytestmark = pytest.mark.usefixtures("local")


def make(prior=UNIT, net=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return bnn.BNN(net or bnn.MLP(2, [3], 1), prior=prior)


def build(setting, model=None):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return guides.resolve(setting).build(model or make(), X, Y)


def linear(weight):
    """A network with given weights, inside a module for names that BNN leaves free."""
    net = nn.Sequential(nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([weight]))
        net[0].bias.zero_()
    return net


def test_start_inside_the_support_entry_by_entry():
    model = make(lambda name, value: dist.HalfNormal(1.0), linear([0.7, -0.3]))
    sites = {site.name: site for site in latent_sites(model, X, Y)}
    weight, bias = sites["0.weight"], sites["0.bias"]
    assert weight.start[0, 0] == pytest.approx(0.7)
    assert weight.start[0, 1] > 0
    assert bias.start.item() > 0, "0 is in the support, but at minus infinity on the unconstrained side"
    assert all(site.unconstrained.isfinite().all() for site in sites.values())


def test_start_inside_the_simplex_row_by_row():
    net = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.25, 0.75], [0.5, 0.6]]))
    model = make(lambda name, value: dist.Dirichlet(torch.ones_like(value)).to_event(1), net)
    (site,) = latent_sites(model, X, torch.stack([Y, Y], 1))
    assert site.start[0].tolist() == [0.25, 0.75]
    assert site.start[1].sum() == pytest.approx(1.0)
    assert site.start[1, 0] != 0.5


def test_start_at_the_prior_has_its_mean_and_variance():
    model = make(priors.Normal(0.5, loc=3.0), bnn.MLP(2, [2000], 1))
    loc = build(guides.MeanField(init_loc="prior"), model).loc
    assert loc.mean().item() == pytest.approx(3.0, abs=0.03)
    assert loc.std().item() == pytest.approx(0.5, abs=0.02)


def test_guide_by_name_has_the_means_and_moments_of_its_parts_and_lacks_what_a_part_lacks():
    guide = build({"*.bias": guides.MeanField(init_rho=-1.0), "*": "mean_field"})
    means, moments = ([getattr(part, kind)() for part in guide.children()] for kind in ("mean", "moments"))
    torch.testing.assert_close(guide.mean(), means[0] | means[1], rtol=0, atol=0)
    torch.testing.assert_close(guide.moments(), moments[0] | moments[1], rtol=0, atol=0)
    assert guide.mean().keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert build({"*.bias": "map", "*": "mean_field"}).moments() is None
    assert build({"*.bias": guides.Auto("AutoMultivariateNormal"), "*": "mean_field"}).mean() is None


class Foreign(PyroModule):
    """A guide that does not inherit from `BuiltGuide`."""

    vmappable = True

    def mean(self):
        return {"w": 2.0}


def test_a_foreign_guide_offers_what_it_names_and_the_defaults():
    offered = guides.built(Foreign())
    assert offered.vmappable
    assert offered.mean() == {"w": 2.0}
    assert not offered.linearized
    assert offered.moments() is offered.chains() is offered.log_density({}) is None
    assert not offered.pruned_sites()
    assert not offered.gaussian_blocks()


class Following:
    """A setting of guides that follow log q along their draws, of another package."""

    def build(self, model, *args):
        guide = guides.resolve("AutoNormal").build(model, *args)
        guide.path_derivative = True
        return guide


@pytest.mark.parametrize("setting", ["map", "mean_field", {"*.bias": "map", "*": "mean_field"}], ids=str)
def test_changing_the_mean_leaves_the_guide_as_it_was(setting):
    guide = build(setting)
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    for value in guide.mean().values():
        value.zero_()
    for pair in (guide.moments() or {}).values():
        for value in pair:
            value.zero_()
    assert all(torch.equal(value, before[name]) for name, value in guide.state_dict().items())


TWICE = partial(transforms.iterated, 2, transforms.affine_autoregressive)
IN_DOUBLE = {
    "AutoIAFNormal": guides.Auto("AutoIAFNormal", {"hidden_dim": [20]}),
    "AutoNormalizingFlow": guides.Auto("AutoNormalizingFlow", {"init_transform_fn": TWICE}),
    "AutoStructured": lambda model: autoguide.AutoStructured(model, conditionals="normal", dependencies="linear"),
    "a function": lambda model: autoguide.AutoIAFNormal(model, hidden_dim=[20]),
    "of some weights": {"2.*": "AutoIAFNormal", "*": "mean_field"},
    "flow": "flow",
    **dict.fromkeys(["AutoDelta", "AutoDiagonalNormal", "AutoNormal"]),
    **dict.fromkeys(["AutoLowRankMultivariateNormal", "AutoMultivariateNormal"]),
}


@pytest.mark.parametrize("likelihood", ["gaussian", "categorical"])
@pytest.mark.parametrize("name", IN_DOUBLE)
def test_guides_of_pyro_take_a_network_in_double_precision(name, likelihood):
    x = torch.linspace(-1, 1, 12)[:, None]
    y, outputs = (x[:, 0], 1) if likelihood == "gaussian" else ((x[:, 0] > 0).long(), 2)
    model = bnn.BNN(bnn.MLP(1, [3], outputs, dtype="float64"), prior=priors.Normal(1.0), likelihood=likelihood)
    posterior = model.fit(x, y, guide=IN_DOUBLE[name] or name, steps=5, seed=0, progress=False)
    assert {value.dtype for value in posterior.guide.parameters()} == {torch.float64}
    draws = posterior.draw(4)
    assert {value.dtype for value in draws.values()} == {torch.float64}
    assert posterior.predict(x, draws=draws).log_prob(y).dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["AutoLaplaceApproximation", autoguide.AutoLaplaceApproximation])
@pytest.mark.parametrize("hidden", [[], [3]], ids=["linear", "tanh"])
def test_the_laplace_approximation_of_pyro_has_its_gaussian(hidden, guide, tmp_path):
    """For a linear model the covariance is the inverse of X^T X / s^2 + I; else Pyro computes it at the same point."""
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    net = bnn.MLP(2, hidden, 1, activation="tanh", dtype="float64")
    model = bnn.BNN(net, prior=priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=0.3))
    posterior = model.fit(x, x[:, 0].sin(), guide=guide, seed=0, progress=False, **({} if hidden else {"steps": 500}))
    moments = posterior.guide.moments()
    found = torch.cat([moments[name][1].flatten() for name in model.site_names])
    columns = torch.cat([x, torch.ones(30, 1)], 1)
    expected = (columns.T @ columns / 0.3**2 + torch.eye(3)).inverse().diagonal().sqrt()
    if hidden:
        point = autoguide.AutoLaplaceApproximation(posterior.bnn)
        y = posterior.bnn.cast_targets(posterior.y_scaler.transform(x[:, 0].sin()), x)
        point(x, y)
        point.loc.data = torch.cat([posterior.mean()[name].flatten() for name in model.site_names])
        expected = point.laplace_approximation(x, y)
        expected = expected.scale * expected.scale_tril.square().sum(1).sqrt()
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=0)
    draws = posterior.draw(20_000, seed=0)
    spread = torch.cat([draws[name].flatten(1).std(0) for name in model.site_names])
    torch.testing.assert_close(spread, found, rtol=0.025, atol=0)  # five standard errors, 1 / sqrt(40,000) each
    again = bnn.load(posterior.save(tmp_path / "saved"))
    assert torch.equal(again.predict(x).std, posterior.predict(x).std)


def made(model):
    return autoguide.AutoLaplaceApproximation(model)


SMALL = bnn.MLP(1, [3], 1)
Diagonal = type("Diagonal", (autoguide.AutoDiagonalNormal,), {})
OF_TWO_PHASES = type("OfTwoPhases", (autoguide.AutoLaplaceApproximation,), {})
POINT = "is a point, without its Gaussian"
SINGLE = "AutoGaussianDense computes in torch.float32 alone, and the network is"
FINITE = "needs a prior of finite mean and variance; the prior of '0.weight'"
OF_PARTS = {"*.bias": "AutoLaplaceApproximation", "*": "map"}
REFUSED = {
    "a point, in a function": (made, {}, POINT),
    "a point, with options": (partial(autoguide.AutoLaplaceApproximation, init_loc_fn=None), {}, POINT),
    "a point, in a class": (OF_TWO_PHASES, {}, POINT),
    "a point, by its setting": (guides.Auto("AutoLaplaceApproximation"), {}, POINT),
    "a point, for some weights": (OF_PARTS, {}, "has a second phase over the whole model"),
    "a point, made already": (made(bnn.BNN(SMALL)), {}, POINT),
    "no guide": (lambda model: None, {}, "must return a guide, such as .* got None: one that draws the sites"),
    "no sites": (lambda x, y=None: None, {}, "does not draw 0.weight"),
    "follows its density": (Following(), {"kl": "analytic"}, "follows log q along its draws"),
    "single precision": ("AutoGaussian", {"dtype": "float64"}, SINGLE),
    "single precision of a part": ({"2.*": "AutoGaussian", "*": "mean_field"}, {"dtype": "float64"}, SINGLE),
    "no mean": (guides.MeanField(init_loc="prior"), {"prior": dist.Cauchy(0.0, 1.0)}, FINITE),
    "no variance": (guides.MeanField(init_loc="prior"), {"prior": dist.StudentT(2.0)}, FINITE),
}


def fit_small(guide, *, dtype="float32", prior=UNIT, **settings):
    model = bnn.BNN(bnn.MLP(1, [3], 1, dtype=dtype), prior=prior)
    return model.fit([[0.0], [1.0]], [0.0, 1.0], guide=guide, steps=2, seed=0, progress=False, **settings)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_fit_can_take_is_refused(name):
    """Points of Pyro, which a second phase would widen, among others."""
    guide, settings, message = REFUSED[name]
    with pytest.raises(bnn.InputError, match=message):
        fit_small(guide, **settings)


LINE = bnn.BNN(bnn.MLP(1, [3], 1).build(), prior=UNIT)


class Program(nn.Module):
    def forward(self, x, y=None):
        for name, value in LINE.initial_values.items():
            loc = pyro.param(f"loc.{name}", lambda value=value: value.clone())
            scale = pyro.param(f"scale.{name}", torch.full_like(value, 0.1), autoguide.AutoNormal.scale_constraint)
            pyro.sample(name, dist.Normal(loc, scale).to_event(value.ndim))


@pytest.mark.parametrize("make", [autoguide.AutoNormal, lambda _: Program().forward, lambda _: Program()])
def test_instances_and_programs_fit_as_the_class_of_pyro_does(make):
    data, settings = ([[0.0], [1.0]], [0.0, 1.0]), {"steps": 5, "seed": 0, "kl": "mc", "progress": False}
    expected = LINE.fit(*data, guide="AutoNormal", engine="eager", **settings)
    posterior = LINE.fit(*data, guide=make(LINE), engine="captured", **settings)
    torch.testing.assert_close(posterior.history.elbo, expected.history.elbo, rtol=1e-5, atol=0)
    assert posterior.draw(3)["0.weight"].shape == (3, 3, 1)


def test_an_autoguide_that_was_trained_goes_on_from_its_parameters_in_a_copy():
    guide = autoguide.AutoGuideList(LINE)
    guide.append(autoguide.AutoNormal(poutine.block(LINE, hide=[])))
    guide(torch.zeros(1, 1), torch.zeros(1))
    bias = guide[0].locs.get_parameter("2.bias_unconstrained")
    bias.data.fill_(7.0)
    assert fit_small(guide, lr=0.01).draw(1000)["2.bias"].mean().item() == pytest.approx(7.0, abs=0.04)  # of sd 0.1
    assert (bias.item(), unwrap(guide[0].model), guide[0].master()) == (7, LINE, guide)


def test_a_class_of_the_users_the_default_precision_and_a_prior_of_finite_variance_are_taken():
    assert type(fit_small(Diagonal).guide) is Diagonal
    assert fit_small(guides.MeanField(init_loc="prior"), prior=dist.StudentT(3.0)).guide.loc.isfinite().all()
    torch.set_default_dtype(torch.float64)
    try:
        posterior = fit_small("AutoIAFNormal")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert {value.dtype for value in posterior.guide.parameters()} == {torch.float32}
    with pytest.raises(bnn.InputError, match="Unknown autoguide 'AutoDiscreteParallel'. Known: AutoDelta"):
        guides.Auto("AutoDiscreteParallel")
