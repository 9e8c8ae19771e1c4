"""Predicted class probabilities against what was observed."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrobnn._checks import as_targets
from pyrobnn._errors import InputError
from pyrobnn.metrics import NUM_BINS
from pyrobnn.plots._style import BLUE, GREY, LIGHT_BLUE, ORANGE, Layout, first_column, legend, panels, title
from pyrobnn.prediction import Prediction

_BINS = np.linspace(0.0, 1.0, NUM_BINS + 1)


def reliability(prediction: Prediction, y: Any, *, layout: Layout = "row") -> Figure:
    """Draw how often the predicted class was right against the confidence in it, and how confidence is distributed.

    Confidence is the probability of the predicted class, in 15 bins of equal width; each bin shows its number of
    examples and the standard error of its accuracy. Of several binary targets, the first.

    Args:
        prediction: a prediction of classes.
        y: the observed labels, (N,) or (N, K).
        layout: panels in a "row" or in a "column".

    Raises:
        InputError: real targets, or not one label for each prediction.
    """
    if not prediction.is_classification:
        raise InputError(f"`reliability` needs classes, got {prediction!r}: use `observed_vs_predicted`.")
    labels = first_column(as_targets(y, len(prediction)))
    confidence = first_column(prediction.class_probs.amax(-1))
    correct = first_column(prediction.label) == labels
    figure, axes = panels(2, layout)
    _diagram(axes[0], confidence, correct)
    _histogram(axes[1], confidence, correct)
    return figure


def by_bin(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean confidence, accuracy and number of examples for each bin that has any."""
    index = np.clip(np.digitize(confidence, _BINS) - 1, 0, len(_BINS) - 2)
    count = np.bincount(index, minlength=len(_BINS) - 1)
    full = count > 0
    sums = [np.bincount(index, weights=values, minlength=len(_BINS) - 1)[full] for values in (confidence, correct)]
    return sums[0] / count[full], sums[1] / count[full], count[full]


def _diagram(axis: Axes, confidence: np.ndarray, correct: np.ndarray) -> None:
    mean, accuracy, count = by_bin(confidence, correct)
    error = np.sqrt(accuracy * (1 - accuracy) / count)
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="calibrated")
    axis.errorbar(mean, accuracy, yerr=error, fmt="o-", color=BLUE, ecolor=LIGHT_BLUE, ms=4.5, label="observed, ±1 se")
    for x, y, num in zip(mean, accuracy, count, strict=True):
        axis.annotate(str(num), (x, y), (6, -11), textcoords="offset points", fontsize=8, color=GREY)
    gap = float((count * np.abs(accuracy - mean)).sum() / count.sum())
    axis.set(xlabel="confidence in the predicted class", ylabel="share predicted correctly")
    lowest = _leftmost(np.append(accuracy - error, confidence))
    axis.set(xlim=(_leftmost(confidence), 1.03), ylim=(lowest, 1.03))
    title(axis, f"Reliability, with counts; ECE {gap:.3f}")
    legend(axis, loc="best")


def _histogram(axis: Axes, confidence: np.ndarray, correct: np.ndarray) -> None:
    parts = [confidence[correct], confidence[~correct]]
    labels = [f"correct ({len(parts[0])})", f"wrong ({len(parts[1])})"]
    bins = np.linspace(_leftmost(confidence), 1.0, 21)
    axis.hist(parts, bins=list(bins), stacked=True, color=[LIGHT_BLUE, ORANGE], edgecolor="white", label=labels)
    axis.set(xlabel="confidence in the predicted class", ylabel="examples", xlim=(_leftmost(confidence), 1.0))
    title(axis, "Distribution of confidence")
    legend(axis, loc="upper left")


def _leftmost(confidence: np.ndarray) -> float:
    return float(min(0.9, np.floor(10 * confidence.min()) / 10))
