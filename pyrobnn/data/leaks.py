"""Columns that should not be inputs: a copy of the target, or the number of a row."""

import numpy as np
from torch import Tensor

from pyrobnn.data.in_memory import Data

SAID = {
    "copy": "Column {!r} alone gives the target almost exactly: leave it out if it is not known before.",
    "row number": "Column {!r} has a number of its own for each row: leave it out if it only names the rows.",
}
_ALMOST = 0.9999  # squared correlation with the target
_FEWEST_ROWS, _FEWEST_OF_A_CLASS = 50, 10


def leaks(data: Data) -> dict[str, str]:
    """Return what is wrong, of `SAID`, with columns of a table of two or more and 50 rows or more, by their name.

    A line through a copy of the target explains 99.99 % of its variance, or each class, of 10 rows or more, has its own
    range of it. Numbers of rows are different whole numbers, of a range of at most twice the rows.
    """
    if not isinstance(data.x, Tensor) or data.x.ndim != 2 or data.y.ndim != 1 or len(data) < _FEWEST_ROWS:
        return {}
    x, y = (values.detach().cpu().double().numpy() for values in (data.x, data.y))
    classes = None if data.y.is_floating_point() else np.unique(y, return_counts=True)[1]
    found = dict[str, str]()
    for name, column in zip(data.feature_names or [f"x{at}" for at in range(x.shape[1])], x.T, strict=True):
        if not np.isfinite(column).all() or column.min() == column.max() or x.shape[1] < 2:
            continue
        if classes is None:
            is_copy = y.std() > 0 and np.corrcoef(column, y)[0, 1] ** 2 > _ALMOST
        else:
            labels, values = y[np.lexsort((y, column))], np.sort(column)
            change = np.flatnonzero(labels[1:] != labels[:-1])
            is_copy = len(change) == len(classes) - 1 > 0 and classes.min() >= _FEWEST_OF_A_CLASS
            is_copy = is_copy and bool((values[change] < values[change + 1]).all())
        if is_copy:
            found[name] = "copy"
        elif (column % 1 == 0).all() and len(np.unique(column)) == len(column) > np.ptp(column) / 2:
            found[name] = "row number"
    return found
