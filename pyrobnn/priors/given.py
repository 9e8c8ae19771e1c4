"""Priors without a setting: a distribution of Pyro, or a function from a parameter to a distribution."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution, Transform

from pyrobnn._core.errors import InputError
from pyrobnn.priors.base import Prior, over, registry


class _Unwritable:
    def as_dict(self) -> dict[str, Any]:
        raise InputError(
            f"{self!r} cannot be written to a file, since it is no setting: write a class of settings with `site`, and "
            "register it in pyrobnn.priors.registry."
        )


@dataclasses.dataclass(frozen=True)
class FromDistribution(_Unwritable):
    """The same distribution of Pyro for every entry, or a joint distribution of a whole parameter."""

    distribution: Any

    def __post_init__(self) -> None:
        """Refuse objects without the interface of Pyro's distributions."""
        if not isinstance(self.distribution, TorchDistributionMixin):
            raise InputError(
                f"A distribution given as a prior must be one of pyro.distributions, got {self.distribution!r} of "
                f"{type(self.distribution).__module__}: take pyro.distributions.{type(self.distribution).__name__}."
            )

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        return _checked(DistributionPrior(self.distribution, next(iter(values.values()))), values)


@dataclasses.dataclass(frozen=True)
class FromFunction(_Unwritable):
    """A prior made by a function, such as `lambda name, value: dist.Normal(0.0, value.abs().mean())`."""

    function: Callable[[str, Tensor], Any]

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        return _checked(FunctionPrior(self.function), values)


class DistributionPrior(PyroModule):
    """The module of `FromDistribution`: the tensors of the distribution are buffers."""

    def __init__(self, distribution: Any, like: Tensor) -> None:
        super().__init__()
        self._distribution, self._names = distribution, list[str]()

        def hold(tensor: Tensor) -> Tensor:
            self._names.append(f"tensor_{len(self._names)}")
            self.register_buffer(self._names[-1], _like(tensor.detach().clone(), like), persistent=False)
            return tensor

        _with_tensors(distribution, hold)

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        held = iter([self.get_buffer(name) for name in self._names])
        return _over_parameter(_with_tensors(self._distribution, lambda _: next(held)), name, value)


class FunctionPrior(PyroModule):
    """The module of `FromFunction`."""

    def __init__(self, function: Callable[[str, Tensor], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        distribution = _with_tensors(self._function(name, value), lambda tensor: _like(tensor, value))
        return _over_parameter(distribution, name, value)


def resolve_one(value: Any) -> Prior:
    """Return the prior that a name, a table, a distribution of Pyro, a function, or an object stands for."""
    if isinstance(value, Distribution):
        return FromDistribution(value)
    if callable(value) and not isinstance(value, (type, Prior)):
        return FromFunction(value)
    return registry.resolve(value)


def _with_tensors(value: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a distribution with each of its tensors, in a fixed order, replaced."""
    if isinstance(value, Tensor):
        return replace(value)
    if isinstance(value, list):
        return [_with_tensors(item, replace) for item in value]
    if not isinstance(value, (Distribution, Transform)):
        return value
    new = copy.copy(value)
    vars(new).update({name: _with_tensors(inner, replace) for name, inner in vars(value).items()})
    return new


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    """Return a tensor on the device of another and, unless it holds integers, in its precision."""
    return tensor.to(value.device, value.dtype if tensor.is_floating_point() else tensor.dtype)


def _over_parameter(distribution: Any, name: str, value: Tensor) -> TorchDistributionMixin:
    if not isinstance(distribution, TorchDistributionMixin):
        raise InputError(f"The prior of {name!r} must be one of pyro.distributions, got {distribution!r}.")
    batch, event = distribution.batch_shape, distribution.event_shape
    if not batch and event == value.shape:
        return distribution
    ends = zip(reversed(batch), reversed(value.shape), strict=False)
    if event or len(batch) > value.ndim or any(have not in (1, want) for have, want in ends):
        raise InputError(
            f"The prior of {name!r} must be a distribution of single entries that expands to {tuple(value.shape)}, or "
            f"one whose event has this shape, got batch shape {tuple(batch)} and event shape {tuple(event)}: choose "
            "priors by name where parameters differ in shape."
        )
    return over(distribution, value)


def _checked(module: PyroModule, values: Mapping[str, Tensor]) -> PyroModule:
    """Ask for every parameter's distribution once, so that a misfit is refused when the model is made."""
    with torch.no_grad(), poutine.block():
        for name, value in values.items():
            module(name, value)
    return module
