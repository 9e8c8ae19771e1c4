"""Values of new rows outside of what was learned: marks for their columns, and lines for their reader."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyrobnn._core import dates
from pyrobnn._core.counts import counted
from pyrobnn._core.table_cells import DATES, TEXTS

if TYPE_CHECKING:
    import pandas as pd

    from pyrobnn._core.columns import Encoder

_MOST_NAMES = 5


class Outside(NamedTuple):
    """The values of a column that are outside of what was learned.

    Attributes:
        marks: a mark for each value, or nothing.
        lines: a line on each kind, but for those that are just outside.
        is_just: whether a number is beyond the range of training by no more than a margin.
        furthest: how far the furthest of these is, in margins, and words for it.
    """

    marks: np.ndarray
    lines: list[str]
    is_just: np.ndarray
    furthest: tuple[float, str] = (0.0, "")


def outside_of(name: str, columns: "pd.DataFrame", how: Mapping[str, Any], encoder: "Encoder") -> Outside:
    """Return unknown categories, numbers beyond the range of training, and those missing where none was in training.

    Args:
        name: the column.
        columns: all columns as numbers, categories and days.
        how: how the column was read in training, with the range of its numbers.
        encoder: of training.
    """
    key = f"{name} (days)" if how["kind"] == DATES else name
    values = columns[key]
    is_new, is_gap = encoder.new_values(columns, key)
    filled = "predicted as a mixture over those of similar rows"
    lines = [f"{name}: {_count(is_gap)} without a value, as none was in training, {filled}"] if is_gap.any() else []
    if how["kind"] == TEXTS:
        words = f"{name}: {_count(is_new)} of a category unknown in training, such as"
        lines += [f"{words} {one!r}" for one in values[is_new]][:1]
        return Outside(np.where(is_new | is_gap, name, ""), lines, np.zeros(len(values), bool))
    low, high = how.get("range", (-np.inf, np.inf))
    below, above = how.get("margins", (0.0, 0.0))
    is_far = (values < low - below) | (values > high + above)
    is_just = ((values < low) | (values > high)) & ~is_far

    def said(value: float) -> str:
        return dates.day(how, value) if how["kind"] == DATES else f"{value:g}"

    ends, furthest = f"{said(low)} to {said(high)}", (0.0, "")
    if is_far.any():
        first = f"such as {said(values[is_far].iloc[0])} in row {values.index[is_far][0] + 1}"
        lines.append(f"{name}: {_count(is_far)} well outside of the range in training, {ends}, {first}")
    if is_just.any():
        beyond = [(v - high) / above if v > high else (low - v) / below for v in values[is_just]]
        place = values.index[is_just][np.argmax(beyond)]
        furthest = max(beyond), f"{name}, {said(values[place])} in row {place + 1} ({ends} in training)"
    marks = np.where(is_far | is_gap, name, np.where(is_just, f"{name} (just)", ""))
    return Outside(marks, lines, is_just.to_numpy(), furthest)


def just_outside(found: Mapping[str, Outside]) -> list[str]:
    """Return a line on all rows with a number just outside of the range in training, if there are any."""
    counts = {name: int(one.is_just.sum()) for name, one in found.items()}
    names = sorted(filter(counts.__getitem__, counts), key=counts.__getitem__, reverse=True)
    if not names:
        return []
    rows = counted(int(np.any([one.is_just for one in found.values()], axis=0).sum()), "row")
    others = [f"{counted(len(names) - _MOST_NAMES, 'other column')}"] if len(names) > _MOST_NAMES else []
    listed = ", ".join([*(f"{name} ({counts[name]})" for name in names[:_MOST_NAMES]), *others])
    _, furthest = max(one.furthest for one in found.values())
    where = "just outside of the range in training, by less than the outermost values spread"
    return [f"{rows} {where}: {listed}; the furthest is {furthest}"]


def _count(chosen: "pd.Series") -> str:
    return counted(int(chosen.sum()), "row")
