"""Several posteriors on the same data."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import is_number
from pyrobnn.data.given import collected
from pyrobnn.data.in_memory import Data
from pyrobnn.metrics import compare_scores, score
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE
from pyrobnn.plots._style import as_array, first_column, grid, legend, title
from pyrobnn.plots.one_input import draw_bands, draw_data, grid_around
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

_SCORES = {
    "log_likelihood": "log score (nats per example)",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "ece": "expected calibration error",
    "rmse": "RMSE",
    "crps": "CRPS",
}


def compare_guides(posteriors: Mapping[str, Posterior | Mixture], data: Any, *, num_draws: int = 500) -> Figure:
    """Draw posteriors of the same problem beside each other.

    Over one input and real targets: mean and bands of each, on the same axes. Otherwise: their scores on the data, with
    the standard error over the examples, and, dark, that of the difference to the best; give held-out data.

    Args:
        posteriors: posteriors or mixtures by name.
        data: data in original units: `Data`, a pair (x, y), or a loader.
        num_draws: number of draws from each posterior.

    Raises:
        InputError: nothing to draw, or data that do not fit a model.

    Examples:
        >>> model, data = bnn.BNN(bnn.MLP(1, [10], 1)), bnn.datasets.sinusoid()
        >>> names = ["map", "mean_field"]
        >>> fits = {name: model.fit(data, guide=name, steps=20, seed=0, progress=False) for name in names}
        >>> figure = bnn.plots.compare_guides(fits, data, num_draws=100)
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['map', 'mean_field']
    """
    if not posteriors:
        raise InputError("`compare_guides` needs posteriors by name, got none: pass {'mean field': posterior, ...}.")
    data = collected(data, weighted=True)
    if is_number(data.x) and data.x.ndim == 2:
        x = grid_around(data, [*posteriors.values()]).sort(0).values
        predictions = {name: each.predict(x, num_draws=num_draws) for name, each in posteriors.items()}
        if not any(prediction.is_classification for prediction in predictions.values()):
            return _bands(predictions, as_array(x[:, 0]), data)
    predictions = {name: each.predict(data.x, num_draws=num_draws) for name, each in posteriors.items()}
    return _scores(predictions, data)


def _bands(predictions: Mapping[str, Prediction], x: np.ndarray, data: Data) -> Figure:
    figure, axes = grid(len(predictions), 3)
    for axis, (name, prediction) in zip(axes, predictions.items(), strict=True):
        draw_bands(axis, x, prediction)
        draw_data(axis, data)
        axis.set_xlim(x[0], x[-1])
        title(axis, name)
    low, high = float(first_column(data.y).min()), float(first_column(data.y).max())
    reach = 1.5 * (high - low) or 1.0
    ends = np.array([axis.get_ylim() for axis in axes])
    for axis in axes:  # all bands, unless they reach far from the data
        axis.set_ylim(max(ends[:, 0].min(), low - reach), min(ends[:, 1].max(), high + reach))
    legend(axes[0], loc="upper left", ncols=2)
    return figure


def _scores(predictions: Mapping[str, Prediction], data: Data) -> Figure:
    scores = {name: score(prediction, data.y) for name, prediction in predictions.items()}
    best = max(scores, key=lambda name: scores[name]["log_likelihood"].value)
    others = {name: prediction for name, prediction in predictions.items() if name != best}
    errors = {name: compare_scores(other, predictions[best], data.y)["stderr"] for name, other in others.items()}
    shown = [name for name in _SCORES if all(name in entries for entries in scores.values())]
    names = list(predictions)
    figure, axes = grid(len(shown), 4, (3.4, 1.2 + 0.35 * len(names)))
    for axis, measure in zip(axes, shown, strict=True):
        entries = [scores[name][measure] for name in names]
        rows = np.arange(len(names))
        values = np.array([each.value for each in entries])
        axis.hlines(rows, *_around(values, [each.stderr for each in entries]), color=LIGHT_BLUE, lw=5, label="±1 se")
        paired = [errors[name][measure] if name != best else 0.0 for name in names]
        axis.hlines(rows, *_around(values, paired), color=INK, lw=1.5, label="±1 se of the difference")
        axis.plot(values, rows, "o", color=BLUE, ms=5)
        axis.axvline(values[names.index(best)], color=GREY, linewidth=1, linestyle=":")
        axis.set(yticks=rows, yticklabels=names if axis is axes[0] else [], ylim=(len(names) - 0.5, -0.5))
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.set_xlabel(f"{_SCORES[measure]}, {'higher' if entries[0].higher_is_better else 'lower'} is better")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", frameon=False, fontsize=8.5, ncols=2)
    return figure


def _around(values: np.ndarray, errors: list[float]) -> tuple[np.ndarray, np.ndarray]:
    spread = np.nan_to_num(np.array(errors))
    return values - spread, values + spread
