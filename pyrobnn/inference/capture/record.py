"""From a function of tensors to a flat graph of ATen operators that changes its inputs in place."""

import itertools
from collections.abc import Callable
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.func import functionalize

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.private import in_turns, load, private
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.capture.objective import FreshNoise

_aten = torch.ops.aten
_SMALL_PRODUCT = 2**15
"""Multiplications of a matrix product up to which a loop in the fused kernel beats a call of the BLAS."""
_ADDRESSABLE = 2**31 - 1
"""Entries of a tensor that programs address with 32 bits."""
_SAME_ORDER = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.alias.default)
"""Operations that leave the entries of a tensor in their order."""
_BRANCHES = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
"""Errors of torch where the value of a tensor is asked for."""
ATEN_RANDOM = {"fallback_random": True}
"""Settings of inductor under which random numbers come from ATen's generator, in graph and in eager steps alike."""


def record(function: Callable[..., tuple[()]], inputs: list[Tensor]) -> fx.GraphModule:
    """Return the graph of a function that changes some of its inputs in place and returns an empty tuple.

    It is traced with tensors that have no storage: no arithmetic is done, no random number is drawn.

    Raises:
        NotCapturable: what the function does depends on the values of tensors, or is not an operation of torch.
    """
    try:
        load("make_fx", "select_decomp_table", "inductor_config", "FakeTensorMode")
        with (
            fast_pyro(),
            FreshNoise(),
            private("inductor_config").patch(ATEN_RANDOM),
            in_turns("FakeTensorMode.dispatch"),
        ):
            traced = private("make_fx")(
                functionalize(function),
                decomposition_table=private("select_decomp_table")(),
                tracing_mode="fake",
                _allow_non_fake_inputs=True,
            )
            try:
                graph = traced(*inputs)
            except AttributeError as error:
                if "torch._inductor" not in str(error):
                    raise
                private("inductor_lowering")  # a second, which decompositions of pooling take for granted
                graph = traced(*inputs)
        _inline_constants(graph)
        _draw_bernoulli_from_uniform(graph)
        _take_as_joined(graph)
        _unroll_small_products(graph)
        graph.graph.eliminate_dead_code()
        graph.recompile()
    except tuple(map(private, _BRANCHES)) as error:
        raise NotCapturable("the model branches on values of tensors") from error
    except NotCapturable:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise NotCapturable(f"the model cannot be recorded ({type(error).__name__}: {reason})") from error
    return graph


def forget_length(graph: fx.GraphModule, data: fx.Node) -> None:
    """Let an input of which only rows are taken, by their numbers, stand for one of any length with rows like its own.

    Nothing of the program depends on the length but the bound on the numbers, which becomes the largest that 32 bits
    can address. Longer ones stay as they are.
    """
    value = data.meta["val"]
    longest = _ADDRESSABLE // max(1, value[:1].numel())
    if longest > len(value) and value.is_contiguous() and all(_takes_rows(user, data) for user in data.users):
        with value.fake_mode:
            data.meta["val"] = value.new_empty(longest, *value.shape[1:])


def _takes_rows(node: fx.Node, data: fx.Node) -> bool:
    arguments: Any = node.args
    return node.target is _aten.index.Tensor and arguments[0] is data and len(arguments[1]) == 1


def _inline_constants(graph: fx.GraphModule) -> None:
    """Write constants of a single number into the graph, so that they take part in the compiler's arithmetic."""
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, node.target)
        if isinstance(value, Tensor) and value.numel() == 1:
            with graph.graph.inserting_before(node):
                options: dict[str, Any] = {"dtype": value.dtype, "device": value.device}
                new = graph.graph.call_function(_aten.full.default, (list(value.shape), value.item()), options)
            _replace(node, new)


def lift_constants(graph: fx.GraphModule) -> list[Tensor]:
    """Make inputs of the larger constants that the model holds outside its buffers, and return them in order."""
    constants: list[Tensor] = []
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, node.target)
        last = graph.graph.find_nodes(op="placeholder")[-1]
        with graph.graph.inserting_after(last):
            new = graph.graph.placeholder(f"constant_{len(constants)}")
        fake_mode = getattr(last.meta["val"], "fake_mode", None)
        new.meta["val"] = value if fake_mode is None else fake_mode.from_tensor(value)
        _replace(node, new)
        constants.append(value)
    return constants


def drop_unused(graph: fx.GraphModule, leaves: list[Tensor]) -> list[Tensor]:
    """Take inputs that nothing reads out of the graph, and return the others."""
    used = []
    for node, leaf in zip(graph.graph.find_nodes(op="placeholder"), leaves, strict=True):
        if node.users:
            used.append(leaf)
        else:
            graph.graph.erase_node(node)
    graph.recompile()
    return used


def _draw_bernoulli_from_uniform(graph: fx.GraphModule) -> None:
    """Write Bernoulli draws on a GPU, as dropout makes them, as comparisons of uniform numbers, which fuse."""
    for node in graph.graph.find_nodes(op="call_function", target=_aten.bernoulli.p):
        if node.meta["val"].device.type == "cpu":
            continue
        arguments: Any = node.args
        like, probability = arguments[:2]
        with graph.graph.inserting_before(node):
            uniform = call(graph.graph, _aten.rand_like.default, like)
            below = call(graph.graph, _aten.lt.Scalar, uniform, probability)
            convert = torch.ops.prims.convert_element_type.default
            new = graph.graph.call_function(convert, (below, like.meta["val"].dtype))
        _replace(node, new)


class _Piece(NamedTuple):
    """Entries of a vector that follow one another: of which, from where, and how many."""

    whole: fx.Node
    start: int
    length: int


def _take_as_joined(graph: fx.GraphModule) -> None:
    """Put the vector that was split in the place of one that joins its parts again.

    Nothing is written to before the end of a functional graph, so that both are the same; what is copied into an input
    there stays, because it may show an input that has changed by then.
    """
    for node in graph.graph.find_nodes(op="call_function", target=_aten.cat.default):
        arguments: Any = node.args
        pieces = [_piece(part) for part in arguments[0]]
        starts = itertools.accumulate((piece.length for piece in pieces), initial=0)
        whole = pieces[0].whole
        follow = all(
            piece.whole is whole and piece.start == start for piece, start in zip(pieces, starts, strict=False)
        )
        if follow and _is_vector_like(whole, node) and not _is_copied(node):
            node.replace_all_uses_with(whole)


def _is_copied(node: fx.Node) -> bool:
    """Return whether a tensor, or a view of it, is copied into an input."""
    targets: list[tuple[fx.Node, Any]] = [(user, user.target) for user in node.users]
    return any(
        target in (_aten.copy.default, _aten.copy_.default) or (getattr(target, "is_view", False) and _is_copied(user))
        for user, target in targets
    )


def _is_vector_like(node: fx.Node, other: fx.Node) -> bool:
    value, another = (one.meta["val"] for one in (node, other))
    return value.ndim == 1 and value.shape == another.shape and value.dtype == another.dtype


def _piece(node: fx.Node) -> _Piece:
    """Return of which vector a node shows a part, through views, slices and splits of the first dimension."""
    value, arguments = node.meta.get("val"), tuple[Any, ...](node.args)
    if not (isinstance(value, Tensor) and arguments and isinstance(arguments[0], fx.Node)):
        return _Piece(node, 0, value.numel() if isinstance(value, Tensor) else 0)
    source, start = arguments[0], 0
    if node.target is _aten.slice.Tensor and arguments[1:2] in ((), (0,)) and arguments[4:] in ((), (1,)):
        start = (*arguments[2:3], 0)[0] or 0
    elif node.target is getitem and source.target is _aten.split_with_sizes.default and source.args[2:] in ((), (0,)):
        parts: Any = source.args
        source, start = parts[0], sum(parts[1][: arguments[1]])
    elif node.target not in _SAME_ORDER and not (
        node.target is _aten.expand.default and source.meta["val"].numel() == value.numel()
    ):
        return _Piece(node, 0, value.numel())
    if start < 0:
        return _Piece(node, 0, value.numel())
    found = _piece(source)
    return _Piece(found.whole, found.start + start * source.meta["val"].shape[1:].numel(), value.numel())


def _unroll_small_products(graph: fx.GraphModule) -> None:
    """Replace small matrix products by a multiplication and a sum, which fuse with their neighbours."""
    for node in list(graph.graph.nodes):
        if node.target in (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default):
            _unroll(graph.graph, node)


def _unroll(graph: fx.Graph, node: fx.Node) -> None:
    arguments: Any = node.args
    *bias, left, right = arguments
    if any("val" not in factor.meta for factor in (left, right)):
        return
    inner, columns = right.meta["val"].shape[-2:]
    if left.meta["val"].numel() * columns > _SMALL_PRODUCT or node.kwargs:
        return
    with graph.inserting_before(node):
        if inner == 1:
            product = call(graph, _aten.mul.Tensor, left, right)
        else:
            wide = call(graph, _aten.unsqueeze.default, left, -1)
            tall = call(graph, _aten.unsqueeze.default, right, -3)
            product = call(graph, _aten.sum.dim_IntList, call(graph, _aten.mul.Tensor, wide, tall), [-2])
        for offset in bias:
            product = call(graph, _aten.add.Tensor, product, offset)
    _replace(node, product)


def call(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    """Add an operation to a graph, with the value that later passes read its shape from."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*fx.map_arg(args, lambda argument: argument.meta["val"]))
    return node


def _replace(old: fx.Node, new: fx.Node) -> None:
    new.meta.setdefault("val", old.meta.get("val"))
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
