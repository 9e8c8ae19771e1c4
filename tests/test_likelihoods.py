"""Likelihoods against SciPy in float64, at extreme outputs, and in the units of the targets."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from scipy import integrate, special, stats
from test_conformance import Likelihood
from torch import nn

import pyrobnn as bnn
from pyrobnn import InputError, Prediction
from pyrobnn import likelihoods as lik
from pyrobnn._core.settings import to_dict
from pyrobnn.curvature.metric import fisher_columns
from pyrobnn.likelihoods import noise
from pyrobnn.metrics.crps import ranked_probability

F64 = torch.float64
F = torch.linspace(-3, 4, 8, dtype=F64)[:, None]
REAL = torch.tensor([-5.0, -1.0, 0.0, 0.5, 1.0, 1.5, 3.0, 20.0], dtype=F64)
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
pytestmark = pytest.mark.usefixtures("local")


def build(setting, unit=1.0, dtype=F64):
    return setting.build(torch.empty(0, dtype=dtype), torch.as_tensor(unit, dtype=F64))


def log_prob(setting, f, y):
    with torch.no_grad():
        return build(setting)(f).log_prob(y).numpy()


class Law(NamedTuple):
    """Density or mass, distribution function and two moments, as SciPy's frozen laws have them."""

    pdf: Callable[[np.ndarray], np.ndarray]
    cdf: Callable[[np.ndarray], np.ndarray]
    first: np.ndarray
    second: np.ndarray

    def mean(self):
        return self.first

    def var(self):
        return self.second - self.first**2


def weighted(shares, parts):
    """A mixture of distributions with the components on the last axis."""
    pdf, cdf = (lambda y, of=of: (shares * of(np.asarray(y)[..., None])).sum(-1) for of in (parts.pdf, parts.cdf))
    second = parts.var() + parts.mean() ** 2
    return Law(pdf, cdf, (shares * parts.mean()).sum(-1), (shares * second).sum(-1))


def zeros(share, base):
    """Counts with a share of further zeros."""
    return Law(
        lambda y: (1 - share) * base.pmf(y) + share * (np.asarray(y) == 0),
        lambda y: np.where(np.asarray(y) < 0, 0, share + (1 - share) * base.cdf(y)),
        (1 - share) * base.mean(),
        (1 - share) * (base.var() + base.mean() ** 2),
    )


def censored(loc, scale, lower=-np.inf, upper=np.inf):
    """A normal seen through limits (Tobin 1958): the density is a probability at the limits; moments by quadrature."""
    law = stats.norm(loc, scale)
    atoms = [(end, p) for end, p in ((lower, law.cdf(lower)), (upper, law.sf(upper))) if np.isfinite(end)]
    z = np.linspace(np.maximum(lower, loc - 15 * scale), np.minimum(upper, loc + 15 * scale), 200_001)
    return Law(
        lambda y: np.where(y <= lower, law.cdf(lower), np.where(y >= upper, law.sf(upper), law.pdf(y))),
        lambda y: np.where(y >= upper, 1.0, np.where(y < lower, 0.0, law.cdf(y))),
        *(integrate.simpson(z**k * law.pdf(z), z, axis=0) + sum(end**k * p for end, p in atoms) for k in (1, 2)),
    )


def softplus(f):
    return np.logaddexp(0, f)


def from_first(f, first, least=1e-3):
    """An output that stands for `first` at 0 and stays above `least`."""
    return least + softplus(f + math.log(math.expm1(first - least)))


def counted(f, dispersion):
    return stats.nbinom(1 / dispersion, 1 / (1 + dispersion * np.exp(f)))


def shares(f, concentration):
    return stats.beta(concentration * special.expit(f), concentration * special.expit(-f))


def mixture(outputs, df=None):
    """Outputs are logits, locations and scales of two components, in turn."""
    logits, shifts, widths = np.moveaxis(np.stack(outputs, -1).reshape(*outputs[0].shape, 3, 2), -2, 0)
    first = stats.norm.ppf([0.25, 0.75])
    kind = stats.norm if df is None else stats.t
    arguments = () if df is None else (df,)
    spread = math.sqrt((1 - (first**2).mean()) / kind(*arguments).var())
    scale = 1e-3 + softplus(widths + math.log(math.expm1(spread - 1e-3)))
    return weighted(special.softmax(logits, -1), kind(*arguments, first + shifts, scale))


NUMBERS, LIMITED, ABOVE = [-6.0, -0.3, 0.8, 15.0], [-1.0, -0.3, 0.8, 1.5], [-1.0, -0.3, 0.8, 15.0]
POSITIVE, SHARES, COUNTS = [0.03, 0.9, 1.7, 20.0], [0.001, 0.3, 0.5, 0.999], [0, 1, 4, 30]
HET = "heteroscedastic"
LAWS = {
    "gaussian": (lik.Gaussian(0.7), NUMBERS, lambda f: stats.norm(f, 0.7)),
    "gaussian, het": (lik.Gaussian(HET), NUMBERS, lambda f, g: stats.norm(f, softplus(g) + 1e-3)),
    "gaussian, learned": (lik.Gaussian(), NUMBERS, lambda f: stats.norm(f, 1.0)),
    "laplace": (lik.Laplace(0.7), NUMBERS, lambda f: stats.laplace(f, 0.7)),
    "laplace, het": (lik.Laplace(HET), NUMBERS, lambda f, g: stats.laplace(f, softplus(g) + 1e-3)),
    "student_t": (lik.StudentT(0.7), NUMBERS, lambda f: stats.t(4.0, f, 0.7)),
    "student_t, 2.5": (lik.StudentT(0.7, df=2.5), NUMBERS, lambda f: stats.t(2.5, f, 0.7)),
    "student_t, learned": (lik.StudentT("learned", df="learned"), NUMBERS, lambda f: stats.t(4.0, f, 1.0)),
    "censored below": (lik.CensoredGaussian(-1.0, None, 1.3), ABOVE, lambda f: censored(f, 1.3, -1.0)),
    "censored above": (lik.CensoredGaussian(None, 1.5, 1.3), LIMITED, lambda f: censored(f, 1.3, upper=1.5)),
    "censored twice": (lik.CensoredGaussian(-1.0, 1.5, 1.3), LIMITED, lambda f: censored(f, 1.3, -1.0, 1.5)),
    "mixture_density": (lik.MixtureDensity(2), NUMBERS, lambda *f: mixture(f)),
    "mixture_density, 4": (lik.MixtureDensity(2, df=4.0), NUMBERS, lambda *f: mixture(f, 4.0)),
    "log_normal": (lik.LogNormal(0.4), POSITIVE, lambda f: stats.lognorm(0.4, scale=np.exp(f))),
    "log_normal, het": (lik.LogNormal(HET), POSITIVE, lambda f, g: stats.lognorm(from_first(g, 0.5), 0, np.exp(f))),
    "gamma": (lik.Gamma(0.3), POSITIVE, lambda f: stats.gamma(1 / 0.3, scale=0.3 * np.exp(f))),
    "gamma, learned": (lik.Gamma(), POSITIVE, lambda f: stats.gamma(4.0, scale=0.25 * np.exp(f))),
    "beta": (lik.Beta(4.0), SHARES, lambda f: shares(f, 4.0)),
    "beta, wide": (lik.Beta(0.5), SHARES, lambda f: shares(f, 0.5)),
    "beta, het": (lik.Beta(HET), SHARES, lambda f, g: shares(f, from_first(g, 5.0, 1e-3))),
    "poisson": (lik.Poisson(), COUNTS, lambda f: stats.poisson(np.exp(f))),
    "negative_binomial": (lik.NegativeBinomial(0.3), COUNTS, lambda f: counted(f, 0.3)),
    "negative_binomial, het": (lik.NegativeBinomial(HET), COUNTS, lambda f, g: counted(f, from_first(g, 1.0, 1e-6))),
    "zero_inflated": (lik.ZeroInflated(0.6), COUNTS, lambda f, g: zeros(special.expit(g), counted(f, 0.6))),
    "zero_inflated, 0": (lik.ZeroInflated(0), COUNTS, lambda f, g: zeros(special.expit(g), stats.poisson(np.exp(f)))),
    "zero_inflated, het": (
        lik.ZeroInflated(HET),
        COUNTS,
        lambda f, g, h: zeros(special.expit(g), counted(f, from_first(h, 1.0, 1e-6))),
    ),
}
LEVELS = [0.001, 0.3, 0.5, 0.975]
SUPPORT = np.arange(2000)


def test_no_likelihood_is_left_out():
    labels = {"bernoulli", "categorical", "dense_categorical", "ordinal"}
    found = {to_dict(setting)["type"] for setting, *_ in LAWS.values()}
    assert found | labels == {*lik.registry.names}


def law_of(name):
    """The prediction of three draws at four inputs, its targets, and the laws of all draws by SciPy."""
    setting, y, law = LAWS[name]
    count = setting.num_outputs(torch.zeros(4))
    f = 0.8 * torch.randn(3, 4, count, generator=torch.Generator().manual_seed(0), dtype=F64)
    with torch.no_grad():
        prediction = Prediction(build(setting)(f))
    return prediction, torch.tensor(y, dtype=F64), law(*f.numpy().transpose(2, 0, 1))


@pytest.mark.parametrize("name", LAWS)
def test_predictions_are_mixtures_of_the_laws_of_scipy(name):
    """Log score, distribution function, quantiles, moments and CRPS."""
    prediction, y, law = law_of(name)
    density = law.pdf if isinstance(law, Law) or not prediction.is_count else law.pmf
    np.testing.assert_allclose(prediction.log_prob(y), np.log(density(y.numpy()).mean(0)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(prediction.cdf(y), law.cdf(y.numpy()).mean(0), rtol=1e-8, atol=1e-12)
    rtol = 1e-6 if "censored" in name else 1e-9
    np.testing.assert_allclose(prediction.mean, law.mean().mean(0), rtol=rtol)
    np.testing.assert_allclose(prediction.variance, law.var().mean(0) + law.mean().var(0), rtol=rtol)
    for level, quantile in zip(LEVELS, prediction.quantile(LEVELS).numpy(), strict=True):
        just_below = quantile - 1 if prediction.is_count else quantile - 1e-8 * (1 + np.abs(quantile))
        assert (law.cdf(quantile + 1e-9 * np.abs(quantile)).mean(0) >= level - 1e-9).all()
        assert (law.cdf(just_below).mean(0) < level).all()
    found = ranked_probability(prediction, y).numpy()
    if prediction.is_count:
        below = np.stack([law.cdf(count).mean(0) for count in SUPPORT])
        np.testing.assert_allclose(found, ((below - (SUPPORT[:, None] >= y.numpy())) ** 2).sum(0), rtol=1e-6)
        return
    lowest, highest = prediction.quantile([1e-9, 1 - 1e-9]).numpy()
    for n in range(4):
        target, edges = float(y[n]), [lowest[n], *prediction.quantile([0.01, 0.5, 0.99])[:, n].tolist(), highest[n]]
        cuts = np.unique([*edges, target, *(-1.0, 1.5) * ("censored" in name)])
        pieces = [
            integrate.quad(lambda z, n=n, a=a: (law.cdf(z).mean(0)[n] - (a >= target)) ** 2, a, b, limit=200)[0]  # noqa: B023
            for a, b in itertools.pairwise(cuts)
        ]
        assert found[n] == pytest.approx(sum(pieces), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", LAWS)
def test_single_precision_is_as_good_as_single_precision_can_be(name):
    """The outputs are rounded first, so that only the arithmetic differs."""
    setting, y, _ = LAWS[name]
    f = torch.randn(4, setting.num_outputs(torch.zeros(4)), generator=torch.Generator().manual_seed(0))
    y = torch.tensor(y, dtype=torch.float32)
    with torch.no_grad():
        found = build(setting, dtype=torch.float32)(f).log_prob(y)
    assert found.dtype == torch.float32
    exact = torch.from_numpy(log_prob(setting, f.double(), y.double()))
    torch.testing.assert_close(found.double(), exact, rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("name", ["gaussian, het", "student_t", "censored twice", "gamma", "beta", "zero_inflated"])
def test_draws_have_the_moments_of_the_distribution(name):
    """Within 5 standard errors, seed 0; the error of a variance from the fourth moment of the draws."""
    distribution, num = law_of(name)[0].distribution, 100_000
    torch.manual_seed(0)
    errors = distribution.sample((num,)) - distribution.mean
    assert (errors.mean(0).abs() <= 5 * (distribution.variance / num).sqrt()).all()
    spread = (errors.square().var(0) / num).sqrt()
    assert ((errors.square().mean(0) - distribution.variance).abs() <= 5 * spread).all()


def sigmoids(y, f, num_classes):
    """Differences of sigmoids at the cut points from which learning starts."""
    cuts = special.logit(np.arange(1, num_classes) / num_classes)
    cumulative = np.column_stack([np.zeros_like(f), special.expit(cuts - f[:, None]), np.ones_like(f)])
    return np.log(np.diff(cumulative, axis=1)[np.arange(len(y)), y])


@pytest.mark.parametrize("num_classes", [2, 4])
def test_ordinal_log_probabilities_are_differences_of_sigmoids(num_classes):
    y = LABELS % num_classes
    expected = sigmoids(y.numpy(), F[:, 0].numpy(), num_classes)
    np.testing.assert_allclose(log_prob(lik.Ordinal(num_classes), F, y), expected, rtol=1e-10, atol=1e-10)


def test_large_counts_keep_single_precision():
    """At a count of 1e6 the terms are of the size 1e7, where the next float32 is 1 away."""
    outputs = torch.tensor([[13.8], [13.81], [13.82]])
    mean = np.exp(outputs[:, 0].double().numpy())
    for setting, expected in (
        (lik.Poisson(), stats.poisson.logpmf(1_000_000, mean)),
        (lik.NegativeBinomial(0.01), counted(np.log(mean), 0.01).logpmf(1_000_000)),
    ):
        found = build(setting, dtype=torch.float32)(outputs).log_prob(torch.full((3,), 1_000_000))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-5)
    # and so are the two log gammas of many degrees of freedom
    found = build(lik.StudentT(0.7, df=1e6), dtype=torch.float32)(F.float()).log_prob(REAL.float())
    np.testing.assert_allclose(found.numpy(), stats.t.logpdf(REAL, 1e6, F[:, 0], 0.7), rtol=3e-5)


def test_little_dispersion_is_poisson_to_first_order():
    """log NB = log Poisson + dispersion ((y - m)^2 - y) / 2 + O(dispersion^2)."""
    y, mean = torch.tensor([0, 1, 2, 3, 7, 20, 30, 60]), F[:, 0].exp().numpy()
    first = 0.5e-6 * ((y.numpy() - mean) ** 2 - y.numpy())
    found, poisson = (log_prob(law, F, y) for law in (lik.NegativeBinomial(1e-6), lik.Poisson()))
    np.testing.assert_allclose(found, poisson + first, rtol=0, atol=1e-7)


def test_ordinal_probabilities_add_to_one_and_are_exact_far_out():
    with torch.no_grad():
        probabilities = build(lik.Ordinal(5))(100 * F).probs
        far = build(lik.Ordinal(3))(torch.tensor([[-40.0], [40.0]], dtype=F64)).logits
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(8, dtype=F64), rtol=0, atol=1e-12)
    # Between cuts +-log 2, 40 beyond them: exp(-40) (2 - 1/2) up to exp(-80), where 1 - sigmoid has no digits left.
    assert far[0, 1].item() == pytest.approx(-40 + math.log(1.5), rel=1e-12)
    assert far[1, 1].item() == pytest.approx(-40 + math.log(1.5), rel=1e-12)


def test_ordinal_cut_points_stay_apart_whatever_pushes_them():
    """Where a label is never seen its room shrinks, but to no less than the least gap, with finite gradients."""
    module = build(lik.Ordinal(4), dtype=torch.float32)
    with torch.no_grad():
        module.gaps_unconstrained.fill_(-200.0)
    found = module(torch.zeros(4, 1)).log_prob(torch.tensor([0, 1, 2, 3]))
    found.sum().backward()
    torch.testing.assert_close(module.gaps, torch.full((2,), 1e-4))
    torch.testing.assert_close(found[1].detach(), torch.tensor(math.log(1e-4 * 0.75 * 0.25)), rtol=1e-4, atol=0)
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("setting", [lik.Poisson(), lik.NegativeBinomial(0.5)], ids=repr)
def test_log_mean_is_capped_and_its_gradient_comes_back(setting):
    module = build(setting)
    outputs = torch.tensor([[19.9], [20.0], [1e10], [-1e4]], dtype=F64, requires_grad=True)
    distribution = module(outputs)
    np.testing.assert_allclose(distribution.mean.detach().numpy(), np.exp([19.9, 20.0, 20.0, -np.inf]), rtol=1e-12)
    (gradient,) = torch.autograd.grad(distribution.log_prob(torch.tensor([5, 5, 5, 5])).sum(), outputs)
    torch.testing.assert_close(gradient[2], gradient[1])
    assert gradient[2] < -1
    assert gradient[3] == 5


def test_censored_moments_far_beyond_a_limit_keep_single_precision():
    """5, 30 and 1e7 standard deviations beyond it; the second moment about 0 has no digits of the variance left."""
    distribution = build(lik.CensoredGaussian(0.0, None, 1.0), dtype=torch.float32)(torch.tensor([[-5.0], [-30.0]]))
    tail = [integrate.quad(lambda z, k=k: (z - 5) ** k * stats.norm.pdf(z), 5, 20, epsabs=1e-20)[0] for k in (1, 2)]
    assert distribution.mean[0].item() == pytest.approx(tail[0], rel=1e-3)
    assert distribution.variance[0].item() == pytest.approx(tail[1], rel=1e-3)
    assert [distribution.mean[1].item(), distribution.variance[1].item()] == pytest.approx([0, 0], abs=1e-30)
    far = build(lik.CensoredGaussian(0.0, 1.0, 1e-3), dtype=torch.float32)(torch.tensor([[-1e4], [1e4], [0.5]]))
    assert far.mean.tolist() == [0.0, 1.0, 0.5]
    np.testing.assert_allclose(far.variance.numpy(), [0.0, 0.0, 1e-6], rtol=1e-5)


def test_known_scale_of_each_column():
    distribution = build(lik.Gaussian((0.5, 2.0)), [1.0, 4.0])(torch.zeros(3, 2, dtype=F64))
    torch.testing.assert_close(distribution.stddev, torch.tensor([[0.5, 0.5]] * 3, dtype=F64))
    single = build(lik.Gaussian((0.5,)), 0.25)(torch.zeros(3, 1, dtype=F64))
    assert single.batch_shape == (3,)
    torch.testing.assert_close(single.stddev, torch.full((3,), 2.0, dtype=F64))


PRIORS = {
    noise.HalfNormal(3.0): lambda s: stats.halfnorm.logpdf(s, scale=3.0),
    noise.HalfCauchy(3.0): lambda s: stats.halfcauchy.logpdf(s, scale=3.0),
    noise.Gamma(2.5, 0.7): lambda s: stats.gamma.logpdf(s, 2.5, scale=1 / 0.7),
}


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@pytest.mark.parametrize("unit", [1.0, 7.0, [7.0, 0.3]])
def test_prior_of_the_noise_is_in_original_units(prior, unit):
    """Density of scale / unit where scale has the prior: p(unit s) unit."""
    from pyro import poutine

    module = build(lik.Laplace(prior), unit)
    torch.manual_seed(0)
    columns = 2 if isinstance(unit, list) else 1
    trace = poutine.trace(module).get_trace(torch.zeros(3, columns, dtype=F64))
    site = trace.nodes["scale"]
    value, unit = site["value"].numpy(), np.asarray(unit)
    assert value.shape == unit.shape
    expected = (PRIORS[prior](value * unit) + np.log(unit)).sum()
    assert site["fn"].log_prob(site["value"]).item() == pytest.approx(expected, rel=1e-10)


X, TWO = torch.zeros(4, 2), torch.zeros(4, 2)
COUNTED = bnn.BNN(bnn.MLP(2, [3], 1), likelihood="poisson", prior=bnn.priors.Normal(1.0))


def check(setting, targets, outputs):
    return lambda: setting.check_targets(torch.as_tensor(targets), outputs)


REFUSED = {
    "negative scale": (lambda: lik.Laplace(-0.1), "Laplace: `scale` must be a positive number"),
    "no scales": (lambda: lik.Gaussian(()), "Gaussian: `scale` must be a positive number, a tuple with one per"),
    "a scale that is not a number": (lambda: lik.Gaussian((0.1, "learned")), "got (0.1, 'learned')"),
    "infinite scale": (lambda: lik.StudentT(float("inf")), "StudentT: `scale` must be"),
    "true": (lambda: lik.StudentT(scale=True), "got True"),
    "unknown prior": (lambda: lik.Gaussian({"type": "half_norml", "scale": 1.0}), "Did you mean 'half_normal'?"),
    "prior without its number": (lambda: lik.Laplace({"type": "half_normal"}), "HalfNormal: `scale` is missing"),
    "prior with a wrong number": (lambda: noise.Gamma(-1.0, 1.0), "Gamma: `concentration`"),
    "scales and columns": (
        check(lik.Gaussian((0.1, 0.2, 0.3)), TWO, 2),
        "Gaussian(scale=(0.1, 0.2, 0.3)) has 3 noise scales, and targets of shape (4, 2) have 2 columns",
    ),
    "width": (check(lik.StudentT("heteroscedastic"), TWO, 2), "needs 4 network outputs for targets of shape (4, 2)"),
    "no mean": (lambda: lik.StudentT(df=1.0), "StudentT: `df` must be greater than 1"),
    "no limit": (lik.CensoredGaussian, "CensoredGaussian needs a limit"),
    "limits": (lambda: lik.CensoredGaussian(2.0, 1.0), "`lower` must lie below `upper`, got 2.0 and 1.0"),
    "fractions": (check(lik.Poisson(), [0.5, 1.0], 1), "Poisson needs whole-number counts, got values such as 0.5"),
    "negative counts": (check(lik.NegativeBinomial(), [0, -1], 1), "NegativeBinomial needs counts from 0 up, got -1"),
    "width of counts": (check(lik.Poisson(), [[0, 1]], 1), "Poisson(offset=None) needs 2 network outputs"),
    "dispersion": (lambda: lik.NegativeBinomial(0.0), "NegativeBinomial: `dispersion`"),
    "zeros among prices": (check(lik.LogNormal(), [1.0, 0.0], 1), "LogNormal needs positive targets, got 0: for zeros"),
    "negative prices": (check(lik.Gamma(), [1.0, -2.0], 1), "Gamma needs positive targets, got -2"),
    "shares at an end": (check(lik.Beta(), [0.0, 0.5], 1), "got 0 to 0.5: move 0 and 1 inwards"),
    "per cent": (check(lik.Beta(), [3.0, 40.0], 1), "got 3 to 40: divide percentages by 100"),
    "negative visits": (check(lik.ZeroInflated(), [1.0, -1.0], 2), "ZeroInflated needs counts from 0 up, got -1"),
    "width of mixtures": (check(lik.MixtureDensity(), [1.0, 2.0], 1), "needs 9 network outputs"),
    "little dispersion": (lambda: lik.ZeroInflated(1e-9), "dispersion"),
    "classes missing": (lambda: lik.resolve("ordinal"), "Ordinal: `num_classes` is missing"),
    "one class": (lambda: lik.Ordinal(1), "Ordinal: `num_classes`"),
    "gaps": (check(lik.Ordinal(3), [0, 2, 4], 1), "needs labels from 0 to 2 without gaps, the targets have 0, 2, 4"),
    "labels in columns": (check(lik.Ordinal(3), [[0, 1]], 1), "Ordinal(num_classes=3) needs one label per example"),
    "label not whole": (check(lik.Ordinal(3), [0.5], 1), "Ordinal(num_classes=3) needs whole-number labels"),
    "width of ordinal": (check(lik.Ordinal(3), [0, 1, 2], 3), "Ordinal(num_classes=3) needs 1 network output for"),
    "counts in a fit": (lambda: COUNTED.fit(X, X[:, 0] + 0.5, steps=1, seed=0), "Poisson needs whole-number counts"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(bnn.InputError) as caught:
        call()
    assert message in str(caught.value)


def test_replicates_have_priors_of_their_own_for_the_noise():
    """One graph, two priors of the noise: each replicate follows its own, as the fits alone do."""
    x = torch.linspace(-1, 1, 8)[:, None]
    noises = [lik.Gaussian(noise.Gamma(200.0, rate)) for rate in (20.0, 2000.0)]
    models = [bnn.BNN(nn.Linear(1, 1), likelihood=each, prior=bnn.priors.Normal(1.0)) for each in noises]
    method = bnn.SVI(guide=bnn.guides.Map(), steps=120, lr=0.1)
    together = bnn.fit_replicates(models, (x, x[:, 0]), method, seed=0, engine="captured", progress=False)
    scales = [posterior.mean()["likelihood.scale"].item() for posterior in together]
    assert scales[0] > 5
    assert scales[1] < 0.2


INPUTS = torch.tensor([[-1.5], [-0.2], [0.0], [0.7], [2.0]], dtype=F64)
PRICES = torch.tensor([0.03, 0.9, 1.0, 3.0, 20.0], dtype=F64)
PARTS = torch.tensor([0.001, 0.3, 0.5, 0.9, 0.999], dtype=F64)
VISITS = torch.tensor([0.0, 0.0, 1.0, 4.0, 30.0], dtype=F64)


def net(outputs):
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


@pytest.mark.parametrize("setting", [lik.LogNormal(0.4), lik.Gamma(0.4)], ids=repr)
def test_log_scores_are_densities_in_the_units_of_the_targets(setting):
    """The same fit of targets in cents and in euros: log scores differ by log 100, quantiles by 100."""
    found, layers, y = [], net(1), PRICES
    for unit in (1.0, 100.0):
        model = bnn.BNN(layers, likelihood=setting)
        data = bnn.Data(INPUTS, unit * y, standardize=True)
        posterior = model.fit(data, guide="map", steps=30, lr=0.05, seed=0, engine="eager", progress=False)
        prediction = posterior.predict(INPUTS)
        found.append((prediction.log_prob(unit * y) + math.log(unit), prediction.quantile(0.9) / unit))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def gamma(f):
    return torch.distributions.Gamma(f[..., 0].exp(), f[..., 1].exp())


OWN = {
    "pyro": (lambda f: dist.Gamma(f[..., 0].exp(), f[..., 1].exp()), PRICES, 2),
    "torch": (gamma, PRICES, 2),
    "a squeezed last axis": (lambda f: dist.Normal(f.squeeze(-1), 1.0), PRICES, 1),
    "counts": (lambda f: dist.Geometric(logits=f[..., 0]), VISITS.long(), 1),
    "columns": (lambda f: dist.Laplace(f, 1.0).to_event(1), torch.stack([PRICES, PARTS], 1), 2),
    "joint": (lambda f: dist.MultivariateNormal(f, torch.eye(2).to(f)), torch.stack([PRICES, PARTS], 1), 2),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("guide", ["mean_field", "laplace"])
def test_a_function_to_a_distribution_is_a_likelihood(name, guide):
    """Its log score is the mean over draws of the densities that the function gives for their outputs."""
    function, y, outputs = OWN[name]
    likelihood = lik.resolve(function)
    assert likelihood.num_outputs(y) == outputs
    assert likelihood.integer_targets == (name == "counts")
    model = bnn.BNN(net(outputs), likelihood=function)
    posterior = model.fit(INPUTS, y, guide=guide, steps=20, seed=0, progress=False)
    draws = posterior.draw(7, seed=1)
    prediction = posterior.predict(INPUTS, draws=draws, linearized=False)
    weights = [{name: value[i] for name, value in draws.items()} for i in range(7)]
    f = torch.stack([posterior.bnn.outputs(each, INPUTS) for each in weights])
    expected = torch.stack([function(each).log_prob(y) for each in f]).logsumexp(0) - math.log(7)
    torch.testing.assert_close(prediction.log_prob(y), expected)


def test_a_function_that_does_not_fit_is_refused(tmp_path):
    model = bnn.BNN(bnn.MLP(1, [3], 1), likelihood=gamma)
    with pytest.raises(InputError, match=r"must map outputs \(..., N, 1\) .* it gives IndexError"):
        model.fit(INPUTS, PRICES, steps=1, progress=False)
    model = bnn.BNN(bnn.MLP(1, [3], 2), likelihood=gamma)
    with pytest.raises(InputError, match=r"Targets such as -0.03 are impossible under Gamma"):
        model.fit(INPUTS, -PRICES, steps=1, progress=False)
    posterior = model.fit(INPUTS, PRICES, steps=1, progress=False)
    with pytest.raises(InputError, match="cannot be written to a file, since it is no setting"):
        posterior.save(tmp_path / "p")
    with pytest.raises(InputError, match="no distribution for targets of shape"):
        lik.FromFunction(lambda f: f).num_outputs(PRICES)


SHAPES = r"must map outputs \(..., N, {}\) .* For outputs \({}\) it gives"
ALONE = "it gives the first row another score"
WRONG = {
    "squeezed": (lambda f: dist.Normal(f.squeeze(), 1.0), 1, SHAPES.format(1, "1, 1")),
    "a column": (lambda f: dist.Normal(f[:, 0], 1.0), 1, SHAPES.format(1, "2, 3, 1")),
    "two columns": (lambda f: dist.Normal(f[:, 0], f[:, 1].exp()), 2, SHAPES.format(2, "2, 3, 2")),
    "transposed": (lambda f: dist.Normal(f.mT[0], f.mT[1].exp()), 2, ALONE),
    "unbound": (lambda f: dist.Normal(f.unbind(1)[0], 1.0), 1, SHAPES.format(1, "2, 3, 1")),
    "flattened": (lambda f: dist.Normal(f.flatten(), 1.0), 1, SHAPES.format(1, "2, 3, 1")),
    "summed": (lambda f: dist.Normal(f.sum(0), 1.0), 1, SHAPES.format(1, "3, 1")),
    "no distribution": (lambda f: f, 1, SHAPES.format(1, "3, 1") + " Tensor of shape"),
    "no attribute": (lambda f: f.location, 1, SHAPES.format(1, "3, 1") + " AttributeError"),
    "constants of a batch": (lambda f: dist.Normal(f[..., 0] + PRICES, 1.0), 1, SHAPES.format(1, "3, 1")),
    "less the mean of a batch": (lambda f: dist.Normal(f[..., 0] - f[..., 0].mean(-1, keepdim=True), 1.0), 1, ALONE),
    "shares of a batch": (lambda f: dist.Categorical(f.softmax(-2)), 3, ALONE),
    "shares over the second axis": (lambda f: dist.Categorical(f.softmax(1)), 3, ALONE),
}


class InAModule(Likelihood):
    """A likelihood of the user's, with a module that a function is in."""

    def __init__(self, function, outputs):
        super().__init__(function)
        self.outputs, self.integer_targets = outputs, outputs == 3

    def num_outputs(self, y):
        return self.outputs


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("is_module", [False, True], ids=["function", "module"])
def test_a_likelihood_that_takes_no_draws_or_mixes_rows_is_refused_before_the_fit(is_module, name):
    function, outputs, message = WRONG[name]
    model = bnn.BNN(net(outputs), likelihood=InAModule(function, outputs) if is_module else function)
    with pytest.raises(InputError, match=message):
        model.fit(INPUTS, PRICES.round().long() % 3 if outputs == 3 else PRICES, steps=1, progress=False)


def test_baselines_learn_a_number_that_was_known_but_leave_poisson_counts():
    assert lik.LogNormal(0.3).opened() == lik.LogNormal("learned")
    assert lik.ZeroInflated(0.3).opened() == lik.ZeroInflated("learned")
    for setting in (lik.ZeroInflated(0), lik.Gamma("heteroscedastic"), lik.Poisson()):
        assert setting.opened() == setting


class Known(PyroModule):
    """A built likelihood that knows its information, of a base that is not asked for it."""

    def forward(self, f):
        return dist.Normal(f[..., 0], 1.0)

    def fisher_columns(self, f):
        return torch.ones(1, *f.shape)


def test_a_module_that_knows_its_information_has_to_inherit():
    f, inherits = torch.zeros(4, 1), type("Inherits", (Known, lik.LikelihoodModule), {})
    assert torch.equal(fisher_columns(inherits(), f), torch.ones(1, 4, 1))
    with pytest.raises(InputError, match="Known.fisher_columns is used only of a module that inherits"):
        fisher_columns(Known(), f)


@pytest.mark.parametrize("cast", [torch.Tensor.long, torch.Tensor.double, torch.Tensor.bool])
def test_a_function_that_gives_bernoullis_fits_as_the_setting_does(cast):
    x, y = torch.linspace(-1, 1, 12)[:, None], cast(torch.arange(12) % 3 == 0)
    settings = {"guide": "map", "steps": 5, "lr": 0.1, "seed": 0, "progress": False}
    net, plain = bnn.MLP(1, [], 1), bnn.priors.Normal(1.0)
    by_name, by_function = (
        bnn.BNN(net, likelihood=each, prior=plain).fit(x, y.long() if each == "bernoulli" else y, **settings).mean()
        for each in ("bernoulli", lambda f: torch.distributions.Bernoulli(logits=f[..., 0]))
    )
    torch.testing.assert_close(by_function, by_name)
