"""Operations on values: constants are folded, what is computed twice is computed once, and no more than is needed."""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pyrobnn.tape.values import DTYPES, EACH, KINDS, Ref, Size, Storage, Value, dense, numel


class Algebra:
    """Values so far, and operations that add to them."""

    def __init__(self) -> None:
        self._values: list[Value] = []
        self._known: dict[Any, Ref] = {}

    def new(  # noqa: PLR0917
        self, what: str, inputs: Sequence[Ref], dtype: torch.dtype, size: Size, stride: Size | None = None,
        offset: int = 0,
    ) -> Ref:  # fmt: skip
        """Add a value with a separate storage."""
        stride = dense(size) if stride is None else stride
        room = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if numel(size) else 0
        value = Value(what, inputs, Storage(KINDS[dtype], room))
        value.place = Ref(value, offset, size, stride)
        self._values.append(value)
        return value.place

    # ------------------------------------------------------------------------------------------- element by element

    def number(self, number: Any, kind: str, size: Size = ()) -> Ref:
        """Return a number of a type, as often as a size says."""
        number = _rounded(number, kind)
        key = ("number", kind, struct.pack("d", number) if isinstance(number, float) else number)
        if key not in self._known:
            value = Value("number", (), Storage(kind, 1))
            value.number = number
            value.place = self._known[key] = Ref(value, 0, (), ())
        return Ref(self._known[key].value, 0, size, (0,) * len(size))

    def cast(self, ref: Any, kind: str) -> Ref:
        """Return numbers as those of another type."""
        if not isinstance(ref, Ref):
            return self.number(ref, kind)
        if ref.kind == kind:
            return ref
        if ref.number() is not None:
            return self.number(ref.number(), kind, ref.size)
        return self.each(f"to_{kind}", [ref], ref.size, kind)

    def each(self, what: str, inputs: Sequence[Ref], size: Size, kind: str) -> Ref:
        """Add an operation on numbers of tensors broadcast to one size, or find its result in what there is."""
        if not numel(size):
            return self.number(0, kind, size)
        refs = [broadcast(ref, size) for ref in inputs]
        simpler = self._simpler(what, refs, size, kind)
        if simpler is not None:
            return simpler
        uniform = [all(ref.stride[d] == 0 or ref.size[d] == 1 for ref in refs) and n != 1 for d, n in enumerate(size)]
        if any(uniform):
            few = tuple(1 if alike else n for n, alike in zip(size, uniform, strict=True))
            ref = self.each(what, [Ref(r.value, r.offset, few, r.stride) for r in refs], few, kind)
            stride = tuple(0 if alike else s for s, alike in zip(ref.stride, uniform, strict=True))
            return Ref(ref.value, ref.offset, size, stride)
        key = (what, kind, tuple((id(ref.value), *ref[1:]) for ref in refs))
        result = self._known.get(key)
        if result is None:
            result = self._known[key] = self.new(what, refs, DTYPES[kind], size, _order_of(refs, size))
        return result

    def _simpler(self, what: str, refs: list[Ref], size: Size, kind: str) -> Ref | None:
        """Return what comes to the same as an operation, on numbers of one size, for less; None if it is needed."""
        if what == "same":
            return refs[0]
        numbers = [ref.number() for ref in refs]
        if what in _FOLDED and None not in numbers:
            try:
                return self.number(_FOLDED[what](*numbers), kind, size)
            except (ArithmeticError, ValueError):
                return None
        return _SIMPLER[what](self, *refs) if what in _SIMPLER and kind != "b8" else None

    def _sum(self, a: Ref, b: Ref) -> Ref | None:
        if a.number() is not None:
            return self.each("add", [b, a], a.size, a.kind)
        if b.number() == 0:
            return a
        for one, other in ((a, b), (b, a)):
            negated = self._inner(other, "neg")
            if negated is not None:
                return self.each("sub", [one, negated], a.size, a.kind)
        return None

    def _difference(self, a: Ref, b: Ref) -> Ref | None:
        if b.number() == 0:
            return a
        negated = self._inner(b, "neg")
        return None if negated is None else self.each("add", [a, negated], a.size, a.kind)

    def _multiple(self, a: Ref, b: Ref) -> Ref | None:
        if a.number() is not None:
            return self.each("mul", [b, a], a.size, a.kind)
        number = b.number()
        if number is None or number == 1:
            return None if number is None else a
        if number == -1:
            return self.each("neg", [a], a.size, a.kind)
        first, second, negated = self._inner(a, "mul"), self._inner(a, "mul", 1), self._inner(a, "neg")
        factor = None if second is None else second.number()
        if first is not None and factor is not None:
            return self.each("mul", [first, self.number(number * factor, a.kind)], a.size, a.kind)
        return None if negated is None else self.each("mul", [negated, self.number(-number, a.kind)], a.size, a.kind)

    def _quotient(self, a: Ref, b: Ref) -> Ref | None:
        if b.number() == 1 or a.is_uniform() or not b.is_uniform():
            return a if b.number() == 1 else None
        return self.each("mul", [a, self.each("reciprocal", [b], a.size, a.kind)], a.size, a.kind)

    def _inner(self, ref: Ref, what: str, index: int = 0) -> Ref | None:
        """Return what an operation was done to, where all of its result is meant and nothing was overwritten."""
        value = ref.value
        if value.what != what or len(value.inputs) <= index or ref[1:] != value.place[1:] or value.next is not None:
            return None
        result = value.inputs[index]
        return result if result.value.next is None else None

    # ------------------------------------------------------------------------------------------------- other values

    def total(self, ref: Ref, dims: Sequence[int], *, keep: bool, what: str = "sum") -> Ref:
        """Add a sum, or another reduction, over dimensions."""
        kept = tuple(1 if d in dims else n for d, n in enumerate(ref.size))
        size = kept if keep else tuple(n for d, n in enumerate(ref.size) if d not in dims)
        if not numel(ref.size):
            return self.number(0, ref.kind, size)
        if all(ref.size[d] == 1 for d in dims):
            stride = tuple(s for d, s in enumerate(ref.stride) if keep or d not in dims)
            return Ref(ref.value, ref.offset, size, stride)
        key = (what, tuple(dims), id(ref.value), *ref[1:])
        if key not in self._known:
            self._known[key] = self.new(what, [ref], DTYPES[ref.kind], kept)
            self._known[key].value.dims = tuple(dims)
        result = self._known[key]
        stride = tuple(s for d, s in enumerate(result.stride) if keep or d not in dims)
        return Ref(result.value, result.offset, size, stride)

    def product(self, left: Ref, right: Ref, bias: Ref | None = None) -> Ref:
        """Add a product of matrices, or of as many as the first of three dimensions says."""
        size = (*left.size[:-1], right.size[-1])
        left, right = self._for_blas(left), self._for_blas(right)
        inputs = [left, right] if bias is None else [left, right, bias]
        key = ("product", tuple((id(ref.value), *ref[1:]) for ref in inputs))
        if key not in self._known:
            self._known[key] = self.new("product", inputs, DTYPES[left.kind], size)
        return self._known[key]

    def _for_blas(self, ref: Ref) -> Ref:
        """Return a factor as the BLAS takes it: a copy if rows or columns repeat, as those of a state of zeros do."""
        sides = zip(ref.size[-2:], ref.stride[-2:], strict=True)
        if all(n == 1 or step for n, step in sides):
            return ref
        key = ("dense", id(ref.value), *ref[1:])
        if key not in self._known:
            self._known[key] = self.new("same", [ref], DTYPES[ref.kind], ref.size)
        return self._known[key]

    def joined(self, parts: list[Ref], size: Size, dim: int) -> Ref:
        """Add what joins tensors along a dimension."""
        if all(ref.is_dense() for ref in parts) and all(n == 1 for n in size[:dim]):
            flat = [Ref(ref.value, ref.offset, (numel(ref.size),), (1,)) for ref in parts if numel(ref.size)]
            whole = self._as_whole(flat)
            if whole is not None:
                return Ref(whole.value, whole.offset, size, dense(size) if whole.stride == (1,) else (0,) * len(size))
        kind = parts[0].kind
        storage, pieces = Storage(kind, numel(size)), list[Ref]()
        strides, offset = dense(size), 0
        for ref in parts:
            if not numel(ref.size):
                continue
            can_move = (
                ref.is_dense() and ref.value.storage.tensor is None and ref.value.storage.parent is None
                and ref.value.what not in ("input", "number", "part", "join") and ref.value.next is None
                and ref.value.storage.numbers == numel(ref.size) and not ref.value.storage.changes
                and all(n == 1 for n in size[:dim]) and ref.value not in [p.value for p in pieces]
            )  # fmt: skip
            if can_move:
                ref.value.storage.parent = (storage, offset)
                pieces.append(ref)
            else:
                value = Value("same", [ref], storage)
                value.place = Ref(value, offset, ref.size, strides)
                self._values.append(value)
                pieces.append(value.place)
            offset += ref.size[dim] * strides[dim]
        join = Value("join", pieces, storage)
        join.place = Ref(join, 0, size, strides)
        self._values.append(join)
        return join.place

    def _as_whole(self, parts: list[Ref]) -> Ref | None:  # noqa: PLR0911
        """Return one vector that parts, vectors themselves, make up, or that an operation on such a vector makes."""
        first, total = parts[0], sum(ref.size[0] for ref in parts)
        if any(ref.value.next is not None for ref in parts):
            return None
        if all(ref.number() is not None and ref.number() == first.number() and ref.kind == first.kind for ref in parts):
            return Ref(first.value, 0, (total,), (0,))
        at = first.offset
        for ref in parts:
            if ref.value is not first.value or ref.offset != at:
                break
            at += ref.size[0]
        else:
            return Ref(first.value, first.offset, (total,), (1,))
        if len(parts) == 1 or not all(_is_whole(ref) and ref.value.what == first.value.what for ref in parts):
            return None
        by_place = zip(*(ref.value.inputs for ref in parts), strict=True)
        operands = [[_flat(each) for each in column] for column in by_place]
        if any(ref is None for column in operands for ref in column):
            return None
        columns = [[ref for ref in column if ref is not None] for column in operands]
        result = [self._as_whole(column) for column in columns]
        if all(ref is None for ref in result):
            return None
        whole = [
            self.joined(column, (total,), 0) if ref is None else ref
            for ref, column in zip(result, columns, strict=True)
        ]
        return self.each(first.value.what, whole, (total,), first.kind)


def _is_whole(ref: Ref) -> bool:
    """Return whether all of an operation, element by element, is meant."""
    value, place = ref.value, ref.value.place
    is_all = ref.offset == place.offset and numel(ref.size) == numel(place.size) and place.is_dense()
    return is_all and value.what in EACH and value.next is None


def _flat(ref: Ref) -> Ref | None:
    count = numel(ref.size)
    if ref.number() is not None:
        return Ref(ref.value, 0, (count,), (0,))
    return Ref(ref.value, ref.offset, (count,), (1,)) if ref.is_dense() else None


def broadcast(ref: Ref, size: Size) -> Ref:
    """Return numbers as a tensor of a larger size."""
    if ref.size == size:
        return ref
    missing = len(size) - len(ref.size)
    if missing < 0:  # dimensions of 1 in front
        return broadcast(Ref(ref.value, ref.offset, ref.size[-missing:], ref.stride[-missing:]), size)
    pairs = zip(ref.size, ref.stride, size[missing:], strict=True)
    return Ref(ref.value, ref.offset, size, (0,) * missing + tuple(0 if n != m else s for n, s, m in pairs))


def _order_of(refs: Sequence[Ref], size: Size) -> Size:
    """Return strides in the order of the first of the tensors that has all dimensions, as torch does."""
    for ref in refs:
        if all(s for n, s in zip(size, ref.stride, strict=True) if n != 1):
            order = sorted(range(len(size)), key=lambda d: (ref.stride[d], -d))
            strides, step = [0] * len(size), 1
            for d in order:
                strides[d], step = step, step * max(size[d], 1)
            return tuple(strides)
    return dense(size)


def _rounded(number: Any, kind: str) -> Any:
    if kind == "b8":
        return bool(number)
    if kind == "i64":
        return int(number)
    if kind == "f32":
        try:
            return struct.unpack("f", struct.pack("f", number))[0]
        except OverflowError:
            return math.copysign(math.inf, number)
    return float(number)


_FOLDED: dict[str, Callable[..., Any]] = {
    "neg": lambda a: -a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "log": math.log,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "square": lambda a: a * a,
    "reciprocal": lambda a: 1 / a,
    "to_f32": float,
    "to_f64": float,
    "to_i64": int,
    "to_b8": bool,
}
_SIMPLER: dict[str, Callable[..., Ref | None]] = {
    "neg": lambda algebra, a: algebra._inner(a, "neg"),
    "add": Algebra._sum,
    "sub": Algebra._difference,
    "mul": Algebra._multiple,
    "div": Algebra._quotient,
}
