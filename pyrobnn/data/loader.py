"""Data from a loader: inputs and targets of its batches, and how many examples an epoch goes through."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
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
from torch.utils.data.distributed import DistributedSampler

from pyrobnn._core.checks import check_count, check_flag
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import X, join_rows, single
from pyrobnn.data.batches import (
    checked_batch,
    checked_inputs,
    checked_pair,
    kept_generators,
    samplers_of,
    split_batch,
)
from pyrobnn.data.in_memory import Data, Moments, Scaler

_PAGE = "how-to/large-data"
_NO_BATCH = "The loader yields no batch: pass more data, a smaller batch, or drop_last=False."
_END = object()


@dataclasses.dataclass(frozen=True, eq=False)
class Loader:
    """The examples of a DataLoader, or of any iterable of batches that can be gone through more than once.

    Functions that take a DataLoader take it as it is. Wrap it to say which parts of a batch are inputs and targets, or
    how many examples N there are: the ELBO needs N, while predictions and scores do not. A DataLoader knows N if each
    epoch has the same examples once, or draws them by a random sampler of torch. N is unknown for an `IterableDataset`
    without a length, for ready-made batches (`batch_size=None`), for other samplers whose examples change between
    epochs or repeat, and for iterables that are no DataLoader.

    See docs/how-to/large-data.md.

    Attributes:
        loader: yields batches. Without `split` the targets of a mapping are its `labels`, `label`, `y` or `target`, and
            those of a tuple come last; all other entries are inputs of the network.
        split: maps a batch to its pair (x, y); x is a tensor, or a mapping or tuple of tensors.
        num_data: N; taken from the loader if not given.
        standardize: as in `Data`; means and standard deviations are those of all examples, from a pass of their own.

    Raises:
        InputError: an object that cannot be gone through, or only once; a `split` that is no function; a number below
            1; a `standardize` other than True or False.

    Examples:
        >>> batches = [(torch.zeros(10, 1), torch.zeros(10), torch.ones(10))] * 2  # inputs, targets, weights
        >>> data = bnn.Loader(batches, split=lambda batch: (batch[0], batch[1]), num_data=20)
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(data, steps=5, seed=0, progress=False)
        >>> posterior.record.num_data, posterior.predict(data)
        (20, Prediction(Normal, num_draws=500, num_inputs=20))
    """

    loader: Iterable[Any]
    split: Callable[[Any], tuple[Any, Any]] | None = None
    num_data: int | None = None
    standardize: bool = False

    def __post_init__(self) -> None:
        """Refuse objects other than loaders, functions that cannot be called, and invalid numbers of examples."""
        kind = type(self.loader).__name__
        if not isinstance(self.loader, Iterable):
            raise InputError(
                f"`loader` must be a DataLoader, or another iterable of batches, got {kind}: of a dataset make a "
                "DataLoader.",
                page=_PAGE,
            )
        if isinstance(self.loader, Iterator) and not callable(getattr(self.loader, "reset", None)):
            raise InputError(
                f"`loader` is a {kind}, which can be gone through only once, and each epoch must begin anew: pass a "
                "list of its batches, or an object whose `__iter__` begins anew.",
                page=_PAGE,
            )
        if self.split is not None and not callable(self.split):
            raise InputError(f"`split` must be a function from a batch to the pair (x, y), got {self.split!r}.")
        if self.num_data is not None:
            check_count(self.num_data, "num_data")
        check_flag(self.standardize, "standardize")

    def pair(self, batch: Any) -> tuple[X, Tensor]:
        """Return inputs and targets of a batch, validated."""
        return checked_batch(batch) if self.split is None else checked_pair(*self._told(batch))

    def inputs_of(self, batch: Any) -> X:
        """Return the inputs of a batch, which may have no targets."""
        return checked_inputs((split_batch if self.split is None else self._told)(batch)[0])

    def _told(self, batch: Any) -> tuple[Any, Any]:
        assert self.split is not None
        pair = self.split(batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            given = f"a tuple of {len(pair)}" if isinstance(pair, tuple) else f"a {type(pair).__name__}"
            raise InputError(
                f"`split` must return a pair (x, y), got {given}. Weights of examples are for Data.", page=_PAGE
            )
        return pair

    def one_pass[T](self, read: Callable[[Any], T]) -> Iterator[T]:
        """Yield what a function makes of each batch of an epoch; random states of loader and process stay.

        The random numbers drawn while a batch is loaded are the same at every pass.
        """
        with kept_generators(self.loader):
            with seeded(0, "loader"):
                batches = iter(self.loader)
            for number in itertools.count():
                with seeded(0, f"batch {number}"):
                    batch = next(batches, _END)
                if batch is _END:
                    break
                yield read(batch)
        if number == 0:
            raise InputError(_NO_BATCH)

    def mean_over(self, function: Callable[[X, Tensor], Tensor]) -> float:
        """Return the mean over all examples of a number per example, (n,), that a function gives for a batch's pair."""
        values = [function(*pair).double().cpu() for pair in self.one_pass(self.pair)]
        return float(torch.cat(values).mean())

    def in_memory(self) -> Data:
        """Return all examples of an epoch as `Data`, for functions that need them at once.

        Raises:
            InputError: batches whose examples differ in shape.

        Examples:
            >>> pairs = torch.utils.data.TensorDataset(torch.zeros(5, 2), torch.ones(5))
            >>> loader = torch.utils.data.DataLoader(pairs, batch_size=2)
            >>> bnn.Loader(loader).in_memory()
            Data(x=(5, 2), y=(5,) float32, standardize=False)
        """
        x, y = zip(*self.one_pass(self.pair), strict=True)
        return Data(join_rows(x), join_rows(y), standardize=self.standardize)

    @property
    def x_scaler(self) -> Scaler:
        """The map of the inputs to standard units, the identity if they are not standardised."""
        return self._scalers[0]

    @property
    def y_scaler(self) -> Scaler:
        """The map of the targets, likewise; used if the likelihood is for real values."""
        return self._scalers[1]

    @functools.cached_property
    def _scalers(self) -> tuple[Scaler, Scaler]:
        if not self.standardize:
            return Scaler.identity(), Scaler.identity()
        moments = Moments(), Moments()
        for x, y in self.one_pass(self.pair):
            moments[0].add(single(x, "`standardize`"))
            moments[1].add(y)
        return moments[0].scaler(), moments[1].scaler()

    @property
    def shuffles(self) -> bool:
        """Whether it is a DataLoader that takes its examples in a random order."""
        kinds = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
        return any(isinstance(sampler, kinds) for sampler in samplers_of(self.loader))

    @property
    def batch_size(self) -> int | None:
        """The examples in a batch of a DataLoader; None if batches are ready-made, or it is no DataLoader."""
        return self.loader.batch_size if isinstance(self.loader, DataLoader) else None

    @property
    def num_batches(self) -> int | None:
        """The batches of an epoch, or None if their number is not known."""
        return _length(self.loader)

    @property
    def head(self) -> tuple[X, Tensor]:
        """The first batch of an epoch."""
        with kept_generators(self.loader):
            batch = next(iter(self.loader), None)
        if batch is None:
            raise InputError(_NO_BATCH)
        return self.pair(batch)

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
                "bnn.Loader(loader, num_data=N) in its place.",
                page=_PAGE,
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


def _epoch(loader: Iterable[Any]) -> Epoch:
    if not isinstance(loader, DataLoader):
        return Epoch(unknown=f"A loader of the type {type(loader).__name__} does not tell how many examples it has")
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
    return _compared(*([*itertools.chain.from_iterable(taken)] for taken in passes))._replace(
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
    return [] if length is None else [[*itertools.islice(sampler, length)] for _ in range(2)]


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
