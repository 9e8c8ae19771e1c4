"""The uses of weights in a network: the inputs and outputs of its layers, recorded while it runs.

The Jacobian of the outputs in the weight of a linear map consists of two small parts, the inputs of the layer and the
derivative of the network's outputs in the layer's outputs. Curvature in every structure needs only these, never the
Jacobian.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pyrobnn._torch.layers import LAYERS, NAME_OF_FUNCTION
from pyrobnn._torch.private import tree_leaves

_LARGEST_TABLE = 4096
"""Rows up to which an embedding is treated as a linear map of one-hot vectors."""
Kind = Literal["matrix", "scale"]


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """One use of a weight and a bias, sites by name if they are Bayesian, at T positions of each of B examples.

    A "matrix" maps inputs (B, T, I) to outputs (B, T, O); a "scale" multiplies units, and I = O. Inputs are patches of
    a convolution, one-hot vectors of an embedding. In embeddings and transposed convolutions the first axes of the
    weight are inputs and outputs.
    """

    kind: Kind
    weight: str | None
    bias: str | None
    inputs: Tensor
    output: Tensor  # in the network's shape
    positions: Callable[[Tensor], Tensor]  # brings a tensor (*, shape of output) to (*, B, T, O)
    transposed: bool = False

    @property
    def sites(self) -> list[str]:
        """The names of the sites, weight first."""
        return [name for name in (self.weight, self.bias) if name is not None]

    def inputs_of(self, sites: Collection[str], inputs: Tensor) -> Tensor:
        """Return the inputs (*, I) of the weight and 1 for the bias, as far as these are among some sites."""
        ones = inputs.new_ones(*inputs.shape[:-1], 1)
        return torch.cat([*[inputs] * (self.weight in sites), *[ones] * (self.bias in sites)], -1)


class Recorder(TorchFunctionMode):
    """Notes the calls of known layers with tensors of interest, whose sites are named by their identity.

    `uses` are the calls with an input row per example, `last` is the site that was used last.
    """

    def __init__(self, names: dict[int, str], num_examples: int) -> None:
        super().__init__()
        self._names, self._num_examples = names, num_examples
        self.uses: list[Use] = []
        self.last: str | None = None
        self._counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, (Tensor, tuple, list)) and not isinstance(result, torch.Size):
            names = [self._names[id(v)] for v in tree_leaves((args, kwargs)) if id(v) in self._names]
            self._counts.update(names)
            self.last = names[-1] if names else self.last
            layer = NAME_OF_FUNCTION.get(func, "")
            if names and layer in _READERS and isinstance(result, Tensor):
                arguments = {"bias": None} | LAYERS[layer].arguments | LAYERS[layer].given(args, kwargs)
                call = _Call(**arguments, out=result, names=self._names)
                use = _READERS[layer](call) if len(call.input) == self._num_examples else None
                self.uses += [] if use is None else [use]
                return result.clone()  # the next layer may change it in place
        return result

    def is_shared(self, use: Use) -> bool:
        """Say whether a site of a use appears elsewhere too."""
        return any(self._counts[name] > 1 for name in use.sites)


class _Call(SimpleNamespace):
    """A call of a known function: its arguments, its result `out`, and `names` of sites by identity of tensors."""

    def use(self, kind: Kind, inputs: Tensor, positions: Any, *, transposed: bool = False) -> Use:
        """Return the use that this call makes of its weight and bias."""
        weight, bias = (self.names.get(id(value)) for value in (self.weight, self.bias))
        return Use(kind, weight, bias, inputs, self.out, positions, transposed)


def _linear(call: _Call) -> Use | None:
    if call.weight.ndim != 2 or not call.weight.numel():
        return None
    inputs = call.input.detach().reshape(len(call.input), -1, call.input.shape[-1])
    return call.use("matrix", inputs, _last_axes(call.out.ndim))


def _convolution(call: _Call) -> Use | None:
    if call.input.ndim != call.weight.ndim or call.groups != 1:
        return None
    kernel = call.weight.shape[2:]
    gaps = _each(call.dilation, len(kernel))
    padded = functional.pad(call.input.detach(), _padding(call.padding, kernel, gaps))
    return call.use("matrix", _patches(padded, kernel, call.stride, gaps), _second_axis(call.out.ndim))


def _transposed_convolution(call: _Call) -> Use | None:
    """Return the use of a convolution of the inputs, with zeros between them, and the flipped kernel."""
    if call.input.ndim != call.weight.ndim or call.groups != 1:
        return None
    x, kernel = call.input.detach(), call.weight.shape[2:]
    axes = len(kernel)
    steps, gaps, padding = (_each(value, axes) for value in (call.stride, call.dilation, call.padding))
    spread = x.new_zeros(*x.shape[:2], *((size - 1) * step + 1 for size, step in zip(x.shape[2:], steps, strict=True)))
    spread[(..., *(slice(None, None, step) for step in steps))] = x
    before = [gap * (size - 1) - pad for gap, size, pad in zip(gaps, kernel, padding, strict=True)]
    after = [pad + more for pad, more in zip(before, _each(call.output_padding, axes), strict=True)]
    padded = functional.pad(spread, _last_first(zip(before, after, strict=True)))
    patches = _patches(padded, kernel, 1, gaps).unflatten(2, (x.shape[1], -1)).flip(3).flatten(2)
    return call.use("matrix", patches, _second_axis(call.out.ndim), transposed=True)


def _embedding(call: _Call) -> Use | None:
    is_plain = call.padding_idx is None and call.max_norm is None and not call.scale_grad_by_freq
    if not is_plain or len(call.weight) > _LARGEST_TABLE:
        return None
    one_hot = functional.one_hot(call.input.reshape(len(call.input), -1), len(call.weight)).to(call.weight.dtype)
    return call.use("matrix", one_hot, _last_axes(call.out.ndim), transposed=True)


def _layer_norm(call: _Call) -> Use:
    plain = functional.layer_norm(call.input.detach(), call.normalized_shape, None, None, call.eps)
    positions = _last_axes(call.out.ndim, len(call.normalized_shape))
    return call.use("scale", positions(plain), positions)


def _group_norm(call: _Call) -> Use:
    plain = functional.group_norm(call.input.detach(), call.num_groups, None, None, call.eps)
    return call.use("scale", _second_axis(call.out.ndim)(plain), _second_axis(call.out.ndim))


def _batch_norm(call: _Call) -> Use | None:
    if call.training:
        return None
    statistics = (call.running_mean, call.running_var)
    plain = functional.batch_norm(call.input.detach(), *statistics, None, None, False, 0.0, call.eps)  # noqa: FBT003
    return call.use("scale", _second_axis(call.out.ndim)(plain), _second_axis(call.out.ndim))


_READERS: dict[str, Callable[[_Call], Use | None]] = {
    "linear": _linear,
    "convolution": _convolution,
    "transposed convolution": _transposed_convolution,
    "embedding": _embedding,
    "layer norm": _layer_norm,
    "group norm": _group_norm,
    "batch norm": _batch_norm,
}


def _second_axis(ndim: int) -> Callable[[Tensor], Tensor]:
    """Return the map from (*, B, O, ...) to (*, B, T, O)."""

    def positions(value: Tensor) -> Tensor:
        lead = value.shape[: value.ndim - ndim + 2]
        return value.reshape(*lead, -1).transpose(-1, -2)

    return positions


def _last_axes(ndim: int, axes: int = 1) -> Callable[[Tensor], Tensor]:
    """Return the map from (*, B, ..., units on the last axes) to (*, B, T, units), for outputs of `ndim` axes."""

    def positions(value: Tensor) -> Tensor:
        lead = value.shape[: value.ndim - ndim + 1]
        return value.reshape(*lead, -1, math.prod(value.shape[value.ndim - axes :]))

    return positions


def _patches(x: Tensor, kernel: Any, stride: Any, dilations: list[int]) -> Tensor:
    """Return the patches of a convolution's padded inputs (B, I, *space), as (B, T, I * kernel)."""
    axes = len(kernel)
    for axis, (size, step, gap) in enumerate(zip(kernel, _each(stride, axes), dilations, strict=True)):
        x = x.unfold(2 + axis, gap * (size - 1) + 1, step)[..., ::gap]
    return x.movedim(1, 1 + axes).flatten(1 + axes).flatten(1, axes)


def _each(value: Any, axes: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * (axes // len(values))


def _padding(padding: Any, kernel: Any, dilations: list[int]) -> list[int]:
    """Return the padding as `functional.pad` takes it."""
    if padding == "same":
        totals = [gap * (size - 1) for size, gap in zip(kernel, dilations, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(pad, pad) for pad in _each(0 if padding == "valid" else padding, len(kernel))]
    return _last_first(pairs)


def _last_first(pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return pairs of paddings, an axis each, as `functional.pad` takes them: last axis first."""
    return [pad for pair in reversed(list(pairs)) for pad in pair]
