"""From a function of tensors to a flat graph of ATen operators that changes its inputs in place."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.func import functionalize

from pyrobnn._torch.private import in_turns, load, private
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.svi.capture.errors import NotCapturable
from pyrobnn.inference.svi.capture.objective import FreshNoise

_aten = torch.ops.aten
_SMALL_PRODUCT = 2**15
"""Multiplications of a matrix product up to which a loop in the fused kernel beats a call of the BLAS."""
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


def _draw_bernoulli_from_uniform(graph: fx.GraphModule) -> None:
    """Write Bernoulli draws, as dropout makes them, as comparisons of uniform numbers, which come from outside."""
    for node in graph.graph.find_nodes(op="call_function", target=_aten.bernoulli.p):
        arguments: Any = node.args
        like, probability = arguments[:2]
        with graph.graph.inserting_before(node):
            uniform = call(graph.graph, _aten.rand_like.default, like)
            below = call(graph.graph, _aten.lt.Scalar, uniform, probability)
            convert = torch.ops.prims.convert_element_type.default
            new = graph.graph.call_function(convert, (below, like.meta["val"].dtype))
        _replace(node, new)


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
