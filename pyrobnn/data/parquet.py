"""Examples in Parquet files, read by row groups."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from pyrobnn._core.checks import as_tensor
from pyrobnn._core.errors import InputError, did_you_mean
from pyrobnn._core.sealed_files import SealedFile
from pyrobnn.data.arrays import rows_at_once

BLOCK_BYTES = 2**24
"""Bytes of the examples that are shuffled together, at most, unless two row groups have more."""
_MOST_CLASSES = 1000


class ParquetStore:
    """The columns of one or several Parquet files, with a target column.

    Args:
        files: a file, a folder of files, or a list, in the order of the rows.
        target: name of the target column; text becomes classes 0, ..., C - 1 in the order of their names.
        features: names of the feature columns; all but the target if not given.

    Attributes:
        num_rows: N.
        names: the files.
        features: names of the feature columns.
        classes: names of the classes of a target of text, else empty.

    Raises:
        InputError: no files, not Parquet, or a column that is missing, not numeric, or has missing values.
    """

    def __init__(self, files: Any, target: str, features: Sequence[str] | None) -> None:
        self._files = [_File(path) for path in _paths(files)]
        self.names = tuple(str(file.path) for file in self._files)
        self.num_rows = sum(file.metadata.num_rows for file in self._files)
        columns = [name for name in self._files[0].types if name != target and not name.startswith("__index_level_")]
        self.features = tuple(columns if features is None else features)
        self._target = target
        self._check_columns()
        self._x_type = np.result_type(*[file.dtype(name) for file in self._files for name in self.features])
        self._groups = [(file, index) for file in self._files for index in range(file.metadata.num_row_groups)]
        self.sizes = [file.metadata.row_group(index).num_rows for file, index in self._groups]
        self._starts = np.cumsum([0, *self.sizes])
        self.classes = self._find_classes() if self._files[0].is_text(target) else ()

    def _check_columns(self) -> None:
        if self.num_rows == 0:
            raise InputError(f"{self.names[0]} has no rows: pass Parquet files with rows.")
        if not self.features or self._target in self.features:
            raise InputError(f"`features` must name one column or more beside the target {self._target!r}.")
        is_text = self._files[0].is_text(self._target)
        for file in self._files:
            for name in (*self.features, self._target):
                file.check_column(name, is_text=is_text and name == self._target)

    def _find_classes(self) -> tuple[str, ...]:
        texts: set[str] = set()
        for table in self._tables([self._target]):
            texts.update(map(str, pc.unique(table.column(0)).to_pylist()))
            if len(texts) > _MOST_CLASSES:
                raise InputError(
                    f"The target {self._target!r} holds more than {_MOST_CLASSES} distinct texts, which are hardly "
                    "classes: encode it as numbers."
                )
        if len(texts) < 2:
            raise InputError(f"The target {self._target!r} has only one class, {texts.pop()!r}: pass at least two.")
        return tuple(sorted(texts))

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return all examples in order, a stretch at a time."""
        for table in self._tables([*self.features, self._target]):
            yield self._examples(table)

    def target_chunks(self) -> Iterator[Tensor]:
        """Return all targets in order, a stretch at a time."""
        for table in self._tables([self._target]):
            yield self._targets(table)

    def _tables(self, columns: list[str]) -> Iterator[Any]:
        size = rows_at_once(len(columns))
        for file in self._files:
            with file.open(metadata=file.metadata) as opened:
                start = 0
                for batch in opened.iter_batches(size, columns=columns):
                    file.check_missing(batch, start)
                    start += len(batch)
                    yield batch
                    file.check()

    def read(self, groups: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the examples of some row groups, in order."""
        parts = []
        for file, some in itertools.groupby((self._groups[group] for group in groups), key=lambda pair: pair[0]):
            with file.open(metadata=file.metadata) as opened:
                parts += [self._examples(opened.read_row_group(i, [*self.features, self._target])) for _, i in some]
        x, y = zip(*parts, strict=True)
        return torch.cat(x), torch.cat(y)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples of these rows, in this order; memory holds one row group at a time."""
        groups = np.searchsorted(self._starts, rows.numpy(), side="right") - 1
        parts, order = [], []
        for group in np.unique(groups):
            chosen = np.flatnonzero(groups == group)
            x, y = self.read([int(group)])
            inside = rows[chosen] - int(self._starts[group])
            parts.append((x[inside], y[inside]))
            order.append(chosen)
        back = torch.from_numpy(np.argsort(np.concatenate(order)))
        x, y = (torch.cat(values)[back] for values in zip(*parts, strict=True))
        return x, y

    def blocks(self, generator: torch.Generator) -> "Iterator[Block]":
        """Return the blocks of row groups whose examples are shuffled together, in a random order."""
        numbers = self._x_type.itemsize * len(self.features) + 8
        at_once = max(2, BLOCK_BYTES * len(self.sizes) // (numbers * self.num_rows))
        order = torch.randperm(len(self.sizes), generator=generator)
        return (Block(self, some.tolist()) for some in order.split(at_once))

    def place(self, row: int, *, of_target: bool) -> str:
        """Say where a row stands."""
        for file in self._files:
            if row < file.metadata.num_rows:
                return f"row {row} of {file.path}"
            row -= file.metadata.num_rows
        raise IndexError(row)

    def _examples(self, table: Any) -> tuple[Tensor, Tensor]:
        x = np.empty((len(table), len(self.features)), self._x_type)
        for index, name in enumerate(self.features):
            x[:, index] = table.column(name).to_numpy(zero_copy_only=False)
        return as_tensor(x, "x"), self._targets(table)

    def _targets(self, table: Any) -> Tensor:
        column = table.column(self._target)
        if not self.classes:
            return as_tensor(column.to_numpy(zero_copy_only=False), self._target)
        return as_tensor(np.searchsorted(self.classes, np.array(column.to_pylist(), str)), self._target)


class Block:
    """Row groups whose examples are shuffled together; they are read when the first example is taken.

    Attributes:
        size: number of examples.
    """

    def __init__(self, store: ParquetStore, groups: Sequence[int]) -> None:
        self._store, self._groups = store, groups
        self.size = sum(store.sizes[group] for group in groups)
        self._examples: tuple[Tensor, Tensor] | None = None

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples of these rows of the block, in this order."""
        if self._examples is None:
            self._examples = self._store.read(self._groups)
        x, y = self._examples
        return x.index_select(0, rows), y.index_select(0, rows)


class _File:
    """A Parquet file: its footer and its columns."""

    def __init__(self, path: Path) -> None:
        self._sealed = SealedFile.of(path)
        self.path = path
        with self.open() as opened:
            self.metadata = opened.metadata
            self.types = {field.name: field.type for field in opened.schema_arrow}

    def check(self) -> None:
        """Refuse a file that is no longer the same."""
        self._sealed.check()

    @contextmanager
    def open(self, **options: Any) -> Iterator[Any]:
        """Open the file for a block that reads it."""
        self.check()
        try:
            # else all row groups that are still to come are read ahead and held
            with pq.ParquetFile(self.path, pre_buffer=False, **options) as opened:
                yield opened
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise InputError(f"{self.path} cannot be read as Parquet ({reason}): write it anew.") from None

    def check_column(self, name: str, *, is_text: bool) -> None:
        """Refuse a missing column, and a column that is not numeric, or not text if `is_text`."""
        if name not in self.types:
            raise InputError(
                f"{self.path} has no column {name!r}.{did_you_mean(name, self.types)} "
                f"Its columns: {', '.join(self.types)}."
            )
        if is_text != self.is_text(name) or (not is_text and self.dtype(name) is None):
            expected = "text, as in the first file" if is_text else "numeric or boolean"
            raise InputError(
                f"Column {name!r} of {self.path} must be {expected}, got {self.types[name]}: encode it or leave it out."
            )

    def check_missing(self, batch: Any, start: int) -> None:
        """Refuse missing values in a stretch of the file that begins at a row."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count:
                row = start + pc.index(column.is_null(), value=True).as_py()
                raise InputError(
                    f"Column {name!r} has a missing value in row {row} of {self.path}: drop or impute such rows."
                )

    def dtype(self, name: str) -> Any:
        """Return NumPy's type of a column of numbers or truth values, else None."""
        kind = self.types[name]
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        return np.dtype(kind.to_pandas_dtype()) if numeric else None

    def is_text(self, name: str) -> bool:
        """Return whether a column holds text, also as categories."""
        kind = self.types.get(name, pa.null())
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _paths(files: Any) -> list[Path]:
    """Return the files that a path, a folder or a list of paths stands for."""
    if isinstance(files, (list, tuple)):
        paths = [Path(path) for path in files]
    else:
        path = Path(files)
        paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise InputError(f"There is no .parquet file in {files}: pass a file, a folder with some, or a list.")
    return paths
