"""From a recorded graph to the tables of instructions that `tape.cpp` runs."""

import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pyrobnn.tape import runner
from pyrobnn.tape.fold import Fold
from pyrobnn.tape.lanes import Lanes
from pyrobnn.tape.memory import Memory
from pyrobnn.tape.rules import RULES
from pyrobnn.tape.values import BYTES, CALL, CHANGING_CALL, EACH, Group, Size, Value, domain, is_each, numel

GROUP, PRODUCT, REDUCE, TAKE_ROWS, PUT_ROWS, GATHER, SCATTER_ADD, OUTSIDE = range(8)
"""As in `tape.cpp`, where the numbers of each are explained."""
_NUMBERS = 22
_INSTRUCTION = struct.Struct(f"=ii{_NUMBERS}q")
_PAGE = 4096
_REDUCED = ("sum", "amax", "amin")
_MAY_BE_FIXED = EACH - {"normal", "uniform"} | {*_REDUCED, "product", "gather", "take_rows", CALL, "part"}


class Instruction(NamedTuple):
    """What to do, by how many threads, and with which numbers."""

    what: int
    numbers: list[int]
    threads: int = 1


class Tape:
    """A recorded step as tables of instructions, for the tensors that it reads and changes, or `NotCapturable`."""

    def __init__(self, graph: fx.GraphModule, inputs: list[Tensor]) -> None:
        self._library, self._graph = runner.library(), graph
        self._given, inputs = inputs, [value.detach() for value in inputs]
        self._places = [(value, value.data_ptr()) for value in inputs]
        self._scratch, self._threads, self._calls = 0, torch.get_num_threads(), list[Callable[[], None]]()
        values = Fold(graph, inputs, RULES).result()
        fixed = _fixed(values)
        sides = ([value for value in values if (value in fixed) == side] for side in (True, False))
        once, steps = ([*_Backwards(side).groups()][::-1] for side in sides)
        self._memory = Memory(once, steps)
        tables, program, memory = (self._table(once), self._table(steps)), runner.Program(), self._memory
        program.once, program.steps = map(memory.keep, tables)
        program.num_once, program.num_steps = (len(table) // _INSTRUCTION.size for table in tables)
        program.scratch_size = -(-self._scratch // _PAGE) * _PAGE + _PAGE
        program.scratch = memory.keep(bytes(program.scratch_size * self._threads))
        program.sgemm, program.dgemm = runner.products()
        self._program = program

    def run(self, num_steps: int) -> None:
        """Do a number of steps."""
        moved = [
            (given, place)
            for given, (place, address) in zip(self._given, self._places, strict=True)
            if given.data_ptr() != address  # its `data` was replaced
        ]
        for given, place in moved:
            place.copy_(given.detach())
        self._program.step, self._program.next = -1, 0
        with torch.no_grad():
            while (outside := self._library.tape_run(ctypes.addressof(self._program), num_steps)) >= 0:
                self._calls[outside]()
            for given, place in moved:
                given.copy_(place)

    # ------------------------------------------------------------------------------------------------- instructions

    def _table(self, groups: list[Group]) -> bytes:
        written = (instruction for group in groups for instruction in self._instructions(group))
        return b"".join(
            _INSTRUCTION.pack(what, threads, *numbers, *[0] * (_NUMBERS - len(numbers)))
            for what, numbers, threads in written
        )

    def _instructions(self, group: Group) -> Iterator[Instruction]:
        value = group[0]
        if is_each(value):
            lanes = Lanes(self._memory, group, self._threads)
            threads, address = lanes.written()
            self._scratch = max(self._scratch, lanes.scratch)
            yield Instruction(GROUP, [address], threads)
        elif value.what in _WRITERS:
            yield _WRITERS[value.what](self, value)

    def _product(self, value: Value) -> Instruction:
        a, b, *bias = value.inputs
        (m, k), n, out = a.size[-2:], b.size[-1], value.place
        (oi, oj), (ai, aj), (bi, bj) = (ref.stride[-2:] for ref in (out, a, b))
        batch = a.size[0] if len(a.size) == 3 else 1
        outer = [ref.stride[0] if batch > 1 else 0 for ref in (out, a, b)]
        (ai, aj), (bi, bj) = _for_blas(m, k, ai, aj), _for_blas(k, n, bi, bj)
        fits = oj == 1 and _is_for_blas(m, k, ai, aj) and _is_for_blas(k, n, bi, bj)
        addresses = [*map(self._memory.address, (out, a, b)), self._memory.address(bias[0]) if bias else 0]
        strides = [oi, oj, ai, aj, bi, bj, bias[0].stride[-1] if bias else 0]
        return Instruction(PRODUCT, [*addresses, m, n, k, *strides, batch, *outer, int(fits), int(value.kind == "f64")])

    def _reduction(self, value: Value) -> Instruction:
        (a,) = value.inputs
        sides: list[list[tuple[int, int, int]]] = [[], []]
        for d, (n, s, o) in enumerate(zip(a.size, a.stride, value.place.stride, strict=True)):
            if n != 1:
                sides[d in value.dims].append((n, o, s))
        padded = (zip(*[(1, 0, 0)] * (3 - len(side)), *side, strict=True) for side in sides)
        (sizes, outs, ins), (counts, _, steps) = padded
        start = [self._memory.address(value.place), self._memory.address(a), int(value.kind == "f64")]
        return Instruction(REDUCE, [*start, _REDUCED.index(value.what), *sizes, *outs, *ins, *counts, *steps])

    def _rows(self, value: Value) -> Instruction:
        a, index = value.inputs
        is_put, width = value.what == "put_rows", BYTES[value.kind]
        whole = value.place if is_put else a
        addresses = map(self._memory.address, (value.place, a, index))
        sizes = [numel(index.size), numel(whole.size[1:]) * width, whole.stride[0] * width, whole.size[0]]
        return Instruction(PUT_ROWS if is_put else TAKE_ROWS, [*addresses, *sizes])

    def _indexed(self, value: Value) -> Instruction:
        a, index = value.inputs
        addresses = map(self._memory.address, (value.place, a, index))
        strides = [*value.place.stride, *a.stride, *index.stride]
        what = GATHER if value.what == "gather" else SCATTER_ADD
        return Instruction(what, [*addresses, int(value.kind == "f64"), *index.size, *strides])

    def _outside(self, value: Value) -> Instruction:
        assert value.call is not None
        node, refs, parts = value.call
        target: Any = node.target
        given = iter([self._memory.tensor(ref) for ref in refs])
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda _: next(given))
        outs = [(index, self._memory.tensor(part.place)) for index, part in parts if part in self._memory.readers]

        def call() -> None:
            result = target(*args, **kwargs)
            for index, out in outs:
                out.copy_(result if index is None else result[index])

        self._calls.append(call)
        return Instruction(OUTSIDE, [len(self._calls) - 1])


_WRITERS: dict[str, Callable[[Tape, Value], Instruction]] = {
    "product": Tape._product,
    **dict.fromkeys(_REDUCED, Tape._reduction),
    **dict.fromkeys(("take_rows", "put_rows"), Tape._rows),
    **dict.fromkeys(("gather", "scatter_add"), Tape._indexed),
    **dict.fromkeys((CALL, CHANGING_CALL), Tape._outside),
}


def _fixed(values: list[Value]) -> set[Value]:
    """Return values that are the same in all steps of a call."""
    fixed: set[Value] = set()
    for value in values:
        is_alone = value.storage.tensor is None and value.next is None and not value.before
        is_sure = value.what in _MAY_BE_FIXED and not value.storage.changes
        read = [ref.value for ref in value.inputs if ref.value.what != "number"]
        if is_alone and is_sure and all(v in fixed or (v.what == "input" and v.next is None) for v in read):
            fixed.add(value)
    return fixed


def _for_blas(rows: int, columns: int, row: int, column: int) -> tuple[int, int]:
    """Return strides of a matrix as the BLAS wants them where there is a single row or column, which have any."""
    if rows == 1:
        return (max(row, columns), 1) if columns == 1 or column == 1 else (1, column)
    if columns == 1:
        return (1, rows) if row == 1 else (row, 1)
    return row, column


def _is_for_blas(rows: int, columns: int, row: int, column: int) -> bool:
    return (column == 1 and row >= columns) or (row == 1 and column >= rows)


class _Backwards:
    """Groups of values from the last to the first: a value is ready when all that come after it are in groups."""

    def __init__(self, values: list[Value]) -> None:
        alive = set(values)
        self._before = {
            value: {r.value for r in value.inputs if r.value in alive} | {o for o in value.before if o in alive}
            for value in values
        }
        self._after: dict[Value, set[Value]] = {value: set() for value in values}
        for value, others in self._before.items():
            for other in others:
                self._after[other].add(value)
        self._left = {value: len(after) for value, after in self._after.items()}
        self._alone, self._together = list[Value](), dict[Size, list[Value]]()
        for value in reversed(values):
            if not self._left[value]:
                self._ready(value)

    def groups(self) -> Iterator[Group]:
        while self._alone or self._together:
            if self._alone:
                value = self._alone.pop(0)
                self._done(value)
                yield [value]
            else:
                yield self._aligned(min(self._together, key=numel))

    def _ready(self, value: Value) -> None:
        ready = self._together.setdefault(domain(value), []) if is_each(value) else self._alone
        ready.append(value)

    def _done(self, value: Value) -> None:
        for other in sorted(self._before[value], key=lambda v: -v.order):
            self._left[other] -= 1
            if not self._left[other]:
                self._ready(other)

    def _aligned(self, size: Size) -> Group:
        """Return the ready values of a size, and those that they make ready, that can go block by block."""
        members, waiting = dict[Value, None](), list[Value]()
        while self._together.get(size):
            value = self._together[size].pop(0)
            if all(_is_aligned(value, user) for user in self._after[value] if user in members):
                members[value] = None
                self._done(value)
            else:
                waiting.append(value)
        del self._together[size]
        if waiting:
            self._together[size] = waiting
        return list(members)


def _is_aligned(value: Value, user: Value) -> bool:
    """Return whether one of a group may use, or overwrite, another's numbers block by block."""
    for ref in user.inputs:
        if ref.value is value and (value.what == "sum" or ref.where() != value.place.where()):
            return False
    if value.next is user and user.place.where() != value.place.where():
        return False
    return all(ref.where() == user.place.where() for ref in value.inputs if ref.value.next is user)
