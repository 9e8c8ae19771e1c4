"""Predictions of real targets against what was observed, and the coverage of their intervals."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrobnn._core.checks import as_targets
from pyrobnn._core.errors import InputError
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE, ORANGE, PALE
from pyrobnn.plots._style import Layout, band, first_column, legend, panels, title
from pyrobnn.posterior.prediction import Prediction

_MOST_POINTS = 200
LEVELS = np.arange(1, 20) / 20
"""Nominal levels at which the coverage of intervals is shown."""


def observed_vs_predicted(prediction: Prediction, y: Any, *, layout: Layout = "row") -> Figure:
    """Draw 95 % intervals against what was observed, and how often intervals of each level held the observation.

    Of several targets, the first. At most 200 examples, evenly spaced in the order of y, are drawn on the left; the
    coverage on the right rests on all of them.

    Args:
        prediction: a prediction of real targets.
        y: the observed targets, (N,) or (N, K).
        layout: panels in a "row" or in a "column".

    Raises:
        InputError: class labels as targets, or not one target for each prediction.
    """
    require_real(prediction, "observed_vs_predicted")
    figure, axes = panels(2, layout)
    _intervals(axes[0], prediction, first_column(as_targets(y, len(prediction))))
    _coverage(axes[1], coverage(first_column(prediction.cdf(y))), len(prediction))
    return figure


def coverage(pit: np.ndarray) -> np.ndarray:
    """Return, for each of `LEVELS`, the share of observations inside the equal-tailed interval of that level.

    Args:
        pit: predictive distribution function at the observations, (N,).
    """
    return (np.abs(2 * pit - 1)[None, :] <= LEVELS[:, None]).mean(1)


def _intervals(axis: Axes, prediction: Prediction, observed: np.ndarray) -> None:
    lower, upper = (first_column(bound) for bound in prediction.interval(0.95))
    mean = first_column(prediction.mean)
    shown = np.argsort(observed, kind="stable")
    shown = shown[np.linspace(0, len(shown) - 1, min(_MOST_POINTS, len(shown))).round().astype(int)]
    ends = [min(observed.min(), mean.min()), max(observed.max(), mean.max())]
    axis.plot(ends, ends, color=GREY, linewidth=1, zorder=2.5)
    inside = (lower <= observed) & (observed <= upper)
    groups = [(inside, LIGHT_BLUE, BLUE, "o", "interval holds y"), (~inside, ORANGE, INK, "D", "interval misses y")]
    for mask, bar, mark, symbol, label in groups:
        rows = shown[mask[shown]]
        axis.vlines(observed[rows], lower[rows], upper[rows], color=bar, linewidth=0.8, zorder=2)
        axis.plot(observed[rows], mean[rows], symbol, color=mark, ms=3, zorder=3, label=f"{label} ({len(rows)})")
    part = f", {len(shown)} of {len(observed)} examples" if len(shown) < len(observed) else ""
    axis.set(xlabel="observed y", ylabel="predicted y")
    title(axis, f"Mean and 95 % interval{part}")
    legend(axis, loc="upper left")


def _coverage(axis: Axes, observed: np.ndarray, num: int) -> None:
    noise = 2 * np.sqrt(LEVELS * (1 - LEVELS) / num)
    low, high = np.clip(LEVELS - noise, 0, 1), np.clip(LEVELS + noise, 0, 1)
    band(axis, LEVELS, low, high, color=PALE, label="±2 se if calibrated")
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    axis.plot(LEVELS, observed, "o-", color=BLUE, ms=3.5, label="observed")
    axis.set(xlabel="nominal level of the interval", ylabel="share of y inside", xlim=(0, 1), ylim=(0, 1.02))
    title(axis, "Coverage of intervals")
    legend(axis, loc="upper left")


def require_real(prediction: Prediction, name: str) -> None:
    """Refuse predictions of classes."""
    if prediction.is_classification:
        raise InputError(f"`{name}` needs real targets, got {prediction!r}: use `reliability` for classes.")
