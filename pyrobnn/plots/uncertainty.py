"""Whether uncertainty is where the errors are: sparsification, selective risk, transforms, inputs outside the data."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobnn._core.errors import InputError
from pyrobnn.metrics import RiskCurves, ood_measures, score_ood
from pyrobnn.metrics import pit as transforms
from pyrobnn.metrics import selective_risk as risk_curves
from pyrobnn.metrics import sparsification as sparsification_curves
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE, ORANGE, PALE
from pyrobnn.plots._style import Layout, as_array, band, legend, one_panel, panels, plain, shares, title
from pyrobnn.posterior.prediction import Prediction

_NAME_OF_MEASURE = {
    "mutual_information": "mutual information (nats)",
    "entropy": "entropy (nats)",
    "max_prob": "1 - probability of the predicted class",
    "epistemic_std": "epistemic standard deviation, relative to inside",
    "std": "standard deviation, relative to inside",
}
_FEWEST_FOR_AN_ERROR = 10
_LEAST_PART_FOR_AN_ERROR = 20


def sparsification(prediction: Prediction, y: ArrayLike, *, ax: Axes | None = None) -> Figure:
    """Draw the error that remains when the most uncertain examples are dropped, between the best and no order.

    The curves end where few examples are left, a twentieth or 10: one of them would decide where the curve goes.

    Args:
        prediction: predictions at N inputs.
        y: the targets in original units, (N,) or (N, K).
        ax: the panel to draw in; if not given, a new figure.

    Raises:
        InputError: as for `pyrobnn.metrics.sparsification`, the source of the curves.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.sparsification(posterior.predict(data.x), data.y)
        >>> figure.axes[0].get_xlabel()
        'share of examples dropped'
    """
    curves = sparsification_curves(prediction, y)
    error, measure = ("Brier score", "entropy") if prediction.is_classification else ("RMSE", "standard deviation")
    figure, axis = one_panel(ax)
    _curves(axis, 1 - curves.coverage, curves, f"by {measure}")
    axis.set(xlabel="share of examples dropped", ylabel=f"{error} of the rest / of all")
    title(axis, f"Sparsification; AUSE {curves.excess:.3f}")
    return figure


def selective_risk(prediction: Prediction, y: ArrayLike, *, ax: Axes | None = None) -> Figure:
    """Draw the risk among the answered examples when the least certain examples are not answered.

    The curves begin at a twentieth of the examples, or 10: one of fewer would decide where the curve goes. They are
    those of `pyrobnn.metrics.selective_risk`, and the arguments those of `sparsification`.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.selective_risk(posterior.predict(data.x), data.y)
        >>> figure.axes[0].get_xlabel()
        'coverage: share of examples answered'
    """
    curves = risk_curves(prediction, y)
    risk = "error rate" if prediction.is_classification else "mean squared error"
    measure = "confidence" if prediction.is_classification else "standard deviation"
    figure, axis = one_panel(ax)
    _curves(axis, curves.coverage, curves, f"by {measure}")
    axis.set(xlabel="coverage: share of examples answered", ylabel=risk)
    title(axis, f"Selective risk; area {curves.error.mean():.3g}, {curves.excess:.3g} above the best")
    return figure


def _curves(axis: Axes, x: np.ndarray, curves: RiskCurves, label: str) -> None:
    axis.axhline(curves.random, color=GREY, linewidth=1.2, linestyle=":", label="in random order")
    few = max(len(x) // _LEAST_PART_FOR_AN_ERROR, min(_FEWEST_FOR_AN_ERROR, len(x) // 4))
    x, error, oracle = x[few:], curves.error[few:], curves.oracle[few:]
    band(axis, x, oracle, error, color=PALE)
    axis.plot(x, error, color=BLUE, linewidth=1.8, label=label)
    axis.plot(x, oracle, "--", color=ORANGE, linewidth=1.5, label="by error: the best order")
    top = max(curves.random, float(error.max()))
    axis.set(xlim=(0, 1), ylim=(0, 1.4 * top if top > 0 else 1.0))
    legend(axis, loc="upper left")


def pit(prediction: Prediction, y: ArrayLike, *, seed: int = 0, layout: Layout = "row", target: str = "y") -> Figure:
    """Draw the probability integral transforms: flat and on the diagonal if predictions are calibrated.

    A U says that predictions are too narrow, a hill too wide, a slope too low or too high. Columns count together.

    Args:
        prediction: predictions of real targets or counts at N inputs.
        y: their targets in original units, (N,) or (N, K).
        seed: seed of the draws for counts and censored targets.
        layout: panels in a "row" or in a "column".
        target: name of the target, for axes.

    Raises:
        InputError: as for `pyrobnn.metrics.pit`.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.pit(posterior.predict(data.x), data.y)
    """
    from scipy.stats import kstest

    columns = as_array(transforms(prediction, y, seed=seed)).reshape(len(prediction), -1)
    p_value = min(1.0, columns.shape[1] * kstest(columns, "uniform").pvalue.min())  # Bonferroni
    values = np.sort(columns.ravel())
    figure, axes = panels(2, layout)
    _density(axes[0], values)
    _distance_from_uniform(axes[1], values, len(prediction))
    for axis in axes:
        axis.set_ylim(axis.get_ylim()[0], 1.3 * axis.get_ylim()[1])
        legend(axis, loc="upper right", ncols=2)
    axes[0].set(xlabel=f"F({plain(target)}), the probability integral transform", ylabel="density", xlim=(0, 1))
    axes[1].set(xlabel="level p", ylabel="share up to p, less p", xlim=(0, 1))
    title(axes[0], f"Transforms; uniform with p = {p_value:.2g}")
    title(axes[1], "Distance from the diagonal")
    return figure


def _density(axis: Axes, values: np.ndarray) -> None:
    num_bins = min(20, max(5, len(values) // 20))
    noise = 2 * np.sqrt((num_bins - 1) / len(values))
    axis.hist(values, bins=num_bins, range=(0, 1), density=True, color=LIGHT_BLUE, edgecolor="white")
    axis.axhline(1.0, color=INK, linewidth=1, label="calibrated")
    axis.axhline(max(0.0, 1 - noise), color=INK, linewidth=1, linestyle="--", label="±2 se if calibrated")
    axis.axhline(1 + noise, color=INK, linewidth=1, linestyle="--")


def _distance_from_uniform(axis: Axes, values: np.ndarray, num: int) -> None:
    """Draw the distribution function of sorted values less the diagonal, with the noise of `num` examples."""
    levels = np.linspace(0, 1, 201)
    noise = 2 * np.sqrt(levels * (1 - levels) / num)
    band(axis, levels, -noise, noise, color=PALE, label="±2 se if calibrated")
    axis.axhline(0.0, color=GREY, linewidth=1)
    share = np.searchsorted(values, levels, side="right") / len(values)
    axis.plot(levels, share - levels, color=BLUE, linewidth=1.6, label="observed")


def ood(inside: Prediction, outside: Prediction, *, by: str | None = None, layout: Layout = "row") -> Figure:
    """Draw a measure of uncertainty inside and outside the data, and how well it separates the two.

    Args:
        inside: predictions at inputs like the data.
        outside: predictions of the same posterior at other inputs.
        by: a measure of `pyrobnn.metrics.score_ood`; the first measure if not given, mutual information or epistemic
            standard deviation.
        layout: panels in a "row" or in a "column".

    Raises:
        InputError: "all" or another measure, or predictions of different kinds.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.ood(posterior.predict(data.x), posterior.predict(data.x + 3), by="epistemic_std")
    """
    measure = by or ("mutual_information" if inside.is_classification else "epistemic_std")
    measures = ood_measures(inside, outside, by=measure)
    if measure not in measures:
        raise InputError(f"`ood` draws a single measure, got by={by!r}: name one of {list(measures)}.")
    number = measures[measure]
    scores = score_ood(inside, outside, by=measure)
    figure, axes = panels(2, layout)
    groups = number[: len(inside)], number[len(inside) :]
    bins = np.histogram_bin_edges(number, bins=30)
    shares(axes[0], groups[0], bins, color=LIGHT_BLUE, label=f"inside ({len(inside)})")
    shares(axes[0], groups[1], bins, histtype="step", color=INK, linewidth=1.5, label=f"outside ({len(outside)})")
    axes[0].set(xlabel=_NAME_OF_MEASURE[measure], ylabel="share of the group")
    title(axes[0], "Uncertainty inside and outside the data")
    legend(axes[0], loc="best")
    _characteristic(axes[1], *groups)
    title(axes[1], f"ROC; area {scores[f'auroc_{measure}']}")
    return figure


def _characteristic(axis: Axes, inside: np.ndarray, outside: np.ndarray) -> None:
    from sklearn.metrics import roc_curve

    outsider = np.repeat([0, 1], [len(inside), len(outside)])
    alarms, hits, _ = roc_curve(outsider, np.concatenate([inside, outside]))
    axis.plot([0, 1], [0, 1], ":", color=GREY, linewidth=1.2, label="guessing")
    axis.plot(alarms, hits, color=BLUE, linewidth=1.8, label="by uncertainty")
    reached = int(np.argmax(hits >= 0.95))
    label = f"{alarms[reached]:.0%} false at 95 % true"
    axis.plot(alarms[reached], hits[reached], "o", color=ORANGE, ms=6, label=label)
    axis.set(xlabel="share of inside inputs called outside", ylabel="share of outside inputs found")
    axis.set(xlim=(-0.01, 1), ylim=(0, 1.02))
    legend(axis, loc="lower right")
