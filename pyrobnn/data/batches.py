"""Batches for training: the whole set, mini-batches shuffled in memory, or batches of a loader."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.checks import as_targets
from pyrobnn._core.errors import InputError, listed
from pyrobnn._core.random import random_state, set_random_state
from pyrobnn._torch.inputs import Inputs, X, as_inputs

Split = Callable[[Any], tuple[Any, Any]]
Batch = tuple[Any, ...]
"""Inputs (`X`) and the tensors of targets and, if given, weights: the model's arguments, in order."""

_TARGETS = ("labels", "label", "y", "target")
_PAGE = "how-to/large-data"
_SPLIT = "bnn.Loader(loader, split=lambda batch: (batch[0], batch[1]))"
StateDict = dict[str, Any]
"""A place in a stream, as nested dictionaries and lists of tensors, numbers and strings."""


class TensorBatches:
    """Batches of examples in memory, in a new random order each epoch; left-over examples wait for the next epoch.

    Without `batch_size` each batch has all examples; `independent` ones are drawn anew each time.
    """

    def __init__(self, data: Batch, batch_size: int | None, seed: int, *, independent: bool = False) -> None:
        self.data, num_rows = data, len(data[0])
        self.batch_size = None if batch_size is None or batch_size >= num_rows else batch_size
        self._most = (self.batch_size or num_rows) if independent else num_rows  # rows of an order that are used
        self._generator = torch.Generator().manual_seed(seed)
        self._before, self._order, self._next = self._generator.get_state(), torch.empty(0, dtype=torch.int64), 0

    def rows(self, num_steps: int) -> Tensor | None:
        """Return the rows of the next batches, (steps, batch), or None if each is the whole set."""
        if self.batch_size is None:
            return None
        return torch.stack([self._next_rows(self.batch_size) for _ in range(num_steps)]).to(self.data[0].device)

    def __next__(self) -> Batch:
        """Return the next batch."""
        rows = self.rows(1)
        return self.data if rows is None else tuple(values[rows[0]] for values in self.data)

    def _next_rows(self, size: int) -> Tensor:
        """Return the rows of the next batch, (batch,), of this epoch's order or of a new one."""
        if self._next + size > min(self._most, len(self._order)):
            self._shuffle()
        self._next += size
        return self._order[self._next - size : self._next]

    def _shuffle(self) -> None:
        self._before, self._next = self._generator.get_state(), 0
        self._order = torch.randperm(len(self.data[0]), generator=self._generator)

    def state(self) -> StateDict:
        """Return the place in the stream: the generator before this epoch's order, and how much of that was used."""
        return {"generator": self._before, "next": self._next}

    def restore(self, state: StateDict) -> None:
        """Go to a place in the stream."""
        self._generator.set_state(state["generator"])
        self._shuffle()
        self._next = state["next"]

    def close(self) -> None:
        """Do nothing: all is in memory."""


class LoaderBatches:
    """The batches of a loader, without end.

    The plate of the model scales each batch by N / B. If batches differ in size, rows have a weight, B over the average
    B of the last whole epoch, `mean_rows` in the first one. A position is the random states before the epoch, of the
    process and of the generators of loader and samplers, and a number of batches, which are loaded again to go there.

    `prepare` makes a batch ready for the model, whose precision `like` has. The `head` is the first batch, prepared.
    """

    def __init__(
        self, loader: Iterable[Any], prepare: Callable[[Any], Batch], mean_rows: float | None, like: Tensor, head: Batch
    ) -> None:
        self._loader, self._prepare, self._like = loader, prepare, like
        self._mean_rows, self._alike = mean_rows or len(head[0]), mean_rows is None
        self._epoch: Iterator[Any] = iter(())
        self._before, self._taken, self._rows = self._random_states(), 0, 0
        self.example = self._weighted(head)

    def __next__(self) -> Batch:
        """Return the next batch; `InputError` for an epoch without any."""
        batch = next(self._epoch, None)
        if batch is None:
            if self._taken:
                self._mean_rows = self._rows / self._taken
            self._before, self._taken, self._rows = self._random_states(), 0, 0
            self._epoch = iter(self._loader)
            batch = next(self._epoch, None)
        if batch is None:
            raise InputError("The loader yields no batch any more: give it a dataset that can be read more than once.")
        prepared = self._prepare(batch)
        self._taken += 1
        self._rows += len(prepared[0])
        return self._weighted(prepared)

    def _weighted(self, batch: Batch) -> Batch:
        num_rows = len(batch[0])
        if self._alike and num_rows == self._mean_rows:
            return batch
        return *batch, self._like.new_full((num_rows,), num_rows / self._mean_rows)

    def state(self) -> StateDict:
        """Return the place in the stream."""
        return {"random": self._before, "taken": self._taken, "rows": self._rows, "mean_rows": self._mean_rows}

    def restore(self, state: StateDict) -> None:
        """Go to a place in the stream; random states of the process are as before."""
        now = random_state()
        self._before, self._taken = state["random"], state["taken"]
        self._rows, self._mean_rows = state["rows"], state["mean_rows"]
        set_random_state(self._before["process"])
        for generator, before in zip(generators_of(self._loader), self._before["loader"], strict=True):
            generator.set_state(before)
        self._epoch = iter(self._loader) if self._taken else iter(())
        for _ in range(self._taken):
            next(self._epoch)
        set_random_state(now)

    def close(self) -> None:
        """End the loader's processes, unless they are to persist, also where an error still refers to them."""
        end = getattr(self._epoch, "_shutdown_workers", None)
        if end is not None and not getattr(self._loader, "persistent_workers", False):
            end()
        self._epoch = iter(())

    def _random_states(self) -> StateDict:
        of_loader = [generator.get_state() for generator in generators_of(self._loader)]
        return {"process": random_state(), "loader": of_loader}


Batches = TensorBatches | LoaderBatches
"""An endless stream of batches in the units and place of the model; its position can be saved and restored."""


def generators_of(loader: Iterable[Any]) -> list[torch.Generator]:
    """Return the generators of a loader and its samplers."""
    generators = (getattr(holder, "generator", None) for holder in (loader, *samplers_of(loader)))
    return list({id(found): found for found in generators if isinstance(found, torch.Generator)}.values())


def samplers_of(loader: Iterable[Any]) -> tuple[Any, Any, Any]:
    """Return the sampler of a DataLoader, its sampler of batches, and the sampler of these; None where it has none."""
    groups = getattr(loader, "batch_sampler", None)
    return getattr(loader, "sampler", None), groups, getattr(groups, "sampler", None)


def split_batch(batch: Any, split: Split | None = None) -> tuple[Any, Any]:
    """Return inputs and targets of a loader's batch, as `split` tells, with None for targets that it does not have.

    Without `split` the targets of a mapping are its `labels`, `label`, `y` or `target`, those of a tuple come last.
    """
    if split is not None:
        pair = split(batch)
        if isinstance(pair, tuple) and len(pair) == 2:
            return pair
        given = f"a tuple of {len(pair)}" if isinstance(pair, tuple) else f"a {type(pair).__name__}"
        raise InputError(f"`split` must return a pair (x, y), got {given}.", page=_PAGE)
    if isinstance(batch, Mapping):
        name = next((name for name in _TARGETS if name in batch), None)
        return {key: value for key, value in batch.items() if key != name}, batch.get(name)
    if not isinstance(batch, (tuple, list)):
        return batch, None
    *inputs, targets = batch if len(batch) > 1 else (*batch, None)
    return inputs[0] if len(inputs) == 1 else tuple(inputs), targets


def checked_batch(batch: Any, split: Split | None = None) -> tuple[X, Tensor]:
    """Return a loader's batch as a validated pair (x, y); `split_batch` tells which is which."""
    x, y = split_batch(batch, split)
    if y is None and split is None:
        got = listed(map(repr, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        expected = f"yield pairs (x, y), or mappings with {' or '.join(_TARGETS)}"
        raise InputError(f"A loader must {expected}, got {got}: say which are which, as in {_SPLIT}.", page=_PAGE)
    inputs = checked_inputs(x)
    return inputs, as_targets(y, len(inputs))


def checked_inputs(x: Any) -> X:
    """Return the inputs of a batch, validated. Several by position may be a list, as torch collates tuples."""
    is_several = isinstance(x, list) and len(x) > 0 and all(isinstance(part, Tensor) for part in x)
    return as_inputs(tuple(x) if is_several else x)


def several_inputs_advice(x: Inputs) -> str:
    """Return what to write where a network does not take all inputs that a batch was read as."""
    which = listed(x.parts) if x.arguments[1] else f"the first {len(x.parts)}"
    return f" The entries {which} of each batch were read as inputs: if not all of them are inputs, pass {_SPLIT}."
