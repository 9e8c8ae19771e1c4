"""Batches for training: the whole set, mini-batches shuffled on the device, or those of a DataLoader."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pyrobnn._checks import as_targets, as_tensor, check_inputs
from pyrobnn._errors import InputError

Batch = tuple[Tensor, Tensor]


def cycle_tensors(x: Tensor, y: Tensor, batch_size: int | None) -> Iterator[Batch]:
    """Yield batches for ever, in a new random order each epoch; examples left over in one epoch wait for the next."""
    if batch_size is None or batch_size >= len(x):
        while True:
            yield x, y
    while True:
        order = torch.randperm(len(x), device=x.device)
        for rows in order[: len(x) // batch_size * batch_size].split(batch_size):
            yield x[rows], y[rows]


def cycle_loader(loader: "DataLoader[Any]") -> Iterator[Batch]:
    """Yield the batches of a loader for ever."""
    while True:
        for batch in loader:
            yield checked_batch(batch)


def checked_batch(batch: Any) -> Batch:
    """Return a loader's batch as a validated pair (x, y)."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputError(f"A DataLoader must yield pairs (x, y), got {type(batch).__name__}.")
    x = as_tensor(batch[0], "x")
    check_inputs(x)
    return x, as_targets(batch[1], len(x))
