"""Optimisers of torch that do not import its compiler, only to disable it, in two seconds of a new process."""

import inspect
from collections.abc import Callable
from functools import cache, wraps
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer


def light[O: Optimizer](make: Callable[[], O]) -> O:
    """Return the optimiser that a function makes, with steps that import nothing and do the same otherwise.

    Hooks before and after steps are not called.
    """
    watched = Optimizer.add_param_group
    Optimizer.add_param_group = inspect.unwrap(watched)  # type: ignore[method-assign]
    try:
        made = make()
    finally:
        Optimizer.add_param_group = watched  # type: ignore[method-assign]
    cls: Any = type(made)
    for name in ("step", "zero_grad"):
        setattr(made, name, MethodType(unwatched(cls, name), made))
    return made


@cache
def unwatched(cls: Any, name: str) -> Callable[..., Any]:
    """Return a method of a class of optimisers as it was written."""
    work = inspect.unwrap(getattr(cls, name))

    @wraps(work)
    def call(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            return work(optimizer, *args, **kwargs)

    return call
