"""Parts of data drawn at random: copies of a row together, each class with its share."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.checks import check_unmasked
from pyrobnn._core.errors import InputError, counted
from pyrobnn._torch.inputs import X, flat_rows

_FEWEST_INPUTS = 10
"""Inputs that differ, below which rows of the same inputs are no copies but a table of categories."""
_NUMBERS_AT_ONCE = 2**16
_SHARE_ROUNDING = 1e-9


def numbered(labels: Any, num: int, name: str) -> np.ndarray:
    """Return the numbers of labels of any kind, in their order, (N,): one for each example, and none missing."""
    import pandas as pd

    check_unmasked(labels, name)
    given = np.asarray(labels.tolist() if isinstance(labels, Tensor) else labels, dtype=object)
    if given.shape != (num,):
        raise InputError(f"`{name}` must have one label for each of the {num} examples, got shape {given.shape}.")
    numbers, _ = pd.factorize(given, sort=True)
    if (numbers < 0).any():
        place = int(numbers.argmin())
        raise InputError(f"`{name}` has no label in place {place}, but {given[place]}: give each example a label.")
    return np.asarray(numbers)


def same_inputs(x: X) -> Tensor:
    """Return the group of each row, (N,), numbered in the order of rows: rows of equal inputs have the same.

    Where few inputs come again and again, as in a table of some categories, each row is a group.
    """
    return same_marks(torch.cat([marks_of(x[rows].detach()) for rows in blocks_of(x)]))


def same_marks(marks: Tensor) -> Tensor:
    """Return the group of each row, (N,), as `same_inputs` does, from a number for each that copies share."""
    number = torch.arange(len(marks))
    _, group = marks.unique(return_inverse=True)
    count = int(group.max()) + 1
    if count == len(marks) or count < _FEWEST_INPUTS:
        return number
    first = torch.full((count,), len(marks)).scatter_reduce(0, group, number, "amin")
    return first.argsort().argsort()[group]


def blocks_of(x: X) -> list[slice]:
    """Return consecutive rows whose numbers the cache holds."""
    size = max(1, _NUMBERS_AT_ONCE // max(1, x[0].numel()))
    return [slice(start, start + size) for start in range(0, len(x), size)]


def marks_of(rows: X) -> Tensor:
    """Return a number of 64 bits for each row, which rows that differ share by chance alone."""
    bits = (flat_rows(rows).cpu() + 0.0).contiguous().view(torch.int64)
    factors = torch.randint(-(2**62), 2**62, bits.shape[1:], generator=torch.Generator().manual_seed(0)) | 1
    mixed = (bits ^ (bits >> 29)) * factors
    return (mixed ^ (mixed >> 31)).sum(1)


def classes_of(y: Tensor) -> Tensor | None:
    """Return the class of each row, (N,), numbered from 0; None for real numbers, several columns, and single rows."""
    if y.is_floating_point() or y.ndim > 1:
        return None
    values, classes = y.unique(return_inverse=True)
    return classes if len(values) < len(y) else None


def split_rows(groups: Tensor, y: Tensor, fraction: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the row numbers (rest, part) of a random split; groups (N,) stay whole, and each class has its share.

    The part has the rounded fraction of the rows, and at least one.
    """
    if not 0 < fraction < 1:
        raise InputError(f"`fraction` must lie between 0 and 1, got {fraction}.")
    size = max(1, round(fraction * len(y)))
    if size >= len(y):
        raise InputError(f"Cannot split {counted(len(y), 'row')} into two parts: pass more data.")
    (part,), rest = drawn_together(groups, [size], seed=seed, classes=classes_of(y))
    return rest, part


def drawn_together(
    groups: Tensor,
    sizes: Sequence[int | float],
    *,
    seed: int,
    weights: Tensor | None = None,
    classes: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Return the rows of parts drawn at random, of at most these sizes, and the other rows; groups (N,) stay whole.

    Each part has at least one group, and its share of each of the `classes` (N,), if they are given; rows count by
    their `weights`.
    """
    count, generator = int(groups.max()) + 1, torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=generator)
    if classes is not None:
        of_group = torch.zeros(count, dtype=torch.int64)
        of_group[groups] = classes
        order = order[_evenly(of_group[order], generator)]
    counted = torch.ones(len(groups), dtype=torch.float64) if weights is None else weights.double().cpu()
    heavy = torch.zeros(count, dtype=torch.float64).index_add(0, groups, counted)[order].tolist()
    left, part_of = list(range(count)), torch.full((count,), len(sizes))
    for part, size in enumerate(sizes):
        total, taken = 0.0, list[int]()
        for place in left:
            if total + heavy[place] <= size * (1 + _SHARE_ROUNDING):
                taken.append(place)
                total += heavy[place]
        taken = taken or [min(left, key=heavy.__getitem__)]
        part_of[order[taken]] = part
        gone = set(taken)
        left = [place for place in left if place not in gone]
    rows = order.argsort()[groups].argsort(stable=True)
    *parts, rest = [rows[part_of[groups[rows]] == part] for part in range(len(sizes) + 1)]
    return parts, rest


def _evenly(classes: Tensor, generator: torch.Generator) -> Tensor:
    """Return an order, (N,), in which each class is spread evenly from end to end, from a place drawn at random."""
    sizes = classes.bincount()
    by_class = classes.argsort(stable=True)
    number = torch.empty_like(classes)
    number[by_class] = torch.arange(len(classes)) - (sizes.cumsum(0) - sizes)[classes[by_class]]
    start = torch.rand(len(sizes), generator=generator, dtype=torch.float64)
    return ((number + start[classes]) / sizes[classes]).argsort(stable=True)
