"""Groups of values as lanes, which go through their numbers block by block."""

import struct
from typing import Any

from pyrobnn._core.errors import NotCapturable
from pyrobnn.tape import runner
from pyrobnn.tape.memory import ALIGNED, Memory, root
from pyrobnn.tape.values import BYTES, COMPARED, Group, Ref, Size, Value, dense, domain, numel

BLOCK = 512
"""Numbers of a block: its lanes hand on 2 KiB each."""
_PARALLEL = 2**17
"""Numbers that the lanes of a group make together from which on threads share them."""
_LANE, _GROUP, _SUM = struct.Struct("=q" + "qii" * 4 + "q"), struct.Struct("=6q"), struct.Struct("=3q")
Operand = tuple[str, int, int]
"""Where a lane finds numbers: "stream", "scalar", "slot" or "at"; an address, or the number of a slot; bytes of one."""


class Lanes:
    """Writes a group of values as lanes; `scratch` are the bytes that each thread needs for what lanes hand on."""

    def __init__(self, memory: Memory, group: Group, threads: int) -> None:
        self._memory, self._threads, self.scratch = memory, threads, 0
        self._values = sorted(group, key=lambda value: value.order)
        self._inside = set(group)
        self._size = domain(group[0])
        first = next((v.place for v in self._values if v.what != "sum"), None) or group[0].inputs[0]
        stride = first.squeezed()[1]
        self._axes = sorted(range(len(self._size)), key=lambda d: -stride[d])
        self._sizes = tuple(self._size[d] for d in self._axes)
        self._numbers = numel(self._size)
        self._block = min(BLOCK, -(-self._numbers // 64) * 64)
        self._lanes: list[tuple[str, list[Any], list[int] | None]] = []
        self._where: dict[Any, Operand] = {}
        self._count = 0
        self._sums: list[bytes] = []

    def written(self) -> tuple[int, int]:
        """Return by how many threads to run the group, and its address."""
        readers = self._memory.readers
        uses = {value: [r for r in readers.get(value, ()) if r in self._inside] for value in self._values}
        merged = self._merged_products(uses)
        moved = self._written_at_once(merged)
        for value in self._values:
            if value not in merged and value not in moved.values():
                self._write(value, merged, moved)
        work = self._numbers * len(self._lanes)
        threads = self._threads if work >= _PARALLEL and self._numbers >= 4 * self._block else 1
        slots, self.scratch = self._slots()
        lanes = b"".join(self._packed(name, operands, more, slots) for name, operands, more in self._lanes)
        addresses = self._memory.keep(lanes), self._memory.keep(b"".join(self._sums))
        group = _GROUP.pack(self._numbers, self._block, len(self._lanes), len(self._sums), *addresses)
        return threads, self._memory.keep(group)

    def _merged_products(self, uses: dict[Value, list[Value]]) -> dict[Value, Value]:
        """Return products that only a sum or difference of something with them needs."""
        merged: dict[Value, Value] = {}
        for value in self._values:
            if value.what not in ("add", "sub") or value.kind not in ("f32", "f64"):
                continue
            for ref in value.inputs:
                factor = ref.value
                if (
                    factor in self._inside and factor.what == "mul" and len(uses[factor]) == 1
                    and len(value.inputs) == len({r.value for r in value.inputs}) and value not in merged.values()
                    and not self._memory.is_needed(factor, self._inside)
                    and not any(
                        factor.order < v.order < value.order
                        and any(_same_memory(ref, v.place) for ref in factor.inputs)
                        for v in self._values
                    )
                ):  # fmt: skip
                    merged[factor] = value
                    break
        return merged

    def _written_at_once(self, merged: dict[Value, Value]) -> dict[Value, Value]:
        """Return values that can be written where they are copied to, with the copies."""
        moved: dict[Value, Value] = {}
        for copy in self._values:
            if copy.what != "same" or copy.storage.tensor is None:
                continue
            source = copy.inputs[0].value
            if (
                source in self._inside and source not in moved and source.what != "same" and source.kind == copy.kind
                and self._is_stream(copy.place) and not self._memory.is_needed(source, self._inside)
                and not any(
                    merged.get(v, v).order > source.order and any(_same_memory(ref, copy.place) for ref in v.inputs)
                    for v in self._values
                )
            ):  # fmt: skip
                moved[source] = copy
        return moved

    def _write(self, value: Value, merged: dict[Value, Value], moved: dict[Value, Value]) -> None:
        if value.what == "sum":
            blocks = -(-self._numbers // self._block)
            partial = self._memory.keep(bytes(8 * blocks))
            operands = [("at", partial, 0), self._vector(value.inputs[0])]
            self._lanes.append((f"sum.{value.kind}", operands, [self._block]))
            number = ("f32", "f64", "i64").index(value.kind)
            self._sums.append(_SUM.pack(partial, self._memory.address(value.place), number))
            return
        what, inputs = value.what, list(value.inputs)
        factor = next((f for f in (r.value for r in inputs) if merged.get(f) is value), None)
        if factor is not None:
            other = inputs[1] if inputs[0].value is factor else inputs[0]
            what = "fma" if what == "add" else "fms" if inputs[0].value is factor else "fnma"
            inputs = [*factor.inputs, other]
        operands, form = [], ""
        for index, ref in enumerate(inputs):
            operand = self._operand(ref)
            if operand[0] == "scalar" and ((what == "where" and index == 0) or (len(inputs) == 1 and what != "same")):
                operand = self._vector(ref)
            operands.append(operand)
            form += "s" if operand[0] == "scalar" else "v"
        target, place = moved.get(value, value), value.place
        needs = self._memory.is_needed(target, self._inside)
        if needs and self._is_stream(target.place):
            out = ("stream", self._memory.address(target.place), BYTES[value.kind])
        else:
            out = self._slot(value.kind)
        kind = inputs[0].kind if what in COMPARED or what.startswith("to_") else value.kind
        name = f"{what}.{kind}.{form}".rstrip(".")
        self._lanes.append((name, [out, *operands], None))
        self._where[value] = out
        if needs and out[0] == "slot":
            operands = [("at", self._memory.address(place), 0), out]
            self._lanes.append((f"store.{value.kind}", operands, self._layout(place)))

    def _slot(self, kind: str) -> Operand:
        self._count += 1
        return "slot", self._count, BYTES[kind]

    def _operand(self, ref: Ref) -> Operand:
        """Return where a lane finds numbers, after it has put them side by side if they are not."""
        if ref.value in self._where:
            return self._where[ref.value]
        if self._numbers > 1 and ref.is_uniform():
            return "scalar", self._memory.address(ref), 0
        if self._is_stream(ref):
            return "stream", self._memory.address(ref), BYTES[ref.kind]
        key = (ref.value, ref.offset, ref.squeezed())
        if key not in self._where:
            self._where[key] = self._slot(ref.kind)
            operands = [self._where[key], ("at", self._memory.address(ref), 0)]
            self._lanes.append((f"load.{ref.kind}", operands, self._layout(ref)))
        return self._where[key]

    def _vector(self, ref: Ref) -> Operand:
        """Return the same, one for each element."""
        operand = self._operand(ref)
        if operand[0] != "scalar":
            return operand
        key = ("filled", operand)
        if key not in self._where:
            self._where[key] = self._slot(ref.kind)
            self._lanes.append((f"same.{ref.kind}.s", [self._where[key], operand], None))
        return self._where[key]

    def _strides(self, ref: Ref) -> Size:
        stride = ref.squeezed()[1]
        return tuple(stride[d] for d in self._axes)

    def _is_stream(self, ref: Ref) -> bool:
        return self._numbers == 1 or self._strides(ref) == dense(self._sizes)

    def _layout(self, ref: Ref) -> list[int]:
        """Return sizes and strides, of as few dimensions as will do."""
        sizes, strides = list[int](), list[int]()
        for n, s in zip(self._sizes, self._strides(ref), strict=True):
            if sizes and strides[-1] == n * s:
                sizes[-1], strides[-1] = sizes[-1] * n, s
            else:
                sizes.append(n)
                strides.append(s)
        if len(sizes) > 8:
            raise NotCapturable("a tensor has more than eight dimensions")
        return [len(sizes), *sizes, *strides]

    def _slots(self) -> tuple[dict[int, int], int]:
        """Return places in scratch memory, used again when what they held is not needed any more, and their size."""
        last = {
            operand[1]: index
            for index, (_, operands, _) in enumerate(self._lanes)
            for operand in operands
            if operand[0] == "slot"
        }
        free, places, size = dict[int, list[int]](), dict[int, int](), 0
        for index, (_, operands, _) in enumerate(self._lanes):
            out, *inputs = operands
            ending = {(x[1], x[2]) for x in inputs if x[0] == "slot" and last[x[1]] == index}
            for slot, width in ending:
                if width == out[2]:
                    free.setdefault(width, []).append(places[slot])
            if out[0] == "slot" and out[1] not in places:
                room = free.setdefault(out[2], [])
                if not room:
                    room.append(size)
                    size += self._block * out[2] + ALIGNED
                places[out[1]] = room.pop()
            for slot, width in ending:
                if width != out[2]:
                    free.setdefault(width, []).append(places[slot])
        return places, size

    def _packed(self, name: str, operands: list[Any], more: list[int] | None, slots: dict[int, int]) -> bytes:
        packed: list[int] = []
        for what, base, step in [*operands, *[("none", 0, 0)] * (4 - len(operands))]:
            if what == "slot":
                packed += [slots[base], 0, 1]
            elif what == "none" and operands[1:]:
                packed += packed[3:6]  # any address that can be read
            else:
                packed += [base, step if what == "stream" else 0, 0]
        kept = 0 if more is None else self._memory.keep(struct.pack(f"{len(more)}q", *more))
        return _LANE.pack(runner.kernel(name), *packed, kept)


def _same_memory(one: Ref, other: Ref) -> bool:
    return one.value.what != "number" and root(one.value.storage) is root(other.value.storage)
