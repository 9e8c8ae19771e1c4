"""A value far beyond all others of a column, once or twice, which may be a slip of a pen or of a sensor."""

import numpy as np

from pyrobnn.data.questions import Question

SLIPS = "slips"
"""Name of the finding that a single value lies far beyond all others of its column."""

_TIMES = 1000
"""Ranges of all other values between a value and the nearest other one, from which on it is named."""
_FEWEST = 10
_MOST_EQUAL = 2
"""Equal values that may be one slip made twice; more are a code, such as that of what is missing."""


def slip_in(name: str, values: np.ndarray) -> Question | None:
    """Ask about the value that is further from all others than 1,000 times their range, if there is one; NaN are gaps.

    It may be there twice.

    Long tails have none: of 20,000 samples of 50 to 2,000 log-normal values (sigma 2) none has one, nor of a Student t
    with two degrees of freedom; of Cauchy samples 0.06 % have. Nothing is said where all others are the same, as of a
    rare category, nor of fewer than ten values.

    Args:
        name: name of the column.
        values: its numbers in all rows, (N,).
    """
    rows = np.flatnonzero(~np.isnan(values))
    if len(rows) < _FEWEST:
        return None
    rows = rows[np.argsort(values[rows], kind="stable")]
    ordered = values[rows].astype(np.float64)
    for at in (-1, 0):
        are_alike = ordered == ordered[at]
        others = ordered[~are_alike]
        if are_alike.sum() > _MOST_EQUAL or others[0] == others[-1]:
            continue
        if abs(ordered[at] - others[at]) / _TIMES > others[-1] - others[0]:
            numbers = sorted((rows[are_alike] + 1).tolist())
            where = f"row{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"
            verb, its = ("is", "its") if len(numbers) == 1 else ("are", "their")
            ends = f"{others[0]:g} to {others[-1]:g}"
            text = f"Column {name!r}: {where} {verb} {ordered[at]:g}, the others are {ends}: is it a slip?"
            return Question(SLIPS, name, text, f"If so, leave {where} out of the file, or mend {its} {name!r}")
    return None
