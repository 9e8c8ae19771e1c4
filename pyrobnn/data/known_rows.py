"""Whether rows are among those that a fit has seen, by a few marks that its record keeps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pyrobnn._torch.inputs import flat_rows
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import blocks_of, marks_of

_KEPT, _BITS = 20, 32
_MOST_COPIES, _LEAST_KNOWN = 0.01, 0.25
"""Largest share of copies among rows that are marked, and the least share of known rows that is no chance."""


def kept_marks(data: Data, earlier: Sequence[int] = ()) -> list[int] | None:
    """Return the smallest marks of all rows: of these, and of those whose smallest marks are given.

    A row has its mark in all data, so these rows are a sample in which others can be compared (Broder 1997). None where
    more than 1 % of the rows are copies of others: as many new rows would be copies by chance.
    """
    marks = _marks(data).unique()
    if len(marks) < (1 - _MOST_COPIES) * len(data):
        return None
    return sorted({*marks[:_KEPT].tolist(), *earlier})[:_KEPT]


def num_known(data: Data, kept: Sequence[int]) -> int:
    """Return about how many rows are among the rows that the marks were kept of; 0 where it is less than a quarter.

    Rows whose marks are at most the largest kept tell.
    """
    marks = _marks(data)
    told = marks[marks <= kept[-1]] if len(kept) == _KEPT else marks
    share = float(torch.isin(told, torch.tensor(kept)).double().mean()) if len(told) else 0.0
    return round(share * len(marks)) if share >= _LEAST_KNOWN else 0


def _marks(data: Data) -> Tensor:
    """Return a number from 0 to 2^32 for each row of inputs and targets, read in float32."""
    joined = (
        torch.cat([flat_rows(data.x[rows].detach()), flat_rows(data.y[rows])], 1).float() for rows in blocks_of(data.x)
    )
    return torch.cat([marks_of(rows) for rows in joined]) >> (64 - _BITS) & (2**_BITS - 1)
