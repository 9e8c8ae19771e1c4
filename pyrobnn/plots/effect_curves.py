"""How predictions change with a column, averaged over the examples."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import shape_of, single
from pyrobnn.data.in_memory import Data
from pyrobnn.plots._colors import BLUE, LIGHT_BLUE
from pyrobnn.plots._style import as_array, band, first_column, grid, in_thousands, plain
from pyrobnn.plots.classification import class_draws
from pyrobnn.plots.rare_class import class_words, rare_words, usual_class
from pyrobnn.posterior.asked import refuses_others
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

_POINTS, _MOST_VALUES = 15, 10
"""Points of a curve, and values that are dots instead."""
_MOST_LETTERS = 18
_MOST_ROWS, _MOST_COLUMNS, _ACROSS = 100, 6, 2
_PANEL = (2.9, 2.3)
_CENTRAL = (0.02, 0.98)
"""Quantiles between which a curve is drawn: outside are few examples."""


@refuses_others
def effects(
    posterior: Posterior | Mixture,
    data: Data,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    num_draws: int = 100,
    class_names: Sequence[str] = (),
) -> Figure:
    """Draw how the mean prediction changes with each column, with an epistemic band of ±2 standard deviations.

    The column is set to a value in all examples, their other columns stay, and the predictions are averaged (partial
    dependence; Friedman 2001). Columns that depend on each other make examples that do not occur: read such curves with
    care. The band is the spread between posterior draws. Of several targets, the first. Of classes, the probability of
    class 1 of two, else of the most frequent one, or of all others if this one makes 80 % or more. At most 100
    examples, evenly spaced, and at most 6 columns.

    Args:
        posterior: a posterior or a mixture over a network that takes a table, (N, columns).
        data: the examples that are averaged over.
        groups: positions of columns that are set together, by name, such as the columns of a category; if not given,
            each column is by itself.
        num_draws: number of posterior draws; at least the members of a mixture.
        class_names: names of the classes; their numbers if not given.

    Raises:
        InputError: no posterior, or inputs that are no table.

    Examples:
        >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
        >>> data = bnn.Data(x, 3 * x[:, 0], feature_names=["size", "noise"])
        >>> posterior = bnn.BNN(bnn.MLP(2, [], 1)).fit(data, guide="laplace", steps=200, seed=0, progress=False)
        >>> [axis.get_xlabel() for axis in bnn.plots.effects(posterior, data).axes]
        ['size', 'noise']
    """
    x = single(data.x, "An effect")
    if x.ndim != 2:
        raise InputError(f"`effects` draws the columns of a table, got x of shape {shape_of(x)}.")
    examples = x[np.linspace(0, len(x) - 1, min(_MOST_ROWS, len(x))).round().astype(int)]
    columns = [*(groups or {name: [i] for i, name in enumerate(data.feature_names)}).items()][:_MOST_COLUMNS]
    figure, axes = grid(len(columns), _ACROSS, _PANEL)
    for axis, (name, positions) in zip(axes, columns, strict=True):
        values = _values(x[:, list(positions)])
        changed = examples.repeat(len(values), 1)
        changed[:, list(positions)] = values.repeat_interleave(len(examples), 0)
        prediction = posterior.predict(changed, num_draws=num_draws)
        means, label = _means(prediction, data, class_names)
        limits = (0.0, 1.0) if prediction.is_classification else (-np.inf, np.inf)
        curve = means.reshape(len(means), len(values), -1).mean(-1)
        words = [plain(data.feature_names[place].removeprefix(name).strip("=_ ")) for place in positions]
        _draw(axis, as_array(values), curve, limits, words)
        axis.set_xlabel(plain(data.feature_names[positions[0]] if len(values) > _MOST_VALUES else name))
        axis.yaxis.set_major_locator(MaxNLocator(5))
    low, high = (pick(axis.get_ylim()[end] for axis in axes) for end, pick in ((0, min), (1, max)))
    for number, axis in enumerate(axes):
        axis.set_ylim(low, high)
        axis.set_ylabel("" if number % _ACROSS else label)
        in_thousands(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=8.5)
    return figure


def _values(columns: Tensor) -> Tensor:
    """Return values (G, P) of columns that occur together: all, or where they are many, some of the first column.

    The others then have the values that are the most frequent.
    """
    distinct = columns.unique(dim=0)
    if len(distinct) <= _MOST_VALUES:
        return distinct if columns.shape[1] == 1 else distinct.flip(0)  # in the order of their positions
    levels = np.linspace(*_CENTRAL, _POINTS)
    first = torch.as_tensor(np.unique(np.quantile(columns[:, 0].cpu(), levels, method="nearest"))).to(columns)
    return torch.cat([first[:, None], columns.mode(0).values[1:].expand(len(first), -1)], 1)


def _means(prediction: Prediction, data: Data, class_names: Sequence[str]) -> tuple[np.ndarray, str]:
    """Return the mean under each draw, (S, N), and what it is of."""
    if not prediction.is_classification:
        means = as_array(prediction.draw_means)
        return means if means.ndim == 2 else means[..., 0], f"mean of {plain(data.target_name)}"
    probs = class_draws(prediction)
    counts = np.bincount(first_column(data.y).astype(int), minlength=probs.shape[-1])
    usual = usual_class(counts)
    words = class_words(class_names, len(counts))
    if usual is not None:
        return 1 - probs[..., usual], f"P({rare_words(usual, words)})"
    shown = 1 if len(counts) == 2 else int(counts.argmax())
    return probs[..., shown], f"P({words[shown]})"


def _draw(axis: Axes, values: np.ndarray, curve: np.ndarray, limits: tuple[float, float], words: Sequence[str]) -> None:
    """Draw the means under each draw (S, G) as a curve over numbers, or as dots over a few values."""
    mean, reach = curve.mean(0), 2 * curve.std(0)
    low, high = np.clip([mean - reach, mean + reach], *limits)
    if len(values) > _MOST_VALUES:
        band(axis, values[:, 0], low, high, color=LIGHT_BLUE, alpha=0.6, label="epistemic, ±2 sd")
        axis.plot(values[:, 0], mean, color=BLUE, linewidth=1.6, label="mean")
        axis.locator_params(axis="x", nbins=4)
        return
    places = values[:, 0] if values.shape[1] == 1 else np.arange(len(values))
    axis.vlines(places, low, high, color=LIGHT_BLUE, linewidth=6, label="epistemic, ±2 sd")
    axis.plot(places, mean, "o", color=BLUE, ms=5, label="mean")
    axis.margins(x=0.15)
    if values.shape[1] == 1:
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=bool((values % 1 == 0).all())))
        return
    names = [" + ".join(word for word, on in zip(words, row, strict=True) if on) or "none" for row in values]
    is_long = sum(map(len, names)) > _MOST_LETTERS
    axis.set_xticks(places, names, rotation=30 if is_long else 0, ha="right" if is_long else "center")
