"""Networks that can be declared; any other `torch.nn.Module` serves as well."""

from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from pyrobnn._core.errors import InputError
from pyrobnn._core.registry import Registry
from pyrobnn._core.settings import setting

Activation = Literal["relu", "tanh", "sigmoid", "gelu", "silu", "elu", "softplus"]
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
}
Width = Annotated[int, Field(gt=0)]

registry = Registry(
    "net", accepts=lambda value: isinstance(value, nn.Module) or hasattr(value, "build"), page="how-to/own-network"
)
resolve = registry.resolve


@registry.register
@setting
class MLP:
    """A multilayer perceptron, Linear layers with an activation between them.

    Attributes:
        in_features: number of inputs; in a spec file it is taken from the data.
        hidden: width of each hidden layer; empty for a linear model.
        out_features: number of outputs; in a spec file it follows from the data and the likelihood.
        activation: name of the activation.
        bias: give each layer a bias.
        dtype: precision of the weights, and of everything that is computed with them.

    Examples:
        >>> net = bnn.MLP(3, [50, 20], 1, activation="silu").build()
        >>> [tuple(value.shape) for name, value in net.named_parameters() if name.endswith("weight")]
        [(50, 3), (20, 50), (1, 20)]
    """

    in_features: Width | None = None
    hidden: tuple[Width, ...] = (50,)
    out_features: Width | None = None
    activation: Activation = "relu"
    bias: bool = True
    dtype: Literal["float32", "float64"] = "float32"

    def build(self) -> nn.Sequential:
        """Return the network with PyTorch's default starting weights, drawn from the current random state."""
        if self.in_features is None or self.out_features is None:
            raise InputError("MLP needs `in_features` and `out_features`: pass MLP(inputs, [hidden, ...], outputs).")
        widths = [self.in_features, *self.hidden, self.out_features]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=self.bias), _ACTIVATIONS[self.activation]()]
        return nn.Sequential(*layers[:-1]).to(getattr(torch, self.dtype))
