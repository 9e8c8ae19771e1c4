"""Operations of ATen on each element, in terms of values."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pyrobnn.tape.algebra import broadcast
from pyrobnn.tape.fold import Fold, Rule
from pyrobnn.tape.values import COMPARED, DTYPES, KINDS, UNARY, Ref, Size, dense

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Note a function as the rule of operations of ATen, by their names."""

    def note(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return note


def out(fold: Fold, node: fx.Node) -> tuple[Size, str]:
    """Return size and type of the result of a node."""
    memory = fold.memories[node]
    return memory.size, KINDS[memory.dtype]


def apply(fold: Fold, node: fx.Node, what: str, *operands: Any) -> Ref:
    """Add an operation on each element, in the type of the result of a node."""
    size, kind = out(fold, node)
    return fold.each(what, [fold.cast(operand, kind) for operand in operands], size, kind)


for _name in UNARY:
    RULES[f"{_name}.default"] = lambda fold, node, a, _name=_name: apply(fold, node, _name, a)
RULES["sgn.default"] = RULES["sign.default"] = lambda fold, node, a: apply(fold, node, "sign", a)
RULES["square.default"] = lambda fold, node, a: apply(fold, node, "square", a)
for _name, _what in {"mul": "mul", "maximum": "max", "minimum": "min"}.items():
    for _form in ("default", "Tensor", "Scalar"):
        RULES[f"{_name}.{_form}"] = lambda fold, node, a, b, _what=_what: apply(fold, node, _what, a, b)
for _name in COMPARED:
    for _form in ("Tensor", "Scalar"):
        RULES[f"{_name}.{_form}"] = lambda fold, node, a, b, _name=_name: _compared(fold, node, _name, a, b)


def _compared(fold: Fold, node: fx.Node, what: str, a: Ref, b: Any) -> Ref:
    kind = a.kind
    if isinstance(b, Ref) and b.kind != kind:
        kind = KINDS[torch.promote_types(DTYPES[a.kind], DTYPES[b.kind])]
    return fold.each(what, [fold.cast(a, kind), fold.cast(b, kind)], out(fold, node)[0], "b8")


@rule("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def _sum_or_difference(fold: Fold, node: fx.Node, a: Any, b: Any, alpha: Any = 1) -> Ref:
    kind = out(fold, node)[1]
    what = "add" if "add" in node.target._schema.name else "sub"  # type: ignore[union-attr]
    scaled = fold.each("mul", [fold.cast(b, kind), fold.number(alpha, kind)], b.size, kind) if alpha != 1 else b
    return apply(fold, node, what, a, scaled)


@rule("rsub.Scalar", "rsub.Tensor")
def _reversed_difference(fold: Fold, node: fx.Node, a: Any, b: Any, alpha: Any = 1) -> Any:
    return apply(fold, node, "sub", b, a) if alpha == 1 else NotImplemented


@rule("div.Tensor", "div.Scalar")
def _quotient(fold: Fold, node: fx.Node, a: Any, b: Any) -> Ref:
    return apply(fold, node, "div", a, b)


@rule("pow.Tensor_Scalar")
def _power(fold: Fold, node: fx.Node, a: Ref, power: Any) -> Any:
    names = {1: "same", 2: "square", 3: "cube", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}
    if power == 0:
        return fold.number(1, out(fold, node)[1], a.size)
    return apply(fold, node, names[power], a) if power in names else apply(fold, node, "pow", a, power)


@rule("pow.Tensor_Tensor", "pow.Scalar")
def _power_of(fold: Fold, node: fx.Node, a: Any, b: Any) -> Any:
    return apply(fold, node, "pow", a, b) if out(fold, node)[1] in ("f32", "f64") else NotImplemented


@rule("softplus.default")
def _softplus(fold: Fold, node: fx.Node, a: Ref, beta: Any = 1, threshold: Any = 20) -> Any:
    return apply(fold, node, "softplus", a) if (beta, threshold) == (1, 20) else NotImplemented


@rule("softplus_backward.default")
def _softplus_backward(fold: Fold, node: fx.Node, slope: Ref, a: Ref, beta: Any, threshold: Any) -> Any:
    if (beta, threshold) != (1, 20):
        return NotImplemented
    return apply(fold, node, "mul", slope, apply(fold, node, "sigmoid", a))


@rule("sigmoid_backward.default")
def _sigmoid_backward(fold: Fold, node: fx.Node, slope: Ref, y: Ref) -> Ref:
    return apply(fold, node, "mul", slope, apply(fold, node, "mul", y, apply(fold, node, "sub", 1, y)))


@rule("tanh_backward.default")
def _tanh_backward(fold: Fold, node: fx.Node, slope: Ref, y: Ref) -> Ref:
    return apply(fold, node, "mul", slope, apply(fold, node, "sub", 1, apply(fold, node, "square", y)))


@rule("threshold_backward.default")
def _threshold_backward(fold: Fold, node: fx.Node, slope: Ref, a: Ref, threshold: Any) -> Ref:
    size, kind = out(fold, node)
    below = fold.each("le", [a, fold.number(threshold, a.kind)], size, "b8")
    return fold.each("where", [below, fold.number(0, kind), slope], size, kind)


@rule("log_sigmoid_forward.default")
def _log_sigmoid(fold: Fold, node: fx.Node, a: Ref) -> list[Ref]:
    negative, distance = (fold.each(what, [a], a.size, a.kind) for what in ("neg", "abs"))
    result = fold.each("neg", [fold.each("softplus", [negative], a.size, a.kind)], a.size, a.kind)
    return [result, fold.each("exp", [fold.each("neg", [distance], a.size, a.kind)], a.size, a.kind)]


@rule("log_sigmoid_backward.default")
def _log_sigmoid_backward(fold: Fold, node: fx.Node, slope: Ref, a: Ref, _: Ref) -> Ref:
    return apply(fold, node, "mul", slope, apply(fold, node, "sigmoid", apply(fold, node, "neg", a)))


@rule("xlogy.Tensor")
def _xlogy(fold: Fold, node: fx.Node, a: Ref, b: Ref) -> Any:
    size, kind = out(fold, node)
    if kind not in ("f32", "f64"):
        return NotImplemented
    a, b, zero = fold.cast(a, kind), fold.cast(b, kind), fold.number(0, kind)
    none = fold.each("eq", [a, zero], a.size, "b8")
    result = fold.each("where", [none, zero, apply(fold, node, "mul", a, apply(fold, node, "log", b))], size, kind)
    return fold.each("where", [fold.each("ne", [b, b], b.size, "b8"), b, result], size, kind)


@rule("elu.default")
def _elu(fold: Fold, node: fx.Node, a: Ref, alpha: Any = 1, scale: Any = 1, inner: Any = 1) -> Ref:
    size, kind = out(fold, node)
    below = apply(fold, node, "mul", apply(fold, node, "expm1", apply(fold, node, "mul", a, inner)), alpha * scale)
    return fold.each(
        "where", [_compared(fold, node, "gt", a, 0), apply(fold, node, "mul", a, scale), below], size, kind
    )


@rule("elu_backward.default")
def _elu_backward(
    fold: Fold, node: fx.Node, slope: Ref, alpha: Any, scale: Any, inner: Any, is_result: bool, a: Ref
) -> Ref:
    size, kind = out(fold, node)
    factor = apply(fold, node, "exp", apply(fold, node, "mul", a, inner))
    factor = (
        apply(fold, node, "add", a, alpha * scale) if is_result else apply(fold, node, "mul", factor, alpha * scale)
    )
    below = apply(fold, node, "mul", slope, apply(fold, node, "mul", factor, inner))
    return fold.each(
        "where", [_compared(fold, node, "le", a, 0), below, apply(fold, node, "mul", slope, scale)], size, kind
    )


@rule("silu.default")
def _silu(fold: Fold, node: fx.Node, a: Ref) -> Ref:
    return apply(fold, node, "mul", a, apply(fold, node, "sigmoid", a))


@rule("gelu.default")
def _gelu(fold: Fold, node: fx.Node, a: Ref, approximate: str = "none") -> Any:
    if approximate != "none":
        return NotImplemented
    half = apply(fold, node, "erf", apply(fold, node, "mul", a, math.sqrt(0.5)))
    return apply(fold, node, "mul", apply(fold, node, "mul", a, 0.5), apply(fold, node, "add", half, 1))


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(fold: Fold, node: fx.Node, condition: Ref, a: Any, b: Any) -> Ref:
    size, kind = out(fold, node)
    return fold.each("where", [fold.cast(condition, "b8"), fold.cast(a, kind), fold.cast(b, kind)], size, kind)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(fold: Fold, node: fx.Node, a: Ref, mask: Ref, number: Any) -> Ref:
    return _where(fold, node, mask, number, a)


@rule("clamp.default", "clamp_min.default", "clamp_max.default")
def _clamp(
    fold: Fold, node: fx.Node, a: Ref, least: Any = None, most: Any = None, min: Any = None, max: Any = None
) -> Ref:
    least, most = (least if min is None else min), (most if max is None else max)
    if "clamp_max" in node.target._schema.name:  # type: ignore[union-attr]
        least, most = None, least
    a = a if least is None else apply(fold, node, "max", a, least)
    return a if most is None else apply(fold, node, "min", a, most)


@rule("logical_and.default", "bitwise_and.Tensor", "logical_or.default", "bitwise_or.Tensor")
@rule("logical_not.default", "bitwise_not.default")
def _logic(fold: Fold, node: fx.Node, *operands: Ref) -> Any:
    if any(ref.kind != "b8" for ref in operands):
        return NotImplemented
    return apply(fold, node, node.target._schema.name.rpartition("_")[2], *operands)  # type: ignore[union-attr]


@rule("lerp.Scalar")
def _lerp(fold: Fold, node: fx.Node, a: Ref, b: Ref, weight: float) -> Ref:
    return apply(fold, node, "lerp", a, b, weight)


@rule("addcmul.default")
def _addcmul(fold: Fold, node: fx.Node, a: Ref, b: Ref, c: Ref, value: Any = 1) -> Ref:
    return apply(fold, node, "add", a, apply(fold, node, "mul", apply(fold, node, "mul", b, c), value))


@rule("addcdiv.default")
def _addcdiv(fold: Fold, node: fx.Node, a: Ref, b: Ref, c: Ref, value: Any = 1) -> Ref:
    return apply(fold, node, "add", a, apply(fold, node, "mul", apply(fold, node, "div", b, c), value))


@rule("_to_copy.default", "clone.default", "detach.default", "alias.default", "lift_fresh_copy.default")
@rule("_unsafe_view.default", "reshape.default")
def _copied(fold: Fold, node: fx.Node, a: Any, *_: Any, **__: Any) -> Ref:
    size, kind = out(fold, node)
    a = fold.cast(a, kind)
    if a.size == size:
        return a
    a = a if a.is_dense() else fold.new("same", [a], DTYPES[kind], a.size)
    return Ref(a.value, a.offset, size, dense(size))


@rule("copy.default")
def _copy_of(fold: Fold, node: fx.Node, _: Ref, source: Ref, *__: Any) -> Ref:
    size, kind = out(fold, node)
    return broadcast(fold.cast(source, kind), size)
