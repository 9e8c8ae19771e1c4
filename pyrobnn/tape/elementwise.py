"""Operations of ATen on each element, in terms of values."""

import math
from collections.abc import Callable
from functools import partial
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
    view = fold.views[node]
    return view.size, KINDS[view.dtype]


def name_of(node: fx.Node) -> str:
    """Return the name of the operation of a node, without namespace and form."""
    return str(node.target._schema.name.split("::")[1])  # type: ignore[union-attr]


def apply(fold: Fold, node: fx.Node, what: str, *operands: Any) -> Ref:
    """Add an operation on each element, in the type of the result of a node."""
    size, kind = out(fold, node)
    return fold.each(what, [fold.cast(operand, kind) for operand in operands], size, kind)


for _name in UNARY:
    RULES[f"{_name}.default"] = lambda fold, node, a, _name=_name: apply(fold, node, _name, a)
for _name, _what in {"mul": "mul", "div": "div", "maximum": "max", "minimum": "min"}.items():
    for _form in ("default", "Tensor", "Scalar"):
        RULES[f"{_name}.{_form}"] = lambda fold, node, a, b, _what=_what: apply(fold, node, _what, a, b)
_FORMULAS: dict[str, Callable[..., Ref]] = {
    "sgn.default": lambda do, a: do("sign", a),
    "sign.default": lambda do, a: do("sign", a),
    "square.default": lambda do, a: do("square", a),
    "silu.default": lambda do, a: do("mul", a, do("sigmoid", a)),
    "lerp.Scalar": lambda do, a, b, weight: do("lerp", a, b, weight),
    "addcmul.default": lambda do, a, b, c, value=1: do("add", a, do("mul", do("mul", b, c), value)),
    "addcdiv.default": lambda do, a, b, c, value=1: do("add", a, do("mul", do("div", b, c), value)),
    "sigmoid_backward.default": lambda do, slope, y: do("mul", slope, do("mul", y, do("sub", 1, y))),
    "tanh_backward.default": lambda do, slope, y: do("mul", slope, do("sub", 1, do("square", y))),
    "log_sigmoid_backward.default": lambda do, slope, a, _: do("mul", slope, do("sigmoid", do("neg", a))),
}
for _name, _formula in _FORMULAS.items():
    RULES[_name] = lambda fold, node, *operands, _formula=_formula, **more: _formula(
        partial(apply, fold, node), *operands, **more
    )
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
    what = name_of(node)
    scaled = fold.each("mul", [fold.cast(b, kind), fold.number(alpha, kind)], b.size, kind) if alpha != 1 else b
    return apply(fold, node, what, a, scaled)


@rule("rsub.Scalar", "rsub.Tensor")
def _reversed_difference(fold: Fold, node: fx.Node, a: Any, b: Any, alpha: Any = 1) -> Any:
    return apply(fold, node, "sub", b, a) if alpha == 1 else NotImplemented


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
    (size, kind), do = out(fold, node), partial(apply, fold, node)
    below = do("mul", do("expm1", do("mul", a, inner)), alpha * scale)
    return fold.each("where", [_compared(fold, node, "gt", a, 0), do("mul", a, scale), below], size, kind)


@rule("elu_backward.default")
def _elu_backward(
    fold: Fold, node: fx.Node, slope: Ref, alpha: Any, scale: Any, inner: Any, is_result: bool, a: Ref
) -> Ref:
    (size, kind), do = out(fold, node), partial(apply, fold, node)
    factor = do("exp", do("mul", a, inner))
    factor = do("add", a, alpha * scale) if is_result else do("mul", factor, alpha * scale)
    below = do("mul", slope, do("mul", factor, inner))
    return fold.each("where", [_compared(fold, node, "le", a, 0), below, do("mul", slope, scale)], size, kind)


@rule("gelu.default")
def _gelu(fold: Fold, node: fx.Node, a: Ref, approximate: str = "none") -> Any:
    if approximate != "none":
        return NotImplemented
    do = partial(apply, fold, node)
    half = do("erf", do("mul", a, math.sqrt(0.5)))
    return do("mul", do("mul", a, 0.5), do("add", half, 1))


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
    if name_of(node) == "clamp_max":
        least, most = None, least
    a = a if least is None else apply(fold, node, "max", a, least)
    return a if most is None else apply(fold, node, "min", a, most)


@rule("logical_and.default", "bitwise_and.Tensor", "logical_or.default", "bitwise_or.Tensor")
@rule("logical_not.default", "bitwise_not.default")
def _logic(fold: Fold, node: fx.Node, *operands: Ref) -> Any:
    if any(ref.kind != "b8" for ref in operands):
        return NotImplemented
    return apply(fold, node, name_of(node).rpartition("_")[2], *operands)


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
