"""Batches of data that stay in their files."""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pyrobnn.data.batches import Batch, State
from pyrobnn.data.stored import Block, StoredData

Pieces = list[tuple[Block, Tensor]]
"""The examples of a batch: rows of a block, or of the end of a block and the start of the next."""


class StoredBatches:
    """Batches read from files, in a new random order each epoch; left-over examples wait for the next epoch.

    An epoch takes the blocks of the data in a random order and shuffles the examples of each. The order is drawn from a
    separate random stream before anything is read, so moving to a position costs no reading.

    Args:
        data: the examples.
        prepare: brings a batch into the units and onto the device of the model.
        batch_size: examples in a batch; with N or more each batch is all of them.
        seed: seed of the order.
        share: the part of each batch to read, (rank, world): every world-th example from the rank-th on.

    Attributes:
        share: as given.
    """

    def __init__(
        self,
        data: StoredData,
        prepare: Callable[[Tensor, Tensor], Batch],
        batch_size: int,
        seed: int,
        *,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._data, self._prepare, self.share = data, prepare, share
        self._batch_size, self._shuffles = min(batch_size, len(data)), batch_size < len(data)
        self._generator = torch.Generator().manual_seed(seed)
        self._before, self._taken = self._generator.get_state(), 0
        self._epoch: Iterator[Pieces] = iter(())

    def __next__(self) -> Batch:
        """Return the next batch."""
        return self._read(self._next_pieces())

    def peek(self) -> Batch:
        """Return the next batch, which stays the next."""
        pieces = self._next_pieces()
        self._epoch = itertools.chain([pieces], self._epoch)
        self._taken -= 1
        return self._read(pieces)

    def _next_pieces(self) -> Pieces:
        pieces = next(self._epoch, None)
        if pieces is None:
            self._before, self._taken = self._generator.get_state(), 0
            self._epoch = self._pieces()
            pieces = next(self._epoch)
        self._taken += 1
        return pieces

    def _pieces(self) -> Iterator[Pieces]:
        """Yield the batches of an epoch; only full batches begin.

        With several blocks, the left-over examples follow a random position, since the last block may be small.
        """
        waiting: Pieces = []
        missing, num_rows = self._batch_size, len(self._data)
        left, place, first_left = num_rows % self._batch_size, 0, num_rows
        for block in self._data.blocks(self._generator):
            if left and not place and block.size < num_rows:
                first_left = int(torch.randint(num_rows, (), generator=self._generator))
            order = torch.arange(block.size)
            if self._shuffles:
                order = torch.randperm(block.size, generator=self._generator)
            if first_left < num_rows:
                places = torch.arange(place, place + block.size)
                order = order[(places - first_left) % num_rows >= left]
            place += block.size
            while len(order):
                waiting.append((block, order[:missing]))
                order = order[missing:]
                missing -= len(waiting[-1][1])
                if not missing:
                    yield waiting
                    waiting, missing = [], self._batch_size

    def _read(self, pieces: Pieces) -> Batch:
        rank, world = self.share
        read, start = [], 0
        for block, rows in pieces:
            mine = rows[(rank - start) % world :: world]
            if len(mine):
                read.append(block.take(mine))
            start += len(rows)
        x, y = (torch.cat(values) for values in zip(*read, strict=True))
        return self._prepare(x, y)

    def state(self) -> State:
        """Return the place: the generator before this epoch's order, and how many batches were taken."""
        return {"generator": self._before, "taken": self._taken}

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""

    def restore(self, state: State) -> None:
        """Go to a place in the stream."""
        self._generator.set_state(state["generator"])
        self._before, self._taken = state["generator"], state["taken"]
        self._epoch = itertools.islice(self._pieces(), state["taken"], None)
