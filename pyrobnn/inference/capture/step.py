"""The captured step: a graph that advances its state, parameters and position in its tables, each time it runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.func import functional_call, vmap
from torch.optim import Optimizer

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.private import private, tree_leaves, tree_map
from pyrobnn.data.batches import Batch
from pyrobnn.guides.built import rate_factors
from pyrobnn.inference.capture.noise import Noise
from pyrobnn.inference.capture.objective import Objective
from pyrobnn.inference.capture.record import drop_unused, lift_constants, record, slope
from pyrobnn.inference.capture.run import make_loop
from pyrobnn.inference.capture.updates import UPDATES, clip
from pyrobnn.inference.svi.objective import RecordedNoise
from pyrobnn.inference.training.engines import MakeLoop

MAX_BLOCK = 256
"""Steps for which the tables of a captured step have room."""
Tree = dict[str, Any]
Estimate = Callable[[Tree, Batch], tuple[Tensor, Tensor]]
"""Estimates of log-likelihood and KL for the tensors of an objective and a batch."""


class CapturedStep:
    """Runs blocks of optimiser steps as one recorded graph, on the tensors that model, guide and optimiser hold.

    Everything that changes between steps is an input that stays in its place: the rows of the mini-batch, the learning
    rate and the weight of the KL are read from tables at a position that the graph itself moves on, and the terms of
    the ELBO are written to one. Nothing is recorded again when they change, and nothing is read back within a block.

    Several objectives train side by side in one graph, R replicates on a leading axis of every tensor.

    Args:
        objectives: model and guide of each replicate; their tensors are those that train, changed in place.
        optimizers: the optimiser of each after at least one step, whose state goes on.
        trained: the parameters that each changes.
        data: all examples, on the device and in the units of the model; with one entry for all replicates
            or one for each.
        batch_size: rows of a mini-batch, or None for all of them.
        num_particles: draws for each estimate.
        antithetic: whether every other draw mirrors the noise of the one before it.
        clip_norm: bound on the norm of the gradient, or None.
        make_loop: from the recorded graph and its inputs to a function that runs it a number of times.

    Attributes:
        noise: the random numbers of the next steps.

    Raises:
        NotCapturable: with the reason.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        optimizers: Sequence[Optimizer],
        trained: Sequence[Sequence[Tensor]],
        data: Sequence[Batch],
        *,
        batch_size: int | None,
        num_particles: int,
        clip_norm: float | None,
        antithetic: bool = False,
        make_loop: MakeLoop = make_loop,
    ) -> None:
        estimate = _make_estimate(objectives[0], num_particles, antithetic=antithetic)
        factors = {f"guide.{name}": factor for name, factor in rate_factors(objectives[0].guide).items()}
        loss, move = _make_loss(estimate), _make_move(optimizers[0], clip_norm, factors)
        self._rates, self._group = UPDATES[type(optimizers[0])].rates, optimizers[0].param_groups[0]
        states = [_training_state(*parts) for parts in zip(objectives, optimizers, trained, strict=True)]
        replicates = (len(states),) if len(states) > 1 else ()
        own_data = len(data) > 1
        training = _stack(states) if replicates else states[0]
        if replicates:
            loss = vmap(loss, in_dims=(0, 0, 0 if own_data else None, 0, 0), randomness="different")
            move = vmap(move)
        like = next(iter(training["trained"].values()))
        self._state: Tree = {"training": training, "data": _stack(list(data)) if own_data else data[0]}
        self._state |= _tables(replicates, batch_size, 1 + len(self._rates(self._group, 1)), like)
        leaves, self._spec = private("tree_flatten")(self._state)
        graph = record(self._in_place(loss, move), leaves)
        constants = lift_constants(graph)
        self.noise = Noise(graph, _placeholder(graph, self._state["position"], leaves), MAX_BLOCK)
        self._loop = make_loop(graph, drop_unused(graph, leaves + constants + self.noise.inputs))
        if replicates:
            _adopt(objectives, optimizers, training)
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)

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
        """Do a block of steps, at most `MAX_BLOCK`.

        Args:
            lr: learning rate of each step, (steps, [R]).
            kl_weight: factor on the KL, likewise.
            rows: rows of each mini-batch, (steps, [R,] batch); None for all of them.
            first: number of the first of these steps, counted from 1.

        Returns:
            Log-likelihood and KL of each step, (steps, [R,] 2) in float64.
        """
        num_steps, tables = len(lr), self._state["tables"]
        tables["rates"][:num_steps, ..., 0].copy_(lr)
        tables["kl_weight"][:num_steps].copy_(kl_weight)
        if rows is not None:
            tables["rows"][:num_steps].copy_(rows)
        others = torch.from_numpy(np.array([self._rates(self._group, first + k) for k in range(num_steps)], float))
        tables["rates"][:num_steps, ..., 1:].copy_(others.view(num_steps, *[1] * (lr.ndim - 1), -1))
        self._state["position"].zero_()
        for done in range(0, num_steps, self.noise.num_rows):
            count = min(self.noise.num_rows, num_steps - done)
            self.noise.draw(count)
            self._loop(count)
        return self._state["terms"][:num_steps].clone()


def _write(tree: Tree, new: Tree) -> None:
    """Write new values in the place of old ones; the others stay."""
    for key, value in new.items():
        if isinstance(value, dict):
            _write(tree[key], value)
        else:
            tree[key].copy_(value)


def _placeholder(graph: fx.GraphModule, leaf: Tensor, leaves: list[Tensor]) -> fx.Node:
    return graph.graph.find_nodes(op="placeholder")[next(i for i, other in enumerate(leaves) if other is leaf)]


def _make_loss(estimate: Estimate) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the function that gives the loss of a step and its terms, log-likelihood and KL."""

    def loss(trained: Tree, fixed: Tree, data: Batch, rows: Any, kl_weight: Tensor) -> tuple[Tensor, Tensor]:
        batch = tuple(values[rows] for values in data) if isinstance(rows, Tensor) else data
        log_likelihood, kl = estimate(trained | fixed, batch)
        return kl_weight * kl - log_likelihood, torch.stack([log_likelihood, kl])

    return loss


def _make_move(optimizer: Optimizer, clip_norm: float | None, factors: Mapping[str, float]) -> Callable[..., Tree]:
    """Return the function from training state, gradients and rates to the state after a step."""
    if type(optimizer) not in UPDATES:
        raise NotCapturable(f"the optimiser {type(optimizer).__name__} has no recorded form")
    rule, group = UPDATES[type(optimizer)], {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}

    def move(state: Tree, gradients: dict[str, Tensor], rates: Tensor) -> Tree:
        trained = state["trained"]
        if clip_norm is not None:
            gradients = clip(gradients, clip_norm)
        new, memories = rule.of_all(trained, gradients, state["optimizer"], rates, group)
        damped = {name: trained[name].lerp(new[name], factor) for name, factor in factors.items() if name in new}
        return {"trained": new | damped, "optimizer": memories}

    return move


def _make_estimate(objective: Objective, num_particles: int, *, antithetic: bool) -> Estimate:
    """Return the function that gives log-likelihood and KL averaged over the particles, for tensors and a batch."""

    def one(tensors: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        return functional_call(objective, tensors, batch)

    def pair(tensors: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        noise = RecordedNoise()
        with noise:
            first = one(tensors, batch)
        with noise.mirrored():
            second = one(tensors, batch)
        return 0.5 * (first[0] + second[0]), 0.5 * (first[1] + second[1])

    draw, count = (pair, num_particles // 2) if antithetic else (one, num_particles)

    def several(tensors: Tree, batch: Batch) -> tuple[Tensor, Tensor]:
        draws = vmap(lambda _: draw(tensors, batch), randomness="different")
        log_likelihood, kl = draws(batch[0].new_empty(count, 0))
        return log_likelihood.mean(), kl.mean()

    return draw if count == 1 else several


def _training_state(objective: Objective, optimizer: Optimizer, moved: Sequence[Tensor]) -> Tree:
    """Return the tensors of model, guide and optimiser that a step reads or changes, by name; storage is shared."""
    trained = {name: p for name, p in objective.named_parameters() if any(p is other for other in moved)}
    everything = [*objective.named_parameters(), *objective.named_buffers()]
    return {
        "trained": {name: p.detach() for name, p in trained.items()},
        "optimizer": {
            name: {key: value for key, value in optimizer.state[p].items() if key != "step" and value is not None}
            for name, p in trained.items()
        },
        "fixed": {name: value.detach() for name, value in everything if name not in trained},
    }


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


def _adopt(objectives: Sequence[Objective], optimizers: Sequence[Optimizer], training: Tree) -> None:
    """Make the tensors of every replicate views into the stacked ones, so that they follow the training."""
    stacked = training["trained"] | training["fixed"]
    for index, (objective, optimizer) in enumerate(zip(objectives, optimizers, strict=True)):
        for name, value in [*objective.named_parameters(), *objective.named_buffers()]:
            value.data = stacked[name][index]
        for name, parameter in objective.named_parameters():
            memory = training["optimizer"].get(name, {})
            optimizer.state[parameter].update({key: value[index] for key, value in memory.items()})
