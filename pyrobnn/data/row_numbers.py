"""Columns of whole numbers that only name the rows of a table."""

import math

import numpy as np

from pyrobnn.data.questions import Question

ROW_NUMBERS = "row numbers"
"""Name of the finding that a column numbers the rows, or has a number of its own for each of them."""
_CHANCE = 1e-6
"""Chance that numbers drawn independently do not repeat, above which nothing is said."""


def names_of_rows(name: str, values: np.ndarray) -> Question | None:
    """Ask whether a column only names the rows, if it has whole numbers that grow by one or that do not repeat.

    Of N independent draws from any distribution over R whole numbers none is drawn twice with probability
    R! / ((R - N)! R^N) at most, which equal probabilities reach. R is the range of the column. Nothing is said where
    this is more than one in a million: so a measurement that is rounded to a whole number is not named, nor are 700
    customer numbers of six digits. Those below 17,000 are.

    Args:
        name: name of the column.
        values: its numbers in all rows, (N,), in the order of the file.
    """
    values, num = values.astype(np.float64), len(values)
    if num < 2 or not np.isfinite(values).all() or bool((values != values.round()).any()):
        return None
    low, high = float(values.min()), float(values.max())
    if bool((np.diff(values) == 1).all()):
        text = f"Column {name!r} numbers the rows, {low:.0f} to {high:.0f}: does it only name them? New rows then lie "
        text += "beyond all that was learned."
    elif len(np.unique(values)) == num and _chance(num, high - low + 1) < math.log(_CHANCE):
        text = f"Column {name!r} has {num} different whole numbers from {low:.0f} to {high:.0f}, none of them twice: "
        text += "does it only name the rows?"
    else:
        return None
    return Question(ROW_NUMBERS, name, text, "If so, leave it out", "what only names the rows")


def _chance(num: int, room: float) -> float:
    """Return the logarithm of the largest probability that independent draws from so many values are all different."""
    return float(np.log1p(-np.arange(num) / room).sum())
