"""Data from a loader, or in any form that users give them: batches, and how many examples an epoch goes through."""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import data as of_torch
from torch.utils.data import DataLoader, RandomSampler

from pyrobnn._core.checks import check_count, check_flag
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import X, join_rows, single
from pyrobnn.data.batches import Split, checked_batch, checked_inputs, generators_of, samplers_of, split_batch
from pyrobnn.data.in_memory import Data
from pyrobnn.distributions.units import Moments, Scaler

_RANDOM = (RandomSampler, of_torch.SubsetRandomSampler, of_torch.DistributedSampler)
_PAGE = "how-to/large-data"


@dataclasses.dataclass(frozen=True, eq=False)
class Loader:
    """The examples of a DataLoader, or of any iterable of batches that can be gone through more than once.

    Attributes:
        loader: yields batches. Without `split` the targets of a mapping are its `labels`, `label`, `y` or `target`, and
            those of a tuple come last; all other entries are inputs of the network.
        split: maps a batch to its pair (x, y); x is a tensor, or a mapping or tuple of tensors.
        num_data: N, which the ELBO needs, and only a DataLoader with a length and torch's samplers tells.
        standardize: as in `Data`; means and standard deviations are those of all examples, from a pass of their own.

    Raises:
        InputError: an object that cannot be gone through, or only once; another argument of the wrong kind.

    Examples:
        >>> batches = [(torch.zeros(10, 1), torch.zeros(10), torch.ones(10))] * 2  # inputs, targets, weights
        >>> data = bnn.Loader(batches, split=lambda batch: (batch[0], batch[1]), num_data=20)
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(data, steps=5, seed=0, progress=False)
    """

    loader: Iterable[Any]
    split: Split | None = None
    num_data: int | None = None
    standardize: bool = False

    def __post_init__(self) -> None:
        """Refuse objects other than loaders, functions that cannot be called, and invalid numbers of examples."""
        is_once = isinstance(self.loader, Iterator) and not callable(getattr(self.loader, "reset", None))
        if is_once or not isinstance(self.loader, Iterable):
            found = f"{type(self.loader).__name__}, which {'can be read only once' if is_once else 'has no batches'}"
            wanted = "a DataLoader, a list of batches, or an object whose `__iter__` begins anew"
            raise InputError(f"`loader` is a {found}: pass {wanted}.", page=_PAGE)
        if self.split is not None and not callable(self.split):
            raise InputError(f"`split` must be a function from a batch to the pair (x, y), got {self.split!r}.")
        if self.num_data is not None:
            check_count(self.num_data, "num_data")
        check_flag(self.standardize, "standardize")

    def pair(self, batch: Any) -> tuple[X, Tensor]:
        """Return inputs and targets of a batch, validated."""
        return checked_batch(batch, self.split)

    def inputs_of(self, batch: Any) -> X:
        """Return the inputs of a batch, which may have no targets."""
        return checked_inputs(split_batch(batch, self.split)[0])

    def one_pass[T](self, read: Callable[[Any], T]) -> Iterator[T]:
        """Yield what a function makes of each batch of an epoch; random states of loader and process stay.

        The random numbers drawn while a batch is loaded are the same at every pass.
        """
        before = [(generator, generator.get_state()) for generator in generators_of(self.loader)]
        try:
            with seeded(0, "loader"):
                batches = iter(self.loader)
            for number in itertools.count():
                with seeded(0, f"batch {number}"):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield read(batch)
        finally:
            for generator, state in before:
                generator.set_state(state)
        if number == 0:
            raise InputError("The loader yields no batch: pass more data, a smaller batch, or drop_last=False.")

    def mean_over(self, function: Callable[[X, Tensor], Tensor]) -> float:
        """Return the mean over all examples of a number per example, (n,), that a function gives for a batch's pair."""
        values = [function(*pair).double().cpu() for pair in self.one_pass(self.pair)]
        return float(torch.cat(values).mean())

    def in_memory(self) -> Data:
        """Return all examples of an epoch as `Data`; `InputError` for batches whose examples differ in shape."""
        x, y = zip(*self.one_pass(self.pair), strict=True)
        return Data(join_rows(x), join_rows(y), standardize=self.standardize)

    @property
    def x_scaler(self) -> Scaler:
        """The map of the inputs to standard units, the identity if they are not standardised."""
        return self._moments[0].scaler() if self.standardize else Scaler.identity()

    @property
    def y_scaler(self) -> Scaler:
        """The map of the targets, likewise; used if the likelihood is for real values."""
        return self._moments[1].scaler(targets=True) if self.standardize else Scaler.identity()

    @functools.cached_property
    def _moments(self) -> tuple[Moments, Moments]:
        def moments(batch: Any) -> tuple[Moments, Moments]:
            x, y = self.pair(batch)
            return Moments.of(single(x, "`standardize`")), Moments.of(y)

        return functools.reduce(lambda a, b: (a[0].merged(b[0]), a[1].merged(b[1])), self.one_pass(moments))

    @property
    def shuffles(self) -> bool:
        """Whether it is a DataLoader that takes its examples in a random order."""
        kinds = (*_RANDOM, of_torch.WeightedRandomSampler)
        return any(isinstance(sampler, kinds) for sampler in samplers_of(self.loader))

    @property
    def head(self) -> tuple[X, Tensor]:
        """The first batch of an epoch."""
        return next(self.one_pass(self.pair))

    def counted(self, first_rows: int) -> "tuple[int, Epoch | None]":
        """Return N, and the epoch if it is known, given the rows of the first batch; `InputError` for an unknown N."""
        epoch = _epoch(self.loader)
        if epoch is not None and first_rows < min(epoch.size, epoch.num_rows):  # `collate_fn` leaves examples out
            epoch = epoch._replace(num_data=self.num_data)
        num_data = self.num_data if self.num_data or epoch is None else epoch.num_data
        if num_data is None:
            untold = f"which this {type(self.loader).__name__} does not tell"
            advice = "pass bnn.Loader(loader, num_data=N) in its place"
            raise InputError(f"The ELBO needs the number of examples N, {untold}: {advice}.", page=_PAGE)
        return num_data, epoch


class Epoch(NamedTuple):
    """An epoch: N, if known, its rows, those of a batch before `collate_fn`, and whether each example comes once."""

    num_data: int | None
    num_rows: int
    size: int
    is_pass: bool

    def mean_rows(self, first: int) -> float | None:
        """Return the rows of an average batch, given those of the first; None if all batches have as many."""
        if self.num_rows <= self.size or self.num_rows % self.size == 0:
            return None
        return self.num_rows / math.ceil(self.num_rows / self.size) * first / self.size


def _epoch(loader: Iterable[Any]) -> Epoch | None:
    """Return the epoch of a DataLoader with one of torch's samplers that draw all examples alike, else None."""
    if not isinstance(loader, DataLoader):
        return None
    batches = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    known = (of_torch.SequentialSampler, *_RANDOM)
    if type(batches) is not of_torch.BatchSampler or type(batches.sampler) not in known:
        return None
    sampler, size, num_rows = batches.sampler, batches.batch_size, operator.length_hint(batches.sampler)
    if not num_rows:
        return None
    num_data, is_once = num_rows, True
    if isinstance(sampler, RandomSampler):
        num_data, is_once = len(sampler.data_source), not sampler.replacement
    num_rows -= num_rows % size if batches.drop_last else 0
    return Epoch(num_data, num_rows, size, is_once and num_rows == num_data)


def as_data(given: Any) -> Data | Loader:
    """Return data as they are, a pair (x, y) as `Data`, and a DataLoader as `Loader`."""
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return Data(*given)
    given = as_loader(given)
    if not isinstance(given, (Data, Loader)):
        expected = f"Data(x, y), a pair (x, y) or a DataLoader, got {type(given).__name__}"
        other = "of another iterable of batches make a bnn.Loader(iterable, num_data=N)"
        raise InputError(f"Expected {expected}; {other}.", page="start")
    return given


def as_loader(given: Any) -> Any:
    """Return a DataLoader as `Loader`, and anything else as it is."""
    return Loader(given) if isinstance(given, DataLoader) else given


def in_memory(data: Any, *, collect: bool = False, weighted: bool = False) -> Data:
    """Return data, or a pair, as `Data`; refuse loaders unless to `collect` them, and weights unless `weighted`."""
    given = as_data(data)
    if isinstance(given, Loader) and collect:
        given = given.in_memory()
    if isinstance(given, Loader):
        kind = type(data).__name__
        raise InputError(f"Expected data in memory, got a {kind}: pass bnn.Loader(loader).in_memory().")
    if given.weights is not None and not weighted:
        raise InputError("Every example counts once here, and these data have weights: pass Data(x, y) without them.")
    return given


def columns_by_name(x: Any, names: Sequence[str]) -> Any:
    """Return the columns of a frame in the order of training; by position where training had no names."""
    labels = {str(label): label for label in getattr(x, "columns", ())}
    missing = next((name for name in names if name not in labels), None)
    if names and missing is None:
        return x[[labels[name] for name in names]]
    if missing is None or not labels or list(names) == [f"x{i}" for i in range(len(names))]:
        return x
    raise InputError(f"`x` must have the columns of the training inputs; {missing!r} is missing.")
