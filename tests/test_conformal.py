"""Conformal prediction: levels hold over many draws of data, also for wrong models.

Coverages are means over 200 draws of held-out and new rows, compared within 5 standard errors of that mean, from the
spread over draws. Seeds are those of the generators.
"""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from helpers import quick

import pyrobnn as bnn
from pyrobnn.distributions.counts import Poisson
from pyrobnn.distributions.support import base_of, cdf
from pyrobnn.distributions.targets import TargetGamma
from pyrobnn.posterior.calibration import Conformal, ConformalPrediction

DRAWS, HELD_OUT, NEW = 200, 99, 200


def numbers(x, *, loc=0.0, scale=1.0):
    """Predict x with a spread that grows with it, moved by `loc` and multiplied by `scale`, from one draw."""
    return dist.Normal((x + loc)[None], scale * (0.5 + x.abs())[None])


def classes(x, *, wrong=False):
    logits = torch.stack([x, torch.zeros_like(x), -x, 0.5 * x], -1)[None]
    return dist.Categorical(logits=logits.flip(-1) * 3 if wrong else logits)


def held_out(prediction, y, method=None, seed=0, weights=None):
    weights = torch.ones(len(y), dtype=torch.float64) if weights is None else weights
    return Conformal(None, (prediction, y, weights), method, 500, seed)


def calibrated(law, data, new, method, seed=0):
    x, y = data
    return ConformalPrediction(law(new), scores=held_out(bnn.Prediction(law(x)), y, method, seed), seed=seed)


def inside(prediction, y, level):
    if prediction.is_classification:
        return prediction.label_set(level)[torch.arange(len(y)), y]
    lower, upper = prediction.interval(level)
    return (lower <= y) & (y <= upper)


def within_errors(shares, expected, errors=5):
    shares = np.asarray(shares)
    return abs(shares.mean() - expected) < errors * shares.std(ddof=1) / math.sqrt(len(shares))


WRONG = {"right": {}, "far off": {"loc": 3.0}, "too narrow": {"scale": 0.05}, "too wide": {"scale": 20.0}}


LAWS = {
    "normal": numbers,
    "log-normal": lambda x, loc=0.0, scale=1.0: dist.LogNormal((x + loc)[None], scale * (0.3 + 0.5 * x.abs())[None]),
    "gamma": lambda x, loc=0.0, scale=1.0: TargetGamma((x + loc)[None], (scale * (0.3 + 0.5 * x.abs()))[None].square()),
    "counts": lambda x, loc=0.0, scale=1.0: Poisson((1.5 + (x + loc) / scale)[None].clamp(-6, 6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("method", ["scaled", "quantiles"])
def test_intervals_hold_their_level_whatever_the_model_and_stay_in_the_range_of_targets(name, fault, method):
    """With 99 held-out rows the expected coverage is 0.9 exactly; counts have ties, and may be covered more often."""
    shares = []
    for seed in range(DRAWS):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(HELD_OUT + NEW, generator=generator, dtype=torch.float64)
        chance = torch.rand(len(x), generator=generator, dtype=torch.float64)
        truth = bnn.Prediction(LAWS[name](x))
        y = torch.poisson(truth.mean, generator) if name == "counts" else truth.distribution.icdf(chance)[0]
        old, new = slice(HELD_OUT), slice(HELD_OUT, None)
        settings = {"scale": 3.0} if fault == "too wide" else WRONG[fault]  # with more, no deviation is finite
        law = lambda at: LAWS[name](at, **settings)  # noqa: B023, E731 - it is called here
        prediction = calibrated(law, (x[old], y[old]), x[new], method)
        lower, upper = prediction.interval(0.9)
        assert bool((lower <= upper).all())
        assert bool((lower > 0).all() if (name, method) in POSITIVE else (lower >= LEAST.get(name, 0)).all())
        shares.append(float(inside(prediction, y[new], 0.9).double().mean()))
    assert within_errors(shares, 0.9) or (name == "counts" and np.mean(shares) > 0.9)


POSITIVE, LEAST = {("log-normal", "quantiles"), ("gamma", "quantiles")}, {"normal": -math.inf}


def test_quantiles_of_a_right_log_normal_are_as_narrow_as_they_can_be():
    """Its own interval needs no change: it stays as wide within a tenth, in logs. The scaled one is much wider."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, generator=generator, dtype=torch.float64)
    y = (x + (0.3 + 0.5 * x.abs()) * torch.randn(len(x), generator=generator, dtype=torch.float64)).exp()
    widths = {}
    for method in ("scaled", "quantiles"):
        prediction = calibrated(LAWS["log-normal"], (x[:2000], y[:2000]), x[2000:], method)
        lower, upper = prediction.interval(0.9)
        widths[method] = float((upper / lower.clamp_min(1e-3)).log().mean())
    own = bnn.Prediction(LAWS["log-normal"](x[2000:])).interval(0.9)
    assert widths["quantiles"] == pytest.approx(float((own[1] / own[0]).log().mean()), abs=0.1)
    assert widths["scaled"] > 1.5 * widths["quantiles"]


@pytest.mark.parametrize("scale", [0.2, 0.8, 1.5, 4.0])
@pytest.mark.parametrize("name", ["normal", "log-normal"])
def test_quantiles_widen_by_a_distance_and_narrow_by_a_share(name, scale):
    """CQR (Romano et al. 2019, eq. 8), written by hand, where intervals are too narrow; by it, wide ones would cross.

    The noise does not grow with the input as the model has it: at a scale of 4, the distance is 2.9 at a level of 0.9,
    and half the width 3.3 and more, 2.0 in logs.
    """
    generator = torch.Generator().manual_seed(3)
    x, noise = torch.randn(2, 300, generator=generator, dtype=torch.float64)
    y = x + 0.5 * noise
    y = y.exp() if name == "log-normal" else y
    law = lambda at: LAWS[name](at, scale=scale)  # noqa: E731
    lower, upper = calibrated(law, (x[:150], y[:150]), x[150:], "quantiles").interval(0.9)
    own = bnn.Prediction(law(x)).interval(0.9)
    if name == "log-normal":
        lower, upper, y, own = lower.log(), upper.log(), y.log(), [bound.log() for bound in own]
    middle, half = (own[0] + own[1]) / 2, (own[1] - own[0]) / 2
    distance = ((y - middle).abs() - half)[:150].sort().values[math.ceil(0.9 * 151) - 1]
    reach = half + distance
    if distance < 0:
        reach = half * ((y - middle).abs() / half)[:150].sort().values[math.ceil(0.9 * 151) - 1]
        assert scale > 1 or name == "normal"
    torch.testing.assert_close(lower, (middle - reach)[150:])
    torch.testing.assert_close(upper, (middle + reach)[150:])


def test_bounds_of_the_smallest_levels_are_in_order():
    """Both ends are found by a search that ends at the precision of the numbers."""
    f = torch.randn(30, 200, generator=torch.Generator().manual_seed(0))
    for name in ("beta", "gamma", "gaussian"):
        law = bnn.likelihoods.resolve(name).build(torch.zeros(()), torch.ones(()))(f[..., None])
        for level in (1e-14, 1e-9, 1e-6, 1e-3):
            lower, upper = bnn.Prediction(law).interval(level)
            assert bool((lower <= upper).all()), (name, level)


@pytest.mark.parametrize("method", ["scaled", "quantiles"])
def test_a_row_of_weight_two_is_two_rows(method):
    x = torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = torch.arange(60) % 3 + 1.0
    rows = torch.arange(60).repeat_interleave(weights.long())
    y = x + torch.randn(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    once = held_out(bnn.Prediction(numbers(x)), y, method, 0, weights.double())
    repeated = held_out(bnn.Prediction(numbers(x[rows])), y[rows], method)
    for level in (0.01, 0.4, 0.9, 0.99):
        assert once.threshold(level) == repeated.threshold(level)
    with pytest.warns(bnn.PoorFitWarning, match="level 0.995 need 199 held-out rows, got 120"):
        assert once.threshold(0.995) == math.inf


CLASSES = {"bernoulli", "categorical", "dense_categorical", "ordinal"}
SETTINGS = {"censored_gaussian": {"lower": -0.2}, "mixture_density": {"components": 2}}


@pytest.mark.parametrize("name", sorted({*bnn.likelihoods.registry.names} - CLASSES))
def test_symmetry_is_declared_as_it_is(name):
    """A distribution is symmetric if as much of it lies below its mean less a number as above its mean plus it."""
    likelihood = bnn.likelihoods.resolve({"type": name} | SETTINGS.get(name, {}))
    outputs = torch.linspace(0.4, 0.7, likelihood.num_outputs(torch.zeros(1)))
    module = likelihood.build(torch.zeros(()), torch.ones(()))
    law = base_of(module(outputs[None]))
    steps = torch.tensor([0.31, 0.77, 1.3])[:, None]
    above = 1 - cdf(law, law.mean + steps)
    assert torch.allclose(cdf(law, law.mean - steps), above, atol=1e-4) == likelihood.is_symmetric


def test_skewed_likelihoods_are_calibrated_by_quantiles():
    x = torch.linspace(-1, 1, 60)[:, None]
    data = bnn.Data(x, (x[:, 0] + 0.3 * torch.sin(40 * x[:, 0])).exp())
    for likelihood, method in {"log_normal": "quantiles", "gaussian": "scaled"}.items():
        posterior = quick(bnn.BNN(bnn.MLP(1, [5], 1), likelihood=likelihood), bnn.SVI(steps=20), data[::2])
        assert bnn.conformal(posterior, data[1::2]).method == method
        assert bnn.conformal(posterior, data[1::2], method="quantiles").method == "quantiles"


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_sets_of_classes_hold_their_level_whatever_the_model(wrong):
    generator, shares, sizes = torch.Generator().manual_seed(1), [], []
    for number in range(DRAWS):
        x = 2 * torch.randn(HELD_OUT + NEW, generator=generator, dtype=torch.float64)
        y = torch.multinomial(classes(x).probs[0], 1, generator=generator)[:, 0]
        old, new = slice(HELD_OUT), slice(HELD_OUT, None)
        law = lambda at: classes(at, wrong=wrong)  # noqa: E731
        prediction = calibrated(law, (x[old], y[old]), x[new], "aps", number)
        shares.append(float(inside(prediction, y[new], 0.9).double().mean()))
        sizes.append(float(prediction.label_set(0.9).double().sum(1).mean()))
    assert within_errors(shares, 0.9)
    assert 1 < np.mean(sizes) < 4


def test_a_fit_is_calibrated_and_its_predictions_are_scored_and_sliced():
    train, rest = bnn.datasets.sinusoid(300).split(0.7, seed=0)
    posterior = bnn.BNN(bnn.MLP(1, [10], 1), likelihood=bnn.likelihoods.Gaussian(0.01)).fit(
        train, steps=300, seed=0, progress=False
    )
    held_out, new = rest[:110], rest[110:]
    prediction = bnn.conformal(posterior, held_out).predict(new.x)
    plain, calibrated_scores = bnn.score(posterior.predict(new.x), new.y), bnn.score(prediction, new.y)
    assert plain["coverage_90"].value < 0.5
    assert 0.8 < calibrated_scores["coverage_90"].value < 0.97
    assert calibrated_scores["log_likelihood"].value == plain["log_likelihood"].value
    part = prediction[5:9]
    assert torch.equal(part.interval(0.9)[0], prediction.interval(0.9)[0][5:9])


def test_thresholds_are_held_out_scores_by_rank_and_infinite_with_few_rows():
    y = torch.randn(30, generator=torch.Generator().manual_seed(4)).double()

    def scores(num):
        return held_out(bnn.Prediction(dist.Normal(torch.zeros(1, num).double(), 1.0)), y[:num])

    ordered = y.abs().sort().values
    for level in (0.05, 0.8, 0.9, 30 / 31):
        assert scores(30).threshold(level) == float(ordered[math.ceil(31 * level - 1e-9) - 1])
    assert scores(18).threshold(0.95) == math.inf  # 19 rows are the fewest
    assert scores(19).threshold(0.95) == float(y[:19].abs().max())


def test_sets_of_rows_are_those_of_all_and_wrong_calls_are_refused():
    x, y = torch.randn(60, 1, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    posterior = bnn.BNN(bnn.MLP(1, [5], 3), likelihood="categorical").fit(-x, y, steps=30, seed=0, progress=False)
    fit = bnn.conformal(posterior, (x, y))
    prediction = fit.predict(x[:4])
    sets = prediction.label_set(0.9)
    assert sets.shape == (4, 3)
    assert torch.equal(prediction[1:3].label_set(0.9), sets[1:3])
    for call, message in {
        (lambda: bnn.conformal(posterior, (x, y), method="scaled")): "for classes must be one of aps, got 'scaled'",
        (lambda: prediction.interval(0.9)): "Classes have no intervals: use `label_set`",
        (lambda: prediction.label_set(1.0)): "`level` must lie between 0 and 1",
        (lambda: prediction.label_set("0.9")): "`level` must lie between 0 and 1, got 0.9",
        (lambda: bnn.Prediction(numbers(x)).interval([0.5, 0.9])): "`level` must lie between 0 and 1, got",
    }.items():
        with pytest.raises(bnn.InputError, match=message):
            call()
