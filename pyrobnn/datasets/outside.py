"""Values of new rows outside of what was learned: marks for their columns, and lines for their reader."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pyrobnn._core.errors import counted
from pyrobnn.tables.cells import DATES, TEXTS
from pyrobnn.tables.texts import How, day

if TYPE_CHECKING:
    import pandas as pd

    from pyrobnn.tables.encoder import Encoder

_MOST_LINES = 6
"""Columns with a line, those with the most rows outside."""


class Outside(NamedTuple):
    """The name of a column for each value outside of what was learned, nothing for others; and lines about them."""

    marks: np.ndarray
    lines: list[str]


def outside_of(name: str, columns: "pd.DataFrame", how: How, encoder: "Encoder") -> Outside:
    """Return unknown categories, numbers beyond the range of training, and those missing where none was in training."""
    key = f"{name} (days)" if how["kind"] == DATES else name
    values = columns[key]
    is_new, is_gap = encoder.new_values(columns, key)
    lines = []
    if is_gap.any():
        lines.append(f"{name}: {_count(is_gap)} without a value, as none was in training, predicted as a mixture")
    if is_new.any():
        words = f"{_count(is_new)} of a category unknown in training, such as {values[is_new].iloc[0]!r}"
        lines.append(f"{name}: {words}")
    is_far = np.zeros(len(values), dtype=bool)
    if how["kind"] != TEXTS and "range" in how:
        (low, high), (below, above) = how["range"], how["margins"]
        is_far = ((values < low - below) | (values > high + above)).to_numpy()
    if is_far.any():
        first = int(is_far.argmax())
        ends = [day(how, v) if how["kind"] == DATES else f"{v:g}" for v in (low, high, values.iloc[first])]
        where = f"{ends[0]} to {ends[1]}, such as {ends[2]} in row {first + 1}"
        lines.append(f"{name}: {counted(int(is_far.sum()), 'row')} well outside of the range in training, {where}")
    return Outside(np.where(is_far | is_gap | is_new, name, ""), lines)


def outside_most(found: Mapping[str, Outside]) -> list[str]:
    """Return lines on the columns with the most rows outside, and how many others have some."""
    counts = {name: int((one.marks != "").sum()) for name, one in found.items() if one.lines}
    shown = sorted(counts, key=counts.__getitem__, reverse=True)[:_MOST_LINES]
    lines = [line for name, one in found.items() if name in shown for line in one.lines]
    others = counted(len(counts) - len(shown), "more column")
    return [*lines, f"{others} with rows outside: see the column `outside`"] if len(counts) > len(shown) else lines


def range_of(ordered: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the ends of N values in order, and how far beyond them a new value is well outside.

    That is the distance at each end over which the outermost k = sqrt(N) spread: the scale of the tail. A new value of
    an exponential tail lies beyond with probability 2 / ((k + 1) (N + 1)), one of a shorter tail seldomer: the spacings
    of ordered values are independent (Renyi 1953).
    """
    low, high, count = float(ordered[0]), float(ordered[-1]), math.isqrt(len(ordered) - 1)
    margins = [float(ordered[count]) - low, high - float(ordered[-1 - count])]
    return [low, high], margins


def _count(chosen: "pd.Series") -> str:
    return counted(int(chosen.sum()), "row")
