"""The captured engine: takes fits over after their first eager step and runs the rest as one recorded graph."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.func import functional_call, vmap

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.private import private, tree_leaves, tree_map
from pyrobnn.data.batches import Batch, TensorBatches
from pyrobnn.guides.base import rate_factors
from pyrobnn.inference.capture.graph import call, lift_constants, make_loop, record, refuse_moving, slope
from pyrobnn.inference.capture.objective import Objective, check_reparameterized, memory_order
from pyrobnn.inference.capture.updates import UPDATES, clip
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.tape.runner import draw_normals, draws_as_torch

MAX_BLOCK = 256  # steps for which the tables of a captured step have room
Tree = dict[str, Any]


class Captured:
    """Fits of one shape that have done a step, one or R replicates, as a recorded graph, on the tensors that they hold.

    What changes between steps is read from tables at a position that the graph itself moves on, and the terms of the
    ELBO are written to one. Replicates train on a leading axis of every tensor.
    """

    def __init__(self, fits: Sequence[TrainingState]) -> None:
        first = fits[0]
        self._fits, self._batches, self._group = fits, first.batches, first.group
        program, *others = [_program(fit) for fit in fits]
        for other in others:
            if name := next((name for name in program | other if program.get(name) != other.get(name)), None):
                raise NotCapturable(f"replicates differ in {name}: {program.get(name)!r} and {other.get(name)!r}")
        for fit in fits:
            refuse_moving(fit.bnn)
            if fit.method.loss is not None:
                raise NotCapturable("a `loss` of Pyro runs in Python")
            if changed := [key for key, value in fit.first_settings.items() if key != "lr" and fit.group[key] != value]:
                raise NotCapturable(f"the schedule changes `{changed[0]}` of the optimiser")
        if isinstance(first.batches, TensorBatches):
            batch_size = first.batches.batch_size
            data = [fit.batches.data for fit in fits]  # type: ignore[union-attr]
            if all(a is b for batch in data for a, b in zip(batch, data[0], strict=True)):
                data = data[:1]
        else:
            batch_size, data = None, [tuple(values.clone() for values in first.batches.example)]
        self._shapes = [value.shape for value in tree_leaves(data[0])]
        objectives = [Objective(fit.bnn, fit.guide, num_data=fit.num_data, kl=fit.method.kl) for fit in fits]
        with torch.random.fork_rng():
            check_reparameterized(first.guide, *(values[:1] for values in data[0]))
            loss, move = _make_loss(objectives[0], first.method.num_particles), _make_move(first)
            self._rates, own_data = UPDATES[type(first.optimizer)].rates, len(data) > 1
            states = [_training_state(*pair) for pair in zip(objectives, fits, strict=True)]
            training, shape = states[0], tuple[int, ...]()
            if len(fits) > 1:
                training, shape = _stack(states), (len(fits),)
                loss = vmap(loss, in_dims=(0, 0, 0 if own_data else None, 0, 0), randomness="different")
                move = vmap(move)
            like = next(iter(training["trained"].values()))
            self._state: Tree = {"training": training, "data": _stack(list(data)) if own_data else data[0]}
            self._state |= _tables(shape, batch_size, 1 + len(self._rates(self._group, 1)), like)
            self._record(loss, move)
        for index, (objective, fit) in enumerate(zip(objectives, fits, strict=True)):
            if len(fits) > 1:
                _adopt(objective, fit, training, index)
            fit.optimizer.zero_grad(set_to_none=True)

    def _record(self, loss: Callable[..., Any], move: Callable[..., Tree]) -> None:
        leaves, spec = private("tree_flatten")(self._state)

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

        graph = record(step, leaves)
        constants = lift_constants(graph)
        index = next(i for i, leaf in enumerate(leaves) if leaf is self._state["position"])
        self.noise = RandomInputs(graph, graph.graph.find_nodes(op="placeholder")[index], MAX_BLOCK)
        self._loop = make_loop(graph, leaves + constants + self.noise.inputs)

    def advance(self, num_steps: int) -> Tensor:
        """Do steps, and return log-likelihood and KL of each, (steps, [R,] 2)."""
        if not isinstance(self._batches, TensorBatches):
            return torch.cat([self._step_on(next(self._batches)) for _ in range(num_steps)])
        return self._advance(num_steps)

    def _step_on(self, batch: Batch) -> Tensor:
        """Do a step on a loader's batch; one of another size, at the end of an epoch, is left to the eager engine."""
        fit = self._fits[0]
        if [value.shape for value in tree_leaves(batch)] == self._shapes:
            for place, value in zip(tree_leaves(self._state["data"]), tree_leaves(batch), strict=True):
                place.copy_(value)
            return self._advance(1)
        fit.count_steps()
        return fit.step(batch)[None]

    def _advance(self, num_steps: int) -> Tensor:
        first = self._fits[0].done + 1
        factors = torch.from_numpy(np.array([fit.hand_over(num_steps) for fit in self._fits], float)).transpose(0, 1)
        rows = [fit.batches.rows(num_steps) for fit in self._fits if isinstance(fit.batches, TensorBatches)]
        chosen = None if not rows or rows[0] is None else torch.stack(rows, 1)  # type: ignore[arg-type]
        if len(self._fits) == 1:
            factors, chosen = factors[:, 0], None if chosen is None else chosen[:, 0]
        kl_weight, lr = factors.unbind(-1)
        others = torch.from_numpy(np.array([self._rates(self._group, first + k) for k in range(num_steps)], float))
        others = others.view(num_steps, *[1] * (lr.ndim - 1), -1).expand(*lr.shape, -1)
        table = {"rates": torch.cat([lr[..., None], others], -1), "kl_weight": kl_weight, "rows": chosen}
        starts = range(0, num_steps, MAX_BLOCK)
        return torch.cat([self._run(table, start, min(MAX_BLOCK, num_steps - start)) for start in starts])

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


def _training_state(objective: Objective, fit: TrainingState) -> Tree:
    """Return the tensors of model, guide and optimiser that a step reads or changes, by name; storage is shared."""
    memory = fit.optimizer.state
    trained = {name: p for name, p in objective.named_parameters() if any(p is other for other in fit.moved)}
    everything = [*objective.named_parameters(), *objective.named_buffers()]
    return {
        "trained": {name: p.detach() for name, p in trained.items()},
        "optimizer": {
            name: {key: value for key, value in memory[p].items() if key != "step" and value is not None}
            for name, p in trained.items()
        },
        "fixed": {name: value.detach() for name, value in everything if name not in trained},
    }


def _adopt(objective: Objective, fit: TrainingState, training: Tree, index: int) -> None:
    """Make the tensors of a fit views into those of all replicates, so that they follow the training."""
    stacked = training["trained"] | training["fixed"]
    for name, value in [*objective.named_parameters(), *objective.named_buffers()]:
        value.data = stacked[name][index]
    for name, parameter in objective.named_parameters():
        memory = training["optimizer"].get(name, {})
        fit.optimizer.state[parameter].update({key: value[index] for key, value in memory.items()})


def _program(fit: TrainingState) -> dict[str, Any]:
    """Return what a graph holds fixed, by name: settings, types of modules, and what they hold apart from tensors."""
    program = {f"`{key}` of the optimiser": value for key, value in fit.first_settings.items() if key != "lr"}
    program |= {part: _kind(fit.bnn.settings[part]) for part in ("prior", "likelihood")}
    for module in (fit.bnn, fit.guide):
        for name, part in module.named_modules():
            tensors = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
            shapes = {key: (type(value).__name__, tuple(value.shape)) for key, value in tensors}
            where = name or type(module).__name__
            program[f"type and tensors of {where}"] = type(part).__name__, shapes
            for key, value in vars(part).items():
                if isinstance(value, (bool, int, float, str, Tensor)) and not key.startswith("_"):
                    program[f"`{key}` of {where}"] = value.tolist() if isinstance(value, Tensor) else value
                elif inspect.isroutine(value):
                    program[f"`{key}` of {where}"] = value
    return program


def _kind(setting: Any) -> Any:
    """Return a setting without its numbers, which are tensors of its module."""
    if isinstance(setting, float):
        return "a number"
    if isinstance(setting, (tuple, list)):
        return [_kind(value) for value in setting]
    if isinstance(setting, Mapping):
        return {key: _kind(value) for key, value in setting.items()}
    if dataclasses.is_dataclass(setting):
        return [type(setting), _kind(vars(setting))]
    return setting


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


def _make_move(fit: TrainingState) -> Callable[..., Tree]:
    """Return the function from training state, gradients and rates, (rates,), to the state after a step."""
    optimizer, clip_norm = fit.optimizer, fit.method.clip_norm
    if type(optimizer) not in UPDATES:
        raise NotCapturable(f"the optimiser {type(optimizer).__name__} has no recorded form")
    if optimizer.param_groups[0].get("amsgrad"):
        raise NotCapturable("`amsgrad` has no recorded form")
    rule, group = UPDATES[type(optimizer)], {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    factors = {f"guide.{name}": factor for name, factor in rate_factors(fit.guide).items()}

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
    tables = {"rates": like.new_zeros(*shape, num_rates), "kl_weight": like.new_zeros(shape)}
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
_NORMAL, _BERNOULLI = (_aten.randn_like.default, _aten.randn.default), (_aten.bernoulli.p,)
_UNIFORM = (_aten.rand_like.default, _aten.rand.default)
Law = Callable[..., Tensor]
_TABLE = 2**22  # random numbers that are drawn ahead, at most
_LARGE = 2**14  # normal numbers in a draw from which the library draws them, on all threads


class RandomInputs:
    """The inputs of a graph that hold its random numbers on a CPU: a table with a row for each step, or one row.

    The stream is torch's default generator, one draw for each random operation of a step in order. A graph with a draw
    of another kind, such as `torch.randint`, keeps all of its draws. `position` counts the steps of a block.
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
    if node.target in _BERNOULLI:
        return lambda row: row.bernoulli_(node.args[1])
    return Tensor.uniform_ if node.target in _UNIFORM else Tensor.normal_


def _replace_by_input(node: fx.Node, position: fx.Node, num_rows: int) -> tuple[Tensor, list[Tensor]]:
    """Make an input of a random operation; return the tensor to pass in its place, and its rows in the old layout."""
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
