"""Where the numbers of values lie: in one piece of memory, those that live at the same time beside each other."""

import ctypes
import struct
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import NotCapturable
from pyrobnn.tape.values import BYTES, DTYPES, EACH, Group, Ref, Storage, Value, numel, read_by

ALIGNED = 64
"""Bytes at whose multiples storages begin."""


class Memory:
    """Gives storages their places: of groups computed once at each call, whose results stay, and of those of a step.

    `readers` has those that read each value.
    """

    def __init__(self, once: list[Group], steps: list[Group]) -> None:
        self._kept: list[Any] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._addresses: dict[Storage, int] = {}
        self.readers = read_by([value for group in (*once, *steps) for value in group])
        lives = self._lives(steps) | dict.fromkeys(_staying(once), (-1, len(steps)))
        sizes = {
            storage: -(-storage.numbers * BYTES[storage.kind] // ALIGNED) * ALIGNED
            for storage in lives
            if storage.tensor is None and storage.numbers
        }
        places, total = _places(sizes, lives)
        self._arena = torch.zeros(total + ALIGNED, dtype=torch.uint8)
        begin = -(-self._arena.data_ptr() // ALIGNED) * ALIGNED
        for storage in lives:
            if storage.tensor is not None:
                self._addresses[storage] = storage.tensor.data_ptr()
            elif storage in places:
                self._addresses[storage] = begin + places[storage]

    def _lives(self, steps: list[Group]) -> dict[Storage, tuple[int, int]]:
        """Return the first and the last group of a step that use each storage."""
        lives: dict[Storage, tuple[int, int]] = {}
        for index, group in enumerate(steps):
            inside = set(group)
            for value in group:
                used = [value.storage] if self.is_needed(value, inside) else []
                used += [read.storage for read in _read(value) if read not in inside]
                for storage in map(root, [*used, *_parts(value)]):
                    lives[storage] = lives.get(storage, (index, index))[0], index
        return lives

    def is_needed(self, value: Value, inside: set[Value]) -> bool:
        """Return whether what a value of a group writes is read elsewhere, or stays."""
        storage = root(value.storage)
        is_alone = storage is value.storage and storage.tensor is None and not storage.changes and value.next is None
        return not (is_alone and value.what in EACH and inside.issuperset(self.readers.get(value, ())))

    def address(self, ref: Ref) -> int:
        """Return where numbers lie."""
        if ref.value.what == "number":
            return self._constant(ref)
        storage, offset = root(ref.value.storage), ref.offset + start(ref.value.storage)
        place = self._addresses[storage] + offset * BYTES[storage.kind]
        reach = sum((n - 1) * s for n, s in zip(ref.size, ref.stride, strict=True)) if numel(ref.size) else -1
        if offset < 0 or offset + reach >= storage.numbers:
            raise NotCapturable("a step reaches beyond its tensors")
        return place

    def _constant(self, ref: Ref) -> int:
        key = (ref.kind, repr(ref.value.number))
        if key not in self._numbers:
            form = {"f32": "f", "f64": "d", "i64": "q", "b8": "?"}[ref.kind]
            self._numbers[key] = self.keep(struct.pack(form, ref.value.number))
        return self._numbers[key]

    def keep(self, data: bytes) -> int:
        """Return the address of a copy of data, which stays."""
        buffer = ctypes.create_string_buffer(len(data) + ALIGNED)
        self._kept.append(buffer)
        address = -(-ctypes.addressof(buffer) // ALIGNED) * ALIGNED
        ctypes.memmove(address, data, len(data))
        return address

    def tensor(self, ref: Ref) -> Tensor:
        """Return numbers as a tensor, for ATen."""
        dtype, number = DTYPES[ref.kind], ref.number()
        if number is not None:
            return torch.full(ref.size, number, dtype=dtype)
        storage, offset = root(ref.value.storage), ref.offset + start(ref.value.storage)
        if storage.tensor is not None:
            return storage.tensor.as_strided(ref.size, ref.stride, offset)
        at = self._addresses.get(storage, self._arena.data_ptr()) - self._arena.data_ptr()
        whole = self._arena[at : at + storage.numbers * BYTES[storage.kind]].view(dtype)
        return whole.as_strided(ref.size, ref.stride, whole.storage_offset() + offset)


def root(storage: Storage) -> Storage:
    """Return the storage of which one is a part, or itself."""
    while storage.parent is not None:
        storage = storage.parent[0]
    return storage


def start(storage: Storage) -> int:
    """Return the number of its root with which a storage begins."""
    return 0 if storage.parent is None else storage.parent[1] + start(storage.parent[0])


def _read(value: Value) -> list[Value]:
    return [ref.value for ref in value.inputs if ref.value.what != "number"]


def _parts(value: Value) -> list[Storage]:
    """Return the storages of the results of a call of ATen."""
    return [] if value.call is None else [part.storage for _, part in value.call.parts]


def _staying(once: list[Group]) -> set[Storage]:
    """Return the storages that groups computed once at each call read and write."""
    values = [value for group in once for value in group]
    used = (storage for v in values for storage in (v.storage, *(read.storage for read in _read(v)), *_parts(v)))
    return set(map(root, used))


def _places(sizes: dict[Storage, int], lives: dict[Storage, tuple[int, int]]) -> tuple[dict[Storage, int], int]:
    """Return where storages begin, the largest first at the first gap that is free all their life; and the whole."""
    places, total = dict[Storage, int](), 0
    placed = list[tuple[int, int, int, int]]()
    for storage in sorted(sizes, key=lambda storage: (-sizes[storage], lives[storage][0])):
        at, size, (start, end) = 0, sizes[storage], lives[storage]
        for other, room, begins, ends in placed:  # by their addresses
            if begins <= end and start <= ends:
                if at + size <= other:
                    break
                at = max(at, other + room)
        placed.append((at, size, start, end))
        placed.sort()
        places[storage], total = at, max(total, at + size)
    return places, total
