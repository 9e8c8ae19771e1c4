"""Values of new rows outside of what was learned: marks for their columns, and lines for their reader."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyrobnn._core import dates
from pyrobnn._core.counts import counted
from pyrobnn._core.table_cells import DATES, TEXTS

if TYPE_CHECKING:
    import pandas as pd

    from pyrobnn._core.columns import Encoder

_MOST_LINES = 3
"""Columns with a line of their own: for numbers, for unknown categories and for gaps."""


class Line(NamedTuple):
    """What is said of a column.

    Attributes:
        kind: "far", "category" or "gap".
        weight: how much it matters beside other lines of its kind.
        words: the line.
    """

    kind: str
    weight: float
    words: str


class Outside(NamedTuple):
    """The values of a column that are outside of what was learned.

    Attributes:
        marks: the name of the column for each of these values, nothing for others.
        lines: a line on each kind.
    """

    marks: np.ndarray
    lines: list[Line]


def outside_of(name: str, columns: "pd.DataFrame", how: Mapping[str, Any], encoder: "Encoder") -> Outside:
    """Return unknown categories, numbers beyond the range of training, and those missing where none was in training.

    `columns` are all columns as numbers, categories and days; `how` says how the column was read, with its range.
    """
    key = f"{name} (days)" if how["kind"] == DATES else name
    values = columns[key]
    is_new, is_gap = encoder.new_values(columns, key)
    filled = "predicted as a mixture over those of similar rows"
    words = f"{name}: {_count(is_gap)} without a value, as none was in training, {filled}"
    lines = [Line("gap", float(is_gap.sum()), words)] if is_gap.any() else []
    if how["kind"] == TEXTS:
        words = f"{name}: {_count(is_new)} of a category unknown in training, such as"
        lines += [Line("category", float(is_new.sum()), f"{words} {one!r}") for one in values[is_new][:1]]
        return Outside(np.where(is_new | is_gap, name, ""), lines)
    low, high = how.get("range", (-np.inf, np.inf))
    below, above = how.get("margins", (0.0, 0.0))
    is_far = (values < low - below) | (values > high + above)

    def said(value: float) -> str:
        return dates.day(how, value) if how["kind"] == DATES else f"{value:g}"

    if is_far.any():
        ends = f"{said(low)} to {said(high)}"
        first = f"such as {said(values[is_far].iloc[0])} in row {values.index[is_far][0] + 1}"
        with np.errstate(divide="ignore", invalid="ignore"):  # margins may be 0, and ranges infinite
            weights = np.fmax((values - high) / np.float64(above), (low - values) / np.float64(below))[is_far]
        words = f"{name}: {_count(is_far)} well outside of the range in training, {ends}, {first}"
        lines.append(Line("far", float(weights.max()), words))
    return Outside(np.where(is_far | is_gap, name, ""), lines)


def outside_most(found: Mapping[str, Outside]) -> tuple[list[str], str]:
    """Return lines on the columns that are furthest outside, and how many others have rows outside, with a verb."""
    lines = [(name, line) for name, one in found.items() for line in one.lines]
    order = sorted(range(len(lines)), key=lambda place: lines[place][1].weight, reverse=True)
    of_kinds = [[place for place in order if lines[place][1].kind == kind] for kind in ("far", "category", "gap")]
    shown = [lines[place] for place in sorted(place for places in of_kinds for place in places[:_MOST_LINES])]
    others = len({name for name, _ in lines} - {name for name, _ in shown})
    verb = "has" if others == 1 else "have"
    return [line.words for _, line in shown], f"{counted(others, 'more column')} {verb}" if others else ""


def range_of(ordered: np.ndarray) -> dict[str, list[float]]:
    """Return the ends of N values in order, and how far beyond them a new value is well outside.

    That is the distance at each end over which the outermost k = sqrt(N) spread: the scale of the tail. A new value of
    an exponential tail lies beyond with probability 2 / ((k + 1) (N + 1)), one of a shorter tail seldomer: the spacings
    of ordered values are independent (Renyi 1953).
    """
    low, high, count = float(ordered[0]), float(ordered[-1]), math.isqrt(len(ordered) - 1)
    margins = [float(ordered[count]) - low, high - float(ordered[-1 - count])]
    return {"range": [low, high], "margins": margins}


def _count(chosen: "pd.Series") -> str:
    return counted(int(chosen.sum()), "row")
