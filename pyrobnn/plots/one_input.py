"""The predictive distribution over a single input, of one posterior or several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from pyrobnn._core.checks import as_tensor
from pyrobnn._core.errors import REFUSALS, InputError
from pyrobnn._torch.inputs import is_number, shape_of, single
from pyrobnn.data.in_memory import Data
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE, ORANGE, PALE
from pyrobnn.plots._given import examples
from pyrobnn.plots._style import as_array, band, first_column, grid, legend, one_panel, plain, title
from pyrobnn.plots.regression import require_real
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

_GRID_POINTS = 300
_SHARE_BEYOND_DATA = 0.25  # of their range, by which curves go on: farther out, all that can be seen are bands
_SHARE_BEYOND_TARGETS = 1.5  # the same for bands above and below the targets
_MOST_FULL_SIZE_POINTS = 60  # more are smaller, and leave the bands visible


def fit_1d(
    posterior: Posterior | Mixture,
    train: Any,
    x: ArrayLike | None = None,
    truth: Callable[[Tensor], Tensor] | None = None,
    *,
    num_draws: int = 500,
    ax: Axes | None = None,
) -> Figure:
    """Draw the predictive mean over one input with bands of ±2 standard deviations, and the training data.

    The light band is the predictive interval, the dark one its epistemic part. Of several targets, the first.

    Args:
        posterior: a posterior, or a mixture such as an ensemble, over a network with one input and real targets.
        train: the training data: `Data`, a pair (x, y), or a loader.
        x: inputs (G, 1) at which to predict; if not given, the range of the data and a quarter of it on either side, or
            the inputs of the data if the network takes no others, such as codes of categories.
        truth: the curve without noise, from x (G, 1) to values with G entries.
        num_draws: number of posterior draws.
        ax: the panel to draw in; if not given, a new figure.

    Raises:
        InputError: no posterior, more than one input, or class labels as targets.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.fit_1d(posterior, data, truth=bnn.datasets.sinusoid_curve)
    """
    train = examples([posterior], train)
    inputs = _grid_around(train, [posterior]) if x is None else as_tensor(x, "x")
    if not is_number(train.x) or inputs.ndim != 2 or inputs.shape[1] != 1:
        fault = f"`fit_1d` draws one input, got x of shapes {shape_of(train.x)} and {tuple(inputs.shape)}"
        raise InputError(f"{fault}: for more use `bnn.plots.observed_vs_predicted(posterior.predict(x), y)`.")
    inputs = inputs.sort(0).values
    prediction = posterior.predict(inputs, num_draws=num_draws)
    require_real(prediction, "fit_1d")
    figure, axis = one_panel(ax)
    curve = None if truth is None else as_array(truth(inputs)).reshape(-1)
    _draw(axis, inputs, prediction, train, truth=curve)
    axis.set_ylim(*_limits(axis.get_ylim(), first_column(train.y), first_column(prediction.mean)))
    legend(axis, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def compare_guides(posteriors: Mapping[str, Posterior | Mixture], data: Any, *, num_draws: int = 500) -> Figure:
    """Draw posteriors over one input beside each other, as `fit_1d` does, on the same axes.

    Args:
        posteriors: posteriors or mixtures by name.
        data: data in original units: `Data`, a pair (x, y), or a loader.
        num_draws: number of draws from each posterior.

    Raises:
        InputError: nothing to draw, more than one input, or class labels as targets.

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
    data = examples(posteriors.values(), data)
    if not is_number(data.x):
        remedy = "compare their scores, by `bnn.compare_scores`, or by `bnn.compare`, which `az.plot_compare` draws"
        raise InputError(f"`compare_guides` draws one input, got x of shape {shape_of(data.x)}: for more {remedy}.")
    inputs = _grid_around(data, [*posteriors.values()]).sort(0).values
    predictions = [each.predict(inputs, num_draws=num_draws) for each in posteriors.values()]
    figure, axes = grid(len(predictions), 3)
    for axis, name, prediction in zip(axes, posteriors, predictions, strict=True):
        require_real(prediction, "compare_guides")
        _draw(axis, inputs, prediction, data)
        title(axis, name)
    ends = np.array([axis.get_ylim() for axis in axes])
    means = np.concatenate([first_column(prediction.mean) for prediction in predictions])
    for axis in axes:
        axis.set_ylim(*_limits((ends[:, 0].min(), ends[:, 1].max()), first_column(data.y), means))
    legend(axes[0], loc="upper left", ncols=2)
    return figure


def _limits(present: tuple[float, float], y: np.ndarray, mean: np.ndarray) -> tuple[float, float]:
    """Return limits near the targets, or a little farther for the mean."""
    low, high = float(y.min()), float(y.max())
    span = high - low
    if span == 0:
        return present
    lowest, highest = (float(np.clip(end, low - 2 * span, high + 2 * span)) for end in (mean.min(), mean.max()))
    bottom, top = min(low - _SHARE_BEYOND_TARGETS * span, lowest), max(high + _SHARE_BEYOND_TARGETS * span, highest)
    return max(present[0], bottom), min(present[1], top)


def _grid_around(train: Data, posteriors: Sequence[Posterior | Mixture]) -> Tensor:
    """Return inputs (G, 1) over the range of the data and a quarter on either side; if needed, the data's inputs."""
    x = single(train.x, "A curve")
    if not is_number(x):
        return x
    low, high = x.double().amin(0), x.double().amax(0)
    steps = as_tensor(np.linspace(-_SHARE_BEYOND_DATA, 1 + _SHARE_BEYOND_DATA, _GRID_POINTS)[:, None], "x")
    inputs = low + steps * (high - low)
    try:
        for posterior in posteriors:
            posterior.predict(inputs, num_draws=len(posterior.members))
    except REFUSALS:
        return x.unique(dim=0)
    return inputs


def draw_data(axis: Axes, data: Data) -> None:
    """Draw data with one input and name the axes; of several targets, the first."""
    x, y = first_column(single(data.x, "A curve")), first_column(data.y)
    size, edge = (3.5, 0.5) if len(data) <= _MOST_FULL_SIZE_POINTS else (2, 0)
    axis.plot(x, y, "o", color=INK, ms=size, mec="white", mew=edge, label="data")
    name = (data.feature_names or ("x",))[0]
    axis.set(xlabel="x" if name == "x0" else plain(name), ylabel=plain(data.target_name))  # x0: it has no name


def _draw(axis: Axes, x: Tensor, prediction: Prediction, data: Data, *, truth: np.ndarray | None = None) -> None:
    """Draw the mean over sorted inputs (G, 1) with the bands of ±2 standard deviations, the truth, and the data."""
    inputs, mean = as_array(x[:, 0]), first_column(prediction.mean)
    epistemic, std = first_column(prediction.epistemic_std), first_column(prediction.std)
    edge = {"edgecolor": GREY, "linewidth": 1.0}  # seen where the epistemic part fills the interval
    band(axis, inputs, mean - 2 * std, mean + 2 * std, facecolor=PALE, label="predictive interval, ±2 sd", **edge)
    band(axis, inputs, mean - 2 * epistemic, mean + 2 * epistemic, color=LIGHT_BLUE, label="epistemic, ±2 sd")
    axis.plot(inputs, mean, color=BLUE, linewidth=1.6, label="mean")
    if truth is not None:
        axis.plot(inputs, truth, "--", color=ORANGE, linewidth=1.4, label="truth")
    draw_data(axis, data)
    axis.set_xlim(inputs[0], inputs[-1])
