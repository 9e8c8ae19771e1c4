"""Calibration: probability integral transforms of real targets and counts, and bins of predicted probabilities."""

import dataclasses

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn.metrics.base import Weighted, as_columns, observed
from pyrobnn.posterior.prediction import Prediction

NUM_BINS = 15


def pit(prediction: Prediction, y: ArrayLike, *, seed: int = 0) -> Tensor:
    """Return the probability integral transform F(y) of targets under the mixture, uniform on (0, 1) if calibrated.

    Counts, and censored targets at a limit, have positive probability: their value is drawn evenly between P(Y < y) and
    P(Y <= y) (Brockwell 2007; Czado, Gneiting & Held 2009). `scipy.stats.kstest(pit, "uniform")` tests a column.

    Args:
        prediction: predictions at N inputs.
        y: their targets in original units, (N,) or (N, K), as the result.
        seed: seed of these draws.

    Raises:
        InputError: classes, or another likelihood without a distribution function; y not of the predictions' shape.

    Examples:
        >>> from pyro.distributions import Normal
        >>> bnn.metrics.pit(bnn.Prediction(Normal(torch.zeros(1, 3), 1.0)), [-1.0, 0.0, 1.0]).round(decimals=2)
        tensor([0.1600, 0.5000, 0.8400])
    """
    targets = observed(prediction, y)
    at = prediction.cdf(targets)
    if prediction.is_continuous:
        return at
    real = targets.to(at.dtype)
    just_below = torch.nextafter(real, torch.full_like(real, -torch.inf))
    below = prediction.cdf(targets - 1 if prediction.distribution.support.is_discrete else just_below)
    generator = torch.Generator().manual_seed(derive(seed, "pit"))
    share = torch.rand(at.shape, generator=generator, dtype=torch.float64).to(at)
    return below + share * (at - below)


def uniformity_error(values: np.ndarray) -> Weighted:
    """Return the area between the distribution function of values (N,) in [0, 1] and the diagonal, given weights."""
    order = np.argsort(values)
    edges = np.concatenate([[0.0], values[order], [1.0]])

    def area(weights: np.ndarray) -> float:
        share = np.append(0.0, weights[order].cumsum() / weights.sum())
        signed = [(edge - share) * np.abs(edge - share) for edge in (edges[1:], edges[:-1])]
        return float((signed[0] - signed[1]).sum() / 2)

    return area


@dataclasses.dataclass(frozen=True, eq=False)
class Reliability:
    """How often predictions were right in bins of their confidence; bins without examples are left out.

    Attributes:
        confidence: mean probability of the predicted class in each bin, (B,).
        accuracy: share of its examples that were predicted correctly, (B,).
        count: number of its examples, (B,).

    Examples:
        >>> from pyro.distributions import Bernoulli
        >>> bins = bnn.metrics.reliability_bins(bnn.Prediction(Bernoulli(torch.full((1, 4), 0.8))), [1, 1, 1, 0])
        >>> bins.accuracy
        array([0.75])
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    count: np.ndarray


def reliability_bins(prediction: Prediction, y: ArrayLike, *, num_bins: int = NUM_BINS) -> Reliability:
    """Return the bins of a reliability diagram; several binary target columns are pooled.

    Args:
        prediction: predictions of classes at N inputs.
        y: the labels, (N,) or (N, K).
        num_bins: number of bins of [0, 1].

    Raises:
        InputError: real targets, or not one label per input.

    Examples:
        >>> from pyro.distributions import Bernoulli
        >>> prediction = bnn.Prediction(Bernoulli(torch.tensor([[0.95, 0.9, 0.6, 0.45]])))  # one draw at four inputs
        >>> bins = bnn.metrics.reliability_bins(prediction, [1, 1, 1, 1], num_bins=4)
        >>> bins.count, bins.accuracy
        (array([2, 2]), array([0.5, 1. ]))
    """
    if not prediction.is_classification:
        raise InputError(f"A reliability diagram needs classes, got {prediction!r}: use `pit` for real targets.")
    check_count(num_bins, "num_bins")
    labels = prediction.checked(y).to(prediction.device)
    confidence = as_columns(prediction.class_probs.amax(-1)).ravel()
    correct = as_columns(prediction.label == labels).ravel()
    index = bins_of(confidence, num_bins)
    full = (count := np.bincount(index)) > 0
    shares = [np.bincount(index, values)[full] / count[full] for values in (confidence, correct)]
    return Reliability(shares[0], shares[1], count[full])


def bins_of(probs: np.ndarray, num_bins: int = NUM_BINS) -> np.ndarray:
    """Return the bin of each probability, of equal width."""
    return np.clip(np.digitize(probs, np.linspace(0.0, 1.0, num_bins + 1)) - 1, 0, num_bins - 1)


def calibration_error(gaps: np.ndarray, bins: np.ndarray) -> Weighted:
    """Return sum over bins |sum of gaps (N, K) of outcomes and probabilities| / number of gaps, given weights."""

    def error(weights: np.ndarray) -> float:
        sums = np.bincount(bins.ravel(), (weights[:, None] * gaps).ravel())
        return float(np.abs(sums).sum() / (gaps.shape[1] * weights.sum()))

    return error
