"""Targets where a distribution has none: densities, distribution functions, quantiles and scores, against SciPy."""

import math
from types import SimpleNamespace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, stats
from torch.distributions import AffineTransform, ExpTransform, SigmoidTransform, constraints

from pyrobnn import InputError, Prediction, compare_scores
from pyrobnn.diagnostics.checks import epistemic
from pyrobnn.diagnostics.predictive_checks import ranking_test
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
