"""A fit in progress: what its steps change, and a step through Pyro's ELBO, the eager engine."""

import warnings
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from pyrobnn import guides
from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.settings import Count, Positive, setting
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch, StateDict
from pyrobnn.guides.base import rate_factors
from pyrobnn.guides.divergence import KL
from pyrobnn.inference import limits
from pyrobnn.inference.data import Source
from pyrobnn.inference.training.elbo import ELBO, WeightLatents
from pyrobnn.optimizers import resolve_optimizer, resolve_schedule
from pyrobnn.priors.scale_mixture import tabulate


class Length(NamedTuple):
    """Numbers of optimiser steps of a fit."""

    most: int  # the fit never takes more
    cycle: int  # steps of the schedule; of its first cycle where the fit ends by itself


@setting
class StochasticMethod:
    """The settings of a fit by stochastic steps; `SVI` says what each is."""

    guide: Annotated[Any, BeforeValidator(guides.resolve)] = guides.MeanField()
    steps: Count | None = None
    epochs: Count | None = None
    max_steps: Count = 150_000
    tolerance: Positive | None = None
    lr: Positive = 0.01
    batch_size: Count | Literal["all"] | None = None
    optimizer: Annotated[Any, BeforeValidator(resolve_optimizer)] = resolve_optimizer("adam")
    schedule: Annotated[Any, BeforeValidator(resolve_schedule)] = None
    num_particles: Count = 1
    kl: KL = "auto"
    temperature: Positive = 1.0
    clip_norm: Positive | None = None
    kl_warmup: Annotated[int, Field(ge=0)] = 0
    patience: Count | None = None
    eval_every: Count = 100

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise InputError(f"{type(self).__name__}: give `steps` or `epochs`, not both.")

    def make_optimizer(self, bnn: BNN, guide: nn.Module, parameters: Sequence[Tensor], example: Batch) -> Optimizer:
        """Return the optimiser of the parameters of a model and its guide; the example is a row of data to run them."""
        optimizer: Optimizer = self.optimizer.build(parameters, lr=self.lr)
        return optimizer

    @property
    def ends_by_itself(self) -> bool:
        """Whether the length is automatic."""
        return self.steps is None and self.epochs is None

    def length(self, batches_per_epoch: int) -> Length:
        """Return the numbers of steps of a fit, for an epoch of that many batches."""
        if not self.ends_by_itself:
            steps = self.steps if self.epochs is None else self.epochs * batches_per_epoch
            return Length(steps, steps)  # type: ignore[arg-type]
        return Length(self.max_steps, min(self.max_steps, limits.FIRST_CYCLE))

    def tolerance_for(self, num_data: int) -> float:
        """Return the tolerance for that many examples."""
        if self.tolerance is not None:
            return self.tolerance
        return max(limits.SMALLEST_TOLERANCE, limits.TOLERANCE * num_data * min(1, num_data / limits.QUICK_FIT))

    def kl_weight(self, step: int) -> float:
        """Return the factor on the KL at a step, counted from 0."""
        ramp = min(1.0, (step + 1) / self.kl_warmup) if self.kl_warmup else 1.0
        return self.temperature * ramp


class Asked(NamedTuple):
    """A fit that is asked for."""

    bnn: BNN
    method: StochasticMethod
    source: Source
    seed: int


def named_parameters(bnn: BNN, guide: PyroModule) -> dict[str, nn.Parameter]:
    """Return what is trained by name: `guide.loc` of a guide, and `likelihood...` or `prior...` of the model."""
    of_guide = {f"guide.{name}": parameter for name, parameter in guide.named_parameters()}
    named = dict(bnn.named_parameters()) | of_guide
    return {name: parameter for name, parameter in named.items() if parameter.requires_grad}


class Move(NamedTuple):
    """What is to change in a fit before its next step."""

    rate: float  # factor on the learning rate from now on
    values: Sequence[Tensor] | None = None  # parameters to go back to, or None to stay
    cycle: int | None = None  # steps of the schedule to begin anew, or None to go on


class TrainingState:
    """A fit in progress, which another engine may move on in its place.

    The seed orders the batches. The example is a row of data, to run model and guide with. `moved` are the parameters
    that have a gradient in a step. `cycle_factor` is another factor on the rate: 0 while a fit measures.
    `reach` is the sum of the rates of the schedule so far, as far as Adam can move a parameter.
    """

    def __init__(
        self, bnn: BNN, guide: PyroModule, method: StochasticMethod, source: Source, example: Batch, *, seed: int
    ) -> None:
        self.parameters = [*named_parameters(bnn, guide).values()]
        if method.kl == "quadrature":
            tabulate(bnn)
        self.bnn, self.guide, self.method, self.example = bnn, guide, method, example
        self.batches, self.num_data = source.batches(bnn, method.batch_size, seed), source.num_data
        self.length = method.length(source.batches_per_epoch(method.batch_size))
        self.optimizer = method.make_optimizer(bnn, guide, self.parameters, example)
        self.group = self.optimizer.param_groups[0]
        self.first_settings = {k: v for k, v in self.group.items() if k not in ("params", "initial_lr")}
        named = dict(guide.named_parameters())
        self._damped = [(named[name], factor) for name, factor in rate_factors(guide).items()]
        self._elbo = ELBO(method.kl, method.num_particles)
        self.schedule_steps, self._schedule_start = self.length.cycle, 0
        self._schedule = self._new_schedule()
        self.moved: list[Tensor] = []
        self.done = 0
        self.cycle_factor, self.reach = 1.0, 0.0

    @property
    def tolerance(self) -> float:
        """Nats that more steps may still gain in a fit that ends by itself."""
        return self.method.tolerance_for(self.num_data)

    def advance(self, num_steps: int) -> Tensor:
        """Do some steps and return the log-likelihood and KL of each, (steps, 2)."""
        return torch.stack([self.step(next(self.batches)) for _ in range(num_steps)])

    def step(self, batch: Batch) -> Tensor:
        """Do a step on a batch and return its log-likelihood and KL, (2,)."""
        terms = self.differentiate(batch)
        self.update()
        return terms

    def update(self) -> None:
        if self.method.clip_norm is not None:
            clip_grad_norm_(self.parameters, self.method.clip_norm)
        scheduled = self.group["lr"]
        self.group["lr"] = scheduled * self.cycle_factor
        before = [(parameter, factor, parameter.detach().clone()) for parameter, factor in self._damped]
        self.optimizer.step()
        with torch.no_grad():
            for parameter, factor, value in before:
                parameter.copy_(value.lerp(parameter, factor))
        self.group["lr"] = scheduled
        self._move_on()

    def differentiate(self, batch: Batch) -> Tensor:
        """Compute the gradients for a batch and return its log-likelihood and KL, (2,)."""
        for parameter in self.parameters:
            parameter.grad = None
        with WeightLatents(self.method.kl_weight(self.done)):
            loss = self._elbo.differentiable_loss(self.bnn, self.guide, *batch, num_data=self.num_data)
        loss.backward()
        self.moved = [p for p in self.parameters if p.grad is not None]
        return torch.stack([self._elbo.log_likelihood, self._elbo.kl])

    def evaluate(self, batch: Batch) -> Tensor:
        """Return log-likelihood and KL for a batch, (2,), without gradients."""
        with torch.no_grad(), WeightLatents(self.method.temperature):
            self._elbo.differentiable_loss(self.bnn, self.guide, *batch, num_data=self.num_data)
        return torch.stack([self._elbo.log_likelihood, self._elbo.kl])

    def hand_over(self, num_steps: int) -> list[list[float]]:
        """Count the next steps as done, which another engine does, with factor on the KL and learning rate of each."""
        factors = []
        with ignored_warnings("Detected call of `lr_scheduler.step"):  # the steps are done elsewhere
            for _ in range(num_steps):
                factors.append([self.method.kl_weight(self.done), self.rate])
                self._move_on()
        return factors

    def follow(self, move: "Move") -> None:
        """Do what the rule that watches the fit asks for."""
        if move.values is not None:
            put_values(self.parameters, move.values)
        self.cycle_factor = move.rate
        if move.cycle is not None:
            self.schedule_steps, self._schedule_start = move.cycle, self.done
            self._restart_schedule(self.done)

    def _new_schedule(self) -> Any:
        schedule = self.method.schedule
        return None if schedule is None else schedule.build(self.optimizer, self.schedule_steps)

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.group["lr"]) * self.cycle_factor

    def _move_on(self) -> None:
        if self.done - self._schedule_start < self.schedule_steps:
            self.reach += float(self.group["lr"])
            if self._schedule is not None:
                self._schedule.step()
        self.done += 1

    def count_steps(self) -> None:
        """Tell the optimiser the steps that a captured engine has done."""
        for memory in self.optimizer.state.values():
            if "step" in memory:
                memory["step"].fill_(self.done)

    @property
    def trained(self) -> nn.ModuleList:
        """Model and guide: what the steps change."""
        return nn.ModuleList([self.bnn, self.guide])

    def state(self) -> StateDict:
        """Return everything that the next steps depend on, apart from random states; tensors are shared."""
        memories = [self.optimizer.state.get(p, {}) for p in self.parameters]
        return {
            "done": self.done,
            "schedule": [self.schedule_steps, self._schedule_start],
            "cycle_factor": self.cycle_factor,
            "trained": dict(self.trained.state_dict()),
            "memories": [dict(memory) for memory in memories],
            "with_gradient": [i for i, p in enumerate(self.parameters) if any(p is other for other in self.moved)],
            "batches": self.batches.state(),
        }

    def restore(self, state: StateDict) -> None:
        """Go back, or on, to a state; tensors stay where a captured graph has them."""
        with torch.no_grad():
            self.trained.load_state_dict(state["trained"])
            for parameter, saved in zip(self.parameters, state["memories"], strict=True):
                self._restore_memory(parameter, saved, state["done"])
        self.moved = [self.parameters[index] for index in state["with_gradient"]] or self.moved
        self.cycle_factor = state["cycle_factor"]
        self.schedule_steps, self._schedule_start = state["schedule"]
        self._restart_schedule(state["done"])
        self.batches.restore(state["batches"])

    def _restore_memory(self, parameter: Tensor, saved: dict[str, Any], done: int) -> None:
        memory = self.optimizer.state[parameter]
        for key, value in (memory | saved).items():
            new = torch.full_like(value, done) if key == "step" else value
            if isinstance(new, Tensor):
                new = new.to(parameter.device, copy=True) if key in saved else torch.zeros_like(new)
            if isinstance(memory.get(key), Tensor) and isinstance(new, Tensor):
                memory[key].copy_(new)
            else:
                memory[key] = new

    def _restart_schedule(self, done: int) -> None:
        self.group.update(self.first_settings)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a schedule that goes ahead of its optimiser
            self._schedule, self.done, self.reach = self._new_schedule(), self._schedule_start, 0.0
            for _ in range(done - self._schedule_start):
                self._move_on()

    def is_finite(self) -> bool:
        extremes = [extreme for p in self.parameters if p.numel() for extreme in p.detach().aminmax()]
        return bool(torch.stack(extremes).isfinite().all())


def cloned(values: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors."""
    return [value.detach().clone() for value in values]


def put_values(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Give parameters other values, in place."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
