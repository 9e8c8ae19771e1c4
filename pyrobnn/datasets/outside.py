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

_MOST_NAMES = 5
_MOST_LINES = 3
"""Columns with a line of their own: for numbers, for unknown categories and for gaps."""
_USUAL_COLUMNS = 10
"""Columns whose margins do not depend on how many there are; of more, rows are marked as seldom as of these."""


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
        marks: a mark for each value, or nothing.
        lines: a line on each kind, but for those that are just outside.
        is_just: whether a number is beyond the range of training by no more than a margin.
        furthest: how far the furthest of these is, in margins, and words for it.
    """

    marks: np.ndarray
    lines: list[Line]
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
    words = f"{name}: {_count(is_gap)} without a value, as none was in training, {filled}"
    lines = [Line("gap", float(is_gap.sum()), words)] if is_gap.any() else []
    if how["kind"] == TEXTS:
        words = f"{name}: {_count(is_new)} of a category unknown in training, such as"
        lines += [Line("category", float(is_new.sum()), f"{words} {one!r}") for one in values[is_new][:1]]
        return Outside(np.where(is_new | is_gap, name, ""), lines, np.zeros(len(values), bool))
    low, high = how.get("range", (-np.inf, np.inf))
    below, above = how.get("margins", (0.0, 0.0))
    near_below, near_above = how.get("tolerances", (0.0, 0.0))
    is_far = (values < low - below) | (values > high + above)
    is_just = ((values < low - near_below) | (values > high + near_above)) & ~is_far

    def said(value: float) -> str:
        return dates.day(how, value) if how["kind"] == DATES else f"{value:g}"

    ends, furthest = f"{said(low)} to {said(high)}", (0.0, "")
    if is_far.any():
        first = f"such as {said(values[is_far].iloc[0])} in row {values.index[is_far][0] + 1}"
        with np.errstate(divide="ignore", invalid="ignore"):  # margins may be 0, and ranges infinite
            weights = np.fmax((values - high) / np.float64(above), (low - values) / np.float64(below))[is_far]
        words = f"{name}: {_count(is_far)} well outside of the range in training, {ends}, {first}"
        lines.append(Line("far", float(weights.max()), words))
    if is_just.any():
        beyond = [(v - high) / above if v > high else (low - v) / below for v in values[is_just]]
        place = values.index[is_just][np.argmax(beyond)]
        furthest = max(beyond), f"{name}, {said(values[place])} in row {place + 1} ({ends} in training)"
    marks = np.where(is_far | is_gap, name, np.where(is_just, f"{name} (just)", ""))
    return Outside(marks, lines, is_just.to_numpy(), furthest)


def outside_most(found: Mapping[str, Outside]) -> tuple[list[str], str]:
    """Return lines on the columns that are furthest outside, and how many others have rows outside, with a verb."""
    lines = [(name, line) for name, one in found.items() for line in one.lines]
    order = sorted(range(len(lines)), key=lambda place: lines[place][1].weight, reverse=True)
    of_kinds = [[place for place in order if lines[place][1].kind == kind] for kind in ("far", "category", "gap")]
    shown = [lines[place] for place in sorted(place for places in of_kinds for place in places[:_MOST_LINES])]
    others = len({name for name, _ in lines} - {name for name, _ in shown})
    verb = "has" if others == 1 else "have"
    return [line.words for _, line in shown], f"{counted(others, 'more column')} {verb}" if others else ""


def range_of(ordered: np.ndarray, num_columns: int = 1) -> dict[str, list[float]]:
    """Return the ends of N values in order, and how far beyond them a new value counts as just and as well outside.

    The latter is the distance at each end over which the outermost sqrt(N) spread: the scale of the tail, large where
    values are sparse. With k = sqrt(N), rounded up, a new value of an exponential tail lies further beyond the end than
    t such distances with probability Gamma(k + 1) Gamma(t + 2) / (Gamma(k + t + 1) (N + 1)), and with
    2 / ((k + 1) (N + 1)) for t = 1; one of a shorter tail seldomer: the spacings of ordered values are independent
    (Renyi 1953). Of 200 rows like 200 of training, with five columns, 0.0 % are marked for uniform values, 0.4 % for
    normal and 0.6 % for log-normal ones.

    With more than ten columns t grows from 1, and for values that are just outside from 0, so that all columns together
    are marked as often as ten.
    """
    count = math.isqrt(len(ordered) - 1)
    low, high = ordered[0], ordered[-1]
    spread = np.array([ordered[count] - low, high - ordered[-1 - count]])
    near, far = (_times(least, count + 1, num_columns / _USUAL_COLUMNS) for least in (0.0, 1.0))
    return {
        "range": [float(low), float(high)],
        "tolerances": (near * spread).tolist(),
        "margins": (far * spread).tolist(),
    }


def _times(least: float, k: int, seldomer: float) -> float:
    """Return the t above `least` whose probability is smaller by a factor, by bisection; `least` for one up to 1."""

    def log_chance(times: float) -> float:
        return math.lgamma(k + 1) + math.lgamma(times + 2) - math.lgamma(k + times + 1)

    low, high = least, least + 3 * seldomer  # enough for k = 2, whose probability falls as 2 / (t + 2)
    while seldomer > 1 and high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if log_chance(middle) > log_chance(least) - math.log(seldomer) else (low, middle)
    return low


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
