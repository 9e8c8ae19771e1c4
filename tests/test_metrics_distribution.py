"""Scores of whole predictive distributions: CRPS, intervals, probability integral transforms, the energy score."""

import itertools
import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, stats

from pyrobnn import Prediction
from pyrobnn.distributions.counts import NegativeBinomial, Poisson
from pyrobnn.distributions.targets import CensoredNormal, TargetStudentT
from pyrobnn.distributions.units import Scaler
from pyrobnn.metrics import crps, pit, score, scoring
from pyrobnn.metrics.calibration import uniformity_error
from pyrobnn.metrics.crps import ranked_probability

NUM = 40


def draws(num_draws=6, num_inputs=NUM, seed=0):
    return torch.randn(num_draws, num_inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def frozen(log_mean, dispersion):
    mean = np.exp(log_mean.numpy())
    return stats.poisson(mean) if dispersion is None else stats.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))


@pytest.mark.parametrize(
    ("dispersion", "few_far", "bounds"),
    [
        (None, False, [2e-3] * 5),
        (0.6, False, [2e-3] * 5),
        pytest.param(None, True, [1e-9, 1e-3, 1e-3], marks=pytest.mark.slow),
    ],
)
def test_crps_of_counts_is_the_sum_over_all_of_them(dispersion, few_far, bounds):
    """Thousands of them are integrated, where the steps of F are small; also where few draws are far off."""
    log_mean = 7.0 + 0.1 * draws(4, 5)
    y = (log_mean[0].exp() * double([0.0, 0.5, 1.0, 1.3, 6.0])).round()
    if few_far:
        log_mean, y = torch.full((20, 3), 0.5, dtype=torch.float64), double([1.0, 0.0, 9000.0])
        log_mean[0] = double([5.0, 7.0, 9.0])
    law = Poisson(log_mean) if dispersion is None else NegativeBinomial(log_mean, double(dispersion))
    found = ranked_probability(Prediction(law), y)
    support = np.arange(30_000)[:, None]
    for n, bound in enumerate(bounds):
        cdf = frozen(log_mean[:, n], dispersion).cdf(support).mean(1)
        assert float(found[n]) == pytest.approx(((cdf - (support[:, 0] >= float(y[n]))) ** 2).sum(), rel=bound)


def uneven(name, num_draws, num_inputs=6):
    """Locations and scales of shapes that a fixed grid misses."""
    loc, scale = draws(num_draws, num_inputs), 0.5 + draws(num_draws, num_inputs, seed=2).square()
    if name == "alike":
        loc *= 0
    elif name == "few far off":
        loc[0] = 1000.0
    elif name == "two modes":
        loc[::2] += 300.0
    elif name == "far apart":
        loc *= 1e4
    elif name == "tiny beside huge":
        scale = torch.where(draws(num_draws, num_inputs, seed=3) > 0, double(1e-6), double(1e3))
    elif name == "all sizes":
        scale = 10 ** (4.5 * draws(num_draws, num_inputs, seed=3).clamp(-2, 2) - 1.5)
    elif name == "points":
        scale = torch.full_like(loc, 1e-12)
    return loc, scale


UNEVEN = ["alike", "few far off", "two modes", "far apart", "tiny beside huge", "all sizes", "points"]
FAR = double([0.0, 0.3, -5.0, 900.0, -1e6, 1e9])


@pytest.mark.parametrize(("num_draws", "by"), [(1, "pairs"), (19, "pairs"), (150, "pairs"), (30, "quadrature")])
@pytest.mark.parametrize("name", UNEVEN)
def test_crps_of_uneven_mixtures_of_normals(name, num_draws, by, monkeypatch):
    import scoringrules

    if by == "quadrature":
        monkeypatch.setattr(crps, "_of_pairs", crps._integral)
    loc, scale = uneven(name, num_draws)
    found = ranked_probability(Prediction(dist.Normal(loc, scale)), FAR)
    expected = scoringrules.crps_mixnorm(FAR.numpy(), loc.numpy(), scale.numpy(), m_axis=0)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6 if by == "pairs" else 1e-5)


SKEWED = {
    "student t without a variance": (
        lambda loc, scale: TargetStudentT(double(1.5), loc, scale),
        lambda loc, scale: stats.t(1.5, loc, scale),
    ),
    "cauchy": (dist.Cauchy, stats.cauchy),
    "uniform": (lambda loc, scale: dist.Uniform(loc, loc + scale), stats.uniform),
    "gamma": (
        lambda loc, scale: dist.Gamma(loc.exp(), 1 / scale),
        lambda loc, scale: stats.gamma(np.exp(loc), 0, scale),
    ),
    "weibull": (
        lambda loc, scale: dist.Weibull(scale, loc.exp()),
        lambda loc, scale: stats.weibull_min(np.exp(loc), 0, scale),
    ),
    "half-cauchy": (lambda loc, scale: dist.HalfCauchy(scale), lambda loc, scale: stats.halfcauchy(0, scale)),
    "gumbel": (dist.Gumbel, stats.gumbel_r),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # in SciPy's Gumbel
@pytest.mark.parametrize("tiny", [1.0, 1e-6])
@pytest.mark.parametrize("name", SKEWED)
def test_crps_of_skewed_and_heavy_tails_by_quadrature(name, tiny):
    """SciPy integrates between the quantiles of all components."""
    make, freeze = SKEWED[name]
    loc, scale = draws(3, 4), 0.5 + draws(3, 4, seed=2).square()
    scale[0] *= tiny
    y = double([0.2, -1.0, 30.0, 1e4])
    found = ranked_probability(Prediction(make(loc, scale)), y)
    levels = np.array([1e-13, 1e-10, 1e-7, 1e-5, 1e-3, 0.01, 0.1, 0.3, 0.5])
    levels = np.concatenate([levels, 1 - levels])
    for n in range(4):
        frozen = freeze(loc[:, n].numpy(), scale[:, n].numpy())
        cuts = np.concatenate([frozen.ppf(level) for level in levels])
        cuts = np.unique(np.append(cuts[np.isfinite(cuts)], float(y[n])))
        pieces = [
            integrate.quad(lambda z, side=a >= float(y[n]): (frozen.cdf(z).mean() - side) ** 2, a, b, limit=200)[0]  # noqa: B023
            for a, b in itertools.pairwise(cuts)
        ]
        assert float(found[n]) == pytest.approx(sum(pieces), rel=1e-6)


def test_crps_of_columns_and_of_standardised_targets_is_that_of_each_in_its_units():
    import scoringrules

    loc, scale = (part.reshape(19, 3, 2) for part in uneven("few far off", 19))
    scaler = Scaler(double([5.0, -1.0]), double([2.0, 1e-3]))
    y = FAR.reshape(3, 2)
    prediction = Prediction(dist.Normal(loc, scale).to_event(1), scaler)
    parts = (y, scaler.inverse(loc), scaler.inverse_scale(scale))
    expected = scoringrules.crps_mixnorm(*(part.numpy() for part in parts), m_axis=0)
    np.testing.assert_allclose(ranked_probability(prediction, y).numpy(), expected, rtol=1e-6)
    single = ranked_probability(Prediction(dist.Normal(loc.float(), scale.float()).to_event(1), scaler), y)
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-5)


def test_interval_scores_are_those_of_scoringrules():
    import scoringrules

    prediction, y = Prediction(dist.Normal(draws(), double(1.0))), 3 * draws(1, seed=1)[0]
    found = score(prediction, y, levels=[0.8])
    lower, upper = (bound.numpy() for bound in prediction.interval(0.8))
    each = scoringrules.interval_score(y.numpy(), lower, upper, 0.2)
    assert found["interval_score_80"].value == pytest.approx(each.mean())
    assert found["interval_score_80"].stderr == pytest.approx(each.std(ddof=1) / math.sqrt(NUM))


def test_an_exact_posterior_predictive_is_calibrated():
    """Bayesian linear regression with its prior drawn anew for each of 3000 test points, in closed form.

    A coverage may miss its level by 3.5 standard errors of 3000 points, and each transform must be uniform.
    """
    rng, num, noise = np.random.default_rng(0), 3000, 0.5
    weights = rng.normal(size=(num, 3))
    x = rng.normal(size=(num, 8, 3))
    y = np.einsum("nij,nj->ni", x, weights) + noise * rng.normal(size=(num, 8))
    precision = np.eye(3) + np.einsum("nij,nik->njk", x[:, :7], x[:, :7]) / noise**2
    covariance = np.linalg.inv(precision)
    mean = np.einsum("njk,nik,ni->nj", covariance, x[:, :7], y[:, :7]) / noise**2
    test = x[:, 7]
    loc = np.einsum("nj,nj->n", test, mean)
    std = np.sqrt(noise**2 + np.einsum("nj,njk,nk->n", test, covariance, test))
    exact = Prediction(dist.Normal(torch.from_numpy(loc)[None], torch.from_numpy(std)[None]))
    scores = score(exact, y[:, 7])
    for level in (0.5, 0.8, 0.9, 0.95):
        tolerance = 3.5 * math.sqrt(level * (1 - level) / num)
        assert scores[f"coverage_{100 * level:g}"].value == pytest.approx(level, abs=tolerance)
    assert stats.kstest(pit(exact, y[:, 7]), "uniform").pvalue > 0.01
    assert scores["pit_error"].value < 0.01
    narrow = Prediction(dist.Normal(torch.from_numpy(loc)[None], torch.from_numpy(0.7 * std)[None]))
    assert stats.kstest(pit(narrow, y[:, 7]), "uniform").pvalue < 1e-6
    assert score(narrow, y[:, 7])["pit_error"].value > 0.03
    assert score(narrow, y[:, 7])["crps"].value > scores["crps"].value


def exact_sample(distribution, num):
    """Targets of a mixture, one from the draw of a number of its own for each input."""
    generator = np.random.default_rng(7)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        each = distribution.sample()
    return each[torch.from_numpy(generator.integers(len(each), size=num)), torch.arange(num)]


DISCRETE = {
    "poisson": Poisson,
    "negative_binomial": lambda f: NegativeBinomial(f, double(0.6)),
    "censored": lambda f: CensoredNormal(f, double(1.3), double(-0.5), double(0.8)),
    "censored_above": lambda f: CensoredNormal(f, double(1.3), upper=double(0.8)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_transforms_of_targets_with_probabilities_of_their_own_are_uniform(name):
    distribution = DISCRETE[name](draws(5, 3000))
    prediction = Prediction(distribution)
    y = exact_sample(distribution, 3000)
    found = pit(prediction, y)
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert stats.kstest(prediction.cdf(y), "uniform").pvalue < 1e-6
    torch.testing.assert_close(pit(prediction, y), found, rtol=0, atol=0)
    assert not torch.equal(pit(prediction, y, seed=1), found)
    if name in ("poisson", "negative_binomial"):
        assert ((prediction.cdf(y - 1) <= found) & (found <= prediction.cdf(y))).all()


def test_targets_beyond_a_limit_count_as_at_it():
    prediction = Prediction(CensoredNormal(draws(4), double(1.3), double(-1.0), None))
    at, beyond = torch.full((NUM,), -1.0).double(), torch.full((NUM,), -4.0).double()
    torch.testing.assert_close(pit(prediction, at), pit(prediction, beyond))
    assert score(prediction, at)["crps"] == score(prediction, beyond)["crps"]


def test_distance_from_uniform_is_that_of_wasserstein():
    values = np.random.default_rng(0).beta(2, 1, size=50)
    weights = np.random.default_rng(1).integers(1, 4, size=50).astype(float)
    grid = (np.arange(200_000) + 0.5) / 200_000
    expected = stats.wasserstein_distance(values, grid, u_weights=weights)
    assert uniformity_error(values)(weights) == pytest.approx(expected, abs=1e-5)
    assert uniformity_error(np.zeros(5))(np.ones(5)) == 0.5


def test_energy_score_is_without_bias(monkeypatch):
    """E|X - y| - E|X - X'| / 2 from two sets of 400,000 samples; 20 samples under each of the seeds 0 to 399.

    Together the Monte Carlo error is 0.01; 3 times that is allowed. With the diagonal in the sum over pairs it would
    be 0.05 more.
    """
    monkeypatch.setattr(scoring, "_ENERGY_SAMPLES", 20)
    loc, scale, y = np.array([0.3, -0.4]), np.array([0.8, 1.5]), np.array([1.0, 1.0])
    rng = np.random.default_rng(0)
    first, second = (loc + scale * rng.normal(size=(400_000, 2)) for _ in range(2))
    expected = np.linalg.norm(first - y, axis=1).mean() - np.linalg.norm(first - second, axis=1).mean() / 2
    prediction = Prediction(dist.Normal(torch.from_numpy(loc).expand(3, 1, 2), torch.from_numpy(scale)).to_event(1))
    found = [float(scoring.energy(prediction, y[None], seed=seed)[0]) for seed in range(400)]
    assert np.mean(found) == pytest.approx(expected, abs=0.03)
