"""The operations of ATen in terms of values, those on each element first; what has no rule here is left to ATen."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx

from pyrobnn.tape.algebra import broadcast
from pyrobnn.tape.fold import Fold, Rule
from pyrobnn.tape.values import COMPARED, DTYPES, KINDS, UNARY, Ref, Size, dense, numel

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


def _apply(what: str, fold: Fold, node: fx.Node, *operands: Any) -> Ref:
    return apply(fold, node, what, *operands)


def _by_formula(formula: Callable[..., Ref], fold: Fold, node: fx.Node, *operands: Any, **more: Any) -> Ref:
    return formula(partial(apply, fold, node), *operands, **more)


def _compared(fold: Fold, node: fx.Node, a: Ref, b: Any, *, what: str) -> Ref:
    kind = a.kind
    if isinstance(b, Ref) and b.kind != kind:
        kind = KINDS[torch.promote_types(DTYPES[a.kind], DTYPES[b.kind])]
    return fold.each(what, [fold.cast(a, kind), fold.cast(b, kind)], out(fold, node)[0], "b8")


for _name in UNARY:
    RULES[f"{_name}.default"] = partial(_apply, _name)
_SHORT = {"maximum": "max", "minimum": "min", "sgn": "sign"}
for _name in ("mul", "div", "maximum", "minimum", "sign", "sgn", "square"):
    for _form in ("default", "Tensor", "Scalar"):
        RULES[f"{_name}.{_form}"] = partial(_apply, _SHORT.get(_name, _name))
_FORMULAS: dict[str, Callable[..., Ref]] = {
    "silu.default": lambda do, a: do("mul", a, do("sigmoid", a)),
    "lerp.Scalar": lambda do, a, b, weight: do("lerp", a, b, weight),
    "addcmul.default": lambda do, a, b, c, value=1: do("add", a, do("mul", do("mul", b, c), value)),
    "addcdiv.default": lambda do, a, b, c, value=1: do("add", a, do("mul", do("div", b, c), value)),
    "sigmoid_backward.default": lambda do, slope, y: do("mul", slope, do("mul", y, do("sub", 1, y))),
    "tanh_backward.default": lambda do, slope, y: do("mul", slope, do("sub", 1, do("square", y))),
    "log_sigmoid_backward.default": lambda do, slope, a, _: do("mul", slope, do("sigmoid", do("neg", a))),
}
for _name, _formula in _FORMULAS.items():
    RULES[_name] = partial(_by_formula, _formula)
for _name in COMPARED:
    for _form in ("Tensor", "Scalar"):
        RULES[f"{_name}.{_form}"] = partial(_compared, what=_name)


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
    return fold.each("where", [_compared(fold, node, a, 0, what="gt"), do("mul", a, scale), below], size, kind)


@rule("elu_backward.default")
def _elu_backward(
    fold: Fold, node: fx.Node, slope: Ref, alpha: Any, scale: Any, inner: Any, is_result: bool, a: Ref
) -> Ref:
    (size, kind), do = out(fold, node), partial(apply, fold, node)
    factor = do("exp", do("mul", a, inner))
    factor = do("add", a, alpha * scale) if is_result else do("mul", factor, alpha * scale)
    below = do("mul", slope, do("mul", factor, inner))
    return fold.each("where", [_compared(fold, node, a, 0, what="le"), below, do("mul", slope, scale)], size, kind)


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


# ---------------------------------------------------------------------------------------------------- whole tensors


def _constant(number: int, fold: Fold, node: fx.Node, *_: Any, **__: Any) -> Ref:
    return fold.number(number, *out(fold, node)[::-1])


rule("ones.default", "ones_like.default", "new_ones.default")(partial(_constant, 1))
rule("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default")(
    rule("empty_strided.default", "new_empty.default", "new_empty_strided.default")(partial(_constant, 0))
)


@rule("full.default", "scalar_tensor.default", "full_like.default", "new_full.default", "fill.Scalar")
def _full(fold: Fold, node: fx.Node, *args: Any, **_: Any) -> Ref:
    size, kind = out(fold, node)
    number = args[0] if name_of(node) == "scalar_tensor" else args[-1]
    number = node.kwargs.get("fill_value", number)
    return fold.number(number, kind, size)


@rule("sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "amax.default", "amin.default")
def _reduction(fold: Fold, node: fx.Node, a: Ref, dims: Any = None, keep: bool = False, **_: Any) -> Any:  # noqa: FBT002
    name, kind = name_of(node), out(fold, node)[1]
    dims = [dims] if isinstance(dims, int) else dims
    dims = [d % len(a.size) for d in dims] if dims and a.size else range(len(a.size))
    a, what = fold.cast(a, kind), {"amax": "amax", "amin": "amin"}.get(name, "sum")
    if not _can_reduce(a, dims) or (what != "sum" and not numel(a.size)):
        return NotImplemented
    result = fold.total(a, list(dims), keep=keep, what=what)
    if name != "mean":
        return result
    count = numel(tuple(a.size[d] for d in dims))
    return fold.each("mul", [result, fold.number(1 / count if count else math.nan, kind)], result.size, kind)


def _can_reduce(ref: Ref, dims: Any) -> bool:
    sides = [sum(n != 1 and (d in dims) == side for d, n in enumerate(ref.size)) for side in (True, False)]
    return (ref.kind in ("f32", "f64") and max(sides) <= 3) or (ref.kind == "i64" and sides[1] == 0)


@rule("logsumexp.default")
def _logsumexp(fold: Fold, node: fx.Node, a: Ref, dims: Any, keep: bool = False) -> Any:  # noqa: FBT002
    kind, dims = a.kind, [d % len(a.size) for d in dims] if a.size else []
    if not numel(a.size) or not _can_reduce(a, dims):
        return NotImplemented
    most = fold.total(a, dims, keep=True, what="amax")
    distance = fold.each("abs", [most], most.size, kind)
    infinite = fold.each("eq", [distance, fold.number(math.inf, kind)], most.size, "b8")
    most = fold.each("where", [infinite, fold.number(0, kind), most], most.size, kind)
    total = fold.total(fold.each("exp", [fold.each("sub", [a, most], a.size, kind)], a.size, kind), dims, keep=True)
    result = fold.each("add", [fold.each("log", [total], total.size, kind), most], total.size, kind)
    stride = tuple(s for d, s in enumerate(result.stride) if keep or d not in dims)
    return Ref(result.value, result.offset, out(fold, node)[0], stride)


@rule("_softmax.default", "_log_softmax.default")
def _softmax(fold: Fold, node: fx.Node, a: Ref, dim: int, _: Any) -> Any:
    do, dims = partial(apply, fold, node), [dim % len(a.size)] if a.size else []
    if not numel(a.size) or not _can_reduce(a, dims):
        return NotImplemented
    shifted = do("sub", a, fold.total(a, dims, keep=True, what="amax"))
    e = do("exp", shifted)
    total = fold.total(e, dims, keep=True)
    is_log = "log" in name_of(node)
    return do("sub", shifted, fold.each("log", [total], total.size, a.kind)) if is_log else do("div", e, total)


@rule("_softmax_backward_data.default", "_log_softmax_backward_data.default")
def _softmax_backward(fold: Fold, node: fx.Node, slope: Ref, y: Ref, dim: int, _: Any) -> Any:
    do, dims = partial(apply, fold, node), [dim % len(y.size)] if y.size else []
    if not numel(y.size) or not _can_reduce(y, dims):
        return NotImplemented
    if "log" in name_of(node):
        return do("sub", slope, do("mul", do("exp", y), fold.total(slope, dims, keep=True)))
    product = do("mul", slope, y)
    return do("sub", product, do("mul", y, fold.total(product, dims, keep=True)))


@rule("mm.default", "bmm.default")
def _mm(fold: Fold, node: fx.Node, a: Ref, b: Ref) -> Any:
    return fold.product(a, b) if _can_multiply(a, b) else NotImplemented


@rule("addmm.default")
def _addmm(fold: Fold, node: fx.Node, bias: Ref, a: Ref, b: Ref, beta: Any = 1, alpha: Any = 1) -> Any:
    if not _can_multiply(a, b) or (beta, alpha) != (1, 1):
        return NotImplemented
    size = out(fold, node)[0]
    if broadcast(bias, size).stride[0] == 0:
        return fold.product(a, b, broadcast(bias, size))
    return fold.each("add", [fold.product(a, b), bias], size, a.kind)


@rule("mv.default", "dot.default")
def _mv(fold: Fold, node: fx.Node, a: Ref, b: Ref) -> Any:
    rows = a if len(a.size) == 2 else Ref(a.value, a.offset, (1, *a.size), (0, *a.stride))
    column = Ref(b.value, b.offset, (*b.size, 1), (*b.stride, 1))
    if not _can_multiply(rows, column):
        return NotImplemented
    result = fold.product(rows, column)
    size = out(fold, node)[0]
    return Ref(result.value, result.offset, size, result.stride[: len(size)])


def _can_multiply(a: Ref, b: Ref) -> bool:
    """Return whether the BLAS takes matrices as they lie, and there is anything to add up."""
    return a.kind in ("f32", "f64") and bool(numel(a.size) and numel(b.size))


def _unsqueezed(ref: Ref, dim: int) -> Ref:
    size, stride = ((*shown[:dim], 1, *shown[dim:]) for shown in (ref.size, ref.stride))
    return Ref(ref.value, ref.offset, size, stride)


@rule("cat.default", "stack.default")
def _cat(fold: Fold, node: fx.Node, parts: list[Ref], dim: int = 0) -> Any:
    size, kind = out(fold, node)
    dim %= len(size)
    if name_of(node) == "stack":
        parts = [_unsqueezed(part, dim) for part in parts]
    return fold.joined([fold.cast(part, kind) for part in parts], size, dim)


@rule("index_select.default")
def _index_select(fold: Fold, node: fx.Node, a: Ref, dim: int, index: Ref) -> Any:
    return _take_rows(fold, node, a, index) if dim == 0 else NotImplemented


@rule("index.Tensor")
def _index(fold: Fold, node: fx.Node, a: Ref, indices: list[Any]) -> Any:
    return _take_rows(fold, node, a, indices[0]) if len(indices) == 1 else NotImplemented


def _take_rows(fold: Fold, node: fx.Node, a: Ref, index: Any) -> Any:
    if not isinstance(index, Ref) or index.kind != "i64" or not index.is_dense() or not a.size:
        return NotImplemented
    row = Ref(a.value, a.offset, a.size[1:], a.stride[1:])
    if not row.is_dense() or (len(a.size) and a.size[0] == 0):
        return NotImplemented
    return fold.new("take_rows", [a, index], DTYPES[a.kind], out(fold, node)[0])


@rule("gather.default")
def _gather(fold: Fold, node: fx.Node, a: Ref, dim: int, index: Ref, **_: Any) -> Any:
    if len(a.size) != 2 or dim % 2 != 1 or a.kind not in ("f32", "f64"):
        return NotImplemented
    return fold.new("gather", [a, index], DTYPES[a.kind], out(fold, node)[0])


@rule("scatter_add.default")
def _scatter_add(fold: Fold, node: fx.Node, a: Ref, dim: int, index: Ref, source: Ref) -> Any:
    if len(a.size) != 2 or dim % 2 != 1 or a.kind not in ("f32", "f64"):
        return NotImplemented
    size, kind = out(fold, node)
    start = fold.new("same", [a], DTYPES[kind], size)
    return fold.overwritten(node, start, start, "scatter_add", [source, index])


@rule("select_backward.default")
def _select_backward(fold: Fold, node: fx.Node, slope: Ref, size: Any, dim: int, index: int) -> Ref:
    dim %= len(size)
    return _padded(fold, node, _unsqueezed(slope, dim), dim, index % size[dim], 1)


@rule("slice_backward.default")
def _slice_backward(fold: Fold, node: fx.Node, slope: Ref, size: Any, dim: int, start: int, end: int, step: int) -> Ref:
    dim %= len(size)
    return _padded(fold, node, slope, dim, max(start + size[dim], 0) if start < 0 else start, step)


def _padded(fold: Fold, node: fx.Node, part: Ref, dim: int, start: int, step: int) -> Ref:
    """Return zeros with numbers in some places of a dimension."""
    size, kind = out(fold, node)
    if part.size == size:
        return part
    zeros = fold.new("same", [fold.number(0, kind, size)], DTYPES[kind], size)
    strides = dense(size)
    stride = tuple(s * step if d == dim else s for d, s in enumerate(strides))
    return fold.overwritten(node, zeros, Ref(zeros.value, start * strides[dim], part.size, stride), "same", [part])


def _into(fold: Fold, node: fx.Node, source: Ref) -> None:
    """Overwrite the first argument of a node."""
    target = fold.ref(node.args[0])  # type: ignore[arg-type]
    source = broadcast(fold.cast(source, target.kind), target.size)
    fold.write(fold.views[node.args[0]].storage, target, "same", [source])  # type: ignore[index]


def _overwritten(new: Rule, fold: Fold, node: fx.Node, *args: Any) -> None:
    _into(fold, node, new(fold, node, *args))


rule("copy_.default")(partial(_overwritten, _copy_of))
rule("zero_.default")(partial(_overwritten, partial(_constant, 0)))
rule("fill_.Scalar")(partial(_overwritten, _full))
rule("masked_fill_.Scalar")(partial(_overwritten, _masked_fill))


@rule("add_.Tensor", "sub_.Tensor", "mul_.Tensor", "div_.Tensor")
def _in_place(fold: Fold, node: fx.Node, target: Ref, other: Any, alpha: Any = 1) -> Any:
    if alpha != 1 or target.kind == "b8" or (target.kind == "i64" and name_of(node) == "div_"):
        return NotImplemented
    _into(fold, node, fold.each(name_of(node)[:-1], [target, fold.cast(other, target.kind)], target.size, target.kind))
    return None


@rule(*(f"{_name}_.default" for _name in UNARY))
def _unary_in_place(fold: Fold, node: fx.Node, target: Ref) -> Any:
    if target.kind not in ("f32", "f64"):
        return NotImplemented
    _into(fold, node, fold.each(name_of(node)[:-1], [target], target.size, target.kind))
    return None


@rule("index_copy_.default")
def _index_copy_(fold: Fold, node: fx.Node, target: Ref, dim: int, index: Ref, source: Ref) -> Any:
    row = Ref(target.value, 0, target.size[1:], target.stride[1:])
    if dim != 0 or not row.is_dense() or not index.is_dense():
        return NotImplemented
    if not source.is_dense():
        source = fold.new("same", [source], DTYPES[source.kind], source.size)
    fold.write(fold.views[node.args[0]].storage, target, "put_rows", [source, index])  # type: ignore[index]
    return None
