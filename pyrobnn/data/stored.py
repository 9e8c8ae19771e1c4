"""Data that stay in their files: NumPy arrays mapped from disk, and Parquet read by row groups."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pyrobnn._core.checks import check_count, check_flag
from pyrobnn._core.errors import InputError
from pyrobnn._core.waiting import progress_bar
from pyrobnn.data.arrays import ArrayStore
from pyrobnn.data.in_memory import Data, Moments, Scaler, column_names, row_index

_HEAD = 2
"""Examples that are kept to look at."""


@runtime_checkable
class Block(Protocol):
    """Examples that are shuffled together."""

    @property
    def size(self) -> int:
        """The number of examples."""
        ...

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples of these rows of the block, in this order."""
        ...


class StoredData:
    """Examples that are read from files during a fit, for `fit` in place of `Data`.

    A first pass over the files makes the checks of `Data`, and computes the scaling. Afterwards a fit holds a batch at
    a time and 8 bytes per example for the order (NumPy), or a few row groups (Parquet).

    Methods that take batches accept stored data: `SVI` in both engines, Laplace and its tuning, SGLD and SGHMC. NUTS,
    ensembles and diagnostics need all data at once: give them some rows, `data[rows]`, which are `Data` in memory. To
    predict, go through `parts`. Every example counts once: weights are for `Data`.

    See docs/how-to/large-data.md.

    Attributes:
        standardize: as in `Data`.
        feature_names: a name per column of x.
        target_name: name of the target.
        classes: names of the classes 0, ..., C - 1 of a target of text; else empty.
        x_scaler: map of the inputs, the identity if they are not standardised.
        y_scaler: map of the targets, likewise; used if the likelihood is for real values.
        head: inputs and targets of the first examples.
        fingerprint: a SHA-256 of all examples, and whether they are standardised, in words.

    Examples:
        >>> import numpy as np
        >>> x = np.linspace(-1.0, 1.0, 100, dtype=np.float32)[:, None]
        >>> np.save("x.npy", x)
        >>> np.save("y.npy", np.sin(3 * x[:, 0]))
        >>> data = bnn.StoredData.from_numpy("x.npy", "y.npy", standardize=True, progress=False)
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(data, batch_size=20, steps=20, seed=0, progress=False)
        >>> [len(posterior.predict(part.x)) for part in data.parts(40)]
        [40, 40, 20]
    """

    head: tuple[Tensor, Tensor]
    fingerprint: str

    def __init__(
        self, store: Any, *, standardize: bool, feature_names: Sequence[str], target_name: str, progress: bool
    ) -> None:
        self._store = store
        self.standardize = check_flag(standardize, "standardize")
        self.feature_names = tuple(feature_names)
        self.target_name = target_name
        self.classes: tuple[str, ...] = getattr(store, "classes", ())
        self.x_scaler = self.y_scaler = Scaler.identity()
        self._read_through(progress=progress)

    @classmethod
    def from_numpy(
        cls,
        x: Any,
        y: Any,
        *,
        standardize: bool = False,
        feature_names: Sequence[str] | None = None,
        target_name: str = "y",
        progress: bool = True,
    ) -> "StoredData":
        """Return the examples of two NumPy arrays.

        Batches are the same as from `Data` with the same arrays and seed, so a fit ends in the same bits.

        Args:
            x: inputs (N, *in): path of a .npy file, or an array such as `numpy.load(path, mmap_mode="r")`.
            y: targets (N,) or (N, K), likewise; integers and booleans stay labels.
            standardize: as in `Data`.
            feature_names: as in `Data`.
            target_name: as in `Data`.
            progress: show a progress bar for the pass over the files.

        Raises:
            InputError: values that `Data` refuses, with file, row and column; or a file that cannot be mapped.

        Examples:
            >>> import numpy as np
            >>> np.save("x.npy", np.zeros((100, 3)))
            >>> data = bnn.StoredData.from_numpy("x.npy", np.arange(100), progress=False)
            >>> len(data), data.feature_names
            (100, ('x0', 'x1', 'x2'))
        """
        store = ArrayStore(x, y)
        names = column_names(feature_names, None, store.outline)
        return cls(store, standardize=standardize, feature_names=names, target_name=target_name, progress=progress)

    @classmethod
    def from_parquet(
        cls,
        files: str | Path | Sequence[str | Path],
        target: str,
        *,
        features: Sequence[str] | None = None,
        standardize: bool = False,
        progress: bool = True,
    ) -> "StoredData":
        """Return the examples of Parquet files with a target column.

        Each epoch takes row groups in a random order, and shuffles together as many as fit in 16 MB, at least two.
        Every example comes once. Sorted files should have small row groups, of about 10,000 rows, so that many are
        shuffled together; large row groups take more memory.

        Args:
            files: a file, a folder of .parquet files, in the order of their names, or a list of files.
            target: name of the target column. Integers and booleans stay labels; text becomes the classes 0, ..., C - 1
                in the order of their names.
            features: names of the feature columns, numeric or boolean; all columns but the target if not given.
            standardize: as in `Data`.
            progress: show a progress bar for the pass over the files.

        Raises:
            InputError: no such file or column, a column of another kind, or missing or infinite values, with file, row
                and column.

        Examples:
            >>> import pandas as pd
            >>> frame = pd.DataFrame({"size": [50.0, 70.0, 90.0], "kind": ["flat", "flat", "house"]})
            >>> frame.to_parquet("homes.parquet")
            >>> data = bnn.StoredData.from_parquet("homes.parquet", target="kind", progress=False)
            >>> data.feature_names, data.classes
            (('size',), ('flat', 'house'))
        """
        from pyrobnn.data.parquet import ParquetStore

        store = ParquetStore(files, target, features)
        return cls(store, standardize=standardize, feature_names=store.features, target_name=target, progress=progress)

    def __len__(self) -> int:
        """Return N, the number of examples."""
        return self._store.num_rows

    def __repr__(self) -> str:
        names = ", ".join(self._store.names[:2]) + (", ..." if len(self._store.names) > 2 else "")
        return f"StoredData({len(self)} examples in {names}, standardize={self.standardize})"

    def __getitem__(self, rows: Any) -> Data:
        """Return some rows as `Data` in memory: a slice, a boolean mask of length N, or row numbers."""
        return self._in_memory(*self._store.take(torch.arange(len(self))[row_index(rows, len(self))]))

    def _in_memory(self, x: Tensor, y: Tensor) -> Data:
        names = self.feature_names if x.ndim == 2 else None
        return Data(x, y, standardize=self.standardize, feature_names=names, target_name=self.target_name)

    def parts(self, num_rows: int = 10_000) -> Iterator[Data]:
        """Return all examples in order as `Data` in memory, in parts of at most that many.

        Examples:
            >>> import numpy as np
            >>> data = bnn.StoredData.from_numpy(np.zeros((100, 3)), np.arange(100), progress=False)
            >>> [len(part) for part in data.parts(40)]
            [40, 40, 20]
        """
        check_count(num_rows, "num_rows")
        for x, y in self._store.chunks():
            for pair in zip(x.split(num_rows), y.split(num_rows), strict=True):
                yield self._in_memory(*pair)

    def check_targets(self, check: Callable[[Tensor], None]) -> None:
        """Run a check on all targets, a part at a time; a refusal names the place in the files."""
        check(torch.zeros_like(self.head[1]))
        start = 0
        for y in self._store.target_chunks():
            first = _first_refused(check, y)
            if first is not None:
                row, error = first
                place = self._store.place(start + row, of_target=True)
                raise InputError(f"{error} The first such target is in {place}.")
            start += len(y)

    def blocks(self, generator: torch.Generator) -> Iterator[Block]:
        """Return the blocks of examples that an epoch shuffles together, in a random order."""
        return iter(self._store.blocks(generator))

    @property
    def x(self) -> Tensor:
        """All inputs at once, which `Data` has and these do not."""
        return self._refuse("x")

    @property
    def y(self) -> Tensor:
        """All targets at once, which `Data` has and these do not."""
        return self._refuse("y")

    def _refuse(self, name: str) -> Any:
        raise InputError(
            f"All data are needed in memory here (`{name}`), and StoredData stay in their files: pass some of their "
            "rows, such as data[:1000], or go through data.parts().",
            page="how-to/large-data",
        )

    def _read_through(self, *, progress: bool) -> None:
        """Check every value, and find the scaling."""
        x_moments, y_moments, total = Moments(), Moments(), hashlib.sha256()
        start = 0
        with progress_bar(total=len(self), desc="Reading", unit="example", shown=progress, leave=False) as bar:
            for x, y in self._store.chunks():
                self._check_finite(x, start, of_target=False)
                self._check_finite(y, start, of_target=True)
                if self.standardize:
                    x_moments.add(x)
                    y_moments.add(y)
                for values in (x, y):
                    total.update(values.contiguous().reshape(-1).view(torch.uint8).numpy())
                if not start:
                    self.head = x[:_HEAD].clone(), y[:_HEAD].clone()
                start += len(x)
                bar.update(len(x))
        if self.standardize:
            self.x_scaler, self.y_scaler = x_moments.scaler(), y_moments.scaler()
        self.fingerprint = f"{total.hexdigest()}, standardize={self.standardize}"

    def _check_finite(self, values: Tensor, start: int, *, of_target: bool) -> None:
        if not values.is_floating_point() or bool(torch.isfinite(values).all()):
            return
        row, *column = (~torch.isfinite(values)).nonzero()[0].tolist()
        place = self._store.place(start + row, of_target=of_target)
        names = [self.target_name] if of_target and not column else [] if of_target else self.feature_names
        name = names[column[0] if column else 0] if len(column) < 2 and names else tuple(column)
        raise InputError(
            f"Values must be finite, got {float(values[row, *column])} in column {name!r}, {place}: drop or impute "
            "such rows."
        )


def _first_refused(check: Callable[[Tensor], None], y: Tensor) -> tuple[int, InputError] | None:
    """Return the first row that a check refuses, and the refusal, by bisection."""
    try:
        check(y)
    except InputError as error:
        if len(y) == 1:
            return 0, error
        half = len(y) // 2
        before = _first_refused(check, y[:half])
        if before is not None:
            return before
        after = _first_refused(check, y[half:])
        return (half + after[0], after[1]) if after is not None else (0, error)
    return None
