"""Would the fitted model make data like those observed?"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobnn._core.checks import as_targets
from pyrobnn.plots._colors import BLUE, INK, LIGHT_BLUE
from pyrobnn.plots._style import band, first_column, legend, legend_below, named_ticks, one_panel, plain, title
from pyrobnn.posterior.prediction import Prediction

_MOST_SETS = 500
_CURVE_POINTS = 300
_MOST_BINS = 4000
_BAND_QUANTILES = (0.025, 0.975)
_SHOWN_SHARE = 0.95
_LETTERS_UNDER_A_PANEL = 28  # that fit beside each other
_LEAST_SHARE_OF_SPREAD = 0.1  # of the largest, which counts where curves hardly differ


def predictive_check(
    prediction: Prediction,
    y: ArrayLike,
    *,
    seed: int = 0,
    ax: Axes | None = None,
    target: str = "y",
    class_names: Sequence[str] = (),
) -> Figure:
    """Draw data sets that the fit simulates beside the observed data: these should not stand out.

    Real targets: the density. Counts, and targets with probability at limits: the distribution function. The band holds
    95 % of the simulated sets (at most 500), each from end to end. Classes: the frequencies, with the interval that
    holds 95 % of the simulated ones. All targets of a set share a draw of the weights. Of several targets, the first.
    A prediction of `BNN.sample_prior_predictive` makes it a check of the prior.

    Args:
        prediction: a prediction at N inputs.
        y: the observed targets, (N,) or (N, K).
        seed: seed of the simulated targets.
        ax: the panel to draw in; if not given, a new figure.
        target: name of the target, for axes.
        class_names: names of the classes; their numbers if not given.

    Raises:
        InputError: not one target per prediction.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.predictive_check(posterior.predict(data.x, num_draws=100), data.y)
    """
    observed, simulated = _targets(prediction, y, seed)
    if prediction.is_classification:
        return _frequencies(simulated, observed, class_names or range(prediction.class_probs.shape[-1]), target, ax)
    figure, axis = one_panel(ax)
    of_sets = _densities if prediction.is_continuous else _distributions
    y_values, curves = of_sets(np.concatenate([observed[None], simulated[:_MOST_SETS]]))
    step: Any = None if prediction.is_continuous else "post"
    low, high = _envelope(curves[1:], np.inf if step is None else 1.0)
    band(axis, y_values, low, high, color=LIGHT_BLUE, alpha=0.45, step=step, label="95 % of simulated sets")
    style = "default" if step is None else f"steps-{step}"
    axis.plot(y_values, curves[0], color=INK, linewidth=1.8, drawstyle=style, label="observed")
    title(axis, "Observed and simulated data")
    axis.set(xlabel=plain(target), ylabel="density" if step is None else "cumulative share")
    axis.set(xlim=(y_values[0], y_values[-1]), ylim=(0, None))
    if step is None:
        axis.set_yticks([])  # a density has the inverse unit of the target
    legend_below(axis)
    return figure


def _envelope(curves: np.ndarray, most: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of a band that holds 95 % of curves (S, G) up to `most` as wholes, wide where they differ."""
    mean, spread = curves.mean(0), curves.std(0)
    unit = spread + _LEAST_SHARE_OF_SPREAD * spread.max()
    farthest = (np.abs(curves - mean) / np.where(unit > 0, unit, 1.0)).max(1)
    reach = np.quantile(farthest, _SHOWN_SHARE) * unit
    return np.maximum(mean - reach, 0.0), np.minimum(mean + reach, most)


def _densities(sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points y (G,) and kernel density estimates (S, G) of sets of targets (S, N), the first set observed.

    All have the bandwidth of the first set (Silverman's rule), so that they differ only by their targets.
    """
    from scipy.ndimage import gaussian_filter1d

    observed, simulated = sets[0], sets[1:]
    finite = simulated[np.isfinite(simulated)]
    ends = np.quantile(finite, [0.005, 0.995]) if len(finite) else observed
    width = _bandwidth(observed) or _bandwidth(finite) or 1.0
    low, high = min(observed.min(), ends.min()) - 3 * width, max(observed.max(), ends.max()) + 3 * width
    num_bins = int(np.clip(4 * (high - low) / width, _CURVE_POINTS, _MOST_BINS))
    edges = np.linspace(low, high, num_bins + 1)
    size = edges[1] - edges[0]
    counts = np.stack([np.histogram(values[np.isfinite(values)], edges)[0] for values in sets])
    smooth = gaussian_filter1d(counts.astype(float), width / size, axis=1, mode="constant")
    return (edges[1:] + edges[:-1]) / 2, smooth / (sets.shape[1] * size)


def _bandwidth(values: np.ndarray) -> float:
    """Return the bandwidth of Silverman's rule; 0 for values that are all alike, or none."""
    if len(values) < 2:
        return 0.0
    deviation, quartiles = float(values.std(ddof=1)), np.quantile(values, [0.25, 0.75])
    spread = min(deviation, float(quartiles[1] - quartiles[0]) / 1.34) or deviation
    return 0.9 * spread * len(values) ** -0.2


def _distributions(sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points y (G,) and distribution functions (S, G) of sets of targets (S, N), the first of them observed."""
    finite = sets[1:][np.isfinite(sets[1:])]
    low, high = np.quantile(finite, [0.005, 0.995]) if len(finite) else (np.inf, -np.inf)
    values = np.unique(np.concatenate([sets[0], finite[(low <= finite) & (finite <= high)]]))
    if len(values) > _CURVE_POINTS:
        even = np.quantile(values, np.linspace(0, 1, _CURVE_POINTS))
        values = np.unique(np.concatenate([even, sets[0][:_CURVE_POINTS]]))
    margin = 0.03 * (values[-1] - values[0]) or 0.5
    points = np.concatenate([[values[0] - margin], values, [values[-1] + margin]])
    shares = np.stack([np.searchsorted(np.sort(each), points, side="right") for each in sets]) / sets.shape[1]
    return points, shares


def _targets(prediction: Prediction, y: ArrayLike, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the observed targets (N,), and a simulated set for each draw, (S, N); of several targets, the first."""
    observed = first_column(as_targets(y, len(prediction)))
    return observed, np.stack([first_column(values) for values in prediction.sample(seed=seed)])


def _frequencies(
    simulated: np.ndarray, observed: np.ndarray, class_names: Sequence[str | int], target: str, ax: Axes | None
) -> Figure:
    classes = np.arange(len(class_names))
    share = np.stack([(simulated == label).mean(1) for label in classes])
    low, high = np.quantile(share, _BAND_QUANTILES, axis=1)
    figure, axis = one_panel(ax)
    axis.vlines(classes, low, high, color=LIGHT_BLUE, linewidth=7, label="simulated, 95 %")
    axis.plot(classes, share.mean(1), "_", color=BLUE, ms=12, mew=1.6, label="simulated, mean")
    axis.plot(classes, [(observed == label).mean() for label in classes], "o", color=INK, ms=5, label="observed")
    axis.set(xlabel=plain(target), ylabel="share of the examples")
    axis.set_xlim(-0.6, len(classes) - 0.4)
    shown = classes[:: max(1, len(classes) // 10)]
    named_ticks(axis, shown, [plain(str(class_names[label])) for label in shown], _LETTERS_UNDER_A_PANEL)
    axis.set_ylim(0, 1.35 * axis.get_ylim()[1])  # with room for the legend
    axis.set_yticks([tick for tick in axis.get_yticks() if tick <= min(1, axis.get_ylim()[1])])
    title(axis, "Observed and simulated frequencies")
    legend(axis, loc="upper left", ncols=2, columnspacing=1.2)
    return figure
