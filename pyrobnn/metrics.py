"""Scores of predictions on held-out data, each with its standard error over the examples."""

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._checks import as_targets
from pyrobnn.prediction import Prediction

_LEVEL = 0.95
NUM_BINS = 15
_RESAMPLES = 200


@dataclasses.dataclass(frozen=True)
class Score:
    """A score of predictions.

    Attributes:
        value: the score.
        stderr: its standard error over the examples; NaN for a single example.
        higher_is_better: the direction; for "coverage_95" the aim is 0.95 and more is the safer side.
    """

    value: float
    stderr: float
    higher_is_better: bool

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.stderr:.3f}"


def score(prediction: Prediction, y: Any) -> dict[str, Score]:
    """Score predictions against the targets that were held out.

    Regression: "log_likelihood", the mean log score log 1/S sum_s p(y | x, w_s); "rmse" of the predictive mean;
    "coverage_95", the share of targets inside the central 95 % interval, and "width_95", its mean width, both where
    targets have a density: intervals of counts and of censored targets hold more than 95 % even if calibrated. With
    several target columns all but the log score are averaged over them.

    Classification: "accuracy"; "log_likelihood"; "brier", the squared error of the probabilities summed over the
    classes (Brier 1950); "ece", the expected calibration error of the most probable class in 15 bins of its
    probability (Guo et al. 2017).

    Standard errors are those of means over the examples; for "rmse" by the delta method, for "ece" from 200 bootstrap
    resamples under a fixed seed.

    Args:
        prediction: predictions at N inputs.
        y: their targets in original units, (N,) or (N, K).

    Raises:
        InputError: not numeric, not finite, not one row an input, labels out of range, or counts that are not whole.
    """
    log_scores = prediction.log_prob(y)
    targets = as_targets(y, len(prediction)).to(prediction.mean.device)
    log_likelihood = {"log_likelihood": _mean(log_scores, higher_is_better=True)}
    if prediction.is_classification:
        accuracy, others = _classification(prediction, targets.long())
        return accuracy | log_likelihood | others
    return log_likelihood | _regression(prediction, targets)


def _regression(prediction: Prediction, y: Tensor) -> dict[str, Score]:
    scores = {"rmse": _rmse(_columns(prediction.mean - y))}
    if prediction.is_continuous and prediction.has_quantiles:
        lower, upper = prediction.interval(_LEVEL)
        scores["coverage_95"] = _mean((y >= lower) & (y <= upper), higher_is_better=True)
        scores["width_95"] = _mean(upper - lower, higher_is_better=False)
    return scores


def _rmse(errors: np.ndarray) -> Score:
    squared = errors**2
    rmse = np.sqrt(squared.mean(0))
    slope = np.divide(0.5, rmse, out=np.zeros_like(rmse), where=rmse > 0)
    return Score(float(rmse.mean()), _stderr((squared * slope).mean(1)), higher_is_better=False)


def _classification(prediction: Prediction, y: Tensor) -> tuple[dict[str, Score], dict[str, Score]]:
    probs = prediction.class_probs
    one_hot = torch.nn.functional.one_hot(y, probs.shape[-1])
    accuracy = _mean(prediction.label == y, higher_is_better=True)
    brier = _mean((probs - one_hot).square().sum(-1), higher_is_better=False)
    return {"accuracy": accuracy}, {"brier": brier, "ece": _calibration_error(probs, y)}


def _calibration_error(probs: Tensor, y: Tensor) -> Score:
    from torchmetrics.functional.classification import multiclass_calibration_error

    flat, labels = probs.reshape(-1, probs.shape[-1]), y.reshape(-1)
    value = float(multiclass_calibration_error(flat, labels, num_classes=flat.shape[-1], n_bins=NUM_BINS))
    confidence, label = flat.max(-1)
    bins = torch.bucketize(confidence, torch.linspace(0, 1, NUM_BINS + 1).to(confidence), right=True) - 1
    gap = (label == labels).to(confidence) - confidence
    shape = (len(y), -1)
    return Score(value, _bootstrap(_numpy(bins).reshape(shape), _numpy(gap).reshape(shape)), higher_is_better=False)


def _bootstrap(bins: np.ndarray, gaps: np.ndarray) -> float:
    """Return the standard deviation of sum_bins |sum gaps| / N over resampled examples."""
    if len(gaps) < 2:
        return math.nan
    generator = np.random.default_rng(0)
    values = []
    for _ in range(_RESAMPLES):
        rows = generator.integers(len(gaps), size=len(gaps))
        sums = np.bincount(bins[rows].ravel().astype(np.int64), weights=gaps[rows].ravel())
        values.append(np.abs(sums).sum() / gaps.size)
    return float(np.std(values, ddof=1))


def _mean(values: Tensor, *, higher_is_better: bool) -> Score:
    """Return the mean over examples, after that over columns."""
    by_example = _columns(values).mean(1)
    return Score(float(by_example.mean()), _stderr(by_example), higher_is_better)


def _stderr(by_example: np.ndarray) -> float:
    num = len(by_example)
    return float(by_example.std(ddof=1)) / math.sqrt(num) if num > 1 else math.nan


def _columns(values: Tensor) -> np.ndarray:
    return _numpy(values).reshape(len(values), -1)


def _numpy(values: Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()
