"""The weights of a network that multiply the units of a layer's input, and how a mask on these units reaches them."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from pyrobnn._core.errors import InputError
from pyrobnn._torch.layers import dropout_rate, kind_of


@dataclasses.dataclass(frozen=True)
class FedWeight:
    """A weight that multiplies the input units of a layer.

    Attributes:
        name: the parameter's name in the network.
        shape: its shape.
        inputs_first: whether the input units lie on its first axis instead of the second.
        groups: groups of channels of a convolution, each with separate input units.
        is_first: whether the layer is the first of the network, whose units are the inputs.
    """

    name: str
    shape: torch.Size
    inputs_first: bool
    groups: int
    is_first: bool

    @property
    def num_units(self) -> int:
        """The number of input units: features, channels, or entries of an embedding's table."""
        return self.shape[0] if self.inputs_first else self.shape[1] * self.groups

    def spread(self, mask: Tensor) -> Tensor:
        """Return factors for the input units (units,) as factors for the weight, expanding to its shape."""
        ones = [1] * (len(self.shape) - 2)
        if self.inputs_first:
            return mask.view(-1, 1, *ones)
        by_group = mask.view(self.groups, 1, -1).expand(-1, self.shape[0] // self.groups, -1)
        return by_group.reshape(*self.shape[:2], *ones)


def fed_weights(model: Callable[..., Any]) -> list[FedWeight]:
    """Return the weights of a model's network whose input units are known, in the order of the modules.

    These are weights of linear, convolutional, recurrent, attention and embedding layers; biases and the parameters of
    other modules are not included. A tied weight counts where it occurs first.

    Raises:
        InputError: the model has no network, or the network has dropout layers.
    """
    net = getattr(model, "net", None)
    if not isinstance(net, nn.Module):
        raise InputError(
            f"Dropout masks the inputs of the layers of `model.net`, and {type(model).__name__} has no network there: "
            "pass a BNN."
        )
    _refuse_own_dropout(net)
    weights: list[FedWeight] = []
    for prefix, module in net.named_modules():
        kind = kind_of(module)
        if kind is not None and kind.inputs is not None:
            groups = module.groups if kind.channel == 1 else 1
            for name, value in _weights(module):
                full = f"{prefix}.{name}".lstrip(".")
                weights.append(FedWeight(full, value.shape, kind.inputs == 0, groups, is_first=not weights))
    return weights


def _refuse_own_dropout(net: nn.Module) -> None:
    for name, module in net.named_modules():
        p = dropout_rate(module)
        if p > 0:
            raise InputError(
                f"The network has a dropout layer, {name!r} with p={p} ({type(module).__name__}), which "
                "would act beside the masks of the guide Dropout, and in training only: leave it out, or set it to 0."
            )


def _weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    named = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return ((name, value) for name, value in named if "weight" in name and value.ndim > 1)
