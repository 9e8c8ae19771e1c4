"""Optimisers and learning-rate schedules of torch, by name."""

import inspect
from collections.abc import Callable
from functools import cache, wraps
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer as TorchOptimizer
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from pyrobnn._core.errors import InputError, did_you_mean, unknown_setting
from pyrobnn._core.settings import FrozenDict, Options, setting

_LENGTHS = ("T_max", "total_steps", "total_iters")


@setting
class _ByName:
    """A class of torch by name, and arguments of its constructor."""

    name: str
    options: Options = FrozenDict()

    def as_dict(self) -> dict[str, Any]:
        """Return it as a table with its name as `type`."""
        return {"type": self.name, **self.options}


@setting
class Optimizer(_ByName):
    """An optimiser of `torch.optim`, such as Optimizer("adamw", {"weight_decay": 0.01}).

    Attributes:
        name: name of the class; case and underscores do not matter.
        options: arguments of its constructor; `lr` here takes precedence over the method's `lr`.
    """

    name: str = "adam"

    def __post_init__(self) -> None:
        """Refuse unknown optimisers and options that they do not take."""
        _lookup(_OPTIMIZERS, self.name, "optimizer")
        if self.options:
            self.build([nn.Parameter(torch.zeros(1))], lr=0.1)

    def build(self, parameters: Any, lr: float) -> TorchOptimizer:
        """Return the optimiser of these parameters."""
        cls, options = _lookup(_OPTIMIZERS, self.name, "optimizer"), {"lr": lr} | self.options
        return light(lambda: _construct(cls, self.name, parameters, **options))


@setting
class Schedule(_ByName):
    """A learning-rate schedule of `torch.optim.lr_scheduler`, such as Schedule("cosine_annealing_lr").

    Lengths that are not given (T_max, total_steps, total_iters) are the number of steps of the fit.

    Attributes:
        name: name of the class; case and underscores do not matter.
        options: arguments of its constructor.
    """

    def __post_init__(self) -> None:
        """Refuse unknown schedules and options that they do not take."""
        self.build(Optimizer("sgd").build([nn.Parameter(torch.zeros(1))], lr=0.1), steps=10)

    def build(self, optimizer: TorchOptimizer, steps: int) -> LRScheduler:
        """Return the schedule for a fit of that many steps."""
        cls = _lookup(_SCHEDULES, self.name, "schedule")
        accepted = inspect.signature(cls).parameters
        lengths = {name: steps for name in _LENGTHS if name in accepted}
        rates = [group["lr"] for group in optimizer.param_groups]
        peak = {"max_lr": rates} if cls is lr_scheduler.OneCycleLR else {}
        return _construct(cls, self.name, optimizer, **(lengths | peak | self.options))


def resolve_schedule(value: Any) -> Any:
    """Return the schedule that a name or a table with a `type` stands for; None stays None."""
    return None if value is None else resolve_optimizer(value, Schedule)


def resolve_optimizer(value: Any, cls: Any = Optimizer) -> Any:
    """Return the optimiser that a name or a table with a `type` stands for."""
    if isinstance(value, str):
        return cls(value)
    if isinstance(value, dict) and "type" in value:
        return cls(value["type"], {key: option for key, option in value.items() if key != "type"})
    if isinstance(value, cls):
        return value
    raise InputError(f"Expected a name, a table with a `type`, or {cls.__name__}(...), got {value!r}.")


def _classes(module: Any, base: type, excluded: tuple[str, ...]) -> dict[str, type]:
    return {
        _plain(name): cls
        for name, cls in vars(module).items()
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base and name not in excluded
    }


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


_OPTIMIZERS = _classes(torch.optim, TorchOptimizer, excluded=("LBFGS", "Muon"))
_SCHEDULES = _classes(lr_scheduler, LRScheduler, excluded=("ReduceLROnPlateau", "SequentialLR", "ChainedScheduler"))


def _lookup(classes: dict[str, type], name: str, kind: str) -> type:
    if (plain := _plain(name)) not in classes:
        known = ", ".join(sorted(classes))
        raise InputError(f"Unknown {kind} {name!r}.{did_you_mean(plain, classes)} Known: {known}.")
    return classes[plain]


def _construct(cls: type, name: str, *args: Any, **options: Any) -> Any:
    known = [option for option in inspect.signature(cls).parameters if option not in ("params", "optimizer")]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise InputError(f"{name}: {unknown_setting(unknown[0], known)}")
    try:
        return cls(*args, **options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error}") from None


def light[O: TorchOptimizer](make: Callable[[], O]) -> O:
    """Return the optimiser that a function makes, whose steps do not import torch's compiler only to disable it.

    That takes two seconds of a new process. Hooks before and after steps are not called.
    """
    watched = TorchOptimizer.add_param_group
    TorchOptimizer.add_param_group = inspect.unwrap(watched)  # type: ignore[method-assign]
    try:
        made = make()
    finally:
        TorchOptimizer.add_param_group = watched  # type: ignore[method-assign]
    cls: Any = type(made)
    for name in ("step", "zero_grad"):
        setattr(made, name, MethodType(unwatched(cls, name), made))
    return made


@cache
def unwatched(cls: Any, name: str) -> Callable[..., Any]:
    """Return a method of a class of optimisers as it was written."""
    work = inspect.unwrap(getattr(cls, name))

    @wraps(work)
    def call(optimizer: TorchOptimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            return work(optimizer, *args, **kwargs)

    return call
