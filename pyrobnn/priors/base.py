"""What a prior is: a setting whose `build` gives a module that knows the distribution of every weight site."""

import copy
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

        The setting's own numbers may be scalar tensors here: pass them through `constant`.

        Args:
            name: the parameter's name.
            value: its initial value, which also tells shape, dtype and device.
        """
        raise NotImplementedError

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        """Return the module that a `BNN` asks for each site's distribution."""
        return FactorizedPrior(self, next(iter(values.values())))


class FactorizedPrior(PyroModule):
    """The module of a `SitePrior`: independent entries, each with the distribution that the setting names.

    The setting's numbers are buffers, so that replicates of one graph can have numbers of their own.
    """

    def __init__(self, setting: SitePrior, like: Tensor) -> None:
        super().__init__()
        self._setting = setting
        self._numbers = [name for name, value in vars(setting).items() if isinstance(value, float)]
        for name in self._numbers:
            self.register_buffer(name, constant(getattr(setting, name), like), persistent=False)

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        """Return the prior of one parameter."""
        setting = copy.copy(self._setting)
        vars(setting).update({number: getattr(self, number) for number in self._numbers})
        return setting.site(name, value).expand(value.shape).to_event(value.ndim)


def constant(number: float | Tensor, like: Tensor) -> Tensor:
    """Return a number as a scalar tensor with the dtype and device of another, made without a copy from the host."""
    return number if isinstance(number, Tensor) else like.new_full((), number)


def fan_in(shape: torch.Size) -> int:
    """Return the number of inputs that feed one output of a weight of this shape; 1 for biases and scalars."""
    return shape[1:].numel() if len(shape) > 1 else 1


registry = Registry("prior", accepts=lambda value: isinstance(value, Prior))
