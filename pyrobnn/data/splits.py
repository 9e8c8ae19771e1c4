"""Parts of data drawn at random: copies of a row together, each class with its share."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.checks import check_unmasked
from pyrobnn._core.errors import InputError, counted
from pyrobnn._torch.inputs import X, flat_rows

_FEWEST_INPUTS = 10  # that differ; below, rows of the same inputs are no copies but a table of categories
_MOST_CLASSES = 10
_NUMBERS_AT_ONCE = 2**16


def numbered(labels: Any, num: int, name: str) -> np.ndarray:
    """Return the numbers of labels of any kind, in their order, (N,): one for each example, and none missing."""
    import pandas as pd

    check_unmasked(labels, name)
    given = np.asarray(labels.tolist() if isinstance(labels, Tensor) else labels, dtype=object)
    if given.shape != (num,):
        raise InputError(f"`{name}` must have one label for each of the {num} examples, got shape {given.shape}.")
    numbers, _ = pd.factorize(given, sort=True)
    if (numbers < 0).any():
        at = int(numbers.argmin())
        raise InputError(f"`{name}` has no label in place {at}, but {given[at]}: give each example a label.")
    return np.asarray(numbers)


def same_inputs(x: X) -> Tensor:
    """Return the group of each row, (N,), numbered in the order of rows: rows of equal inputs have the same.

    Where few inputs come again and again, as in a table of some categories, each row is a group.
    """
    return groups_of_hashes(row_hashes(x.detach()))


def groups_of_hashes(hashes: Tensor) -> Tensor:
    """Return the group of each row, (N,), as `same_inputs` does, from a hash for each that copies share."""
    number = torch.arange(len(hashes))
    _, group = hashes.unique(return_inverse=True)
    count = int(group.max()) + 1
    if count == len(hashes) or count < _FEWEST_INPUTS:
        return number
    first = torch.full((count,), len(hashes)).scatter_reduce(0, group, number, "amin")
    return first.argsort().argsort()[group]


def row_hashes(x: X) -> Tensor:
    """Return a hash of 64 bits for each row, which rows that differ share by chance alone."""
    hashes = list[Tensor]()
    for rows in x.split(max(1, _NUMBERS_AT_ONCE // max(1, x[0].numel()))):
        bits = (flat_rows(rows).cpu() + 0.0).contiguous().view(torch.int64)
        factors = torch.randint(-(2**62), 2**62, bits.shape[1:], generator=torch.Generator().manual_seed(0)) | 1
        mixed = (bits ^ (bits >> 29)) * factors
        hashes.append((mixed ^ (mixed >> 31)).sum(1))
    return torch.cat(hashes)


def classes_of(y: Tensor) -> Tensor | None:
    """Return the class of each row, (N,), numbered from 0; None for real numbers, several columns, and single rows."""
    if y.is_floating_point() or y.ndim > 1:
        return None
    values, classes = y.unique(return_inverse=True)
    return classes if len(values) < len(y) else None


def strata(values: np.ndarray) -> Tensor:
    """Return targets (N,) whose shares a split keeps: few whole numbers as classes, whatever they are read as."""
    few = len(np.unique(values)) <= _MOST_CLASSES and (values % 1 == 0).all()
    return torch.tensor(values.astype(np.int64) if few else values)


def split_rows(groups: Tensor, y: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the row numbers (rest, part) of a random split; groups (N,) stay whole, and each class has its share.

    The part has the rounded fraction of the rows at most, and at least one group.
    """
    if not 0 < fraction < 1:
        raise InputError(f"`fraction` must lie between 0 and 1, got {fraction}.")
    most = max(1, round(fraction * len(y)))
    if most >= len(y):
        raise InputError(f"Cannot split {counted(len(y), 'row')} into two parts: pass more data.")
    _, group, sizes = groups.unique(return_inverse=True, return_counts=True)
    if len(sizes) == 1:
        raise InputError("All rows are of one group, and whole groups are held out: choose other groups.")
    generator, classes = torch.Generator().manual_seed(seed), classes_of(y)
    order = torch.randperm(len(sizes), generator=generator)
    if classes is not None:
        of_group = torch.zeros_like(sizes)
        of_group[group] = classes
        order = order[_evenly(of_group[order], generator)]
    size, taken = 0, list[int]()
    for number, more in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if size + more <= most:
            taken.append(number)
            size += more
    in_part = torch.zeros(len(sizes), dtype=torch.bool)
    in_part[taken or order[sizes[order].argmin()]] = True
    rows = order.argsort()[group].argsort(stable=True)
    return rows[~in_part[group[rows]]], rows[in_part[group[rows]]]


def _evenly(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Return an order, (N,), in which each class is spread evenly from end to end, from a place drawn at random."""
    sizes, by_class = classes.bincount(), classes.argsort(stable=True)
    number = torch.empty_like(classes)
    number[by_class] = torch.arange(len(classes)) - (sizes.cumsum(0) - sizes)[classes[by_class]]
    start = torch.rand(len(sizes), generator=generator, dtype=torch.float64)
    return ((number + start[classes]) / sizes[classes]).argsort(stable=True)
