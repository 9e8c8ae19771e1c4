"""The captured engine: takes fits over after their first eager step and runs the rest as one recorded graph."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.private import tree_leaves
from pyrobnn.data.batches import Batch, TensorBatches
from pyrobnn.inference.capture.graph import refuse_moving
from pyrobnn.inference.capture.objective import Objective, check_reparameterized
from pyrobnn.inference.capture.step import CapturedStep, Replicate
from pyrobnn.inference.training.state import TrainingState


class Captured:
    """Fits in progress, one or several replicates side by side, as a recorded graph.

    They are of the same shape and have done a step. Where they are not capturable, they are as they were.
    """

    def __init__(self, fits: Sequence[TrainingState]) -> None:
        first = fits[0]
        self._fits, self._batches = fits, first.batches
        check_same_program(fits)
        for fit in fits:
            refuse_moving(fit.bnn)
            for group, settings in zip(fit.optimizer.param_groups, fit.first_settings, strict=True):
                if changed := [key for key, value in settings.items() if key != "lr" and group[key] != value]:
                    raise NotCapturable(f"the schedule changes `{changed[0]}` of the optimiser")
        if isinstance(first.batches, TensorBatches):
            batch_size = first.batches.batch_size
            data = [fit.batches.data for fit in fits]  # type: ignore[attr-defined]
            if all(a is b for batch in data for a, b in zip(batch, data[0], strict=True)):
                data = data[:1]
        else:
            batch_size, data = None, [tuple(values.clone() for values in first.batches.peek())]
        self._shapes = [value.shape for value in tree_leaves(data[0])]
        replicates = [
            Replicate(Objective(fit.bnn, fit.guide, num_data=fit.num_data, kl=fit.method.kl), fit.optimizer, fit.moved)
            for fit in fits
        ]
        with torch.random.fork_rng():
            check_reparameterized(first.guide, *(values[:1] for values in data[0]))
            self.step = CapturedStep(
                replicates,
                data,
                batch_size=batch_size,
                num_particles=first.method.num_particles,
                clip_norm=first.method.clip_norm,
            )

    def advance(self, num_steps: int) -> Tensor:
        if not isinstance(self._batches, TensorBatches):
            return torch.cat([self._step_on(next(self._batches)) for _ in range(num_steps)])
        return self._advance(num_steps)

    def _advance(self, num_steps: int) -> Tensor:
        done = self._fits[0].done
        factors = torch.from_numpy(np.array([fit.hand_over(num_steps) for fit in self._fits], float)).transpose(0, 1)
        rows = [fit.batches.rows(num_steps) for fit in self._fits if isinstance(fit.batches, TensorBatches)]
        chosen = None if not rows or rows[0] is None else torch.stack(rows, 1)  # type: ignore[arg-type]
        if len(self._fits) == 1:
            factors, chosen = factors[:, 0], None if chosen is None else chosen[:, 0]
        return self.step.advance(factors[..., 1:], factors[..., 0], chosen, first=done + 1)

    def _step_on(self, batch: Batch) -> Tensor:
        """Do a step on a loader's batch; one of another size, at the end of an epoch, is left to the eager engine."""
        fit = self._fits[0]
        if [value.shape for value in tree_leaves(batch)] == self._shapes:
            self.step.feed(batch)
            return self._advance(1)
        fit.count_steps()
        return fit.step(batch)[None]


def check_same_program(fits: Sequence[TrainingState]) -> None:
    """Refuse replicates that one graph cannot serve: modules of other types, or other settings than tensors."""
    for fit in fits[1:]:
        if _grouping(fit) != _grouping(fits[0]):
            raise NotCapturable("replicates differ in which parameters share a learning rate")
        for key, value in fits[0].first_settings[0].items():
            if key != "lr" and fit.first_settings[0][key] != value:
                raise NotCapturable(f"replicates differ in `{key}` of the optimiser")
        for part in ("prior", "likelihood"):
            mine, theirs = (one.bnn.settings[part] for one in (fits[0], fit))
            if _kind(mine) != _kind(theirs):
                raise NotCapturable(f"replicates differ in {part}: {mine!r} and {theirs!r}")
        for mine, theirs in ((fits[0].bnn, fit.bnn), (fits[0].guide, fit.guide)):
            for (name, one), (_, other) in zip(mine.named_modules(), theirs.named_modules(), strict=False):
                difference = _difference(one, other)
                if difference:
                    raise NotCapturable(f"replicates differ in {name or type(one).__name__}: {difference}")


def _grouping(fit: TrainingState) -> list[list[int]]:
    numbers = {id(parameter): number for number, parameter in enumerate(fit.parameters)}
    return [[numbers[id(parameter)] for parameter in group["params"]] for group in fit.optimizer.param_groups]


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


def _difference(one: nn.Module, other: nn.Module) -> str | None:
    if type(one) is not type(other):
        return f"{type(one).__name__} and {type(other).__name__}"
    if _shapes(one) != _shapes(other):
        return f"tensors {_shapes(one)} and {_shapes(other)}"
    for key, value in vars(one).items():
        if not key.startswith("_") and not _same(value, vars(other).get(key)):
            return f"{key} is {value!r} and {vars(other).get(key)!r}"
    return None


def _same(value: Any, other: Any) -> bool:
    """Return whether plain attributes of two modules are equal; of others nothing is asked."""
    if isinstance(value, Tensor):
        return isinstance(other, Tensor) and torch.equal(value, other)
    if isinstance(value, (bool, int, float, str)) or inspect.isroutine(value):
        return bool(value == other)
    return True


def _shapes(module: nn.Module) -> dict[str, tuple[str, tuple[int, ...]]]:
    named = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return {name: (type(value).__name__, tuple(value.shape)) for name, value in named}
