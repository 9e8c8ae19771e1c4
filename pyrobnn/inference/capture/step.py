"""The captured step: a graph that advances its state, parameters and position in its tables, each time it runs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx
from torch.func import functional_call, vmap
from torch.optim import Optimizer

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.private import private, tree_leaves, tree_map
from pyrobnn.data.batches import Batch
from pyrobnn.guides.base import rate_factors
from pyrobnn.inference.capture.graph import call, lift_constants, make_loop, record, slope
from pyrobnn.inference.capture.objective import Objective, memory_order
from pyrobnn.inference.capture.updates import UPDATES, clip
from pyrobnn.tape.runner import draw_normals, draws_as_torch

MAX_BLOCK = 256
"""Steps for which the tables of a captured step have room."""
Tree = dict[str, Any]


class Replicate(NamedTuple):
    """What a graph trains, alone or as one of several of one shape."""

    objective: Objective
    optimizer: Optimizer  # it has done a step
    moved: Sequence[Tensor]  # the parameters that a step changes

    def training_state(self) -> Tree:
        """Return the tensors of model, guide and optimiser that a step reads or changes, by name; storage is shared."""
        objective, memory = self.objective, self.optimizer.state
        trained = {name: p for name, p in objective.named_parameters() if any(p is other for other in self.moved)}
        everything = [*objective.named_parameters(), *objective.named_buffers()]
        return {
            "trained": {name: p.detach() for name, p in trained.items()},
            "optimizer": {
                name: {key: value for key, value in memory[p].items() if key != "step" and value is not None}
                for name, p in trained.items()
            },
            "fixed": {name: value.detach() for name, value in everything if name not in trained},
        }

    def adopt(self, training: Tree, index: int) -> None:
        """Make the tensors views into those of all replicates, so that they follow the training."""
        stacked = training["trained"] | training["fixed"]
        for name, value in [*self.objective.named_parameters(), *self.objective.named_buffers()]:
            value.data = stacked[name][index]
        for name, parameter in self.objective.named_parameters():
            memory = training["optimizer"].get(name, {})
            self.optimizer.state[parameter].update({key: value[index] for key, value in memory.items()})


class CapturedStep:
    """Runs blocks of optimiser steps as one recorded graph, on the tensors that model, guide and optimiser hold.

    What changes between steps is read from tables at a position that the graph itself moves on, and the terms of the
    ELBO are written to one. R replicates train side by side, on a leading axis of every tensor. Data are all examples,
    with one entry for all replicates or one for each; `noise` has the random numbers of the next steps.
    """

    def __init__(
        self,
        replicates: Sequence[Replicate],
        data: Sequence[Batch],
        *,
        batch_size: int | None,
        num_particles: int,
        clip_norm: float | None,
    ) -> None:
        first = replicates[0]
        loss, move = _make_loss(first.objective, num_particles), _make_move(first, clip_norm)
        self._rates, self._group = UPDATES[type(first.optimizer)].rates, first.optimizer.param_groups[0]
        states, own_data = [replicate.training_state() for replicate in replicates], len(data) > 1
        training, shape = states[0], tuple[int, ...]()
        if len(replicates) > 1:
            training, shape = _stack(states), (len(replicates),)
            loss = vmap(loss, in_dims=(0, 0, 0 if own_data else None, 0, 0), randomness="different")
            move = vmap(move)
        like = next(iter(training["trained"].values()))
        self._state: Tree = {"training": training, "data": _stack(list(data)) if own_data else data[0]}
        self._state |= _tables(shape, batch_size, 1 + len(self._rates(self._group, 1)), like)
        self._record(loss, move)
        for index, replicate in enumerate(replicates):
            if len(replicates) > 1:
                replicate.adopt(training, index)
            replicate.optimizer.zero_grad(set_to_none=True)

    def _record(self, loss: Callable[..., Any], move: Callable[..., Tree]) -> None:
        leaves, self._spec = private("tree_flatten")(self._state)
        graph = record(self._in_place(loss, move), leaves)
        constants = lift_constants(graph)
        index = next(i for i, leaf in enumerate(leaves) if leaf is self._state["position"])
        self.noise = RandomInputs(graph, graph.graph.find_nodes(op="placeholder")[index], MAX_BLOCK)
        self._loop = make_loop(graph, leaves + constants + self.noise.inputs)

    def _in_place(self, loss: Callable[..., Any], move: Callable[..., Tree]) -> Callable[..., tuple[()]]:
        spec = self._spec

        def step(*leaves: Tensor) -> tuple[()]:
            state = private("tree_unflatten")(list(leaves), spec)
            position = state["position"].reshape(1)
            row = {name: table.index_select(0, position).squeeze(0) for name, table in state["tables"].items()}
            training, batch = state["training"], (state["data"], row.get("rows", {}), row["kl_weight"])
            gradients, terms = slope(lambda values: loss(values, training["fixed"], *batch), training["trained"])
            _write(training, move(training, gradients, row["rates"]))
            state["terms"].index_copy_(0, position, terms.unsqueeze(0))
            state["position"].add_(1)
            return ()

        return step

    def feed(self, batch: Batch) -> None:
        """Put a batch in the place of the data."""
        for place, value in zip(tree_leaves(self._state["data"]), tree_leaves(batch), strict=True):
            place.copy_(value)

    def advance(self, lr: Tensor, kl_weight: Tensor, rows: Tensor | None = None, *, first: int) -> Tensor:
        """Do steps, the first of them number `first` from 1, and return log-likelihood and KL, (steps, [R,] 2).

        They have learning rates and factors on the KL, (steps, [R]) each. `rows` has those of the mini-batches,
        (steps, [R,] batch); None for all data.
        """
        num_steps = len(lr)
        others = torch.from_numpy(np.array([self._rates(self._group, first + k) for k in range(num_steps)], float))
        others = others.view(num_steps, *[1] * (lr.ndim - 1), -1).expand(*lr.shape, -1)
        table = {"rates": torch.cat([lr[..., None], others], -1), "kl_weight": kl_weight, "rows": rows}
        return torch.cat(
            [self._run(table, start, min(MAX_BLOCK, num_steps - start)) for start in range(0, num_steps, MAX_BLOCK)]
        )

    def _run(self, table: dict[str, Any], start: int, num_rows: int) -> Tensor:
        """Run the graph for some rows of the tables, at most `MAX_BLOCK`, and return the terms."""
        for name, values in self._state["tables"].items():
            values[:num_rows].copy_(table[name][start : start + num_rows])
        self._state["position"].zero_()
        for done in range(0, num_rows, self.noise.num_rows):
            count = min(self.noise.num_rows, num_rows - done)
            self.noise.draw(count)
            self._loop(count)
        return self._state["terms"][:num_rows].clone()


def _write(tree: Tree, new: Tree) -> None:
    for key, value in new.items():
        if isinstance(value, dict):
            _write(tree[key], value)
        else:
            tree[key].copy_(value)


def _make_loss(objective: Objective, num_particles: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the function that gives the loss of a step and its terms, log-likelihood and KL, means over particles."""

    def estimate(tensors: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        if num_particles == 1:
            return functional_call(objective, tensors, batch)
        draws = vmap(lambda _: functional_call(objective, tensors, batch), randomness="different")
        log_likelihood, kl = draws(batch[0].new_empty(num_particles, 0))
        return log_likelihood.mean(), kl.mean()

    def loss(trained: Tree, fixed: Tree, data: Batch, rows: Any, kl_weight: Tensor) -> tuple[Tensor, Tensor]:
        batch = tuple(values[rows] for values in data) if isinstance(rows, Tensor) else data
        log_likelihood, kl = estimate(trained | fixed, batch)
        return kl_weight * kl - log_likelihood, torch.stack([log_likelihood, kl])

    return loss


def _make_move(replicate: Replicate, clip_norm: float | None) -> Callable[..., Tree]:
    """Return the function from training state, gradients and rates, (rates,), to the state after a step."""
    optimizer = replicate.optimizer
    if type(optimizer) not in UPDATES:
        raise NotCapturable(f"the optimiser {type(optimizer).__name__} has no recorded form")
    if optimizer.param_groups[0].get("amsgrad"):
        raise NotCapturable("`amsgrad` has no recorded form")
    rule, group = UPDATES[type(optimizer)], {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    factors = {f"guide.{name}": factor for name, factor in rate_factors(replicate.objective.guide).items()}

    def move(state: Tree, gradients: dict[str, Tensor], rates: Tensor) -> Tree:
        trained = state["trained"]
        if clip_norm is not None:
            gradients = clip(gradients, clip_norm)
        new, memories = rule.of_all(trained, gradients, state["optimizer"], rates, group)
        damped = {name: trained[name].lerp(new[name], factor) for name, factor in factors.items() if name in new}
        return {"trained": new | damped, "optimizer": memories}

    return move


def _tables(replicates: tuple[int, ...], batch_size: int | None, num_rates: int, like: Tensor) -> Tree:
    """Return the inputs that the graph reads at its position, the position, and the output that it writes there."""
    shape, device = (MAX_BLOCK, *replicates), like.device
    tables = {
        "rates": torch.zeros(*shape, num_rates, dtype=like.dtype, device=device),
        "kl_weight": torch.zeros(shape, dtype=like.dtype, device=device),
    }
    if batch_size is not None:
        tables["rows"] = torch.zeros(*shape, batch_size, dtype=torch.int64, device=device)
    return {
        "tables": tables,
        "position": torch.zeros((), dtype=torch.int64, device=device),
        "terms": torch.zeros(*shape, 2, dtype=torch.float64, device=device),
    }


def _stack(trees: list[Any]) -> Any:
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


_aten = torch.ops.aten
_NORMAL = (_aten.randn_like.default, _aten.randn.default)
_UNIFORM = (_aten.rand_like.default, _aten.rand.default)
_BERNOULLI = (_aten.bernoulli.p,)
Law = Callable[..., Tensor]
_TABLE = 2**22
"""Random numbers that are drawn ahead, at most."""
_LARGE = 2**14
"""Normal numbers in a draw from which the library draws them: the same ones up to rounding, on all threads."""


class RandomInputs:
    """The inputs of a graph that hold its random numbers on a CPU: a table with a row for each step, or one row.

    The stream is torch's default generator, one draw for each random operation of a step in order. A graph with a draw
    of another kind, such as `torch.randint`, keeps all of its draws, and `is_complete` is False. With several particles
    or replicates the engines draw other numbers. `position` is the input that counts the steps of a block.
    """

    def __init__(self, graph: fx.GraphModule, position: fx.Node, num_rows: int) -> None:
        random = torch.Tag.nondeterministic_seeded
        drawing = [node for node in graph.graph.nodes if random in getattr(node.target, "tags", ())]
        known = {*_NORMAL, *_UNIFORM, *_BERNOULLI}
        self.is_complete = all(node.target in known and node.meta["val"].device.type == "cpu" for node in drawing)
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


def _law(node: fx.Node) -> Law:
    """Return what draws the numbers of a random operation into a tensor."""
    if node.target in _BERNOULLI:
        return lambda row: row.bernoulli_(node.args[1])
    return Tensor.uniform_ if node.target in _UNIFORM else Tensor.normal_


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
