"""The captured engine: takes fits over after their first eager step and runs the rest as one recorded graph."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
            if changed := [key for key, value in fit.first_settings.items() if key != "lr" and fit.group[key] != value]:
                raise NotCapturable(f"the schedule changes `{changed[0]}` of the optimiser")
        if isinstance(first.batches, TensorBatches):
            batch_size = first.batches.batch_size
            data = [fit.batches.data for fit in fits]  # type: ignore[union-attr]
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
        return self.step.advance(factors[..., 1], factors[..., 0], chosen, first=done + 1)

    def _step_on(self, batch: Batch) -> Tensor:
        """Do a step on a loader's batch; one of another size, at the end of an epoch, is left to the eager engine."""
        fit = self._fits[0]
        if [value.shape for value in tree_leaves(batch)] == self._shapes:
            self.step.feed(batch)
            return self._advance(1)
        fit.count_steps()
        return fit.step(batch)[None]


def check_same_program(fits: Sequence[TrainingState]) -> None:
    """Refuse replicates that one graph cannot serve."""
    first, *others = [_program(fit) for fit in fits]
    for other in others:
        if name := next((name for name in first | other if first.get(name) != other.get(name)), None):
            raise NotCapturable(f"replicates differ in {name}: {first.get(name)!r} and {other.get(name)!r}")


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
