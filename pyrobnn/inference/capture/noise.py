"""Random numbers for a recorded graph on a CPU: those that the eager step draws, in its order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from pyrobnn.inference.capture.objective import memory_order
from pyrobnn.inference.capture.record import call
from pyrobnn.tape.runner import draw_normals, draws_as_torch

_aten = torch.ops.aten
_NORMAL = (_aten.randn_like.default, _aten.randn.default)
_UNIFORM = (_aten.rand_like.default, _aten.rand.default)
_BERNOULLI = (_aten.bernoulli.p,)
Law = Callable[..., Tensor]
_TABLE = 2**22
"""Random numbers that are drawn ahead, at most."""
_LARGE = 2**14
"""Normal numbers in a draw from which the library draws them: the same ones up to rounding, on all threads."""


class Noise:
    """The inputs of a graph that hold its random numbers on a CPU: a table with a row for each step, or one row.

    The stream is torch's default generator, one draw for each random operation of a step in order. A graph with a draw
    of another kind, such as `torch.randint`, keeps all of its draws, so that their order stays. An operation draws
    for all particles and replicates at once, where eager steps draw for one after the other: with
    more than one of them the same seed gives the engines other numbers of the same distribution.

    Args:
        graph: the recorded graph; its operations that draw normal, uniform or Bernoulli numbers become inputs.
        position: the input that counts the steps of a block.
        num_rows: steps in a block.

    Attributes:
        inputs: the tensors to append to the inputs of the graph.
        num_rows: steps that `draw` provides for at once.
        is_complete: whether the graph has no random operation left.
    """

    def __init__(self, graph: fx.GraphModule, position: fx.Node, num_rows: int) -> None:
        drawing = [node for node in graph.graph.nodes if _is_random(node)]
        self.is_complete = all(_is_table(node) for node in drawing)
        nodes = drawing if self.is_complete else []
        per_step = sum(node.meta["val"].numel() for node in nodes)
        self.num_rows = num_rows if per_step * num_rows <= _TABLE else 1
        laws = [_law(node) for node in nodes]
        rows = [_replace_by_input(node, position, self.num_rows) for node in nodes]
        self.inputs = [table for table, _ in rows]
        fills = [[partial(_for(row, law), row) for row in drawn] for (_, drawn), law in zip(rows, laws, strict=True)]
        self._steps = list(zip(*fills, strict=True)) if fills else []

    def draw(self, num_steps: int) -> None:
        """Draw the random numbers of the next steps, at most `num_rows`."""
        for fills in self._steps[:num_steps]:
            for fill in fills:
                fill()


def _for(row: Tensor, law: Law) -> Callable[[Tensor], object]:
    """Return what fills a row: the library for many normal numbers, if it draws as torch does."""
    is_large = row.numel() >= _LARGE and row.dtype == torch.float32 and row.is_contiguous()
    return draw_normals if law is Tensor.normal_ and is_large and draws_as_torch() else law


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_table(node: fx.Node) -> bool:
    """Return whether the numbers of a random operation can be drawn before the graph runs."""
    return node.target in (*_NORMAL, *_UNIFORM, *_BERNOULLI) and node.meta["val"].device.type == "cpu"


def _law(node: fx.Node) -> Law:
    """Return what draws the numbers of a random operation into a tensor."""
    if node.target in _BERNOULLI:
        return partial(_bernoulli, node.args[1])
    return Tensor.uniform_ if node.target in _UNIFORM else Tensor.normal_


def _bernoulli(probability: Any, row: Tensor) -> Tensor:
    return row.bernoulli_(probability)


def _replace_by_input(node: fx.Node, position: fx.Node, num_rows: int) -> tuple[Tensor, list[Tensor]]:
    """Make an input of a random operation; return the tensor to pass in its place, and its rows in the old layout.

    How numbers fill a tensor depends on the order of its dimensions in memory.
    """
    graph, drawn = node.graph, node.meta["val"]
    order, back = memory_order(drawn)
    sizes = [drawn.shape[dimension] for dimension in order]
    shape = (num_rows, *sizes) if num_rows > 1 else tuple(sizes)
    with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
        new = graph.placeholder(f"noise_{node.name}")
    new.meta["val"] = drawn.new_zeros(shape)
    with graph.inserting_before(node):
        if num_rows > 1:
            index = call(graph, _aten.reshape.default, position, [1])
            new = call(graph, _aten.reshape.default, call(graph, _aten.index.Tensor, new, [index]), sizes)
        if back != sorted(back):
            new = call(graph, _aten.permute.default, new, back)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    table = torch.empty(shape, dtype=drawn.dtype)
    return table, [row.permute(back) for row in (table if num_rows > 1 else [table])]
