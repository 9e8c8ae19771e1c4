"""Likelihoods against scipy in float64, at extreme outputs, and in the units of the targets."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn

import pyrobnn as bnn
from pyrobnn import Prediction, likelihoods
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.data.in_memory import Scaler
from pyrobnn.likelihoods import CensoredGaussian, Gaussian, Laplace, NegativeBinomial, Ordinal, Poisson, StudentT, noise

F = torch.linspace(-3, 4, 8, dtype=torch.float64)[:, None]
REAL = torch.tensor([-5.0, -1.0, 0.0, 0.5, 1.0, 1.5, 3.0, 20.0], dtype=torch.float64)
COUNTS = torch.tensor([0, 1, 2, 3, 7, 20, 100, 1000])
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])


@pytest.fixture(autouse=True)
def parameters_stay_in_their_modules():
    with local_parameters():
        yield


def build(setting, unit=1.0, dtype=torch.float64):
    return setting.build(torch.empty(0, dtype=dtype), torch.as_tensor(unit, dtype=torch.float64))


def log_prob(setting, f, y):
    with torch.no_grad():
        return build(setting)(f).log_prob(y).numpy()


def tobit(y, f, scale, lower, upper):
    """Tobin's likelihood, with the probability of a limit by quadrature of the normal density."""

    def mass(a, b, loc):
        inside = integrate.quad(
            lambda z: stats.norm.pdf(z, loc, scale), max(a, loc - 12 * scale), min(b, loc + 12 * scale)
        )
        return math.log(inside[0])

    values = []
    for target, loc in zip(y, f, strict=True):
        if target <= lower:
            values.append(mass(-np.inf, lower, loc))
        elif target >= upper:
            values.append(mass(upper, np.inf, loc))
        else:
            values.append(stats.norm.logpdf(target, loc, scale))
    return np.array(values)


def sigmoids(y, f, num_classes):
    """Differences of sigmoids at the cut points from which learning starts."""
    cuts = special.logit(np.arange(1, num_classes) / num_classes)
    cumulative = np.column_stack([np.zeros_like(f), special.expit(cuts - f[:, None]), np.ones_like(f)])
    return np.log(np.diff(cumulative, axis=1)[np.arange(len(y)), y])


def negative_binomial(y, f, dispersion):
    r, mean = 1 / dispersion, np.exp(f)
    return stats.nbinom.logpmf(y, r, r / (r + mean))


f, y, counts, labels = F[:, 0].numpy(), REAL.numpy(), COUNTS.numpy(), LABELS.numpy()
DENSITIES = {
    "gaussian": (Gaussian(0.7), F, REAL, stats.norm.logpdf(y, f, 0.7)),
    "gaussian, heteroscedastic": (
        Gaussian("heteroscedastic"),
        torch.cat([F, -F], 1),
        REAL,
        stats.norm.logpdf(y, f, np.log1p(np.exp(-f)) + 1e-3),
    ),
    "laplace": (Laplace(0.7), F, REAL, stats.laplace.logpdf(y, f, 0.7)),
    "laplace, heteroscedastic": (
        Laplace("heteroscedastic"),
        torch.cat([F, F], 1),
        REAL,
        stats.laplace.logpdf(y, f, np.log1p(np.exp(f)) + 1e-3),
    ),
    "student_t": (StudentT(0.7), F, REAL, stats.t.logpdf(y, 4.0, f, 0.7)),
    "student_t, 1.5": (StudentT(0.7, df=1.5), F, REAL, stats.t.logpdf(y, 1.5, f, 0.7)),
    "student_t, learned": (StudentT("learned", df="learned"), F, REAL, stats.t.logpdf(y, 4.0, f, 1.0)),
    "poisson": (Poisson(), F, COUNTS, stats.poisson.logpmf(counts, np.exp(f))),
    "negative_binomial": (NegativeBinomial(0.3), F, COUNTS, negative_binomial(counts, f, 0.3)),
    "negative_binomial, learned": (NegativeBinomial(), F, COUNTS, negative_binomial(counts, f, 1.0)),
    "ordinal": (Ordinal(4), F, LABELS, sigmoids(labels, f, 4)),
    "ordinal, binary": (Ordinal(2), F, LABELS % 2, sigmoids(labels % 2, f, 2)),
    "censored below": (CensoredGaussian(0.0, None, 1.3), F, REAL, tobit(y, f, 1.3, 0.0, np.inf)),
    "censored above": (CensoredGaussian(None, 1.5, 1.3), F, REAL, tobit(y, f, 1.3, -np.inf, 1.5)),
    "censored twice": (CensoredGaussian(-1.0, 1.5, 1.3), F, REAL, tobit(y, f, 1.3, -1.0, 1.5)),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_log_prob_agrees_with_scipy(name):
    setting, outputs, targets, expected = DENSITIES[name]
    np.testing.assert_allclose(log_prob(setting, outputs, targets), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", DENSITIES)
def test_single_precision_is_as_good_as_single_precision_can_be(name):
    """The outputs are rounded first, so that only the arithmetic differs."""
    setting, outputs, targets, _ = DENSITIES[name]
    single = outputs.float()
    found = build(setting, dtype=torch.float32)(single).log_prob(targets.float() if targets is REAL else targets)
    assert found.dtype == torch.float32
    exact = torch.from_numpy(log_prob(setting, single.double(), targets))
    torch.testing.assert_close(found.detach().double(), exact, rtol=2e-6, atol=2e-6)


def test_large_counts_keep_single_precision():
    """At a count of 1e6 the terms are of the size 1e7, where the next float32 is 1 away."""
    outputs = torch.tensor([[13.8], [13.81], [13.82]])
    mean = np.exp(outputs[:, 0].double().numpy())
    for setting, expected in (
        (Poisson(), stats.poisson.logpmf(1_000_000, mean)),
        (NegativeBinomial(0.01), negative_binomial(1_000_000, np.log(mean), 0.01)),
    ):
        found = build(setting, dtype=torch.float32)(outputs).log_prob(torch.full((3,), 1_000_000))
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-5)
    # and so are the two log gammas of many degrees of freedom
    found = build(StudentT(0.7, df=1e6), dtype=torch.float32)(F.float()).log_prob(REAL.float())
    np.testing.assert_allclose(found.numpy(), stats.t.logpdf(y, 1e6, f, 0.7), rtol=3e-5)


def test_little_dispersion_is_poisson_to_first_order():
    """log NB = log Poisson + dispersion ((y - m)^2 - y) / 2 + O(dispersion^2)."""
    y, mean = torch.tensor([0, 1, 2, 3, 7, 20, 30, 60]), F[:, 0].exp().numpy()
    first = 0.5e-6 * ((y.numpy() - mean) ** 2 - y.numpy())
    np.testing.assert_allclose(
        log_prob(NegativeBinomial(1e-6), F, y), log_prob(Poisson(), F, y) + first, rtol=0, atol=1e-7
    )


@pytest.mark.slow
@pytest.mark.parametrize("setting", [Poisson(), NegativeBinomial(0.3), NegativeBinomial(5.0)], ids=repr)
def test_probabilities_of_counts_add_to_one(setting):
    support = torch.arange(20_000)[:, None]
    mass = build(setting)(F.expand(20_000, 8, 1)).log_prob(support).exp().sum(0)
    torch.testing.assert_close(mass, torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-9)


def test_ordinal_probabilities_add_to_one_and_are_exact_far_out():
    with torch.no_grad():
        probabilities = build(Ordinal(5))(100 * F).probs
        far = build(Ordinal(3))(torch.tensor([[-40.0], [40.0]], dtype=torch.float64)).logits
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-12)
    # Between cuts +-log 2, 40 beyond them: exp(-40) (2 - 1/2) up to exp(-80), where 1 - sigmoid has no digits left.
    assert far[0, 1].item() == pytest.approx(-40 + math.log(1.5), rel=1e-12)
    assert far[1, 1].item() == pytest.approx(-40 + math.log(1.5), rel=1e-12)


def test_ordinal_cut_points_stay_apart_whatever_pushes_them():
    """Where a label is never seen its room shrinks, but to no less than the least gap, with finite gradients."""
    module = build(Ordinal(4), dtype=torch.float32)
    with torch.no_grad():
        module.gaps_unconstrained.fill_(-200.0)
    found = module(torch.zeros(4, 1)).log_prob(torch.tensor([0, 1, 2, 3]))
    found.sum().backward()
    torch.testing.assert_close(module.gaps, torch.full((2,), 1e-4))
    torch.testing.assert_close(found[1].detach(), torch.tensor(math.log(1e-4 * 0.75 * 0.25)), rtol=1e-4, atol=0)
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("setting", [Poisson(), NegativeBinomial(0.5)], ids=repr)
def test_log_mean_is_capped_and_its_gradient_comes_back(setting):
    module = build(setting)
    outputs = torch.tensor([[19.9], [20.0], [1e10], [-1e4]], dtype=torch.float64, requires_grad=True)
    distribution = module(outputs)
    np.testing.assert_allclose(distribution.mean.detach().numpy(), np.exp([19.9, 20.0, 20.0, -np.inf]), rtol=1e-12)
    (gradient,) = torch.autograd.grad(distribution.log_prob(torch.tensor([5, 5, 5, 5])).sum(), outputs)
    torch.testing.assert_close(gradient[2], gradient[1])
    assert gradient[2] < -1
    assert gradient[3] == 5


def test_censored_moments_agree_with_quadrature():
    for lower, upper in ((0.0, None), (None, 1.5), (-1.0, 1.5)):
        distribution = build(CensoredGaussian(lower, upper, 1.3))(F)
        a, b = (-np.inf if lower is None else lower), (np.inf if upper is None else upper)
        for index, loc in enumerate(F[:, 0].tolist()):

            def moment(power, loc=loc, a=a, b=b):
                edges = [max(a, loc - 12 * 1.3), min(b, loc + 12 * 1.3)]
                inside = 0.0
                if edges[0] < edges[1]:
                    inside = integrate.quad(lambda z: z**power * stats.norm.pdf(z, loc, 1.3), *edges, epsabs=1e-13)[0]
                below = 0.0 if a == -np.inf else a**power * stats.norm.cdf(a, loc, 1.3)
                return inside + below + (0.0 if b == np.inf else b**power * stats.norm.sf(b, loc, 1.3))

            mean = moment(1)
            assert distribution.mean[index].item() == pytest.approx(mean, rel=1e-9, abs=1e-9)
            assert distribution.variance[index].item() == pytest.approx(moment(2) - mean**2, rel=1e-8, abs=1e-9)


def test_censored_moments_far_beyond_a_limit_keep_single_precision():
    """5, 30 and 1e7 standard deviations beyond it; the second moment about 0 has no digits of the variance left."""
    distribution = build(CensoredGaussian(0.0, None, 1.0), dtype=torch.float32)(torch.tensor([[-5.0], [-30.0]]))
    tail = [integrate.quad(lambda z, k=k: (z - 5) ** k * stats.norm.pdf(z), 5, 20, epsabs=1e-20)[0] for k in (1, 2)]
    assert distribution.mean[0].item() == pytest.approx(tail[0], rel=1e-3)
    assert distribution.variance[0].item() == pytest.approx(tail[1], rel=1e-3)
    assert [distribution.mean[1].item(), distribution.variance[1].item()] == pytest.approx([0, 0], abs=1e-30)
    far = build(CensoredGaussian(0.0, 1.0, 1e-3), dtype=torch.float32)(torch.tensor([[-1e4], [1e4], [0.5]]))
    assert far.mean.tolist() == [0.0, 1.0, 0.5]
    np.testing.assert_allclose(far.variance.numpy(), [0.0, 0.0, 1e-6], rtol=1e-5)


@pytest.mark.parametrize(
    "setting", [StudentT(0.7, df=5.0), CensoredGaussian(-1.0, 1.5, 1.3), Poisson(), NegativeBinomial(0.3)], ids=repr
)
def test_draws_have_the_moments_of_the_distribution(setting):
    """Within 5 standard errors, seed 0; the error of a variance from the fourth moment of the draws."""
    distribution, num = build(setting)(F), 100_000
    torch.manual_seed(0)
    draws = distribution.sample((num,))
    errors = draws - distribution.mean
    assert (errors.mean(0).abs() <= 5 * (distribution.variance / num).sqrt()).all()
    spread = (errors.square().var(0) / num).sqrt()
    assert ((errors.square().mean(0) - distribution.variance).abs() <= 5 * spread).all()


def test_student_t_says_where_it_has_no_variance_or_mean():
    from pyrobnn.distributions.targets import StudentT as Distribution

    distribution = Distribution(torch.tensor([0.5, 1.0, 1.5, 2.0, 4.0]), 3.0, 2.0)
    torch.testing.assert_close(distribution.mean, torch.tensor([math.nan, math.nan, 3.0, 3.0, 3.0]), equal_nan=True)
    expected = torch.tensor([math.nan, math.nan, math.inf, math.inf, 8.0])
    torch.testing.assert_close(distribution.variance, expected, equal_nan=True)


# Units

UNITS = [
    Gaussian(3.0), Laplace(3.0), StudentT(3.0, df=3.0), Gaussian((3.0, 0.2)), Laplace((3.0, 0.2)), StudentT((3.0, 0.2)),
]  # fmt: skip


@pytest.mark.parametrize("setting", UNITS, ids=repr)
def test_scores_of_standardised_targets_are_in_original_units(setting):
    """The same mixture seen in other units: scores, quantiles and moments are those of the model in original units."""
    columns = len(setting.scale) if isinstance(setting.scale, tuple) else 1
    generator = torch.Generator().manual_seed(0)
    outputs = 5 * torch.randn(6, 4, columns, generator=generator, dtype=torch.float64)
    targets = 5 * torch.randn(4, columns, generator=generator, dtype=torch.float64).squeeze(-1)
    unit = torch.tensor([7.0, 0.3][:columns], dtype=torch.float64).squeeze(-1)
    scaler = Scaler(torch.full_like(unit, 2.0), unit)
    plain = Prediction(build(setting, torch.ones_like(unit))(outputs))
    scaled = Prediction(build(setting, unit)((outputs - 2.0) / unit), scaler)
    torch.testing.assert_close(scaled.log_prob(targets), plain.log_prob(targets))
    torch.testing.assert_close(scaled.mean, plain.mean)
    torch.testing.assert_close(scaled.variance, plain.variance)
    torch.testing.assert_close(scaled.quantile(0.9), plain.quantile(0.9))
    torch.testing.assert_close(scaled.cdf(targets), plain.cdf(targets))


def test_known_scale_of_each_column():
    distribution = build(Gaussian((0.5, 2.0)), [1.0, 4.0])(torch.zeros(3, 2, dtype=torch.float64))
    torch.testing.assert_close(distribution.stddev, torch.tensor([[0.5, 0.5]] * 3, dtype=torch.float64))
    single = build(Gaussian((0.5,)), 0.25)(torch.zeros(3, 1, dtype=torch.float64))
    assert single.batch_shape == (3,)
    torch.testing.assert_close(single.stddev, torch.full((3,), 2.0, dtype=torch.float64))


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

    module = build(Laplace(prior), unit)
    torch.manual_seed(0)
    columns = 2 if isinstance(unit, list) else 1
    trace = poutine.trace(module).get_trace(torch.zeros(3, columns, dtype=torch.float64))
    site = trace.nodes["scale"]
    value, unit = site["value"].numpy(), np.asarray(unit)
    assert value.shape == unit.shape
    expected = (PRIORS[prior](value * unit) + np.log(unit)).sum()
    assert site["fn"].log_prob(site["value"]).item() == pytest.approx(expected, rel=1e-10)


# Wrong use

X, TWO = torch.zeros(4, 2), torch.zeros(4, 2)


def check(setting, targets, outputs):
    return lambda: setting.check_targets(torch.as_tensor(targets), outputs)


REFUSED = {
    "negative scale": (lambda: Laplace(-0.1), "Laplace: `scale` must be a positive number"),
    "no scales": (lambda: Gaussian(()), "Gaussian: `scale` must be a positive number, a tuple with one per"),
    "a scale that is not a number": (lambda: Gaussian((0.1, "learned")), "got (0.1, 'learned')"),
    "infinite scale": (lambda: StudentT(float("inf")), "StudentT: `scale` must be"),
    "true": (lambda: StudentT(scale=True), "got True"),
    "unknown prior": (
        lambda: Gaussian({"type": "half_norml", "scale": 1.0}),
        "Gaussian: Unknown noise_prior 'half_norml'. Did you mean 'half_normal'?",
    ),
    "prior without its number": (lambda: Laplace({"type": "half_normal"}), "HalfNormal: `scale` is missing"),
    "prior with a wrong number": (lambda: noise.Gamma(-1.0, 1.0), "Gamma: `concentration`"),
    "scales and columns": (
        check(Gaussian((0.1, 0.2, 0.3)), TWO, 2),
        "Gaussian(scale=(0.1, 0.2, 0.3)) has 3 noise scales, and targets of shape (4, 2) have 2 columns",
    ),
    "width": (check(StudentT("heteroscedastic"), TWO, 2), "needs 4 network outputs for targets of shape (4, 2)"),
    "no mean": (lambda: StudentT(df=1.0), "StudentT: `df` must be greater than 1"),
    "no limit": (CensoredGaussian, "CensoredGaussian needs a limit"),
    "limits": (lambda: CensoredGaussian(2.0, 1.0), "`lower` must lie below `upper`, got 2.0 and 1.0"),
    "fractions": (check(Poisson(), [0.5, 1.0], 1), "Poisson needs whole-number counts, got values such as 0.5"),
    "negative counts": (check(NegativeBinomial(), [0, -1], 1), "NegativeBinomial needs counts from 0 up, got -1"),
    "width of counts": (check(Poisson(), [[0, 1]], 1), "Poisson() needs 2 network outputs"),
    "dispersion": (lambda: NegativeBinomial(0.0), "NegativeBinomial: `dispersion`"),
    "classes missing": (lambda: likelihoods.resolve("ordinal"), "Ordinal: `num_classes` is missing"),
    "one class": (lambda: Ordinal(1), "Ordinal: `num_classes`"),
    "gaps": (
        check(Ordinal(3), [0, 2, 4], 1),
        "Ordinal(num_classes=3) needs labels from 0 to 2 without gaps, the targets have 0, 2, 4",
    ),
    "labels in columns": (check(Ordinal(3), [[0, 1]], 1), "Ordinal(num_classes=3) needs one label per example"),
    "label not whole": (check(Ordinal(3), [0.5], 1), "Ordinal(num_classes=3) needs whole-number labels"),
    "width of ordinal": (check(Ordinal(3), [0, 1, 2], 3), "Ordinal(num_classes=3) needs 1 network output for"),
    "counts in a fit": (
        lambda: bnn.BNN(bnn.MLP(2, [3], 1), likelihood="poisson", prior=bnn.priors.Normal(1.0)).fit(
            X, X[:, 0] + 0.5, steps=1, seed=0
        ),
        "Poisson needs whole-number counts",
    ),
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
    models = [
        bnn.BNN(nn.Linear(1, 1), likelihood=Gaussian(noise.Gamma(200.0, rate)), prior=bnn.priors.Normal(1.0))
        for rate in (20.0, 2000.0)
    ]
    method = bnn.SVI(guide=bnn.guides.Map(), steps=120, lr=0.1)
    together = bnn.fit_replicates(models, (x, x[:, 0]), method, seed=0, engine="captured", progress=False)
    scales = [posterior.mean()["likelihood.scale"].item() for posterior in together]
    assert scales[0] > 5
    assert scales[1] < 0.2
