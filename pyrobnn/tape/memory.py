"""Where the numbers of values lie: in one piece of memory, those that live at the same time beside each other."""

import ctypes
import struct
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import NotCapturable
from pyrobnn.tape.values import BYTES, DTYPES, EACH, Group, Ref, Storage, Value, numel

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
        self.readers = _readers([value for group in (*once, *steps) for value in group])
        first, last = dict[Storage, int](), dict[Storage, int]()
        stays = {root(value.storage) for group in once for value in group}
        for index, group in enumerate(steps):
            inside = set(group)
            for value in group:
                storages = [root(value.storage)] if self.is_needed(value, inside) else []
                storages += [
                    root(ref.value.storage)
                    for ref in value.inputs
                    if ref.value not in inside and ref.value.what != "number"
                ]
                if value.what in ("call", "call!"):
                    storages += [root(part.storage) for _, part in value.more[2]]
                for storage in storages:
                    first.setdefault(storage, index)
                    last[storage] = index
        stays |= {
            root(ref.value.storage)
            for group in once
            for value in group
            for ref in value.inputs
            if ref.value.what != "number"
        }
        stays |= {
            root(part.storage) for group in once for value in group if value.what == "call" for _, part in value.more[2]
        }
        spans: list[tuple[int, Storage, int, int]] = []
        for storage in {*first, *stays}:
            if storage.tensor is not None:
                self._addresses[storage] = storage.tensor.data_ptr()
            elif storage.numbers:
                size = -(-storage.numbers * BYTES[storage.kind] // ALIGNED) * ALIGNED
                span = (-1, len(steps)) if storage in stays else (first[storage], last[storage])
                spans.append((size, storage, *span))
        total, placed = 0, list[tuple[int, int, int, int]]()
        for size, storage, start, end in sorted(spans, key=lambda span: (-span[0], span[2])):
            at = 0
            for other, room, begins, ends in placed:  # by their addresses
                if begins <= end and start <= ends:
                    if at + size <= other:
                        break
                    at = max(at, other + room)
            placed.append((at, size, start, end))
            placed.sort()
            self._addresses[storage] = at
            total = max(total, at + size)
        self._arena = torch.zeros(total + ALIGNED, dtype=torch.uint8)
        begin = -(-self._arena.data_ptr() // ALIGNED) * ALIGNED
        for _, storage, _, _ in spans:
            self._addresses[storage] += begin

    def is_needed(self, value: Value, inside: set[Value]) -> bool:
        """Return whether what a value of a group writes is read elsewhere, or stays."""
        storage = root(value.storage)
        is_alone = storage is value.storage and storage.tensor is None and not storage.changes and value.next is None
        return (
            not is_alone
            or value.what not in EACH
            or any(reader not in inside for reader in self.readers.get(value, ()))
        )

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
        key = (ref.kind, repr(ref.value.more))
        if key not in self._numbers:
            form = {"f32": "f", "f64": "d", "i64": "q", "b8": "?"}[ref.kind]
            self._numbers[key] = self.keep(struct.pack(form, ref.value.more))
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
        dtype = DTYPES[ref.kind]
        if ref.value.what == "number":
            return torch.full(ref.size, ref.value.more, dtype=dtype)
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


def _readers(values: list[Value]) -> dict[Value, list[Value]]:
    readers: dict[Value, list[Value]] = {}
    for value in values:
        for ref in dict.fromkeys(value.inputs):
            readers_of_value = readers.setdefault(ref.value, [])
            if value not in readers_of_value:
                readers_of_value.append(value)
    return readers
