"""A value far beyond all others of a column, once or twice, which may be a slip of a pen or of a sensor."""

import dataclasses

import numpy as np

_TIMES = 1000
"""Ranges of all other values between a value and the nearest other one, from which on it is named."""
_FEWEST = 10
_MOST_EQUAL = 2
"""Equal values that may be one slip made twice; more are a code, such as that of what is missing."""


@dataclasses.dataclass(frozen=True)
class Slip:
    """A value far beyond all others, in rows counted from 1, and the ends of the others."""

    name: str
    rows: tuple[int, ...]
    value: float
    low: float
    high: float

    @property
    def question(self) -> str:
        """A question to one who knows the column, without the remedy."""
        ends = f"{self.low:g} to {self.high:g}"
        verb = "is" if len(self.rows) == 1 else "are"
        return f"Column {self.name!r}: {self._where} {verb} {self.value:g}, the others are {ends}: is it a slip?"

    @property
    def remedy(self) -> str:
        """What to do if it is one."""
        return f"leave {self._where} out of the file, or mend {'its' if len(self.rows) == 1 else 'their'} {self.name!r}"

    @property
    def _where(self) -> str:
        return f"row{'s' * (len(self.rows) > 1)} {' and '.join(map(str, self.rows))}"


def slip_in(name: str, values: np.ndarray) -> Slip | None:
    """Return the value that is further from all others than 1,000 times their range, if there is one; NaN are gaps.

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
            found = tuple(sorted((rows[are_alike] + 1).tolist()))
            return Slip(name, found, float(ordered[at]), float(others[0]), float(others[-1]))
    return None
