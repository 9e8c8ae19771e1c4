"""Batches for training: the whole set, mini-batches shuffled in memory, or those of a DataLoader."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pyrobnn._checks import as_targets, as_tensor, check_inputs
from pyrobnn._errors import InputError

Batch = tuple[Tensor, Tensor]


class TensorBatches:
    """Batches of examples in memory, in a new random order each epoch; those left over in one wait for the next.

    Args:
        x: inputs (N, *in), in the units and place of the model.
        y: targets (N,) or (N, K), likewise.
        batch_size: examples in a batch, or None for all of them.
        seed: seed of the order, a stream of its own.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int | None, seed: int) -> None:
        self.x, self.y = x, y
        self.batch_size = None if batch_size is None or batch_size >= len(x) else batch_size
        self._rows = self._shuffle(torch.Generator().manual_seed(seed))

    def _shuffle(self, generator: torch.Generator) -> Iterator[Tensor]:
        size = self.batch_size or len(self.x)
        while True:
            order = torch.randperm(len(self.x), generator=generator)
            yield from order[: len(self.x) // size * size].to(self.x.device).split(size)

    def rows(self, num_steps: int) -> Tensor | None:
        """Return the rows of the next batches, (steps, batch), or None if each is the whole set."""
        return None if self.batch_size is None else torch.stack([next(self._rows) for _ in range(num_steps)])

    def __next__(self) -> Batch:
        """Return the next batch."""
        if self.batch_size is None:
            return self.x, self.y
        rows = next(self._rows)
        return self.x[rows], self.y[rows]


class LoaderBatches:
    """The batches of a loader, for ever.

    Args:
        loader: yields pairs (x, y).
        prepare: checks a batch and brings it into the units and place of the model.
    """

    def __init__(self, loader: "DataLoader[Any]", prepare: Callable[[Tensor, Tensor], Batch]) -> None:
        self._batches = _cycle(loader)
        self._prepare = prepare
        self._waiting: list[Batch] = []
        self._largest = 0

    def __next__(self) -> Batch:
        """Return the next batch."""
        if self._waiting:
            return self._waiting.pop(0)
        batch = self._prepare(*checked_batch(next(self._batches)))
        self._largest = max(self._largest, len(batch[0]))
        return batch

    def peek(self) -> Batch:
        """Return the next batch, or the one after it if that is a smaller one at the end of an epoch; both stay."""
        batches = [next(self)]
        if len(batches[0][0]) < self._largest:
            batches.append(next(self))
        self._waiting = [*batches, *self._waiting]
        return batches[-1]


def _cycle(loader: "DataLoader[Any]") -> Iterator[Any]:
    while True:
        yield from loader


def checked_batch(batch: Any) -> Batch:
    """Return a loader's batch as a validated pair (x, y)."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputError(f"A DataLoader must yield pairs (x, y), got {type(batch).__name__}.")
    x = as_tensor(batch[0], "x")
    check_inputs(x)
    return x, as_targets(batch[1], len(x))
