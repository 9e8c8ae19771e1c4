"""Values: what a recorded step computes, as few primitive operations on numbers in storages."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

NATIVE = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64", torch.bool: "b8"}
_OTHERS = "int32 int16 int8 uint8 float16 bfloat16 complex64 complex128"
KINDS = NATIVE | {getattr(torch, name): f"torch.{name}" for name in _OTHERS.split()}
"""Types of numbers; those of the second kind ATen alone works with."""
DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
BYTES = {kind: dtype.itemsize for kind, dtype in DTYPES.items()}
UNARY = [
    *("neg", "abs", "exp", "log", "log1p", "expm1", "tanh", "erf", "sigmoid", "sqrt", "rsqrt", "reciprocal", "sin"),
    *("cos", "floor", "ceil", "round", "relu", "lgamma"),
]
COMPARED = ["lt", "le", "gt", "ge", "eq", "ne"]
EACH = {
    *(*UNARY, *COMPARED, "add", "sub", "mul", "div", "max", "min", "pow", "where", "sign", "square", "cube"),
    *("softplus", "lerp", "fma", "and", "or", "xor", "not", "same", *(f"to_{kind}" for kind in NATIVE.values())),
}
"""Operations that work on each element by itself."""
CALL, CHANGING_CALL = "call", "call!"
"""Operations left to ATen: those that only make tensors, and those that change some or draw random numbers."""
Size = tuple[int, ...]


class View(NamedTuple):
    """The numbers of a recorded storage that a tensor shows: tensors with the same view are the same."""

    storage: Any
    offset: int
    size: Size
    stride: Size
    dtype: torch.dtype
    flags: tuple[bool, bool]
    """Whether they are shown conjugated, and negated."""

    @classmethod
    def of(cls, tensor: Tensor, storage: Any) -> "View":
        """Return what a tensor shows of a storage of this name."""
        offset, flags = int(tensor.storage_offset()), (tensor.is_conj(), tensor.is_neg())
        return cls(storage, offset, tuple(tensor.shape), tensor.stride(), tensor.dtype, flags)


class Storage:
    """Memory with room for numbers of a kind that values share: of a tensor, or still to be placed.

    `parent` is a larger storage with the number where this begins; `changes` tells whether it is written to repeatedly.
    """

    def __init__(self, kind: str, numbers: int, tensor: Tensor | None = None) -> None:
        self.kind, self.numbers, self.tensor = kind, numbers, tensor
        self.parent: tuple[Storage, int] | None = None
        self.changes = False


class Value:
    """What an operation writes to a place in a storage; "input" and "number" are there before the step.

    `number` is that of a "number", `dims` those that a reduction goes over, `call` what an operation of ATen needs.

    A value is a version of its storage, and a `Ref` reads this version. It is written once, after its inputs, which are
    recorded before it. `next` is the version written over it, or None if it lasts until the end of the step. `before`
    are values to compute first: those that draw before this one does, and, from `Fold.result` on, the version that this
    one overwrites with all that read it. Where `next` is part of a call, the call writes, so they are before the call.
    A storage with a tensor outlives the step, so all that is written there is computed, as each `CHANGING_CALL` is; any
    other value is computed only for those that read or overwrite it. A value is the same in all steps if nothing else
    writes to its storage (no tensor, no `next`, no `before`, no `changes`) and its inputs are the same in all steps.
    """

    __slots__ = ("before", "call", "dims", "inputs", "kind", "next", "number", "order", "place", "storage", "what")

    def __init__(self, what: str, inputs: Sequence["Ref"], storage: Storage) -> None:
        self.what, self.inputs, self.storage, self.kind = what, tuple(inputs), storage, storage.kind
        self.number: float | int | bool | None = None
        self.dims: Size = ()
        self.call: Outside | None = None
        self.place: Ref
        self.before: list[Value] = []
        self.next: Value | None = None
        self.order = 0


class Ref(NamedTuple):
    """Numbers of a value: an offset into its storage, sizes and strides."""

    value: Value
    offset: int
    size: Size
    stride: Size

    @property
    def kind(self) -> str:
        """Their type."""
        return self.value.kind

    def number(self) -> float | int | bool | None:
        """Return the number that this is known to be everywhere."""
        return self.value.number

    def is_uniform(self) -> bool:
        """Return whether all numbers are the same one."""
        return not any(s for n, s in zip(self.size, self.stride, strict=True) if n != 1)

    def squeezed(self) -> tuple[Size, Size]:
        """Return sizes and strides of the dimensions that are not 1."""
        pairs = [(n, s) for n, s in zip(self.size, self.stride, strict=True) if n != 1]
        return tuple(n for n, _ in pairs), tuple(s for _, s in pairs)

    def is_dense(self) -> bool:
        """Return whether the numbers lie one after the other."""
        size, stride = self.squeezed()
        return stride == dense(size)

    def where(self) -> tuple[int, Size, Size]:
        """Return what tells apart places in one storage."""
        return self.offset, *self.squeezed()


class Outside(NamedTuple):
    """A call of ATen: its node, the tensors given to it, and values that are among its results, with their index."""

    node: fx.Node
    refs: list[Ref]
    parts: list[tuple[int | None, Value]]


def dense(size: Size) -> Size:
    """Return the strides of a tensor in the usual order."""
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def numel(size: Size) -> int:
    """Return the number of entries."""
    return math.prod(size)


def read_by(values: Sequence[Value]) -> dict[Value, list[Value]]:
    """Return those of some values that read each value."""
    readers: dict[Value, list[Value]] = {}
    for value in values:
        for read in dict.fromkeys(ref.value for ref in value.inputs):
            readers.setdefault(read, []).append(value)
    return readers


Group = list[Value]
"""Values that one instruction computes: many that work element by element, or a single one of another kind."""


def is_each(value: Value) -> bool:
    """Return whether a value can belong to a group: it works element by element, or adds all of them up."""
    if value.what == "sum":
        return numel(value.place.size) == 1
    return value.what in EACH


def domain(value: Value) -> Size:
    """Return the sizes through which a group of such values goes."""
    return (value.inputs[0] if value.what == "sum" else value.place).squeezed()[0]
