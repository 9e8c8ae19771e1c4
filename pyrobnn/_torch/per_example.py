"""Separate noise for each example of a mini-batch, if a guide draws a weight once for all of them.

A guide attaches a perturbation to the tensor that is a site's value. `BNN.outputs` then runs the network in training so
that linear and convolutional layers with this weight perturb each example separately: every example has the guide's
distribution, and the gradient varies less. The shared draw stays in other layers, for weights that several layers
share, and where the inputs of a layer do not have the examples on their first axis.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyrobnn._core.errors import InputError
from pyrobnn._torch.layers import LAYERS, NAME_OF_FUNCTION
from pyrobnn._torch.private import tree_leaves

_NOISE_ATTRIBUTE = "_pyrobnn_per_example"
_DRAWN_OUTPUTS = "outputs drawn"


class Layer(NamedTuple):
    """A call of a linear or convolutional function."""

    function: Callable[[Tensor, Tensor, Tensor | None], Tensor]  # of inputs, weight and bias; strides are bound
    x: Tensor  # the inputs, examples on the first axis
    bias: Tensor | None  # as the network holds it
    channel: int  # axis of inputs and outputs that the weight mixes, -1 or 1
    memory: dict[str, Tensor]  # draws of earlier calls with the same weight in this pass, empty at first


@runtime_checkable
class Perturbation(Protocol):
    """A perturbation that a guide attaches to a weight. Any object with this method will do."""

    def outputs(self, layer: Layer) -> Tensor:
        """Return the outputs of a layer with separate noise for each example.

        The weights of each example must have the distribution of the shared draw, also jointly over several
        calls with the same `layer.memory`.
        """
        ...


class NormalNoise:
    """The perturbation of a weight drawn as loc + scale * noise, with standard normal noise for each entry.

    Flipout (Wen et al. 2018, eq. 3 and 4) multiplies the shared deviation from the mean by random signs s for each
    example and input, and r for each example and output: f(x, loc) + f(x s, drawn - loc) r; in convolutions a sign is
    per channel.

    Local reparameterisation (Kingma, Salimans & Welling 2015, eq. 6) draws outputs: normal, with mean f(x, loc) and
    variance f(x^2, scale^2). It is exact where each example passes the layer once; at the positions of a convolution or
    a sequence, which share weights, flipout is used instead.
    """

    def __init__(self, loc: Tensor, scale: Tensor, drawn: Tensor, *, local: bool) -> None:
        self.loc, self.scale, self.drawn, self.local = loc, scale, drawn, local

    def outputs(self, layer: Layer) -> Tensor:
        """Return the outputs of a layer with separate noise for each example.

        Raises:
            InputError: a local reparameterisation would be the second use of a weight.
        """
        local = self.local and layer.channel == -1 and layer.x.ndim == 2
        if layer.memory and (local or _DRAWN_OUTPUTS in layer.memory):
            fault = "A layer is applied more than once in a pass: its outputs depend on each other"
            raise InputError(f"{fault}, and noise='local' cannot draw them one by one. Use noise='flipout'.")
        bias = None if layer.bias is None else perturbation_of(layer.bias)
        normal_bias = bias if isinstance(bias, NormalNoise) else None
        mean = layer.function(layer.x, self.loc, layer.bias if normal_bias is None else normal_bias.loc)
        return mean + (self._local(layer, normal_bias) if local else self._flipout(layer, normal_bias, mean))

    def _local(self, layer: Layer, bias: "NormalNoise | None") -> Tensor:
        variance = layer.function(layer.x.square(), self.scale.square(), None if bias is None else bias.scale.square())
        spread = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()  # sqrt has no finite gradient at 0
        layer.memory[_DRAWN_OUTPUTS] = torch.randn_like(spread)
        return spread * layer.memory[_DRAWN_OUTPUTS]

    def _flipout(self, layer: Layer, bias: "NormalNoise | None", mean: Tensor) -> Tensor:
        if not layer.memory:
            layer.memory["inputs"] = _signs(layer.x, layer.channel)
            layer.memory["outputs"] = _signs(mean, layer.channel)
        s = _along(layer.x, layer.memory["inputs"], layer.channel)
        r = _along(mean, layer.memory["outputs"], layer.channel)
        deviation = None if bias is None else bias.drawn - bias.loc
        return layer.function(layer.x * s, self.drawn - self.loc, deviation) * r


class InputNoise:
    """The perturbation of a fixed weight by noise that multiplies its input units, as in dropout: f(x * noise, weight).

    `draw` maps the inputs with an entry for each example and unit, (B, units), to their noise; later calls repeat it.
    """

    def __init__(self, weight: Tensor, draw: Callable[[Tensor], Tensor]) -> None:
        self.weight, self.draw = weight, draw

    def outputs(self, layer: Layer) -> Tensor:
        """Return the outputs of a layer with separate noise for each example."""
        if not layer.memory:
            layer.memory["noise"] = self.draw(_entries(layer.x, layer.channel))
        noise = _along(layer.x, layer.memory["noise"], layer.channel)
        return layer.function(layer.x * noise, self.weight, layer.bias)


def attach(value: Tensor, perturbation: Perturbation) -> Tensor:
    """Attach a perturbation to the value of a weight site, and return the value.

    The network must get this tensor object: copies and views carry no perturbation.
    """
    setattr(value, _NOISE_ATTRIBUTE, perturbation)
    return value


def perturbation_of(value: Tensor) -> Perturbation | None:
    """Return the perturbation attached to a tensor, or None."""
    return getattr(value, _NOISE_ATTRIBUTE, None)


def without_noise(value: Tensor) -> Tensor:
    """Return the same values as a tensor that carries no perturbation."""
    return value if perturbation_of(value) is None else value.view_as(value)


def carries_noise(values: Iterable[Tensor]) -> bool:
    """Return whether any of the tensors carries a perturbation."""
    return any(perturbation_of(value) is not None for value in values)


class PerExample(TorchFunctionMode):
    """Runs linear and convolutional functions with noise for each example if their weight carries a perturbation.

    With `time_first` the network has sequences (T, B, units): if T = B, examples seem to be on the first axis.
    """

    def __init__(self, weights: Mapping[str, Tensor], num_examples: int, *, time_first: bool = False) -> None:
        super().__init__()
        self._time_first = time_first
        self._names = {id(value): name for name, value in weights.items() if perturbation_of(value) is not None}
        self._num_examples = num_examples
        self._owners: dict[int, int | None] = {}
        self._memories: dict[int, dict[str, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = LAYERS.get(NAME_OF_FUNCTION.get(func, ""))
        if kind is not None and kind.channel is not None:
            given = kind.given(args, kwargs)
            x, weight, bias = given.pop("input"), given.pop("weight"), given.pop("bias", None)
            noise = perturbation_of(weight)
            time_first = self._time_first and x.ndim > 2 and kind.channel == -1
            if noise is not None and len(x) == self._num_examples and not time_first:
                self._claim(weight, id(weight))
                if bias is not None:
                    self._claim(bias, id(weight))
                memory = self._memories.setdefault(id(weight), {})
                return noise.outputs(Layer(functools.partial(func, **given), x, bias, kind.channel, memory))
        result = func(*args, **kwargs)
        if isinstance(result, (Tensor, tuple)) and not isinstance(result, torch.Size):
            for value in tree_leaves((args, kwargs)):
                self._claim(value, None)
        return result

    def _claim(self, value: Any, owner: int | None) -> None:
        """Note the layer that perturbs a weight or bias, None for a use of the shared draw, and refuse two kinds."""
        name = self._names.get(id(value))
        if name is not None and self._owners.setdefault(id(value), owner) != owner:
            why = f"The network uses {name!r} in more than one way, and noise for each example would make them disagree"
            raise InputError(f"{why}: give it a shared draw, such as guide={{{name!r}: MeanField(), '*': ...}}.")


def _entries(x: Tensor, channel: int) -> Tensor:
    """Return an entry of x for each example and unit of the axis that the weight mixes, (B, units)."""
    while x.ndim > 2:
        x = x.select(2 if channel == 1 else 1, 0)
    return x


def _along(x: Tensor, noise: Tensor, channel: int) -> Tensor:
    """Return noise (B, units) in a shape that multiplies x."""
    ones = (1,) * (x.ndim - 2)
    shape = (len(noise), *ones, noise.shape[1]) if channel == -1 else (*noise.shape, *ones)
    return noise.view(shape)


def _signs(x: Tensor, channel: int) -> Tensor:
    """Return a random sign for each example and unit; the mirror image 1 - u of the uniform numbers has the same."""
    uniform = torch.rand_like(_entries(x, channel).contiguous())
    return torch.where((uniform - 0.5).abs() < 0.25, 1.0, -1.0).to(x.dtype)
