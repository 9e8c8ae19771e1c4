"""Predictions of the prior, and the change from prior to posterior."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import as_inputs, is_number, single
from pyrobnn.bnn import BNN
from pyrobnn.data.given import collected
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.convert import as_one, to_datatree
from pyrobnn.plots._arviz import arviz_figure
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE, PALE
from pyrobnn.plots._style import Layout, band, first_column, legend, panels, shares, title
from pyrobnn.plots.classification import class_draws
from pyrobnn.plots.one_input import draw_data, input_name
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

_SHOWN_DRAWS = 12
_INNER_QUANTILES = (0.05, 0.95)
_MOST_PROBES = 4
_OUTER_QUANTILES = (0.025, 0.975)

Quantity = tuple[str, np.ndarray, np.ndarray]
"""The name of a number, and its draws (chain, draw) from the prior and the posterior."""


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
        >>> len(figure.axes)
        1
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
    _histogram(axes[0], values.ravel(), "value of the function", "Values over draws and inputs")
    _histogram(axes[1], values.std(1), "standard deviation over the inputs", "How far single functions vary")
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


def _histogram(axis: Axes, values: np.ndarray, label: str, heading: str) -> None:
    low, high = np.quantile(values, _OUTER_QUANTILES)
    bins = np.linspace(low, high, 1 + min(40, max(10, math.isqrt(len(values)))))
    axis.hist(values, bins=list(bins), density=True, color=LIGHT_BLUE, edgecolor="white", linewidth=0.4)
    axis.set(xlabel=label, ylabel="density")
    title(axis, f"{heading}, the central 95 %")


def prior_posterior(posterior: Posterior | Mixture, data: Any, *, num_draws: int = 500) -> Figure:
    """Draw densities under the prior and the posterior: of scales, and of the function at a few examples.

    Scales are all latent numbers that are not weights. The function is its value at four examples, evenly spaced; for
    classes, the probability of the observed class; of several targets, the first. The central 95 % of the prior are
    shown, and the whole range of the posterior (`arviz.plot_prior_posterior`).

    Args:
        posterior: a posterior, a mixture, or a list or dict of posteriors, as `pyrobnn.to_datatree` takes it.
        data: examples in original units: `Data`, a pair (x, y), or a loader; `data[[i, j, k, l]]` chooses the four.
        num_draws: number of draws from prior and posterior.

    Raises:
        InputError: a prior that cannot be drawn from, or with predictions that overflow.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.prior_posterior(posterior, data, num_draws=100)
        >>> len(figure.axes)  # the function at four examples
        4
    """
    import arviz as az

    data = collected(data, weighted=True)
    probes = _probes(data)
    tree = to_datatree(posterior, probes, num_draws=num_draws)
    if "prior_predictive" not in tree:
        raise InputError(f"`prior_posterior` needs draws from the prior, but {tree.attrs['prior_left_out']}.")
    quantities = _scales(tree, as_one(posterior)[0].bnn.site_names) + _function_values(tree, probes)
    cut = [_cut(prior.reshape(1, -1), after.reshape(1, -1)) for _, prior, after in quantities]
    groups = {group: {f"v{n}": pair[i] for n, pair in enumerate(cut)} for i, group in enumerate(("prior", "posterior"))}
    figure, axes = arviz_figure(
        az.plot_prior_posterior,
        az.from_dict(groups),
        len(quantities),
        kind="kde",
        aes={"color": ["group"], "linestyle": ["group"]},
        color=[GREY, BLUE],
        linestyle=["--", "-"],
        visuals={"dist": {"width": 1.8}, "remove_axis": False},
    )
    for axis, (name, _, after) in zip(axes.values(), quantities, strict=True):
        title(axis, name)
        if np.ptp(after) == 0:  # a point estimate has no density
            axis.axvline(float(after.flat[0]), color=BLUE, linewidth=1.8)
        axis.set(ylabel="density", yticks=[])
        axis.set_ylim(bottom=0)
    handles = [Line2D([], [], color=GREY, linestyle="--", lw=1.8), Line2D([], [], color=BLUE, lw=1.8)]
    legend(next(iter(axes.values())), handles=handles, labels=["prior", "posterior"], loc="best")
    return figure


def _probes(data: Data) -> Data:
    """Return four examples, evenly spaced along a single input, or in their order."""
    is_curve = is_number(data.x)
    order = np.argsort(first_column(single(data.x, "A curve")), kind="stable") if is_curve else np.arange(len(data))
    return data[order[np.linspace(0, len(data) - 1, min(_MOST_PROBES, len(data))).round().astype(int)]]


def _scales(tree: Any, weight_names: tuple[str, ...]) -> list[Quantity]:
    """Return the latent numbers that are not weights."""
    prior, posterior = (tree[group].to_dataset() for group in ("prior", "posterior"))
    names = [str(name) for name, v in posterior.data_vars.items() if v[0, 0].size == 1 and name not in weight_names]
    return [(name, prior[name].values, posterior[name].values) for name in names]


def _function_values(tree: Any, probes: Data) -> list[Quantity]:
    """Return the function at each probe."""
    prior, posterior = (tree[group].to_dataset() for group in ("prior_predictive", "posterior_predictive"))
    kind = "probs" if "probs" in posterior else "mu"
    quantities = []
    for i, label in enumerate(first_column(probes.y).astype(int)):
        place = f"example {i + 1}"
        if is_number(probes.x):
            place = f"{input_name(probes)} = {first_column(single(probes.x, 'A curve'))[i]:.3g}"
        name = f"{f'P(class {label})' if kind == 'probs' else 'f'} at {place}"
        quantities.append((name, _at(prior[kind], i, int(label)), _at(posterior[kind], i, int(label))))
    return quantities


def _at(values: Any, example: int, label: int) -> np.ndarray:
    """Return the draws (chain, draw) of the first target, or of the probability of a class, at an example."""
    entries = values.isel(obs_id=example)
    if "class" in entries.dims:
        return entries.isel({"class": label}).values
    first = entries.values.reshape(*entries.shape[:2], -1)[..., 0]
    return 1 - first if values.name == "probs" and label == 0 else first


def _cut(prior: np.ndarray, posterior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave out draws from the prior in its tails, except where the posterior lies."""
    low, high = np.quantile(prior, _OUTER_QUANTILES)
    outside = (prior < min(low, posterior.min())) | (prior > max(high, posterior.max()))
    return np.where(outside, np.nan, prior), posterior
