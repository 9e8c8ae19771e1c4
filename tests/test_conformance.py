"""Every registered part passes the checks that pyrobnn ships, and deliberately wrong parts are caught.

The check that takes long, of captured steps, is made of a prior, a likelihood and a guide at once.
"""

import contextlib
import itertools
from typing import ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import nn

import pyrobnn as bnn
from pyrobnn import guides, likelihoods, priors, testing
from pyrobnn.guides.sites import latent_sites
from pyrobnn.likelihoods import noise
from pyrobnn.priors import Normal, ScaleMixture
from pyrobnn.testing import GUIDE_CHECKS, LIKELIHOOD_CHECKS, PRIOR_CHECKS, check_combination
from pyrobnn.testing.checks import accepted_targets, make_inputs, make_net, pairwise, require_capturable


def registered(registry, variants):
    """The setting of every registered class that has defaults, and the variants."""
    defaults = []
    for name in registry.names:
        with contextlib.suppress(bnn.InputError):  # settings that must be given come as variants
            defaults.append(registry.get(name)())
    return list(dict.fromkeys([*defaults, *variants]))


PRIORS = registered(
    priors.registry,
    [
        Normal("fan_in"),
        Normal("he", loc=0.1),
        ScaleMixture(learnable=True),
        priors.StudentT(5.0, "he"),
        priors.Hierarchical("gamma", "fan_in"),
        priors.ARD("half_normal", 0.5),
        priors.Horseshoe("fan_in", "weight"),
        priors.RegularizedHorseshoe(0.1, local="weight"),
        priors.Anchored(Normal(0.5)),
        priors.Anchored(ScaleMixture()),
        priors.resolve({"0.weight": "ard", "2.weight": "regularized_horseshoe", "*": "hierarchical"}),
        priors.resolve({"*.bias": Normal(2.0), "*": ScaleMixture(pi=0.2, learnable=True)}),
        priors.resolve({"2.*": "normal", "*": None}),
    ],
)
LIKELIHOODS = registered(
    likelihoods.registry,
    [
        likelihoods.Gaussian(0.2),
        likelihoods.Gaussian("heteroscedastic"),
        likelihoods.Gaussian((0.2, 0.5)),
        likelihoods.Gaussian(noise.HalfNormal(1.0)),
        likelihoods.Laplace(noise.Gamma(2.0, 3.0)),
        likelihoods.StudentT(noise.HalfCauchy(1.0), df="learned"),
        likelihoods.StudentT("heteroscedastic"),
        likelihoods.CensoredGaussian(lower=0.0),
        likelihoods.CensoredGaussian(lower=-1.0, upper=1.5, scale="heteroscedastic"),
        likelihoods.NegativeBinomial(0.5),
        likelihoods.NegativeBinomial("heteroscedastic"),
        likelihoods.ZeroInflated(0),
        likelihoods.ZeroInflated("heteroscedastic"),
        likelihoods.LogNormal("heteroscedastic"),
        likelihoods.Gamma("heteroscedastic"),
        likelihoods.Beta("heteroscedastic"),
        likelihoods.MixtureDensity(2, df=4.0),
        likelihoods.DenseCategorical(3),
        likelihoods.Ordinal(2),
        likelihoods.Ordinal(3),
    ],
)
GUIDES = registered(
    guides.registry,
    [
        guides.MeanField(init_loc="prior", init_rho=-2.0),
        guides.MeanField(noise="local", path_derivative=True),
        guides.MeanField(noise="flipout"),
        guides.MatrixNormal(factors="diagonal"),
        guides.Dropout(0.3, input_rate=0.2, per_example=True),
        guides.Dropout(0.3, input_rate=0.2, learned=True),
        guides.Laplace(structure="full", sites=("*.weight",), subnetwork=3),
        guides.Auto("AutoNormal"),
        guides.Auto("AutoLowRankMultivariateNormal", {"rank": 2}),
        guides.resolve({"2.*": guides.Auto("AutoMultivariateNormal"), "*": "mean_field"}),
        guides.resolve({"*.bias": "map", "*": guides.MeanField()}),
    ],
)
FAMILIES = {priors.registry: PRIORS, likelihoods.registry: LIKELIHOODS, guides.registry: GUIDES}
CHECKS = {check.__name__: check for check in (*PRIOR_CHECKS, *LIKELIHOOD_CHECKS, *GUIDE_CHECKS)}
FILLED_BY_METHODS = {guides.BlockGaussian, guides.Empirical}
"""Guides without anything to train, tested with the methods that fill them."""


def cases():
    for parts, checks in ((PRIORS, PRIOR_CHECKS), (LIKELIHOODS, LIKELIHOOD_CHECKS), (GUIDES, GUIDE_CHECKS)):
        quick = [check for check in checks if not check.__name__.endswith("captures")]
        yield from testing.parametrize_with_checks(parts, quick).args[1]


@pytest.mark.one_in(7, 5)
@pytest.mark.parametrize(("part", "check"), list(cases()))
def test_part(part, check):
    check(part)


def of_each(index):
    """A prior, a likelihood and a guide, so that every part has an index below the largest number of parts."""
    return [parts[index % len(parts)] for parts in FAMILIES.values()]


@pytest.mark.one_in(24, 6)
@pytest.mark.parametrize("index", range(max(map(len, FAMILIES.values()))), ids=lambda i: repr(of_each(i)))
def test_parts_are_captured(index):
    prior, likelihood, guide = of_each(index)
    *_, (y, outputs) = accepted_targets(likelihood)
    model = bnn.BNN(make_net(outputs), prior=prior, likelihood=likelihood)
    require_capturable(model, bnn.Data(make_inputs(len(y)), y), guide=guide, batch_size=7)


def trainable(registry):
    """The setting of every registered class, with defaults where it has them, else as its first variant."""
    first = {type(part): part for part in reversed(FAMILIES[registry])}
    return [first[registry.get(name)] for name in registry.names if registry.get(name) not in FILLED_BY_METHODS]


@pytest.mark.one_in(17, 6)
@pytest.mark.filterwarnings("ignore:Laplace:UserWarning")
@testing.parametrize_combinations(*map(trainable, FAMILIES))
def test_parts_work_together(prior, likelihood, guide):
    check_combination(prior, likelihood, guide)


@pytest.mark.parametrize("sizes", [(5, 3, 4), (3, 5, 2), (1, 4, 4)])
def test_every_pair_of_parts_is_combined(sizes):
    families = list(map(range, sizes))
    found = list(pairwise(*families))
    for one, two in itertools.combinations(range(3), 2):
        pairs = {(combination[one], combination[two]) for combination in found}
        assert pairs == set(itertools.product(families[one], families[two]))


class Prior:
    """A prior whose module calls a function, or is made by `module`."""

    def __init__(self, site=None, module=None):
        self.make = module or (lambda: SiteModule(site))

    def build(self, values):
        return self.make()


class SiteModule(PyroModule):
    def __init__(self, site):
        super().__init__()
        self.site = site

    def forward(self, name, value):
        return self.site(name, value)


def normal(value, scale=1.0):
    return dist.Normal(torch.zeros_like(value), torch.as_tensor(scale, dtype=value.dtype)).to_event(value.ndim)


SHARED = nn.Parameter(torch.ones(()))
HIDDEN = torch.ones((), requires_grad=True)
"""A trainable scale that no optimiser finds."""


def learned():
    """Uses a trainable scale that all models share."""
    module = SiteModule(lambda name, value: normal(value, SHARED.to(value.dtype)))
    module.scale = SHARED
    return module


def leaking():
    pyro.get_param_store()["leaked"] = torch.ones(())
    return SiteModule(lambda name, value: normal(value))


def infinite(name, value):
    return dist.Uniform(torch.zeros_like(value), torch.ones_like(value), validate_args=False).to_event(value.ndim)


WRONG_PRIORS = {
    "no event dimensions": (Prior(lambda name, value: dist.Normal(torch.zeros_like(value), 1.0)), "shape"),
    "zero density": (Prior(infinite), "log_prob"),
    "hidden parameter": (Prior(lambda name, value: normal(value, HIDDEN)), "owns_its_parameters"),
    "site without the prior's name": (
        Prior(lambda n, value: normal(value, pyro.sample(f"{n}.scale", dist.HalfNormal(1.0)))),
        "added_sites",
    ),
    "branches on values": (Prior(lambda name, value: normal(value, 1.0 if value.sum() < 1e9 else 2.0)), "captures"),
    "shared parameter": (Prior(module=learned), "is_not_shared"),
    "global store": (Prior(module=leaking), "fits_and_predicts"),
    "compares by identity": (Prior(), "is_value"),
}


class Likelihood:
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = False

    def __init__(self, forward):
        self.forward = forward

    def build(self, like, target_scale):
        module = PyroModule()
        module.forward = self.forward
        return module

    def num_outputs(self, y):
        return 1 if y.ndim == 1 else y.shape[1]

    def check_targets(self, y, outputs):
        if outputs != self.num_outputs(y):
            raise bnn.InputError("width")


class Lenient(Likelihood):
    def check_targets(self, y, outputs):
        pass


def right(f, scale=1.0):
    loc, event_dim = likelihoods.base.squeeze_single(f)
    return dist.Normal(loc, torch.as_tensor(scale, dtype=f.dtype)).to_event(event_dim)


WRONG_LIKELIHOODS = {
    "dropped event dimension": (Likelihood(lambda f: right(f).base_dist if f.shape[-1] > 1 else right(f)), "shape"),
    "mixes rows": (Likelihood(lambda f: right(f - f.mean(-2, keepdim=True))), "is_rowwise"),
    "blocks gradients": (Likelihood(lambda f: right(f.detach())), "gradients"),
    "overflows": (
        Likelihood(lambda f: dist.Normal(f[..., 0], f[..., 0].exp(), validate_args=False)),
        "takes_extreme_outputs",
    ),
    "hidden parameter": (Likelihood(lambda f: right(f, HIDDEN)), "owns_its_parameters"),
    "takes any width": (Lenient(right), "contract"),
}


class Guide:
    """A guide setting whose module is made by a function of the model's latent sites."""

    def __init__(self, make):
        self.make = make

    def build(self, model, *args):
        return self.make(latent_sites(model, *args))


class Independent(PyroModule):
    """A correct guide of independent normals, with hooks to break it."""

    vmappable = False

    def __init__(self, sites):
        super().__init__()
        self.sites = [(site.name, site.transform) for site in sites]
        self.locs = nn.ParameterList([nn.Parameter(self.start(site)) for site in sites])
        self.rhos = nn.ParameterList([nn.Parameter(torch.full_like(loc, -2.0)) for loc in self.locs])

    def start(self, site):
        return site.unconstrained

    def forward(self, *args, **kwargs):
        for (name, transform), loc, rho in zip(self.sites, self.locs, self.rhos, strict=True):
            self.draw(name, transform, dist.Normal(loc, rho.exp()).to_event(loc.ndim))

    def draw(self, name, transform, law):
        return pyro.sample(name, law if transform is None else dist.TransformedDistribution(law, [transform]))


class MissesPriorLatent(Independent):
    def draw(self, name, transform, law):
        return super().draw(name, transform, law) if transform is None else None


class NoReparameterization(Independent):
    def draw(self, name, transform, law):
        frozen = dist.Normal(law.base_dist.loc.detach(), law.base_dist.scale).to_event(law.event_dim)
        return super().draw(name, transform, frozen)


class Stateful(Independent):
    calls = 0

    def forward(self, *args, **kwargs):
        type(self).calls += 1
        with torch.no_grad():
            self.locs[0] += 1e-3 * type(self).calls
        super().forward()


class OneNoise(Independent):
    """Says that it can be vmapped, but its noise is fixed when it is made."""

    vmappable = True

    def __init__(self, sites):
        super().__init__(sites)
        self.noise = [torch.randn_like(loc) for loc in self.locs]

    def forward(self, *args, **kwargs):
        for index, ((name, transform), loc, rho) in enumerate(zip(self.sites, self.locs, self.rhos, strict=True)):
            noise = self.noise[index] if torch._C._functorch.maybe_current_level() else torch.randn_like(loc)
            value = loc + rho.exp() * noise
            pyro.sample(name, dist.Delta(value if transform is None else transform(value), event_dim=loc.ndim))


class MeanOfUnconstrained(Independent):
    def mean(self):
        pairs = zip(self.sites, self.locs, strict=True)
        return {name: loc.detach() if t is None else t(loc.detach()) for (name, t), loc in pairs}


class WrongDensity(Independent):
    """Reports the density of a guide ten times wider than its draws."""

    def draw(self, name, transform, law):
        wide = dist.Normal(law.base_dist.loc, 10 * law.base_dist.scale).to_event(law.event_dim)
        value = law.rsample()
        density = dist.Delta(value, log_density=wide.log_prob(value), event_dim=law.event_dim)
        return pyro.sample(name, density if transform is None else dist.TransformedDistribution(law, [transform]))


WRONG_GUIDES = {
    "misses the prior's latents": (Guide(MissesPriorLatent), "draws"),
    "gradients blocked": (Guide(NoReparameterization), "gradients"),
    "keeps state": (Guide(Stateful), "fits_and_predicts"),
    "not vmappable": (Guide(OneNoise), "vmaps"),
    "median for mean": (Guide(MeanOfUnconstrained), "mean"),
    "density of another law": (Guide(WrongDensity), "elbo_is_a_bound"),
}
WRONG = {"prior": WRONG_PRIORS, "likelihood": WRONG_LIKELIHOODS, "guide": WRONG_GUIDES}
ROWS = [(f"check_{kind}_{check}", name, part) for kind, rows in WRONG.items() for name, (part, check) in rows.items()]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("check", "name", "part"), ROWS)
def test_wrong_part_is_caught(check, name, part):
    with pytest.raises(AssertionError):
        CHECKS[check](part)
    pyro.clear_param_store()


def test_every_part_is_checked_and_every_check_catches_a_part():
    for registry, parts in FAMILIES.items():
        missing = {registry.get(name) for name in registry.names} - {type(part) for part in parts} - FILLED_BY_METHODS
        assert not missing, f"add a variant of {missing}, which has settings without defaults"
    missed = {name for name in CHECKS if not name.endswith(("round_trips", "captures", "is_value"))}
    assert missed - {check for check, *_ in ROWS} <= {"check_likelihood_fits_and_predicts"}
