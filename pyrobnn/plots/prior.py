"""Predictions of the prior."""

import math

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import as_inputs, is_number, single
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.plots._colors import BLUE, INK, LIGHT_BLUE, PALE
from pyrobnn.plots._style import Layout, band, first_column, legend, panels, shares, title
from pyrobnn.plots.classification import class_draws
from pyrobnn.plots.one_input import draw_data
from pyrobnn.posterior.prediction import Prediction

_SHOWN_DRAWS = 12
_INNER_QUANTILES = (0.05, 0.95)
_OUTER_QUANTILES = (0.025, 0.975)


def prior_predictive(
    model: BNN, x: ArrayLike | Data, *, num_draws: int = 200, seed: int = 0, layout: Layout = "row"
) -> Figure:
    """Draw the predictions of a model with weights from its prior.

    Over one input and real targets: functions of 12 draws, and the bands that hold 90 % of all functions and targets.
    Over more inputs: values of the function, and the variation of each from input to input. Of several targets, the
    first. Classes: the probability of the most probable class under single draws, and the share of inputs that a draw
    puts in the same class; if both crowd at 1, the prior is sure of one class (Wenzel et al. 2020).

    Args:
        model: the model.
        x: inputs (N, *in) in the model's units, or `Data`, which is scaled as in `fit`.
        num_draws: number of draws from the prior.
        seed: seed of the draws.
        layout: panels in a "row" or in a "column".

    Raises:
        InputError: inputs that the network does not take, or a prior with predictions that overflow.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1), prior=bnn.priors.Normal(1.0))
        >>> figure = bnn.plots.prior_predictive(model, bnn.datasets.sinusoid())
    """
    prediction = model.sample_prior_predictive(x, num_draws=num_draws, seed=seed)
    inputs = x.x if isinstance(x, Data) else as_inputs(x)
    if not bool(prediction.draw_means.isfinite().all()):
        raise InputError("Predictions under draws from the prior overflow: take a prior with lighter tails or a scale.")
    if prediction.is_classification:
        return _classes(prediction, layout)
    if is_number(inputs):
        return _functions(prediction, first_column(single(inputs, "A curve")), x if isinstance(x, Data) else None, seed)
    return _values(prediction, layout)


def _functions(prediction: Prediction, x: np.ndarray, data: Data | None, seed: int) -> Figure:
    order = np.argsort(x, kind="stable")
    values = np.stack([first_column(draw) for draw in prediction.draw_means])[:, order]
    targets = np.stack([first_column(draw) for draw in prediction.sample(seed=seed)])[:, order]
    figure, (axis,) = panels(1)
    limits, inner = (np.quantile(each, _INNER_QUANTILES, axis=0) for each in (targets, values))
    band(axis, x[order], *limits, color=PALE, label="90 % predictive interval")
    band(axis, x[order], *inner, color=LIGHT_BLUE, label="90 % of functions")
    for draw in values[:_SHOWN_DRAWS]:
        axis.plot(x[order], draw, color=BLUE, linewidth=0.8)
    axis.lines[0].set_label("single functions")
    axis.set(xlabel="x", ylabel="y", xlim=(x.min(), x.max()))
    if data is not None:
        draw_data(axis, data)
    ends = np.concatenate([limits.ravel(), first_column(data.y) if data is not None else []])
    low, high = ends.min(), ends.max()
    axis.set_ylim(low - 0.2 * (high - low), high + 0.2 * (high - low))
    legend(axis, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def _values(prediction: Prediction, layout: Layout) -> Figure:
    values = np.stack([first_column(draw) for draw in prediction.draw_means])
    figure, axes = panels(2, layout)
    labels = "value of the function", "standard deviation over the inputs"
    headings = "Values over draws and inputs", "How far single functions vary"
    for axis, shown, label, heading in zip(axes, (values.ravel(), values.std(1)), labels, headings, strict=True):
        low, high = np.quantile(shown, _OUTER_QUANTILES)
        bins = np.linspace(low, high, 1 + min(40, max(10, math.isqrt(len(shown)))))
        axis.hist(shown, bins=list(bins), density=True, color=LIGHT_BLUE, edgecolor="white", linewidth=0.4)
        axis.set(xlabel=label, ylabel="density")
        title(axis, f"{heading}, the central 95 %")
    return figure


def _classes(prediction: Prediction, layout: Layout) -> Figure:
    """Draw confidence and agreement of single draws; of several binary targets, the first."""
    probs = class_draws(prediction)
    num_classes = probs.shape[-1]
    chosen = probs.argmax(-1)
    largest = np.stack([(chosen == label).mean(1) for label in range(num_classes)]).max(0)
    figure, axes = panels(2, layout)
    title(axes[0], "Confidence of single draws")
    title(axes[1], "How far the inputs of a draw agree")
    labels = "probability of the most probable class", "share of inputs in the class that is chosen most"
    for axis, values, label in zip(axes, (probs.max(-1).ravel(), largest), labels, strict=True):
        shares(axis, values, np.linspace(1 / num_classes, 1, 21), color=LIGHT_BLUE, edgecolor="w")
        axis.axvline(values.mean(), color=INK, linewidth=1, linestyle="--", label=f"mean {values.mean():.2f}")
        axis.set(xlabel=label, ylabel="share of the draws", xlim=(1 / num_classes, 1))
        legend(axis, loc="best")
    return figure
