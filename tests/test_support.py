"""Targets of every kind: densities, distribution functions, quantiles and scores against SciPy; also outside of the
support, and of counts, robust, censored and ordered targets."""

import math
from types import SimpleNamespace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, optimize, special, stats
from torch.distributions import AffineTransform, ExpTransform, SigmoidTransform, constraints

from pyrobnn import InputError, Prediction, compare_scores
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.diagnostics.checks import epistemic
from pyrobnn.diagnostics.predictive_checks import ranking_test
from pyrobnn.distributions import counts, targets
from pyrobnn.likelihoods import CensoredGaussian, NegativeBinomial, Ordinal, Poisson, StudentT
from pyrobnn.metrics import pit, score
from pyrobnn.metrics.crps import ranked_probability

F64 = torch.float64


def outputs(num_draws=6, num_inputs=5):
    return 2 * torch.randn(num_draws, num_inputs, generator=torch.Generator().manual_seed(0), dtype=F64)


def two(*values):
    return torch.tensor(values, dtype=F64)[:, None]


FIRST, SECOND = two(0.5, 1.3), two(2.0, 0.7)
PAIRS = ((0.5, 2.0), (1.3, 0.7))
BOUNDED = {
    "log-normal": (dist.LogNormal(FIRST, SECOND), [stats.lognorm(s, scale=math.exp(m)) for m, s in PAIRS]),
    "exponential": (dist.Exponential(FIRST), [stats.expon(scale=1 / rate) for rate, _ in PAIRS]),
    "weibull": (dist.Weibull(FIRST, SECOND), [stats.weibull_min(c, scale=s) for s, c in PAIRS]),
    "uniform": (dist.Uniform(FIRST, FIRST + SECOND), [stats.uniform(low, width) for low, width in PAIRS]),
    "gamma": (dist.Gamma(FIRST, SECOND), [stats.gamma(c, scale=1 / rate) for c, rate in PAIRS]),
    "half-normal": (dist.HalfNormal(FIRST), [stats.halfnorm(scale=s) for s, _ in PAIRS]),
    "half-cauchy": (dist.HalfCauchy(FIRST), [stats.halfcauchy(scale=s) for s, _ in PAIRS]),
    "pareto": (dist.Pareto(FIRST, SECOND), [stats.pareto(a, scale=s) for s, a in PAIRS]),
    "gumbel": (dist.Gumbel(FIRST, SECOND), [stats.gumbel_r(loc, s) for loc, s in PAIRS]),
    "shifted exponential": (
        dist.TransformedDistribution(dist.Exponential(FIRST), [AffineTransform(3.0, two(2.0, 1.0))]),
        [stats.expon(3, 4), stats.expon(3, 1 / 1.3)],
    ),
    "exponential of an exponential": (
        dist.TransformedDistribution(dist.Exponential(SECOND + 1), [ExpTransform()]),
        [stats.pareto(3.0), stats.pareto(1.7)],
    ),
}
COUNTS = [-1, 0, 1, 3, 4, 50]
WITHOUT_CDF = {
    "beta": (dist.Beta(FIRST, SECOND), [stats.beta(a, b) for a, b in PAIRS]),
    "poisson": (dist.Poisson(FIRST), [stats.poisson(rate) for rate, _ in PAIRS]),
    "geometric": (dist.Geometric(FIRST / 2), [stats.geom(rate / 2, loc=-1) for rate, _ in PAIRS]),
    "binomial": (dist.Binomial(3.0, FIRST / 2), [stats.binom(3, rate / 2) for rate, _ in PAIRS]),
}
NUMBERS = [-1e6, -3.0, -1.0, 0.25, 0.7, 0.99, 1.0, 1.4, 2.2, 2.9, 3.5, 12.0]


@pytest.mark.parametrize("name", [*BOUNDED, *WITHOUT_CDF])
def test_scores_are_those_of_scipy_inside_and_outside_of_the_support(name):
    distribution, frozen = (BOUNDED | WITHOUT_CDF)[name]
    is_count = hasattr(frozen[0].dist, "pmf")
    numbers = COUNTS[1:] if is_count else NUMBERS
    prediction = Prediction(distribution.expand((2, len(numbers))))
    with np.errstate(divide="ignore", over="ignore"):
        expected = np.log(np.mean([(each.pmf if is_count else each.pdf)(numbers) for each in frozen], 0))
    np.testing.assert_allclose(prediction.log_prob(numbers).numpy(), expected, rtol=1e-9)
    if name in WITHOUT_CDF:
        if is_count:
            with pytest.raises(InputError, match="needs counts from 0 up, got -1"):
                prediction.log_prob(COUNTS[:-1])
        return
    assert (prediction.log_prob(NUMBERS)[:2] == -math.inf).all() or name == "gumbel"
    with np.errstate(over="ignore"):
        cdf = np.mean([each.cdf(NUMBERS) for each in frozen], 0)
    np.testing.assert_allclose(prediction.cdf(NUMBERS).numpy(), cdf, rtol=1e-9, atol=1e-15)
    np.testing.assert_array_equal(pit(prediction, NUMBERS).numpy(), prediction.cdf(NUMBERS).numpy())


@pytest.mark.parametrize("name", BOUNDED)
def test_quantiles_stay_inside_the_support(name):
    distribution, frozen = BOUNDED[name]
    levels = [1e-6, 0.025, 0.5, 0.975, 1 - 1e-6]
    found = Prediction(distribution).quantile(levels)[:, 0].numpy()
    np.testing.assert_allclose(np.mean([each.cdf(found) for each in frozen], 0), levels, rtol=1e-8)
    lowest, highest = (end(each.support()[i] for each in frozen) for i, end in ((0, min), (1, max)))
    assert ((found >= lowest) & (found <= highest)).all()


@pytest.mark.parametrize("name", [name for name in BOUNDED if name != "gumbel"])
def test_targets_outside_of_the_support_have_a_crps_that_grows_by_their_distance(name):
    distribution, frozen = BOUNDED[name]
    lowest = min(each.support()[0] for each in frozen)
    y = torch.tensor([lowest, lowest - 1.0, lowest - 1e4], dtype=F64)
    found = ranked_probability(Prediction(distribution.expand((2, 3))), y)
    np.testing.assert_allclose((found - found[0]).numpy(), [0.0, 1.0, 1e4], rtol=1e-6, atol=1e-9)
    assert math.isfinite(found[0])


def test_a_negative_target_of_positive_predictions_is_scored():
    """The log score is -inf; no other score is lost, and nothing warns."""
    prediction = Prediction(dist.LogNormal(outputs(), 0.5))
    scores = score(prediction, [-1.0, 0.5, 1.0, 2.0, 3.0])
    assert scores["log_likelihood"].value == -math.inf
    assert math.isnan(scores["log_likelihood"].stderr)
    others = [entry.value for key, entry in scores.items() if key != "log_likelihood"]
    assert np.isfinite(others).all()
    table = compare_scores(prediction, prediction, [-1.0, 0.5, 1.0, 2.0, 3.0])
    assert table.loc["crps", "difference"] == 0


class Steps(dist.TorchDistribution):
    """Evenly distributed whole numbers from -3 to 2, as somebody else may write them."""

    arg_constraints = {"weight": constraints.positive}  # noqa: RUF012 - the form torch.distributions asks for
    support = constraints.integer_interval(-3, 2)

    def __init__(self, weight, validate_args=None):
        self.weight = weight
        super().__init__(weight.shape, validate_args=validate_args)

    @property
    def mean(self):
        return -0.5 * torch.ones_like(self.weight)

    @property
    def variance(self):
        return 35 / 12 * torch.ones_like(self.weight)

    def log_prob(self, value):
        self._validate_sample(value)
        return -math.log(6) * torch.ones_like(self.weight)

    def cdf(self, value):
        self._validate_sample(value)
        return (value + 4) / 6 * torch.ones_like(self.weight)


def test_a_distribution_of_negative_whole_numbers_has_all_that_counts_have():
    prediction = Prediction(Steps(torch.ones(2, 4, dtype=F64)))
    y = [-4, -3, 2, 3]
    np.testing.assert_allclose(prediction.log_prob(y).exp().numpy(), [0, 1 / 6, 1 / 6, 0])
    np.testing.assert_allclose(prediction.cdf(y).numpy(), [0, 1 / 6, 1, 1])
    np.testing.assert_array_equal(prediction.quantile([0.1, 0.5, 0.9])[:, 0].numpy(), [-3, -1, 2])
    numbers = np.arange(-3, 3)
    expected = [np.abs(numbers - each).mean() - np.abs(numbers[:, None] - numbers).mean() / 2 for each in y]
    np.testing.assert_allclose(ranked_probability(prediction, torch.tensor(y, dtype=F64)).numpy(), expected)


def test_quantiles_without_an_inverse_come_from_the_mean_and_the_variance():
    import scoringrules

    weights, locs, scales = [0.3, 0.7], np.array([[-2.0, 1.0], [0.0, 9.0]]), np.array([[1.0, 0.1], [2.0, 3.0]])
    parts = dist.Normal(torch.tensor(locs)[:, None], torch.tensor(scales)[:, None])
    mixture = dist.MixtureSameFamily(dist.Categorical(torch.tensor(weights, dtype=F64)).expand((2, 1)), parts)
    prediction, levels = Prediction(mixture), [1e-4, 0.2, 0.5, 0.99]
    found = prediction.quantile(levels)[:, 0].numpy()
    cdf = (stats.norm.cdf(found[:, None, None], locs, scales) * weights).sum(-1).mean(-1)
    np.testing.assert_allclose(cdf, levels, rtol=1e-9)
    y = torch.tensor([3.0], dtype=F64)
    expected = scoringrules.crps_mixnorm(3.0, locs.ravel(), scales.ravel(), np.array([weights, weights]).ravel() / 2)
    assert float(ranked_probability(prediction, y)) == pytest.approx(float(expected), rel=1e-7)


def test_a_distribution_without_a_known_mean_says_so():
    """A logit-normal: quantiles and log scores are there, and scores of the mean are left out."""
    logit = dist.TransformedDistribution(dist.Normal(outputs(), 1.0), [SigmoidTransform()])
    prediction = Prediction(logit)
    np.testing.assert_allclose(prediction[:1].interval(0.5)[0].numpy(), prediction.quantile(0.25)[:1].numpy())
    found = score(prediction, [0.1, 0.2, 0.5, 0.7, 1.5])
    assert {"crps", "coverage_95", "pit_error"} <= set(found)
    assert not {"rmse", "mae", "median_error", "r2", "ause"} & set(found)
    with pytest.raises(InputError, match="The mean of TransformedDistribution is not known: use quantiles"):
        _ = prediction.mean
    with pytest.raises(InputError, match="The variance of TransformedDistribution is not known"):
        _ = prediction.aleatoric_std
    assert epistemic(SimpleNamespace(prediction=prediction)).name == "epistemic unknown"
    assert ranking_test(prediction, [0.1] * 5, seed=0) is None


@pytest.mark.parametrize("far", [1e6, 1e17])
def test_a_component_that_is_far_off_does_not_blur_the_median(far):
    """The bracket is 1e17 wide, and the median lies at 1."""
    loc = np.array([0.0] * 9 + [math.log(far)])
    found = float(Prediction(dist.LogNormal(torch.tensor(loc)[:, None], 1.0)).quantile(0.3))
    root = optimize.brentq(lambda t: stats.norm.cdf(t, loc).mean() - 0.3, -5, 5, xtol=1e-14)
    assert found == pytest.approx(math.exp(root), rel=1e-12)


def test_quantiles_far_in_the_tail_have_digits_in_single_precision():
    levels = [1e-9, 1e-5, 1 - 1e-9]
    found = Prediction(dist.Normal(torch.zeros(2, 1), 1.0)).quantile(levels)[:, 0]
    np.testing.assert_allclose(found.numpy(), stats.norm.ppf(levels), rtol=1e-6)


LEVELS = [0.001, 0.025, 0.3, 0.5, 0.9, 0.975, 0.9999]


def predict(setting, outputs, dtype=torch.float64):
    """Return the prediction for outputs (S, N) of a network with one output."""
    like = torch.empty(0, dtype=dtype)
    with torch.no_grad(), local_parameters():
        f = torch.as_tensor(outputs, dtype=dtype)[..., None]
        return Prediction(setting.build(like, torch.tensor(1.0, dtype=torch.float64))(f))


def negative_binomial(dispersion):
    return lambda f: stats.nbinom(1 / dispersion, 1 / (1 + dispersion * np.exp(f)))


OF_SCIPY = {
    "poisson": (Poisson(), lambda f: stats.poisson(np.exp(f))),
    "negative_binomial": (NegativeBinomial(0.6), negative_binomial(0.6)),
}
COUNTED = ["poisson", "negative_binomial"]
WITHOUT_DENSITY = ["log_likelihood", "crps", "rmse", "mae", "median_error", "r2", "pit_error", "ause"]
"""Scores of targets of which some values have a probability of their own."""


def many_mixtures():
    """Return distributions (S, N) of every kind: alike rows and others, with noise from small to large."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    loc, scale = draw(1, 30) + draw(37, 30) * draw(1, 30), (draw(1, 30) + 0.3 * draw(37, 30)).exp()
    many = dist.Categorical(logits=draw(37, 30, 3))
    return {
        "normal": dist.Normal(loc, scale),
        "staircase": dist.Normal(loc, 1e-7 * scale),
        "student_t": targets.TargetStudentT(torch.tensor(2.5).double(), loc, scale),
        "log-normal": dist.LogNormal(loc, scale),
        "shifted": dist.TransformedDistribution(dist.Exponential(scale), dist.transforms.AffineTransform(-1.0, 3.0)),
        "censored": targets.CensoredNormal(loc, scale, -0.5, 1.0),
        "mixture density": dist.MixtureSameFamily(many, dist.Normal(loc[..., None] + draw(30, 3), scale[..., None])),
        "gamma": dist.Gamma(scale, scale.flip(0)),
        "poisson": counts.Poisson(loc),
        "negative binomial": counts.NegativeBinomial(loc, torch.tensor(0.6).double()),
    }


@pytest.mark.parametrize("name", many_mixtures())
def test_quantiles_agree_with_bisection(name):
    prediction = Prediction(many_mixtures()[name])
    levels = [1e-4, 0.025, 0.5, 0.9, 0.975]
    for level, found in zip(levels, prediction.quantile(levels), strict=True):
        low, high = torch.full((30,), -1e9, dtype=torch.float64), torch.full((30,), 1e9, dtype=torch.float64)
        for _ in range(90):
            middle = (low + high) / 2
            below = prediction.cdf(middle) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        torch.testing.assert_close(found, high, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(prediction.quantile(level), found, rtol=0, atol=0)


def test_quantiles_of_counts_in_single_precision_and_of_every_size():
    f = torch.tensor([[-30.0, -1.0, 3.0, 12.0, 20.0]])
    for setting, frozen in (OF_SCIPY[name] for name in COUNTED):
        found = predict(setting, f, torch.float32).quantile([0.025, 0.975]).numpy()
        expected = np.stack([frozen(f[0].double().numpy()).ppf(level) for level in (0.025, 0.975)])
        np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_scores_of_counts():
    f, y = outputs(), [0, 3, 1, 40, 2]
    prediction, frozen = predict(NegativeBinomial(0.6), f), negative_binomial(0.6)
    each = [frozen(draw.numpy()) for draw in f]
    found = score(prediction, y)
    assert [name for name in found if name.rpartition("_")[2] not in ("50", "80", "90", "95")] == WITHOUT_DENSITY
    cdf = np.mean([[each_draw.cdf(k) for k in range(200)] for each_draw in each], 0)
    lower, upper = ((cdf < level).sum(0) for level in (0.025, 0.975))
    assert found["coverage_95"].value == np.mean((lower <= y) & (y <= upper))
    assert found["width_95"].value == np.mean(upper - lower)
    assert not prediction.is_continuous
    assert (prediction.sample(3, seed=0) % 1 == 0).all()
    for y, message in (
        ([0.5, 1, 2, 3, 4], "whole-number counts, got values such as 0.5"),
        ([-1] * 5, "from 0 up, got -1"),
    ):
        with pytest.raises(InputError, match=message):
            prediction.log_prob(y)


def test_student_t_without_a_variance_says_infinity():
    prediction = predict(StudentT(0.7, df=2.0), outputs())
    assert prediction.aleatoric_variance.isinf().all()
    assert prediction.std.isinf().all()
    assert prediction.epistemic_std.isfinite().all()
    assert prediction.mean.isfinite().all()
    assert torch.stack(prediction.interval(0.95)).isfinite().all()
    assert all(math.isfinite(entry.value) for entry in score(prediction, torch.zeros(5)).values())


def censored():
    f = outputs()
    return predict(CensoredGaussian(-1.0, 1.5, 1.3), f), f.numpy()


def test_censored_predictions_are_of_what_is_observed():
    prediction, f = censored()
    samples = prediction.sample(60_000, seed=0)
    assert samples.min() == -1.0
    assert samples.max() == 1.5
    stderr = prediction.std / math.sqrt(60_000)
    assert ((samples.mean(0) - prediction.mean).abs() <= 4 * stderr).all()
    torch.testing.assert_close(samples.var(0), prediction.variance, rtol=0.03, atol=0)
    limits = special.logsumexp(stats.norm.logcdf(-1.0, f, 1.3), 0) - math.log(6)
    np.testing.assert_allclose(prediction.log_prob([-1.0] * 5).numpy(), limits, rtol=1e-10)
    np.testing.assert_allclose(prediction.log_prob([-7.0] * 5).numpy(), limits, rtol=1e-10)


def test_censored_targets_have_no_coverage_to_aim_at():
    prediction, _ = censored()
    assert list(score(prediction, [0.0, 1.0, 1.5, -1.0, -1.0])) == WITHOUT_DENSITY
    density = [
        integrate.quad(lambda t, n=n: float(prediction.log_prob([t] * 5)[n].exp()), -1 + 1e-9, 1.5 - 1e-9)[0]
        for n in range(5)
    ]
    limits = sum(prediction.log_prob([limit] * 5).exp().numpy() for limit in (-1.0, 1.5))
    np.testing.assert_allclose(np.array(density) + limits, 1, atol=1e-7)


def test_ordinal_predictions_are_those_of_classes():
    f = outputs()
    prediction = predict(Ordinal(3), f)
    cumulative = special.expit(special.logit(np.array([1, 2]) / 3)[:, None, None] - f.numpy())
    probs = np.stack([cumulative[0], cumulative[1] - cumulative[0], 1 - cumulative[1]], -1)
    np.testing.assert_allclose(prediction.class_probs.numpy(), probs.mean(0), rtol=1e-10)
    np.testing.assert_array_equal(prediction.label.numpy(), probs.mean(0).argmax(-1))
    entropy = stats.entropy(probs.mean(0), axis=-1)
    np.testing.assert_allclose(prediction.entropy.numpy(), entropy, rtol=1e-10)
    expected = entropy - stats.entropy(probs, axis=-1).mean(0)
    np.testing.assert_allclose(prediction.mutual_information.numpy(), expected, rtol=1e-9)
    assert prediction.is_classification
    assert not prediction.has_quantiles
    found = score(prediction, [0, 1, 2, 1, 0])
    assert {"accuracy", "log_likelihood", "brier", "ece", "auroc"} <= set(found)
    with pytest.raises(InputError, match="need a likelihood with a known distribution function"):
        prediction.quantile(0.5)


def test_several_columns_of_counts():
    f = outputs().reshape(6, 5, 1).repeat(1, 1, 2)
    with torch.no_grad():
        module = Poisson().build(torch.empty(0, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    both, one = Prediction(module(f)), predict(Poisson(), f[..., 0])
    y = torch.tensor([0, 1, 2, 3, 4])
    torch.testing.assert_close(both.quantile(0.9)[:, 1], one.quantile(0.9))
    torch.testing.assert_close(both.cdf(torch.stack([y, y], 1))[:, 0], one.cdf(y))
    torch.testing.assert_close(both.draw_log_prob(torch.stack([y, y], 1)), 2 * one.draw_log_prob(y))


@pytest.mark.parametrize("log_mean", [10.0, 20.0])
@pytest.mark.parametrize("name", COUNTED)
def test_huge_counts_are_those_of_scipy(name, log_mean):
    setting, frozen = OF_SCIPY[name]
    exact = frozen(np.array([log_mean]))
    y = np.array([exact.ppf(level)[0] for level in (0.01, 0.5, 0.99)])
    prediction = predict(setting, torch.full((1, 3), log_mean, dtype=torch.float64))
    np.testing.assert_allclose(prediction.log_prob(y).numpy(), exact.logpmf(y), rtol=1e-6)
    np.testing.assert_allclose(prediction.cdf(y).numpy(), exact.cdf(y), rtol=1e-7)
