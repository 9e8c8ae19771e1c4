"""Predictions of counts, robust, censored and ordered targets: scores, distribution functions, quantiles."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, special, stats

from pyrobnn import InputError, Prediction
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.distributions import counts, targets
from pyrobnn.likelihoods import CensoredGaussian, NegativeBinomial, Ordinal, Poisson, StudentT
from pyrobnn.metrics import score

LEVELS = [0.001, 0.025, 0.3, 0.5, 0.9, 0.975, 0.9999]


def predict(setting, outputs, dtype=torch.float64):
    """Return the prediction for outputs (S, N) of a network with one output."""
    like = torch.empty(0, dtype=dtype)
    with torch.no_grad(), local_parameters():
        f = torch.as_tensor(outputs, dtype=dtype)[..., None]
        return Prediction(setting.build(like, torch.tensor(1.0, dtype=torch.float64))(f))


def outputs(num_draws=6, num_inputs=5, seed=0):
    return 2 * torch.randn(num_draws, num_inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def negative_binomial(dispersion):
    return lambda f: stats.nbinom(1 / dispersion, 1 / (1 + dispersion * np.exp(f)))


FROZEN = {
    "poisson": (Poisson(), lambda f: stats.poisson(np.exp(f))),
    "negative_binomial": (NegativeBinomial(0.6), negative_binomial(0.6)),
}
COUNTS = ["poisson", "negative_binomial"]
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
    for setting, frozen in (FROZEN[name] for name in COUNTS):
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
    np.testing.assert_allclose(
        prediction.mutual_information.numpy(), entropy - stats.entropy(probs, axis=-1).mean(0), rtol=1e-9
    )
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
@pytest.mark.parametrize("name", COUNTS)
def test_huge_counts_are_those_of_scipy(name, log_mean):
    setting, frozen = FROZEN[name]
    exact = frozen(np.array([log_mean]))
    y = np.array([exact.ppf(level)[0] for level in (0.01, 0.5, 0.99)])
    prediction = predict(setting, torch.full((1, 3), log_mean, dtype=torch.float64))
    np.testing.assert_allclose(prediction.log_prob(y).numpy(), exact.logpmf(y), rtol=1e-6)
    np.testing.assert_allclose(prediction.cdf(y).numpy(), exact.cdf(y), rtol=1e-7)
