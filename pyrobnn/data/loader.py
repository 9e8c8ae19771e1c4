"""Data from a DataLoader: how many examples it goes through, and how many an average batch has."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import X
from pyrobnn.data.batches import checked_batch, kept_generators


@dataclasses.dataclass(frozen=True, eq=False)
class LoaderData:
    """The examples of a DataLoader, with their number N, for `fit` in place of a loader that does not know N.

    The ELBO needs N. A loader knows N if each epoch has the same examples once, or draws them by a random sampler of
    torch. N is unknown for an `IterableDataset` without a length, for ready-made batches (`batch_size=None`), and for
    other samplers whose examples change between epochs or repeat.

    See docs/how-to/large-data.md.

    Attributes:
        loader: yields pairs (x, y). Several inputs may come as mappings, or as tuples with the targets last.
        num_data: N; taken from the loader if not given.

    Raises:
        InputError: not a DataLoader, or a number below 1.

    Examples:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> ready_made = DataLoader([(torch.zeros(20, 1), torch.zeros(20))], batch_size=None)
        >>> data = bnn.LoaderData(ready_made, num_data=20)
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(data, steps=5, seed=0, progress=False)
        >>> posterior.info["num_data"]
        20
    """

    loader: "DataLoader[Any]"
    num_data: int | None = None

    def __post_init__(self) -> None:
        """Refuse objects other than loaders, and invalid numbers of examples."""
        if not isinstance(self.loader, DataLoader):
            raise InputError(f"`loader` must be a torch.utils.data.DataLoader, got {type(self.loader).__name__}.")
        if self.num_data is not None:
            check_count(self.num_data, "num_data")

    @property
    def head(self) -> tuple[X, Tensor]:
        """The first batch of an epoch."""
        batch = next(iter(self.loader), None)
        if batch is None:
            raise InputError("The DataLoader yields no batch: pass more data, a smaller batch, or drop_last=False.")
        return checked_batch(batch)

    def counted(self, first_rows: int) -> "tuple[int, Epoch]":
        """Return N, and the epoch of the loader, given the number of rows in the first batch.

        Raises:
            InputError: the number of examples is neither given nor known.
        """
        with kept_generators(self.loader):
            epoch = _epoch(self.loader)
        if epoch.first is not None and first_rows < epoch.first:
            epoch = epoch._replace(num_data=None, unknown="The DataLoader's `collate_fn` leaves examples out")
        num_data = self.num_data or epoch.num_data
        if num_data is None:
            raise InputError(
                f"{epoch.unknown}: the ELBO needs the number of examples N, so pass "
                "bnn.LoaderData(loader, num_data=N) in its place.",
                page="how-to/large-data",
            )
        return num_data, epoch._replace(is_pass=epoch.is_pass and num_data == (epoch.num_data or num_data))


class Epoch(NamedTuple):
    """The examples and batches in an epoch of a loader.

    Attributes:
        num_data: N, or None if the loader does not tell.
        num_rows: rows of an epoch, before `collate_fn`, or None if they are not known.
        num_batches: batches of an epoch, likewise.
        first: rows of the first batch, before `collate_fn`, or None if they are not known.
        is_even: whether all batches have equally many rows.
        is_pass: False if an epoch is known to repeat or skip examples.
        unknown: the reason why N is not known, in words.
    """

    num_data: int | None = None
    num_rows: int | None = None
    num_batches: int = 0
    first: int | None = None
    is_even: bool = False
    is_pass: bool = True
    unknown: str = "The DataLoader's dataset must have a length, and so must its sampler"


def _epoch(loader: "DataLoader[Any]") -> Epoch:
    groups: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if loader.batch_sampler is None and type(groups) is not BatchSampler:
        return Epoch(unknown="The DataLoader yields ready-made batches")
    if isinstance(loader.dataset, IterableDataset):
        num_data = _length(loader.dataset)
        return _cut(Epoch(num_data, num_data), groups)
    if type(groups) is BatchSampler:
        return _cut(_sampled(groups.sampler), groups)
    passes = [[[*group] for group in taken] for taken in _twice(groups)]
    if not passes or not passes[0]:
        return Epoch()
    sizes, others = ([len(group) for group in taken] for taken in passes)
    return _compared(*([*chain.from_iterable(taken)] for taken in passes))._replace(
        num_batches=len(sizes),
        first=sizes[0] if sizes == others else None,
        is_even=len({*sizes, *others}) == 1,
    )


def _sampled(sampler: Any) -> Epoch:
    """Return the epoch of a sampler of single examples."""
    kind = type(sampler)
    if kind in (SequentialSampler, SubsetRandomSampler):
        num_data = _length(sampler)
        return Epoch(num_data, num_data)
    if kind in (RandomSampler, WeightedRandomSampler):
        num_data = len(sampler.data_source) if kind is RandomSampler else int(torch.count_nonzero(sampler.weights))
        num_rows = sampler.num_samples
        return Epoch(num_data, num_rows, is_pass=not sampler.replacement and num_rows == num_data)
    passes = _twice(sampler)
    return _compared(*passes) if passes else Epoch()


def _cut(epoch: Epoch, groups: BatchSampler) -> Epoch:
    """Return an epoch with its rows cut into batches by torch's `BatchSampler`."""
    if not epoch.num_rows:
        return epoch
    size, num_rows = groups.batch_size, epoch.num_rows
    left = num_rows % size
    if left and groups.drop_last:
        epoch, num_rows, left = epoch._replace(is_pass=False), num_rows - left, 0
    batches = math.ceil(num_rows / size)
    return epoch._replace(
        num_rows=num_rows, num_batches=batches, first=min(size, num_rows), is_even=not left or batches == 1
    )


def _twice(sampler: Iterable[Any]) -> list[list[Any]]:
    """Return the examples in two epochs of a sampler; empty if it has no length, and may never end."""
    length = _length(sampler)
    return [] if length is None else [[*islice(sampler, length)] for _ in range(2)]


def _compared(first: list[Any], second: list[Any]) -> Epoch:
    """Return the epoch of a sampler, judged by the examples in two epochs."""
    why = "The DataLoader's sampler takes other examples each epoch, or an example more than once"
    epoch = Epoch(num_rows=len(first), is_pass=False, unknown=why)
    try:
        distinct, others = set(_numbers(first)), set(_numbers(second))
    except TypeError:  # keys that cannot be compared
        return epoch
    is_pass = len(distinct) == len(first) and distinct == others
    return epoch._replace(num_data=len(first), is_pass=True) if is_pass else epoch


def _numbers(keys: Iterable[Any]) -> Iterator[Any]:
    return (key.item() if isinstance(key, Tensor) else key for key in keys)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
