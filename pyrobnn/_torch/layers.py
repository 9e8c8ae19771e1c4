"""The known kinds of torch's layers, in one table: their weights, and the axes of their units."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True, eq=False)
class LayerKind:
    """A kind of layer: its classes, and the functions behind them with their parameters in order and defaults.

    `inputs` is the axis of the weight for the input units, `channel` that of the functions' inputs and outputs; None if
    the weight mixes no units, or units have no entries there.
    """

    modules: tuple[type[nn.Module], ...]
    functions: tuple[Any, ...] = ()
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    inputs: int | None = None
    channel: int | None = None

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call of a function of the kind by name, without defaults."""
        return {**dict(zip(self.arguments, args, strict=False)), **kwargs}


_AFFINE: dict[str, Any] = {"weight": None, "bias": None}
_WINDOW: dict[str, Any] = {"input": None} | _AFFINE | {"stride": 1, "padding": 0}
LAYERS = {
    "linear": LayerKind((nn.Linear,), (functional.linear,), {"input": None} | _AFFINE, inputs=1, channel=-1),
    "convolution": LayerKind(
        (nn.Conv1d, nn.Conv2d, nn.Conv3d),
        (functional.conv1d, functional.conv2d, functional.conv3d),
        _WINDOW | {"dilation": 1, "groups": 1},
        inputs=1,
        channel=1,
    ),
    "transposed convolution": LayerKind(
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
        _WINDOW | {"output_padding": 0, "groups": 1, "dilation": 1},
        inputs=0,
        channel=1,
    ),
    "embedding": LayerKind(
        (nn.Embedding, nn.EmbeddingBag),
        (functional.embedding,),
        {"input": None, "weight": None, "padding_idx": None, "max_norm": None, "norm_type": 2.0}
        | {"scale_grad_by_freq": False, "sparse": False},
        inputs=0,
    ),
    "recurrent": LayerKind((nn.RNNBase, nn.RNNCellBase), inputs=1),
    "attention": LayerKind((nn.MultiheadAttention,), inputs=1),
    "layer norm": LayerKind(
        (nn.LayerNorm,), (functional.layer_norm,), {"input": None, "normalized_shape": None} | _AFFINE | {"eps": 1e-5}
    ),
    "group norm": LayerKind(
        (nn.GroupNorm,), (functional.group_norm,), {"input": None, "num_groups": None} | _AFFINE | {"eps": 1e-5}
    ),
    "batch norm": LayerKind(
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        (functional.batch_norm,),
        {"input": None, "running_mean": None, "running_var": None}
        | _AFFINE
        | {"training": False, "momentum": 0.1, "eps": 1e-5},
    ),
    "dropout": LayerKind(
        (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
    ),
}
NAME_OF_FUNCTION = {function: name for name, kind in LAYERS.items() for function in kind.functions}

ENTRYWISE: dict[type[nn.Module], Callable[[Tensor], Tensor] | None] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
    nn.GELU: None,
    nn.SiLU: None,
    nn.ELU: None,
    nn.Softplus: None,
    nn.LeakyReLU: None,
    nn.Dropout: None,
    nn.Identity: None,
}
"""Modules that treat every entry alike (dropout in evaluation), and how to run them in place where torch can."""


def kind_of(module: nn.Module) -> LayerKind | None:
    """Return the kind of a module, None if it is not known."""
    return next((kind for kind in LAYERS.values() if isinstance(module, kind.modules)), None)


def dropout_rate(module: nn.Module) -> float:
    """Return the probability with which a layer itself drops units in training."""
    has_own = isinstance(module, nn.MultiheadAttention) or (isinstance(module, nn.RNNBase) and module.num_layers > 1)
    rate: Any = module.p if isinstance(module, LAYERS["dropout"].modules) else module.dropout if has_own else 0.0
    return rate
