"""The posterior of the weights at a glance: where they are, and how well the data determine them."""

import math

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from torch import Tensor

from pyrobnn.plots._colors import DASHES, GREY, LIGHT_BLUE, SEQUENCE
from pyrobnn.plots._style import Layout, as_array, legend, panels, shares, title
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.weights import weight_moments

_MOST_LAYERS = 6
_SMALLEST_RATIO = 1e-3
_NO_SPREAD = 1e-5


def weights(posterior: Posterior, *, layout: Layout = "row") -> Figure:
    """Draw posterior means of the weights by layer, and their signal-to-noise ratio |mean| / standard deviation.

    Weights with a ratio well below 1 could as well be 0 (Blundell et al. 2015 prune by it). Mean and standard deviation
    are exact where the guide has `moments()`, else estimated from draws.

    Args:
        posterior: the posterior.
        layout: panels in a "row" or in a "column".

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.weights(posterior)
        >>> figure.axes[0].get_title(loc="left")
        'Posterior means by layer'
    """
    moments = weight_moments(posterior)
    figure, axes = panels(2, layout)
    _means(axes[0], _by_layer({name: mean for name, (mean, _) in moments.items()}))
    mean, scale = (torch.cat([pair[i].reshape(-1) for pair in moments.values()]) for i in range(2))
    _signal_to_noise(axes[1], as_array(mean), as_array(scale))
    return figure


def _by_layer(means: dict[str, Tensor]) -> dict[str, np.ndarray]:
    layers: dict[str, list[np.ndarray]] = {}
    for name, values in means.items():
        layers.setdefault(name.rpartition(".")[0] or name, []).append(as_array(values).reshape(-1))
    joined = {f"layer {name}": np.concatenate(values) for name, values in layers.items()}
    if len(joined) <= _MOST_LAYERS:
        return joined
    largest = sorted(joined, key=lambda name: -len(joined[name]))[: _MOST_LAYERS - 1]
    rest = [values for name, values in joined.items() if name not in largest]
    return {name: joined[name] for name in largest} | {f"{len(rest)} smaller layers": np.concatenate(rest)}


def _means(axis: Axes, layers: dict[str, np.ndarray]) -> None:
    every = np.concatenate(list(layers.values()))
    bins = np.histogram_bin_edges(every, bins=min(40, max(10, math.isqrt(len(every)))))
    for (name, values), color, style in zip(layers.items(), SEQUENCE, DASHES, strict=False):
        line = {"histtype": "step", "color": color, "linestyle": style, "linewidth": 1.4}
        shares(axis, values, bins, label=f"{name} ({len(values)})", **line)
    axis.set(xlabel="posterior mean of a weight", ylabel="share of the layer")
    title(axis, "Posterior means by layer")
    legend(axis, loc="upper right")


def _signal_to_noise(axis: Axes, mean: np.ndarray, scale: np.ndarray) -> None:
    axis.set_xlabel("|mean| / standard deviation")
    title(axis, "Signal-to-noise ratio")
    spread = scale > _NO_SPREAD * np.abs(mean)
    if not spread.any():
        axis.text(0.5, 0.5, "a point estimate: no spread", transform=axis.transAxes, ha="center", color=GREY)
        axis.set(xticks=[], yticks=[])
        return
    ratio = np.maximum(np.abs(mean[spread]) / scale[spread], _SMALLEST_RATIO)
    bins = np.logspace(np.log10(ratio.min() * 0.99), np.log10(ratio.max() * 1.01), 40)
    axis.hist(ratio, bins=list(bins), color=LIGHT_BLUE, edgecolor="white", linewidth=0.4)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.axvline(1.0, color=GREY, linewidth=1, linestyle="--")
    axis.set_ylabel("number of weights")
    title(axis, f"Signal to noise; {100 * np.mean(ratio < 1):.0f} % of the weights below 1")
