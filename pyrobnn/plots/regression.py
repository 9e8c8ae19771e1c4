"""Predictions of real targets against observed targets, and the coverage of predictive intervals."""

import functools
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobnn._core.checks import as_targets
from pyrobnn._core.errors import InputError
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE, ORANGE, PALE
from pyrobnn.plots._style import TALL, Layout, band, first_column, legend_below, panels, plain, title
from pyrobnn.posterior.prediction import Prediction

_MOST_POINTS = 200
_SIMULATED_LINES = 4000
_AXIS_MARGIN = 0.03
_MOST_SHARE_BEYOND = 0.5  # of the range of targets and predictions, by which intervals stretch it
LEVELS = np.arange(1, 20) / 20  # of the intervals whose coverage is shown


def observed_vs_predicted(prediction: Prediction, y: ArrayLike, *, layout: Layout = "row", target: str = "y") -> Figure:
    """Draw 95 % predictive intervals against the observed targets, and the coverage of intervals at each level.

    Predictions without error lie on the diagonal. At most 200 examples, evenly spaced in the order of y, are drawn; the
    coverage on the right uses all. Of several targets, the first.

    Args:
        prediction: a prediction of real targets.
        y: the observed targets, (N,) or (N, K).
        layout: panels in a "row" or in a "column".
        target: name of the target, for axes and legends.

    Raises:
        InputError: class labels as targets, or not one target per prediction.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.observed_vs_predicted(posterior.predict(data.x), data.y)
    """
    require_real(prediction, "observed_vs_predicted")
    figure, axes = panels(2, layout, TALL)
    draw_intervals(axes[0], prediction, y, target)
    draw_coverage(axes[1], prediction, y, target)
    return figure


def coverage(pit: np.ndarray) -> np.ndarray:
    """Return, for each of `LEVELS`, the share of observations inside its interval, by their values F(y), (N,)."""
    return (np.abs(2 * pit - 1)[None, :] <= LEVELS[:, None]).mean(1)


def draw_intervals(axis: Axes, prediction: Prediction, y: ArrayLike, target: str = "y") -> None:
    """Draw means and 95 % predictive intervals against the targets, on equal scales."""
    observed, mean = first_column(as_targets(y, len(prediction))), first_column(prediction.mean)
    lower, upper = (first_column(bound) for bound in prediction.interval(0.95))
    shown = np.argsort(observed, kind="stable")
    shown = shown[np.linspace(0, len(shown) - 1, min(_MOST_POINTS, len(shown))).round().astype(int)]
    ends = _common_ends(observed[shown], mean[shown], lower[shown], upper[shown])
    handles: list[Any] = axis.plot(ends, ends, color=GREY, linewidth=1, zorder=2.5, label="predicted = observed")
    labels = ["predicted = observed"]
    inside = (lower <= observed) & (observed <= upper)
    groups = [
        (inside, LIGHT_BLUE, BLUE, "o", f"interval holds {plain(target)}"),
        (~inside, ORANGE, INK, "D", f"interval misses {plain(target)}"),
    ]
    for mask, bar, mark, symbol, label in groups:
        rows = shown[mask[shown]]
        if len(rows):
            labels.append(f"{label} ({len(rows)})")
            bars = axis.vlines(observed[rows], lower[rows], upper[rows], color=bar, linewidth=0.8, zorder=2)
            marks = axis.plot(observed[rows], mean[rows], symbol, color=mark, ms=3.5, zorder=3, label=labels[-1])
            handles.append((bars, *marks))
    part = f", {len(shown)} of {len(observed)} examples" if len(shown) < len(observed) else ""
    axis.set(xlabel=f"observed {plain(target)}", ylabel=f"predicted {plain(target)}", xlim=ends, ylim=ends)
    axis.set_box_aspect(1)
    axis.set_anchor("N")
    title(axis, f"95 % predictive intervals{part}")
    legend_below(axis, ncols=1, handles=handles, labels=labels)  # two columns would be wider than the panel


def _common_ends(observed: np.ndarray, mean: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[float, float]:
    """Return the ends of a scale for targets, predictions and, unless they are far longer, intervals."""
    values = np.concatenate([observed, mean[np.isfinite(mean)]])
    low, high = values.min(), values.max()
    beyond = _MOST_SHARE_BEYOND * (high - low)
    low, high = min(low, max(np.nanmin(lower), low - beyond)), max(high, min(np.nanmax(upper), high + beyond))
    margin = _AXIS_MARGIN * (high - low) or 1.0
    return float(low - margin), float(high + margin)


def draw_coverage(axis: Axes, prediction: Prediction, y: ArrayLike, target: str = "y") -> None:
    """Draw the share of targets inside the interval of each level, with a band that holds 95 % of calibrated lines."""
    observed = coverage(first_column(prediction.cdf(y)))
    noise = _errors_of_line(len(prediction)) * np.sqrt(LEVELS * (1 - LEVELS) / len(prediction))
    low, high = np.clip(LEVELS - noise, 0, 1), np.clip(LEVELS + noise, 0, 1)
    band(axis, LEVELS, low, high, color=PALE, label="95 % of calibrated lines")
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="calibrated")
    axis.plot(LEVELS, observed, "o-", color=BLUE, ms=3.5, label="observed")
    axis.set(xlabel="nominal level of the interval", ylabel=f"share of {plain(target)} inside")
    axis.set(xlim=(0, 1), ylim=(0, 1.02))
    axis.set_box_aspect(1)
    axis.set_anchor("N")
    title(axis, "Coverage of predictive intervals")
    legend_below(axis, ncols=1)


@functools.cache
def _errors_of_line(num: int) -> float:
    """Return the standard errors within which the whole line of N calibrated predictions lies in 95 % of cases."""
    shares = np.full(len(LEVELS) + 1, 1 / (len(LEVELS) + 1))
    lines = np.random.default_rng(0).multinomial(num, shares, _SIMULATED_LINES)[:, :-1].cumsum(1) / num
    errors = np.abs(lines - LEVELS) / np.sqrt(LEVELS * (1 - LEVELS) / num)
    return float(np.quantile(errors.max(1), 0.95))


def require_real(prediction: Prediction, name: str) -> None:
    """Refuse predictions of classes."""
    if prediction.is_classification:
        raise InputError(f"`{name}` needs real targets, got {prediction!r}: use `reliability` for classes.")
