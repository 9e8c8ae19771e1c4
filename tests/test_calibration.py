"""Calibration by one factor: it is recovered from data of the model, and predictions stay distributions.

Recovered factors are means over 8 draws of data, within 5 standard errors from the spread over draws. Seeds are those
of the generators.
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
from pyrobnn.distributions.targets import TargetStudentT
from pyrobnn.posterior.calibration import best_factor, with_factor

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
NUMBERS = [name for name in LAWS if "classes" not in name]


def prediction_of(name, rows=ROWS):
    return bnn.Prediction(LAWS[name](randn(1, rows) + 0.3 * randn(DRAWS, rows, seed=1)))


def fitted_factor(prediction, y):
    return best_factor(prediction, y, torch.ones(len(y)))


@pytest.mark.parametrize("factor", [0.4, 2.5])
@pytest.mark.parametrize("name", LAWS)
def test_the_factor_of_the_data_is_recovered(name, factor):
    prediction = prediction_of(name)
    truth = with_factor(prediction, factor)
    found = []
    for seed in range(8):
        picks = torch.randint(truth.num_draws, (ROWS,), generator=torch.Generator().manual_seed(seed))
        y = truth.sample(seed=seed)[picks, torch.arange(ROWS)]  # each row from a draw of its own
        found.append(math.log(fitted_factor(prediction, y)))
    assert abs(np.mean(found) - math.log(factor)) < 5 * np.std(found, ddof=1) / math.sqrt(8)
    assert np.std(found) < 0.25


def test_the_factor_of_one_normal_is_the_root_mean_square():
    y, weights = 3 * randn(ROWS), torch.rand(ROWS, generator=torch.Generator().manual_seed(2)).double()
    prediction = bnn.Prediction(dist.Normal(torch.zeros(1, ROWS).double(), 0.5))
    expected = float((weights * y.square()).sum() / weights.sum()) ** 0.5 / 0.5
    assert abs(best_factor(prediction, y, weights) / expected - 1) < 1e-3


@pytest.mark.parametrize("name", NUMBERS)
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
