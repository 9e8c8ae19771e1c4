"""Data: inputs and targets, validated once, and the scaling that is fitted on their training part."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.checks import as_targets, as_tensor, check_count, check_finite, check_flag
from pyrobnn._core.errors import InputError, listed
from pyrobnn._torch.inputs import Inputs, X, as_inputs, shape_of, single
from pyrobnn.data import InputColumns
from pyrobnn.data.splits import numbered, row_hashes, same_inputs, split_rows
from pyrobnn.distributions.units import InputScaler, Scaler, quantiles_of

_NUM_WAVES: dict[InputColumns, int] = {"plain": 0, "ranks": 0, "waves": 3}
_ALMOST = 0.9999  # squared correlation of a copy with the target
_RARELY_DIFFERENT = 1e-3
_FEWEST_ROWS = 50
_FEWEST_OF_A_CLASS = 10


class Data:
    """Inputs x (N, *in) and targets y (N,) or (N, K) as tensors, checked on construction.

    Integers and booleans stay labels (int64), floats keep their precision until a model casts them.

    Args:
        x: inputs of rank two or more, an array, tensor, frame or nested list; the first axis counts the examples. A
            mapping, or a tuple of arrays, holds what the network takes by keyword, or by position.
        y: targets, real values or integer labels; a single column (N, 1) becomes (N,).
        weights: positive weights (N,) of the examples: one of weight 2 counts as two, in every fit and standardised.
        standardize: have `fit` centre and scale the inputs, and real targets; predictions are in original units.
        inputs: "ranks" gives the network, beside each column of a table x of three values or more, its rank among these
            data from -1 to 1; "waves" adds three sines and cosines of the rank. Predictions take the columns of x.
        feature_names: a name per column of x; taken from a data frame if not given.
        target_name: name of the target.
        groups: labels (N,), such as patients: `split`, `kfold` and rows held out to choose a fit keep a group together.
            None for groups of equal inputs.

    Raises:
        InputError: not numeric, not finite, empty, of the wrong rank, of unequal lengths, weights not positive.

    Examples:
        >>> data = bnn.Data([[0.0], [1.0], [2.0]], [0.1, 0.9, 2.2], weights=[1.0, 1.0, 2.0])
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(data, steps=20, seed=0, progress=False)
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        *,
        weights: Any = None,
        standardize: bool = False,
        inputs: InputColumns = "plain",
        feature_names: Sequence[str] | None = None,
        target_name: str = "y",
        groups: Any = None,
    ) -> None:
        self.x = as_inputs(x)
        self.y = as_targets(y, len(self.x))
        self.weights = None if weights is None else _as_weights(weights, len(self.x))
        self.groups = None if groups is None else torch.from_numpy(numbered(groups, len(self.x), "groups"))
        self.standardize = check_flag(standardize, "standardize")
        if standardize and isinstance(self.x, Inputs):
            raise InputError("`standardize` is for inputs of a single tensor: scale a mapping or tuple before.")
        self.inputs: InputColumns = inputs
        self._columns = _columns_of(self.x, inputs)
        self.offset: int | None = None
        self.feature_names = column_names(feature_names, x, self.x)
        self.target_name = target_name

    def __len__(self) -> int:
        """Return N, the number of examples."""
        return len(self.x)

    def __repr__(self) -> str:
        shapes = f"x={shape_of(self.x)}, y={tuple(self.y.shape)} {str(self.y.dtype).removeprefix('torch.')}"
        weights = "" if self.weights is None else f"weights={tuple(self.weights.shape)}, "
        inputs = "" if self.inputs == "plain" else f", inputs={self.inputs!r}"
        return f"Data({shapes}, {weights}standardize={self.standardize}{inputs})"

    def __getitem__(self, rows: Any) -> "Data":
        """Return the data of some rows: a slice, a boolean mask of length N, or row numbers in one dimension."""
        index = row_index(rows, len(self))
        x = as_inputs(self.x[index])
        y = as_targets(self.y[index], len(x))
        weights, groups = (None if each is None else each[index] for each in (self.weights, self.groups))
        return self._with(x=x, y=y, weights=weights, groups=groups)  # with the columns of ranks that all rows have

    def _with(self, **attributes: Any) -> "Data":
        """Return a copy with other attributes, which are valid."""
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    def with_inputs(self, inputs: InputColumns) -> "Data":
        """Return the same examples with other inputs of the network."""
        if inputs == self.inputs:
            return self
        other = self._with(inputs=inputs, _columns=_columns_of(self.x, inputs))
        return other if self.offset is None else other.with_offset(self.feature_names[self.offset])

    def with_offset(self, name: str) -> "Data":
        """Return the same examples with a column of a table that reaches the likelihood as it is, not the network."""
        if not isinstance(self.x, Tensor) or self.x.ndim != 2 or name not in self.feature_names:
            text = f"The offset {name!r} of the likelihood is no column of x, which has {listed(self.feature_names)}"
            raise InputError(f"{text}: pass a frame with it, or its name in Data(..., feature_names=[...]).")
        at = self.feature_names.index(name)
        return self._with(offset=at, _columns=self._columns[self._columns != at])

    @property
    def num_inputs(self) -> int:
        """The numbers of an example that the network takes: those of x, and those that `inputs` adds."""
        return self.x[0].numel() - (self.offset is not None) + len(self._columns) * (1 + 2 * _NUM_WAVES[self.inputs])

    @property
    def head(self) -> tuple[X, Tensor]:
        """Inputs and targets to look at: all of them, as of a loader the first batch."""
        return self.x, self.y

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Inputs, targets and, if there are any, weights."""
        return (self.x, self.y) if self.weights is None else (self.x, self.y, self.weights)

    @property
    def total_weight(self) -> float:
        """The number of examples, each counted with its weight."""
        return float(len(self) if self.weights is None else self.weights.sum())

    @property
    def x_scaler(self) -> "Scaler":
        """The map of the inputs to those of the network, the identity if they are plain and not standardised."""
        scaler = Scaler.fit(single(self.x, "A table"), self.weights) if self.standardize else Scaler.identity()
        if not len(self._columns) and self.offset is None:
            return scaler
        x = single(self.x, "A table")
        loc, scale = (value.expand(x.shape[1:]).clone() for value in (scaler.loc, scaler.scale))
        waves = 2.0 ** torch.arange(_NUM_WAVES[self.inputs], dtype=torch.float64, device=x.device)
        at = torch.arange(x.shape[1], device=x.device)
        is_offset = at == (-1 if self.offset is None else self.offset)
        quantiles = quantiles_of(x[:, self._columns], self.weights)
        return InputScaler(loc, scale, self._columns, quantiles, waves, at[~is_offset], at[is_offset])

    @property
    def y_scaler(self) -> "Scaler":
        """The scaler of the targets; used if the likelihood is for real values."""
        return Scaler.fit(self.y, self.weights, targets=True) if self.standardize else Scaler.identity()

    @property
    def constant_inputs(self) -> list[str]:
        """Names of the constant columns of a table x with several rows."""
        if not isinstance(self.x, Tensor) or self.x.ndim != 2 or len(self) == 1:
            return []
        is_constant = (self.x == self.x[:1]).all(0)
        if self.offset is not None:
            is_constant[self.offset] = False
        return list(itertools.compress(self.feature_names, is_constant.tolist()))

    def mean_of(self, values: Tensor) -> float:
        """Return the weighted mean of a number per example, (N,)."""
        if self.weights is None:
            return float(values.mean())
        weights = self.weights.to(values.device)
        return float((weights * values).sum() / weights.sum())

    def mean_over(self, function: Callable[[X, Tensor], Tensor]) -> float:
        """Return the weighted mean of a number per example, (N,), that a function gives for inputs and targets."""
        return self.mean_of(function(self.x, self.y))

    def parts(self, num_rows: int = 10_000) -> "Iterator[Data]":
        """Return all examples in order, in parts of at most that many.

        Examples:
            >>> [len(part) for part in bnn.datasets.sinusoid(40).parts(16)]
            [16, 16, 8]
        """
        check_count(num_rows, "num_rows")
        return (self[start : start + num_rows] for start in range(0, len(self), num_rows))

    def class_counts(self, num_classes: int) -> list[int]:
        """Return the number of examples of each class, where targets are classes."""
        return self.y.reshape(-1).long().bincount(minlength=num_classes).tolist()

    def row_groups(self) -> Tensor:
        """Return the number of the group of each row, (N,): `groups`, or what rows of equal inputs share."""
        return same_inputs(self.x) if self.groups is None else self.groups

    def split(self, fraction: float, *, seed: int = 0) -> tuple["Data", "Data"]:
        """Split at random into (rest, part), the part with `fraction` of the rows, rounded, and at least one.

        Groups of rows stay together, so that scores on the part hold for new inputs; with them the part may be smaller
        than `fraction`. Each class, of whole numbers as targets, has its share of both parts.

        Examples:
            >>> rest, part = bnn.datasets.sinusoid(40).split(0.25)
        """
        rest, part = split_rows(self.row_groups(), self.y, fraction, seed=seed)
        return self[rest], self[part]


def merged(data: Data, most: float = math.inf) -> Data:
    """Return data with one row for equal ones, of their weight, in an order of its own; as they are if over `most`."""
    hashes = torch.stack([row_hashes(data.x), row_hashes(data.y)], 1)
    unique, group = hashes.unique(dim=0, return_inverse=True)
    weights = torch.ones(len(data), dtype=torch.float64) if data.weights is None else data.weights
    total = torch.zeros(len(unique), dtype=torch.float64).index_add(0, group, weights)
    if len(total) > most:
        return data
    if len(total) == len(data) and bool((total == 1).all()):
        return data._with(weights=None)
    rows = torch.empty(len(total), dtype=torch.int64).scatter_(0, group, torch.arange(len(data)))
    return data[rows]._with(weights=total)


def _columns_of(x: X, inputs: str) -> Tensor:
    """Return the numbers (C,) of the columns to map: those with three values or more, of others it tells nothing."""
    if inputs == "plain":
        return torch.empty(0, dtype=torch.int64)
    if inputs not in get_args(InputColumns) or isinstance(x, Inputs) or x.ndim != 2:
        given = f"{inputs!r} of {shape_of(x)}"
        raise InputError(f"`inputs` must be plain, or ranks or waves of a table x (N, D), got {given}.")
    return ((x > x.amin(0)) & (x < x.amax(0))).any(0).nonzero()[:, 0]


def _as_weights(values: Any, num_rows: int) -> Tensor:
    weights = as_tensor(values, "weights").double()
    if weights.shape != (num_rows,):
        raise InputError(f"`weights` must have one number for each of {num_rows} rows, got {tuple(weights.shape)}.")
    check_finite(weights, "weights")
    if not bool((weights > 0).all()):
        raise InputError(f"`weights` must be positive, got {float(weights.min()):g}: leave out such rows.")
    return weights


def row_index(rows: Any, num_rows: int) -> Tensor | slice:
    """Return a mask as a bool tensor, row numbers and slices that run backwards as int64, other slices unchanged."""
    if isinstance(rows, slice):
        backwards = range(*rows.indices(num_rows))
        return rows if backwards.step > 0 else torch.tensor(backwards, dtype=torch.int64)
    values = as_tensor(rows, "rows")
    is_mask = values.dtype == torch.bool or (not isinstance(rows, Tensor) and np.asarray(rows).dtype == bool)
    if values.ndim != 1 or (values.is_floating_point() and len(values)) or (is_mask and len(values) != num_rows):
        got = f"{'bool' if is_mask else str(values.dtype).removeprefix('torch.')} values of shape {tuple(values.shape)}"
        expected = f"a slice, a boolean mask of length {num_rows}, or row numbers in one dimension"
        raise InputError(f"`rows` must be {expected}, got {got}: for a single row i pass [i].")
    numbers = values.bool() if is_mask else values.long()
    if not is_mask and len(outside := numbers[(numbers < -num_rows) | (numbers >= num_rows)]):
        raise InputError(f"Row numbers must lie below the {num_rows} rows, got {outside[0]}: check `rows`.")
    return numbers


def column_names(given: Sequence[str] | None, frame: Any, x: X) -> tuple[str, ...]:
    """Return the names of the columns of x: as given, from the data frame it came from, or x0, x1, ..."""
    width = x.shape[1] if isinstance(x, Tensor) and x.ndim == 2 else 0
    names = getattr(frame, "columns", [f"x{i}" for i in range(width)]) if given is None else given
    if width and len(names) != width:
        raise InputError(f"`feature_names` must name the {width} columns of x, got {len(names)} names.")
    return tuple(str(name) for name in names)


def leaks(data: Data, columns: Mapping[str, Sequence[int]] | None = None) -> dict[str, str]:
    """Return "copy" or "row number" by the name of a column, of a table of two columns and 50 rows or more.

    A line through a copy of the target explains 99.99 % of its variance, or each class, of 10 rows or more, has its own
    range of it, or its values, twice as many as classes at most, fix the class as chance almost never does. Numbers of
    rows are whole, not made of a date, and all different, as random ones of their range almost never are. Copies of a
    row share its weight, and count once. `columns` has the inputs that a column of the user's table became.
    """
    is_table = isinstance(data.x, Tensor) and data.x.ndim == 2 and data.x.shape[1] > 1 and data.y.ndim == 1
    if not is_table or len(data) < _FEWEST_ROWS:
        return {}
    x = single(data.x, "A table").detach().cpu().double()
    num, different = round(data.total_weight), 1 + (x.sort(0).values.diff(dim=0) > 0).sum(0)
    by_chance = (-(num**2) / (2 * (x.amax(0) - x.amin(0)))).exp()  # of birthdays, all different
    are_numbers = (x % 1 == 0).all(0) & (different == num) & (by_chance < _RARELY_DIFFERENT)
    y, found = data.y.detach().cpu(), dict[str, str]()
    are_copies, few = _are_copies(x, y), 0 if y.is_floating_point() else 2 * len(y.unique())
    for name, at in (columns or {name: [at] for at, name in enumerate(data.feature_names)}).items():
        is_coded = 0 < len(at) <= few and int(different[at].max()) <= few
        if are_copies[at].any() or (is_coded and _fix_class(x[:, at], y, num)):
            found[name] = "copy"
        elif are_numbers[at].any() and data.feature_names[at[0]] == name:
            found[name] = "row number"
    return found


def _fix_class(x: Tensor, y: Tensor, num: int) -> bool:
    """Return whether equal rows of x (N, D) have the same class y (N,), unlike in a thousand random orders of `num`."""
    levels, sizes = x.unique(dim=0, return_inverse=True)[1], y.unique(return_counts=True)[1].double() * num / len(y)
    num_levels, num_pairs = 1 + int(levels.max()), len(torch.stack([levels, y], 1).unique(dim=0))
    by_chance = float((sizes + 1).lgamma().sum()) - math.lgamma(num + 1) + num_levels * math.log(len(sizes))
    return num_pairs == num_levels and by_chance < math.log(_RARELY_DIFFERENT)


def _are_copies(x: Tensor, y: Tensor) -> Tensor:
    """Return whether each column of x (N, D) alone gives the targets y (N,), numbers or classes, (D,)."""
    if y.is_floating_point():
        x, y = (Scaler.fit(values).transform(values) for values in (x, y.double()))
        return (x * y[:, None]).mean(0) ** 2 > _ALMOST
    _, classes, sizes = y.unique(return_inverse=True, return_counts=True)
    if len(sizes) == 1 or int(sizes.min()) < _FEWEST_OF_A_CLASS:
        return torch.zeros(x.shape[1], dtype=torch.bool)
    empty, of_class = x.new_empty(len(sizes), x.shape[1]), classes[:, None].expand_as(x)
    low, high = (empty.scatter_reduce(0, of_class, x, how, include_self=False) for how in ("amin", "amax"))
    order = low.argsort(0)
    return (high.gather(0, order)[:-1] < low.gather(0, order)[1:]).all(0)
