"""Calibration: one factor is recovered, and conformal levels hold over many draws of data, also for wrong models.

Recovered factors are means over 8 draws of data, coverages over 200 draws of held-out and new rows, each within 5
standard errors of that mean, from the spread over draws. Seeds are those of the generators.
"""

import math
import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from helpers import quick
from torch.distributions import MixtureSameFamily

import pyrobnn as bnn
from pyrobnn.distributions.counts import Poisson
from pyrobnn.distributions.support import base_of, cdf
from pyrobnn.distributions.targets import TargetGamma, TargetStudentT
from pyrobnn.posterior.calibration import Conformal, ConformalPrediction, best_factor, with_factor

ROWS, DRAWS = 500, 5


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixture(f):
    parts = dist.Normal(torch.stack([f - 1, f + 2], -1), torch.tensor([0.3, 0.8]).double())
    return dist.MixtureSameFamily(dist.Categorical(logits=torch.stack([f, -f], -1)), parts)


LAWS = {
    "normal": lambda f: dist.Normal(f, 0.5),
    "several columns": lambda f: dist.Normal(torch.stack([f, 3 * f], -1), 0.5).to_event(1),
    "student": lambda f: TargetStudentT(4.0, f, 0.5 + f.abs()),
    "laplace": lambda f: dist.Laplace(f, 0.5),
    "log normal": lambda f: dist.LogNormal(f, 0.5),
    "mixture": mixture,
    "classes": lambda f: dist.Categorical(logits=torch.stack([f, -f, 2 * f], -1)),
    "two classes": lambda f: dist.Bernoulli(logits=2 * f),
}


def prediction_of(name, rows=ROWS):
    return bnn.Prediction(LAWS[name](randn(1, rows) + 0.3 * randn(DRAWS, rows, seed=1)))


@pytest.mark.parametrize("factor", [0.4, 2.5])
@pytest.mark.parametrize("name", LAWS)
def test_the_factor_of_the_data_is_recovered(name, factor):
    prediction = prediction_of(name)
    truth = with_factor(prediction, factor)
    found = []
    for seed in range(8):
        picks = torch.randint(truth.num_draws, (ROWS,), generator=torch.Generator().manual_seed(seed))
        y = truth.sample(seed=seed)[picks, torch.arange(ROWS)]  # each row from a draw of its own
        found.append(math.log(best_factor(prediction, y, torch.ones(ROWS))))
    assert abs(np.mean(found) - math.log(factor)) < 5 * np.std(found, ddof=1) / math.sqrt(8)
    assert np.std(found) < 0.25


def test_the_factor_of_one_normal_is_the_root_mean_square():
    y, weights = 3 * randn(ROWS), torch.rand(ROWS, generator=torch.Generator().manual_seed(2)).double()
    prediction = bnn.Prediction(dist.Normal(torch.zeros(1, ROWS).double(), 0.5))
    expected = float((weights * y.square()).sum() / weights.sum()) ** 0.5 / 0.5
    assert abs(best_factor(prediction, y, weights) / expected - 1) < 1e-3


@pytest.mark.parametrize("name", [name for name in LAWS if "classes" not in name])
def test_distances_from_the_centre_are_multiplied(name):
    prediction = prediction_of(name, 5)
    wide = with_factor(prediction, 3.0)
    if name == "log normal":
        middle = prediction.distribution.loc.mean(0)
        before, after = (each.quantile([0.1, 0.5, 0.8]).log() - middle for each in (prediction, wide))
        torch.testing.assert_close(after, 3 * before, rtol=1e-6, atol=1e-6)
        return
    torch.testing.assert_close(wide.mean, prediction.mean)
    torch.testing.assert_close(wide.epistemic_std, 3 * prediction.epistemic_std)
    torch.testing.assert_close(wide.aleatoric_std, 3 * prediction.aleatoric_std)
    levels = [0.1, 0.5, 0.8]
    before, after = (each.quantile(levels) - prediction.mean for each in (prediction, wide))
    torch.testing.assert_close(after, 3 * before, rtol=1e-6, atol=1e-6)
    assert isinstance(wide.distribution, type(prediction.distribution))
    assert isinstance(wide.distribution, MixtureSameFamily) == (name == "mixture")


def test_logits_of_the_mean_are_divided():
    prediction = prediction_of("classes", 5)
    expected = (prediction.class_probs.log() / 2.5).softmax(-1)
    torch.testing.assert_close(with_factor(prediction, 2.5).class_probs, expected)


def test_a_fit_in_units_of_its_own_is_calibrated():
    """Noise of 20 that the model takes for 2: the standard error of the factor is its share 1 / sqrt(2 * 200)."""
    x = randn(300, 1)
    y = 100 + 50 * x[:, 0] + 20 * randn(300, seed=1)
    held_out, new = bnn.Data(x[100:], y[100:]), x[:5]
    model = bnn.BNN(bnn.MLP(1, [], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(2.0))
    posterior = quick(model, bnn.SVI(guide="laplace", steps=500), bnn.Data(x[:100], y[:100], standardize=True))
    calibrated = bnn.calibrate(posterior, held_out, num_draws=100)
    assert abs(calibrated.factor / 10 - 1) < 5 / 20
    ratio = calibrated.predict(new).std / posterior.predict(new, num_draws=100).std
    torch.testing.assert_close(ratio, torch.full_like(ratio, calibrated.factor), rtol=1e-5, atol=0)
    assert repr(calibrated).endswith(f"factor={calibrated.factor:.3g})")


def test_other_targets_are_refused():
    x, counts = randn(20, 1), torch.arange(20) % 4
    posterior = quick(bnn.BNN(bnn.MLP(1, [5], 1), likelihood="poisson"), bnn.SVI(steps=5), bnn.Data(-x, counts))
    with pytest.raises(bnn.InputError, match="Poisson has none: use bnn.conformal"):
        bnn.calibrate(posterior, (x, counts))
    columns = bnn.Prediction(dist.Bernoulli(torch.full((2, 3, 4), 0.5)).to_event(1))
    with pytest.raises(bnn.InputError, match="one target column, got \\(4,\\)"):
        with_factor(columns, 2.0)


X = randn(24, 1).float()
LABELS = torch.arange(24) % 2
HELD_OUT = {
    "signs as labels": ("categorical", 2, LABELS, 2 * LABELS - 1, "labels from 0 up, got -1"),
    "shares as labels": ("categorical", 2, LABELS, 0.4 * LABELS + 0.3, "whole-number labels, got values such as 0.3"),
    "labels from 1": ("categorical", 2, LABELS, LABELS + 1, "needs labels from 0 to 1, got 2"),
    "signs of two": ("bernoulli", 1, LABELS, 2 * LABELS - 1, "targets 0 and 1, got values such as -1"),
    "ordered from 1": (bnn.likelihoods.Ordinal(2), 1, LABELS, LABELS + 1, "needs labels from 0 to 1"),
    "negative prices": ("log_normal", 1, LABELS + 1.0, X[:, 0], "needs positive targets"),
    "negative gamma": ("gamma", 1, LABELS + 1.0, X[:, 0], "needs positive targets"),
    "shares of 1": ("beta", 1, 0.4 * LABELS + 0.3, LABELS, "above 0 and below 1"),
    "half counts": ("poisson", 1, LABELS, LABELS + 0.5, "whole-number counts, got values such as 0.5"),
    "two columns": ("gaussian", 1, X[:, 0], X.repeat(1, 2), "needs 2 network outputs"),
    "text": ("gaussian", 1, X[:, 0], np.array(["a"] * 24), "must be numeric"),
}


@pytest.mark.parametrize("name", HELD_OUT)
def test_held_out_targets_are_checked_as_those_of_a_fit(name):
    likelihood, outputs, y, wrong, message = HELD_OUT[name]
    model = bnn.BNN(bnn.MLP(1, [2], outputs), likelihood=likelihood)
    posterior = quick(model, bnn.SVI(steps=1), bnn.Data(X, y))
    checks = (bnn.calibrate, bnn.conformal, bnn.diagnose, bnn.metrics.permutation_importance)
    for call in (*checks, lambda fit, data: bnn.Data(*data) and fit.bnn.fit(*data, steps=1)):
        with pytest.raises(bnn.InputError, match=message):
            call(posterior, (X, wrong))


def test_true_and_false_are_labels_and_numbers_whatever_holds_them():
    for likelihood in ("bernoulli", "gaussian"):
        model = bnn.BNN(bnn.MLP(1, [2], 1), likelihood=likelihood)
        posterior = quick(model, bnn.SVI(steps=1), bnn.Data(X, LABELS.float()))
        held_out = [LABELS.bool(), LABELS.bool().numpy(), LABELS.tolist(), LABELS.double()]
        assert len({bnn.calibrate(posterior, (X, y)).factor for y in held_out}) == 1
        fits = [bnn.conformal(posterior, (X, y)).predict(X) for y in held_out]
        of = [fit.label_set(0.8) if fit.is_classification else fit.interval(0.8)[0] for fit in fits]
        assert all(torch.equal(of[0], other) for other in of)


@pytest.mark.parametrize(
    ("rows", "shift", "words"),
    [
        (1, 0.0, "count as 1"),
        (9, 0.0, "hardly determined"),
        (10, 0.0, None),
        (20, 1e6, "lies at a limit"),
        (20, 0.0, None),
    ],
)
def test_a_factor_from_few_rows_or_at_its_limits_is_told(rows, shift, words):
    """Of n normal rows the factor is sqrt(chi2(n) / n): a new row loses half of n / (n - 2) - 1 + psi(n/2) - log(n/2).

    That is 0.07 nats for 10 rows and infinite for 1 and 2.
    """
    y = X[:, 0] + randn(24, seed=5).float()
    posterior = quick(bnn.BNN(bnn.MLP(1, [2], 1)), bnn.SVI(steps=1), bnn.Data(X, y))
    with pytest.warns(bnn.PoorFitWarning, match=words) if words else warnings.catch_warnings(action="error"):
        bnn.calibrate(posterior, (X[:rows], y[:rows] + shift))
    if rows == 20 and not shift:
        weights = torch.tensor([100.0] + [1.0] * 19)
        with pytest.warns(bnn.PoorFitWarning, match="count as 1.41"):
            bnn.calibrate(posterior, bnn.Data(X[:20], y[:20], weights=weights))


REPEATS, KEPT_OUT, NEW = 200, 99, 200


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
FAMILIES = {
    "normal": numbers,
    "log-normal": lambda x, loc=0.0, scale=1.0: dist.LogNormal((x + loc)[None], scale * (0.3 + 0.5 * x.abs())[None]),
    "gamma": lambda x, loc=0.0, scale=1.0: TargetGamma((x + loc)[None], (scale * (0.3 + 0.5 * x.abs()))[None].square()),
    "counts": lambda x, loc=0.0, scale=1.0: Poisson((1.5 + (x + loc) / scale)[None].clamp(-6, 6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["scaled", "quantiles"])
def test_intervals_hold_their_level_whatever_the_model_and_stay_in_the_range_of_targets(name, fault, method):
    """With 99 held-out rows the expected coverage is 0.9 exactly; counts have ties, and may be covered more often."""
    shares = []
    for seed in range(REPEATS):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(KEPT_OUT + NEW, generator=generator, dtype=torch.float64)
        chance = torch.rand(len(x), generator=generator, dtype=torch.float64)
        truth = bnn.Prediction(FAMILIES[name](x))
        y = torch.poisson(truth.mean, generator) if name == "counts" else truth.distribution.icdf(chance)[0]
        old, new = slice(KEPT_OUT), slice(KEPT_OUT, None)
        settings = {"scale": 3.0} if fault == "too wide" else WRONG[fault]  # with more, no deviation is finite
        law = lambda at: FAMILIES[name](at, **settings)  # noqa: B023, E731 - it is called here
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
        prediction = calibrated(FAMILIES["log-normal"], (x[:2000], y[:2000]), x[2000:], method)
        lower, upper = prediction.interval(0.9)
        widths[method] = float((upper / lower.clamp_min(1e-3)).log().mean())
    own = bnn.Prediction(FAMILIES["log-normal"](x[2000:])).interval(0.9)
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
    law = lambda at: FAMILIES[name](at, scale=scale)  # noqa: E731
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
SOME = {"censored_gaussian": {"lower": -0.2}, "mixture_density": {"components": 2}}


@pytest.mark.parametrize("name", sorted({*bnn.likelihoods.registry.names} - CLASSES))
def test_symmetry_is_declared_as_it_is(name):
    """A distribution is symmetric if as much of it lies below its mean less a number as above its mean plus it."""
    likelihood = bnn.likelihoods.resolve({"type": name} | SOME.get(name, {}))
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
    for number in range(REPEATS):
        x = 2 * torch.randn(KEPT_OUT + NEW, generator=generator, dtype=torch.float64)
        y = torch.multinomial(classes(x).probs[0], 1, generator=generator)[:, 0]
        old, new = slice(KEPT_OUT), slice(KEPT_OUT, None)
        law = lambda at: classes(at, wrong=wrong)  # noqa: E731
        prediction = calibrated(law, (x[old], y[old]), x[new], "aps", number)
        shares.append(float(inside(prediction, y[new], 0.9).double().mean()))
        sizes.append(float(prediction.label_set(0.9).double().sum(1).mean()))
    assert within_errors(shares, 0.9)
    assert 1 < np.mean(sizes) < 4


def test_a_fit_is_calibrated_and_its_predictions_are_scored_and_sliced():
    train, rest = bnn.datasets.sinusoid(300).split(0.7, seed=0)
    model = bnn.BNN(bnn.MLP(1, [10], 1), likelihood=bnn.likelihoods.Gaussian(0.01))
    posterior = model.fit(train, steps=300, seed=0, progress=False)
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
