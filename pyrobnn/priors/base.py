"""What a prior is: a setting whose `build` gives a module that knows the distribution of every weight site."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._registry import Registry


@runtime_checkable
class Prior(Protocol):
    """A prior setting. Any object with this method will do."""

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        """Return a `PyroModule` that gives the prior distribution of each parameter.

        Args:
            values: initial value of each parameter that the prior covers, by name.

        Returns:
            A module whose `forward(name, value)` returns a distribution whose event shape, dtype and device are those
            of the value. Its own `PyroParam`s are learned with the guide, its own `PyroSample`s are inferred.
        """
        ...


class SitePrior:
    """Base for priors without parameters or latents of their own: write `site`, the rest is inherited."""

    def site(self, name: str, value: Tensor) -> TorchDistributionMixin:
        """Return the distribution of each entry, with a batch shape that expands to that of the value.

        Args:
            name: the parameter's name.
            value: its initial value, which also tells shape, dtype and device.
        """
        raise NotImplementedError

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        """Return the module that a `BNN` asks for each site's distribution."""
        return FactorizedPrior(self)


class FactorizedPrior(PyroModule):
    """The module of a `SitePrior`: independent entries, each with the distribution that the setting names."""

    def __init__(self, setting: SitePrior) -> None:
        super().__init__()
        self.setting = setting

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        """Return the prior of one parameter."""
        return self.setting.site(name, value).expand(value.shape).to_event(value.ndim)


def constant(number: float, like: Tensor) -> Tensor:
    """Return a number as a scalar tensor with the dtype and device of another, made without a copy from the host."""
    return like.new_full((), number)


def fan_in(shape: torch.Size) -> int:
    """Return the number of inputs that feed one output of a weight of this shape; 1 for biases and scalars."""
    return shape[1:].numel() if len(shape) > 1 else 1


registry = Registry("prior", accepts=lambda value: isinstance(value, Prior))
