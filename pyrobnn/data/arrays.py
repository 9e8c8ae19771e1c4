"""Examples in NumPy arrays; arrays in files are read a few rows at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.checks import as_targets, as_tensor, check_inputs
from pyrobnn._core.errors import InputError
from pyrobnn._core.sealed_files import SealedFile

CHUNK_BYTES = 2**23
"""Bytes of the examples in a step of a pass, counted in float64."""


class ArrayStore:
    """Inputs (N, *in) and targets (N,) or (N, K), each an array or the path of a .npy file.

    Attributes:
        num_rows: N.
        names: files or arrays, for messages.

    Raises:
        InputError: no such file, not an array of numbers, empty, of the wrong rank, or of unequal length.
    """

    def __init__(self, x: Any, y: Any) -> None:
        self._x, self._y = _Array(x, "x"), _Array(y, "y")
        check_inputs(self._x.outline)
        as_targets(self._y.outline, len(self._x.outline))
        self.num_rows = len(self._x.outline)
        self.names = (self._x.name, self._y.name)
        self.outline = self._x.outline
        self._row_numbers = self.outline[0].numel() + self._y.outline[0].numel()

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the examples of these rows, in this order."""
        return self._x.take(rows), _targets(self._y.take(rows))

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return all examples in order, a stretch at a time."""
        for rows in _stretches(self.num_rows, self._row_numbers):
            yield self._x.read(rows), _targets(self._y.read(rows))

    def target_chunks(self) -> Iterator[Tensor]:
        """Return all targets in order, a stretch at a time."""
        for rows in _stretches(self.num_rows, self._y.outline[0].numel()):
            yield _targets(self._y.read(rows))

    def place(self, row: int, *, of_target: bool) -> str:
        """Say where a row stands."""
        return f"row {row} of {self.names[of_target]}"

    @property
    def size(self) -> int:
        """The number of examples of the only block."""
        return self.num_rows

    def blocks(self, generator: torch.Generator) -> "list[ArrayStore]":
        """Return the blocks of examples that are shuffled together: a single block of all."""
        return [self]


class _Array:
    """An array, and the file that it is mapped from, if any.

    Rows that are contiguous in the file are read from it and not through the map. Pages of the map would count as
    memory of the process, and its end would crash the process if the file became shorter.
    """

    def __init__(self, given: Any, name: str) -> None:
        self._values = values = _opened(given, name)
        root, base = values, values.base
        while isinstance(base, np.ndarray):
            root, base = base, base.base
        self._file = SealedFile.of(Path(root.filename)) if isinstance(root, np.memmap) and root.filename else None
        self.name = f"`{name}`" if self._file is None else str(self._file.path)
        as_tensor(values[:0], name)  # refuses values that are not numbers
        self.outline = torch.zeros((), dtype=torch.bool).expand(values.shape)
        """A tensor of the same shape without values."""
        self._offset: int | None = None
        """Where the first row stands in the file, if rows can be read from it."""
        if isinstance(root, np.memmap) and root.mode != "c" and values[:1].flags.c_contiguous and values.strides[0] > 0:
            self._offset = root.offset + values.ctypes.data - root.ctypes.data

    def take(self, rows: Tensor) -> Tensor:
        """Return some rows, read in the order of the file."""
        ordered, order = rows.sort()
        values = self.read(ordered.tolist())
        return torch.empty_like(values).index_copy_(0, order, values)

    def read(self, rows: Sequence[int]) -> Tensor:
        """Return a copy of some rows."""
        if self._file is None:
            return as_tensor(self._values[rows], self.name)
        self._file.check()
        values = self._values[rows] if self._offset is None else self._from_file(self._file, self._offset, rows)
        self._file.check()
        return as_tensor(values, self.name)

    def _from_file(self, file: SealedFile, offset: int, rows: Sequence[int]) -> np.ndarray:
        rows_read = np.empty((len(rows), *self._values.shape[1:]), self._values.dtype)
        if not len(rows):
            return rows_read
        bytes_of_rows, step = rows_read.reshape(len(rows), -1).view(np.uint8), self._values.strides[0]
        dense = isinstance(rows, range) and step == bytes_of_rows.shape[1]
        with open(file.path, "rb", buffering=0) as opened:
            for row, place in [(rows[0], bytes_of_rows)] if dense else zip(rows, bytes_of_rows, strict=True):
                opened.seek(offset + row * step)
                _fill(opened, place)
        return rows_read


def _fill(opened: Any, place: np.ndarray) -> None:
    """Read into an array until it is full; the system may give less at a time."""
    rest = memoryview(place.reshape(-1))
    while rest:
        count = opened.readinto(rest)
        if not count:
            raise InputError(f"{opened.name} ended early: leave files alone during a fit, and open the data anew.")
        rest = rest[count:]


def _opened(given: Any, name: str) -> np.ndarray:
    if isinstance(given, np.ndarray):
        values = given
    elif isinstance(given, (str, Path)):
        try:
            values = np.load(given, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0].rstrip(".")
            raise InputError(f"{given} cannot be mapped as an array ({reason}): save it with numpy.save.") from None
    else:
        raise InputError(
            f"`{name}` must be the path of a .npy file or a NumPy array, such as numpy.load(path, mmap_mode='r'), got "
            f"{type(given).__name__}."
        )
    if not isinstance(values, np.ndarray):
        raise InputError(f"{given} holds several arrays, which cannot be mapped: save each in a separate .npy file.")
    if values.ndim == 0:
        raise InputError(f"`{name}` must have an axis of examples, got a single number.")
    return values


def _targets(values: Tensor) -> Tensor:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _stretches(num_rows: int, numbers_in_row: int) -> Iterator[range]:
    size = rows_at_once(numbers_in_row)
    return (range(start, min(start + size, num_rows)) for start in range(0, num_rows, size))


def rows_at_once(numbers_in_row: int) -> int:
    """Return the number of rows in a step of a pass."""
    return max(1, CHUNK_BYTES // (8 * max(1, numbers_in_row)))
