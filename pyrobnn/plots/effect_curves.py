"""How much a fit relies on each column, and how its predictions change with it, averaged over the examples."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import shape_of, single
from pyrobnn.data.in_memory import Data
from pyrobnn.plots._colors import BLUE, GREY, LIGHT_BLUE
from pyrobnn.plots._given import examples
from pyrobnn.plots._style import PANEL, as_array, band, first_column, grid, legend, named_ticks, one_panel, plain, title
from pyrobnn.plots.classification import class_draws
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.tables.schema import Input

if TYPE_CHECKING:
    from pandas import DataFrame

_CURVE_POINTS = 15
_MOST_DOTS, _MOST_CATEGORIES = 10, 8
_LETTERS_UNDER_A_PANEL = 34
_MOST_EXAMPLES = 100
_MOST_COLUMNS = 6
_MOST_BARS = 15
_FRAME_INCHES = 1.4
_ROW_INCHES = 0.28
_PANEL_INCHES = (4.0, 1.4)  # below each other: a name of 24 letters fits, on a phone too
_CURVE_QUANTILES = (0.02, 0.98)  # of the examples or of their different values: outside of them are few
_VISIBLE_SHARE = 0.06  # of the range of all curves, from which on a band is wider than its line
_DATE_LABEL_PAD = 13.0  # points between the labels of dates and the name of their axis, for the year or month
_FREE_SHARE_ABOVE, _FREE_SHARE_BEFORE_MISSING = 0.05, 0.16


def effects(
    posterior: Posterior | Mixture,
    data: Any,
    *,
    groups: Mapping[str, Sequence[int]] | None = None,
    num_draws: int = 100,
    class_names: Sequence[str] = (),
    layout: Sequence[Input] = (),
) -> Figure:
    """Draw how the mean prediction changes with each column, with an epistemic band of ±2 standard deviations.

    The column is set to a value in all examples, their other columns stay, and the predictions are averaged (partial
    dependence; Friedman 2001). Columns that depend on each other make examples that do not occur. Of several targets,
    the first; of classes, the probability of class 1 of two, else of the most frequent one. At most 100 examples that
    lack no number, 6 columns, and the 8 most frequent categories of each.

    Args:
        posterior: a posterior or a mixture over a network that takes a table, (N, columns).
        data: the examples that are averaged over: `Data`, a pair (x, y), or a loader.
        groups: positions of columns that are set together, by name, such as the columns of a category; of an estimator
            they are `estimator.encoder_.positions()`. If not given, each column is by itself.
        num_draws: number of posterior draws; at least the members of a mixture.
        class_names: names of the classes; their numbers if not given.
        layout: what each column is, `estimator.encoder_.layout()`. Axes then name categories and dates, and a dot shows
            the mean where a number is missing.

    Raises:
        InputError: no posterior, or inputs that are no table.

    Examples:
        >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
        >>> data = bnn.Data(x, 3 * x[:, 0], feature_names=["size", "noise"])
        >>> posterior = bnn.BNN(bnn.MLP(2, [], 1)).fit(data, guide="laplace", steps=200, seed=0, progress=False)
        >>> [axis.get_xlabel() for axis in bnn.plots.effects(posterior, data).axes]
        ['size', 'noise']
    """
    data = examples([posterior], data)
    x = single(data.x, "An effect")
    if x.ndim != 2:
        raise InputError(f"`effects` draws the columns of a table, got x of shape {shape_of(x)}.")
    has_numbers = ~x.isnan().any(1)
    x = x[has_numbers] if has_numbers.any() else x.nan_to_num()
    shown = x[np.linspace(0, len(x) - 1, min(_MOST_EXAMPLES, len(x))).round().astype(int)]
    layout = layout or [Input(name, name, name) for name in data.feature_names]
    named = groups or {one.name: [place] for place, one in enumerate(layout)}
    columns = {name: list(places) for name, places in [*named.items()][:_MOST_COLUMNS]}
    curves = []
    for places in columns.values():
        levels = _levels(x[:, places], [layout[place] for place in places])
        prediction = posterior.predict(_changed(shown, places, levels), num_draws=num_draws)
        curves.append(_Curve.of(prediction, levels, data, class_names))
    figure = _figure(columns, curves, layout)
    if len(columns) < len(named):
        figure.supxlabel(f"The first {len(columns)} of {len(named)} columns; choose others by groups", fontsize=8.5)
    return figure


def _figure(columns: Mapping[str, list[int]], curves: "Sequence[_Curve]", layout: Sequence[Input]) -> Figure:
    """Return a figure with a panel for each column; all have the same limits."""
    figure, axes = grid(len(columns), 1, _PANEL_INCHES)
    low, high = min(curve.low.min() for curve in curves), max(curve.high.max() for curve in curves)
    margin = _FREE_SHARE_ABOVE * (high - low) or 1.0
    for axis, (name, places), curve in zip(axes, columns.items(), curves, strict=True):
        start = layout[places[0]].start
        _draw(axis, curve, first_day=start)
        is_part, num = len(curve.levels.places) > _MOST_DOTS and start is None, len(curve.levels.names)
        of_all = f", {num} of {len(places)}" if _MOST_CATEGORIES == num < len(places) else ""
        axis.set_xlabel(plain(layout[places[0]].name if is_part else name) + of_all)
        axis.locator_params(axis="y", nbins=4)
        axis.set_ylim(low - margin, high + margin)
    figure.supylabel(curves[-1].label, fontsize=10)
    handles, (spread, mean_name) = axes[0].get_legend_handles_labels()
    widest = max(float((curve.high - curve.low).max()) for curve in curves)
    narrow = "" if widest > _VISIBLE_SHARE * (high - low) else ": narrower than the line"
    names = [f"{spread}{narrow}", mean_name]
    figure.legend(handles, names, loc="outside upper center", ncols=2, frameon=False, fontsize=8.5)
    return figure


@dataclasses.dataclass(frozen=True, eq=False)
class _Levels:
    """What a column is set to."""

    places: np.ndarray  # numbers where curves or dots lie, (G,)
    rows: list[Tensor]  # for each place, and then for missing values, inputs (R, P) that the examples take in turn
    names: list[str]  # of the places, if they are categories


def _levels(columns: Tensor, made: Sequence[Input]) -> _Levels:
    """Return the levels of inputs (N, P) that are made from one column of a table.

    Parts of a date keep together: each level has the rows of neighbouring days.
    """
    marks = torch.tensor([one.is_mark for one in made], device=columns.device)
    is_gap = columns[:, marks].any(1)
    is_category = len(made) > 1 and not marks.any() and ((columns == 0) | (columns == 1)).all()
    if is_category and (columns.sum(1) <= 1).all():
        distinct, counts = columns.unique(dim=0, return_counts=True)
        frequent = counts.argsort(descending=True, stable=True)[:_MOST_CATEGORIES]
        distinct = distinct[frequent.sort().values].flip(0)  # in the order of their positions
        words = [plain(one.name if one.category is None else one.category) for one in made]
        names = [next((word for word, on in zip(words, row, strict=True) if on), "none") for row in distinct]
        return _Levels(np.arange(len(distinct)), [*distinct[:, None]], names)
    known = columns[~is_gap]
    places, order = known[:, 0].unique(return_inverse=True)
    chosen = np.arange(len(places))
    if len(places) > _MOST_DOTS:
        ends = np.quantile(chosen, _CURVE_QUANTILES), np.quantile(as_array(order), _CURVE_QUANTILES)
        chosen = np.unique(np.linspace(np.min(ends), np.max(ends), _CURVE_POINTS).round().astype(int))
    if int((~marks).sum()) == 1:
        if len(places) > _MOST_DOTS:  # and even ones: a curve may bend where no rows are
            even = torch.linspace(float(places[chosen[0]]), float(places[chosen[-1]]), _CURVE_POINTS)
            places = torch.cat([places[chosen], even.to(places)]).unique()
        rows = [*torch.where(marks, 0.0, places[:, None, None])]
    else:
        parts = np.array_split(np.arange(len(places)), len(chosen)) if len(chosen) else []
        rows = [known[(known[:, 0] >= places[part[0]]) & (known[:, 0] <= places[part[-1]])] for part in parts]
        places = torch.stack([row[:, 0].mean() for row in rows]) if rows else places
    return _Levels(as_array(places), [*rows, *([columns[is_gap]] if is_gap.any() else [])], [])


@dataclasses.dataclass(frozen=True, eq=False)
class _Curve:
    """The mean prediction at levels, `mean` (G,), its band, and a label; missing values may add a level."""

    levels: _Levels
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    label: str

    @classmethod
    def of(cls, prediction: Prediction, levels: _Levels, data: Data, class_names: Sequence[str]) -> "_Curve":
        means, label = _means(prediction, data, class_names)
        draws = means.reshape(len(means), len(levels.rows), -1).mean(-1)
        mean, reach = draws.mean(0), 2 * draws.std(0)
        limits = (0.0, 1.0) if prediction.is_classification else (-np.inf, np.inf)
        low, high = np.clip([mean - reach, mean + reach], *limits)
        return cls(levels, mean, low, high, label)


def _changed(examples: Tensor, places: list[int], levels: _Levels) -> Tensor:
    """Return the examples (N, D) with the inputs at `places` set to each level in turn, (G N, D)."""
    num, changed = len(examples), examples.repeat(len(levels.rows), 1)
    spread = (np.linspace(0, max(len(rows), num) - 1, num).round().astype(int) % len(rows) for rows in levels.rows)
    changed[:, places] = torch.cat([rows[at] for rows, at in zip(levels.rows, spread, strict=True)])
    return changed


def _means(prediction: Prediction, data: Data, class_names: Sequence[str]) -> tuple[np.ndarray, str]:
    """Return the mean under each draw, (S, N), and what it is of."""
    if not prediction.is_classification:
        means = as_array(prediction.draw_means)
        return means if means.ndim == 2 else means[..., 0], f"mean of {plain(data.target_name)}"
    probs = class_draws(prediction)
    counts = np.bincount(first_column(data.y).astype(int), minlength=probs.shape[-1])
    shown = 1 if len(counts) == 2 else int(counts.argmax())
    return probs[..., shown], f"P({f"'{plain(class_names[shown])}'" if class_names else f'class {shown}'})"


def _draw(axis: Axes, curve: _Curve, *, first_day: str | None) -> None:
    """Draw means and their bands as a curve, or as dots over a few values and for missing values."""
    levels, mean, low, high = curve.levels, curve.mean, curve.low, curve.high
    places, num = levels.places, len(levels.places)
    if first_day is not None:
        places = np.datetime64(first_day) + (86_400 * places).astype("timedelta64[s]")
    is_curve = num > _MOST_DOTS
    if is_curve:
        band(axis, places, low[:num], high[:num], color=LIGHT_BLUE, alpha=0.6, label="epistemic, ±2 sd")
        axis.plot(places, mean[:num], color=BLUE, linewidth=1.6, label="mean")
    else:
        _dots(axis, places, mean[:num], low[:num], high[:num])
        axis.margins(x=0.15)
    if levels.names:
        named_ticks(axis, places, levels.names, _LETTERS_UNDER_A_PANEL)
        return
    if first_day is None:
        ends = [float(places.min()), float(places.max())] if num else [0.0, 1.0]
        axis.locator_params(axis="x", nbins=4, integer=bool(not is_curve and (places % 1 == 0).all()))
        near = axis.xaxis.get_major_locator().tick_values(*ends)
        within = [tick for tick in near if ends[0] <= tick <= ends[1]]
        axis.set_xticks(within if len(within) > 1 else ends)
    else:
        locator = AutoDateLocator(minticks=2, maxticks=4)
        axis.xaxis.set(major_locator=locator, major_formatter=ConciseDateFormatter(locator))
        axis.xaxis.labelpad = _DATE_LABEL_PAD
    if len(mean) > num:
        _draw_missing(axis, mean[num:], low[num:], high[num:])


def _draw_missing(axis: Axes, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    left, right = axis.get_xlim()
    ticks = [tick for tick in axis.get_xticks() if left <= tick <= right]
    place = right + _FREE_SHARE_BEFORE_MISSING * (right - left)
    _dots(axis, np.array([place]), mean, low, high, is_named=False)
    axis.xaxis.set_ticks(ticks)
    axis.set_xticks([place], ["missing"], minor=True)
    axis.tick_params(axis="x", which="minor", length=3.5, labelsize=8.5)


def _dots(
    axis: Axes, places: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, *, is_named: bool = True
) -> None:
    words = ("epistemic, ±2 sd", "mean") if is_named else ("", "")
    axis.vlines(places, low, high, color=LIGHT_BLUE, linewidth=6, label=words[0])
    axis.plot(places, mean, "o", color=BLUE, ms=5, label=words[1])


def importance(table: "DataFrame", *, ax: Axes | None = None) -> Figure:
    """Draw the permutation importance of columns with bars of ±2 standard errors, the largest on top.

    A column whose bar holds 0 may as well not matter. At most the first 15 columns are shown.

    Args:
        table: what `pyrobnn.metrics.permutation_importance` returns.
        ax: the panel to draw in; if not given, a new figure.

    Raises:
        InputError: a table without columns importance and stderr, or without rows.

    Examples:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"importance": [0.9, 0.0], "stderr": [0.2, 0.1]}, index=["size", "noise"])
        >>> figure = bnn.plots.importance(table)
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['size', 'noise']
    """
    if not {"importance", "stderr"} <= set(table.columns) or not len(table):
        given = f"a table of {len(table)} rows with the columns {list(table.columns)}"
        raise InputError(f"`importance` draws what `permutation_importance` returns, got {given}.")
    shown = table.iloc[:_MOST_BARS]
    figure, axis = one_panel(ax, (PANEL[0], _FRAME_INCHES + _ROW_INCHES * len(shown)))
    rows, loss, error = np.arange(len(shown)), shown["importance"].to_numpy(), shown["stderr"].to_numpy()
    axis.axvline(0, color=GREY, linewidth=1)
    axis.hlines(rows, loss - 2 * error, loss + 2 * error, color=LIGHT_BLUE, linewidth=5, label="±2 se")
    axis.plot(loss, rows, "o", color=BLUE, ms=5)
    axis.set_yticks(rows, [plain(str(name)) for name in shown.index])
    axis.set(ylim=(len(shown) - 0.4, -0.6), xlabel="loss in log score (nats)")
    title(axis, f"Importance, {len(shown)} of {len(table)} columns" if len(shown) < len(table) else "Importance")
    legend(axis, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1)
    return figure
