"""Predicted class probabilities against what was observed."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrobnn._core.checks import as_targets
from pyrobnn._core.errors import InputError
from pyrobnn.metrics import Reliability, reliability_bins
from pyrobnn.plots._colors import BLUE, GREY, LIGHT_BLUE, ORANGE
from pyrobnn.plots._style import Layout, as_array, legend, panels, title
from pyrobnn.posterior.prediction import Prediction


def reliability(prediction: Prediction, y: Any, *, layout: Layout = "row") -> Figure:
    """Draw how often the predicted class was right against the confidence in it, and how confidence is distributed.

    Confidence is the probability of the predicted class, in 15 bins of equal width; each bin shows its number of
    examples and the standard error of its accuracy. Several binary targets are put together.

    Args:
        prediction: a prediction of classes.
        y: the observed labels, (N,) or (N, K).
        layout: panels in a "row" or in a "column".

    Raises:
        InputError: real targets, or not one label for each prediction.
    """
    if not prediction.is_classification:
        raise InputError(f"`reliability` needs classes, got {prediction!r}: use `observed_vs_predicted`.")
    bins = reliability_bins(prediction, y)
    confidence = as_array(prediction.class_probs.amax(-1)).ravel()
    correct = as_array(prediction.label.cpu() == as_targets(y, len(prediction)).cpu()).ravel() > 0
    figure, axes = panels(2, layout)
    _diagram(axes[0], bins)
    axes[0].set_xlim(_leftmost(confidence), 1.03)
    axes[0].set_ylim(_leftmost(np.append(bins.accuracy - bins.stderr, confidence)), 1.03)
    _histogram(axes[1], confidence, correct)
    return figure


def _diagram(axis: Axes, bins: Reliability) -> None:
    mean, accuracy, count = bins.confidence, bins.accuracy, bins.count
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="calibrated")
    axis.errorbar(
        mean, accuracy, yerr=bins.stderr, fmt="o-", color=BLUE, ecolor=LIGHT_BLUE, ms=4.5, label="observed, ±1 se"
    )
    for x, y, num in zip(mean, accuracy, count, strict=True):
        axis.annotate(str(num), (x, y), (6, -11), textcoords="offset points", fontsize=8, color=GREY)
    gap = float((count * np.abs(accuracy - mean)).sum() / count.sum())
    axis.set(xlabel="confidence in the predicted class", ylabel="share predicted correctly")
    title(axis, f"Reliability, with counts; ECE {gap:.3f}")
    legend(axis, loc="best")


def _histogram(axis: Axes, confidence: np.ndarray, correct: np.ndarray) -> None:
    parts = [confidence[correct], confidence[~correct]]
    labels = [f"correct ({len(parts[0])})", f"wrong ({len(parts[1])})"]
    bins = np.linspace(_leftmost(confidence), 1.0, 21)
    colors, hatches = [LIGHT_BLUE, ORANGE], ["", "////"]
    axis.hist(parts, bins=list(bins), stacked=True, color=colors, hatch=hatches, edgecolor="white", label=labels)
    axis.set(xlabel="confidence in the predicted class", ylabel="examples", xlim=(_leftmost(confidence), 1.0))
    title(axis, "Distribution of confidence")
    legend(axis, loc="best")


def class_draws(prediction: Prediction) -> np.ndarray:
    """Return the probabilities of the classes under each draw, (S, N, C); of several binary targets, of the first."""
    probs = as_array(prediction.draw_means)
    if prediction.class_probs.ndim < probs.ndim:
        return probs
    first = probs if probs.ndim == 2 else probs[..., 0]
    return np.stack([1 - first, first], -1)


def _leftmost(confidence: np.ndarray) -> float:
    return float(min(0.9, np.floor(10 * confidence.min()) / 10))
