"""Mean and covariance of a network's outputs from those of its weights, layer by layer in a single pass.

Wu et al. 2019, "Deterministic Variational Inference for Robust Bayesian Neural Networks"; Gast & Roth 2018,
"Lightweight Probabilistic Deep Networks". A layer of independent weights maps the mean and the covariance of its inputs
to those of its outputs exactly. The outputs then count as normal. The mean and the variance of an activation are exact
for a normal input; the covariance of two activations is that of their best linear fits.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import X
from pyrobnn._torch.layers import ENTRYWISE, LAYERS
from pyrobnn._torch.vectorize import has_no_hooks, sequence
from pyrobnn.bnn import BNN
from pyrobnn.guides.base import BuiltGuide
from pyrobnn.guides.blocks import Block
from pyrobnn.posterior.normal_outputs import MOST_OUTPUTS, FunctionalNormal, linear_outputs

_LEAVE_OUT = "Leave `moments` out: draws take every network and posterior."
_PAGE = "how-to/deploy"
_AT_ONCE = 2**20
"""Entries of covariances that are held at once."""
_NODES, _REACH = 48, 5.5
"""Nodes of the integral of an activation, in equal steps, and the standard deviations that they span on each side."""
_FAR = 30.0
"""Standard deviations beyond which a normal variable has a single sign."""
_AVERAGES: tuple[Any, ...] = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_LARGEST: tuple[Any, ...] = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)


class Moments(NamedTuple):
    """Mean and covariance of activations.

    Attributes:
        mean: (N, *shape).
        variance: likewise.
        covariance: (N, H, H) for vectors of H activations; None where they count as independent.
    """

    mean: Tensor
    variance: Tensor
    covariance: Tensor | None = None


class Weights(NamedTuple):
    """A normal distribution of the weights of a network.

    Attributes:
        mean: of all weights by site name.
        variance: of the independent weights by site name; other weights outside of the blocks are known.
        blocks: of correlated weights.
    """

    mean: Mapping[str, Tensor]
    variance: Mapping[str, Tensor]
    blocks: Sequence[Block]


def output_moments(bnn: BNN, guide: BuiltGuide, inputs: X, *, linearized: bool) -> FunctionalNormal:
    """Return the normal distribution of the outputs of each input in closed form, (N, C).

    Args:
        bnn: the model.
        guide: of its weights.
        inputs: x (N, *in), in the units of the model.
        linearized: linearise the network around the mean.

    Raises:
        InputError: a guide, a network or outputs without known moments.
    """
    blocks, means = guide.gaussian_blocks(), guide.mean() or {}
    if linearized and not blocks:
        raise InputError(f"Moments of a linearised network need a Laplace guide. {_LEAVE_OUT}", page=_PAGE)
    weights = {name: means[name] for name in bnn.site_names if name in means}
    if linearized:
        normal = linear_outputs(bnn, blocks, weights, inputs)
    else:
        independent = guide.independent_moments()
        known = {*guide.fixed_sites(), *independent, *(name for block in blocks for name in block.shapes)}
        unknown = [name for name in bnn.site_names if name not in known]
        if unknown:
            raise InputError(
                f"Moments need independent normal weights, as of MeanField, or a Laplace guide; {unknown[0]!r} has "
                f"another distribution. {_LEAVE_OUT}",
                page=_PAGE,
            )
        variances = {name: std.square() for name, (_, std) in independent.items()}
        normal = layer_moments(bnn.net, Weights(weights, variances, blocks), inputs)
    if normal.mean.shape[1] > MOST_OUTPUTS:
        raise InputError(
            f"Moments stand for at most {MOST_OUTPUTS} outputs, got {normal.mean.shape[1]}. {_LEAVE_OUT}", page=_PAGE
        )
    return normal


def layer_moments(net: nn.Module, weights: Weights, inputs: X) -> FunctionalNormal:
    """Return the normal distribution of the outputs by moments that pass the network once.

    Raises:
        InputError: a network, or a block of its weights, without known moments.
    """
    if not isinstance(inputs, Tensor):
        raise InputError(f"Moments pass networks of one input, got several. {_LEAVE_OUT}", page=_PAGE)
    layers = [_layer(name.removesuffix("."), module, weights) for name, module in sequence(net)]
    widest = max((module.in_features for module in net.modules() if isinstance(module, nn.Linear)), default=1)
    parts = [_through(layers, x) for x in inputs.split(max(1, _AT_ONCE // widest**2))]
    mean = torch.cat([part.mean for part in parts])
    if mean.ndim != 2:
        raise InputError(f"Moments need a row of outputs for each input, got {tuple(mean.shape)}. {_LEAVE_OUT}")
    return FunctionalNormal(mean, torch.cat([v.diag_embed() if c is None else c for _, v, c in parts]))


def _through(layers: Sequence[Callable[[Moments], Moments]], x: Tensor) -> Moments:
    h = Moments(x, torch.zeros_like(x))
    for layer in layers:
        h = layer(h)
    return h


def _layer(name: str, module: Any, weights: Weights) -> Callable[[Moments], Moments]:
    """Return what a module does to moments."""
    kind = type(module)
    if has_no_hooks(module) and not module.training:
        if kind is nn.Linear or kind in LAYERS["convolution"].modules:
            return _Affine(name, module, weights)
        if kind in ENTRYWISE:
            return partial(_entrywise, _activation(module))
        if kind is nn.Flatten and module.start_dim == 1:
            return lambda h: h if h.mean.ndim == 2 else Moments(module(h.mean), module(h.variance))
        if kind in _AVERAGES and _has_whole_windows(module):
            return partial(_average, module)
        if kind in _LARGEST and _has_whole_windows(module) and {*_each(module.dilation, 1)} == {1}:
            return partial(_largest, module)
    raise InputError(
        "Moments pass a sequence of linear layers, convolutions, entrywise activations, pooling without padding and "
        f"flattening; {name!r}, {kind.__name__}, is none of these. {_LEAVE_OUT}",
        page=_PAGE,
    )


class _Affine:
    """A linear layer or a convolution; positions of a convolution count as independent."""

    def __init__(self, name: str, module: Any, weights: Weights) -> None:
        self._module, self._is_dense = module, type(module) is nn.Linear
        sites = {own: f"{name}.{own}".lstrip(".") for own in ("weight", "bias") if getattr(module, own) is not None}
        tied = [site for own, site in sites.items() if site not in weights.mean and own in module._buffers]
        blocks = [block for block in weights.blocks if not block.shapes.keys().isdisjoint(sites.values())]
        if tied or any(not self._is_dense or not {*block.shapes} <= {*sites.values()} for block in blocks):
            raise InputError(
                f"Moments need weights of {name!r} that are independent of those of other layers, and of each other in "
                f"a convolution. {_LEAVE_OUT}",
                page=_PAGE,
            )
        self._mean = {own: weights.mean.get(site, getattr(module, own).detach()) for own, site in sites.items()}
        self._variance = {own: weights.variance.get(site, 0 * self._mean[own]) for own, site in sites.items()}
        self._squares = {own: value.square() * (own == "weight") for own, value in self._mean.items()}
        self._correlated = [_Correlated(block, name, sites, self._mean["weight"]) for block in blocks]

    def __call__(self, h: Moments) -> Moments:
        mean = self._call(self._mean, h.mean)
        variance = self._call(self._variance, h.mean.square() + h.variance)
        if not self._is_dense:
            return Moments(mean, variance + self._call(self._squares, h.variance))
        if mean.ndim != 2:
            raise InputError(f"Moments pass linear layers on rows, got {tuple(mean.shape)}. {_LEAVE_OUT}", page=_PAGE)
        if h.covariance is None and not self._correlated and not bool(h.variance.any()):
            return Moments(mean, variance)
        weight = self._mean["weight"]
        carried = weight * h.variance[:, None] if h.covariance is None else weight @ h.covariance
        covariance = carried @ weight.T
        for part in self._correlated:
            covariance += part.covariance(h)
        covariance.diagonal(dim1=1, dim2=2).add_(variance)
        return Moments(mean, covariance.diagonal(dim1=1, dim2=2), covariance)

    def _call(self, values: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return the outputs for inputs x with other values of the parameters."""
        if self._is_dense:
            return linear(x, **values)
        outputs: Tensor = functional_call(self._module, values, (x,))
        return outputs


class _Correlated:
    """Weights of a linear layer with a block: L E R^T with independent entries E of mean zero."""

    def __init__(self, block: Block, layer: str, sites: Mapping[str, str], weight: Tensor) -> None:
        self._parts = [own for own, site in sites.items() if site in block.shapes]
        num_outputs, num_inputs = weight.shape
        width = num_inputs * ("weight" in self._parts) + ("bias" in self._parts)
        left, right = (torch.eye(size, dtype=weight.dtype, device=weight.device) for size in (num_outputs, width))
        axes = block.axes(left[:, None, None], right[None], transposed=False)
        if axes is None:
            raise InputError(
                f"Moments need weights of {layer!r} that are independent, or correlated as a Kronecker product. "
                f"{_LEAVE_OUT}",
                page=_PAGE,
            )
        self._left, self._right, self._variance = axes.g[:, 0, 0], axes.a[0], axes.scale.square()

    def covariance(self, h: Moments) -> Tensor:
        """Return the part of the covariance of the outputs, (N, O, O), for inputs h, (N, I)."""
        ones = h.mean.new_ones(len(h.mean), 1)
        along = torch.cat([h.mean if own == "weight" else ones for own in self._parts], 1) @ self._right
        squares = along.square()
        if "weight" in self._parts:
            right = self._right[: h.mean.shape[1]]
            carried = h.variance @ right.square() if h.covariance is None else ((h.covariance @ right) * right).sum(1)
            squares = squares + carried
        return (self._left * (squares @ self._variance.T)[:, None]) @ self._left.T


_Activation = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Function from mean and variance to those of an activation and its best slope."""


def _activation(module: Any) -> _Activation:
    """Return the moments of an activation; of dropout in evaluation, those of the identity."""
    below = {nn.ReLU: 0.0, nn.Identity: 1.0, nn.Dropout: 1.0}.get(type(module))
    if type(module) is nn.LeakyReLU:
        below = module.negative_slope
    return partial(integrated, module) if below is None else partial(rectified, below)


def _entrywise(function: _Activation, h: Moments) -> Moments:
    mean, variance, slope = function(h.mean, h.variance)
    if h.covariance is None:
        return Moments(mean, variance)
    covariance = h.covariance * slope[:, :, None] * slope[:, None]
    covariance.diagonal(dim1=1, dim2=2).copy_(variance)
    return Moments(mean, variance, covariance)


def rectified(below: float, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of g(a) = max(a, 0) + below min(a, 0) for normal a, and its slope Cov(g(a), a) / Var(a).

    Examples:
        >>> from pyrobnn.posterior.moments import rectified
        >>> [round(float(value), 4) for value in rectified(0.0, torch.tensor(0.0), torch.tensor(1.0))]
        [0.3989, 0.3408, 0.5]
    """
    std = variance.sqrt()
    t = (mean / std.clamp_min(torch.finfo(std.dtype).tiny)).clamp(-_FAR, _FAR)
    above, under = torch.special.ndtr(t), torch.special.ndtr(-t)
    density = (-0.5 * t * t).exp() / math.sqrt(2 * math.pi)
    # Var(relu(a)) / Var(a), without the difference of second moment and squared mean
    share = above + t * t * above * under + t * density * (under - above) - density.square()
    rest = 1 - below
    slope = below + rest * above
    total = below**2 + 2 * below * rest * above + rest**2 * share.clamp_min(0)
    return mean * slope + rest * std * density, variance * total, slope


def integrated(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same for a smooth function, by the trapezoidal rule, whose error falls exponentially with its nodes.

    With 48 nodes in steps of 0.23 it resolves tanh of a standard deviation up to 5 to 1e-4.
    """
    nodes = torch.linspace(-_REACH, _REACH, _NODES, dtype=mean.dtype, device=mean.device)
    weights = torch.softmax(-0.5 * nodes.square(), 0)
    std = variance.sqrt()
    values = function(mean[..., None] + std[..., None] * nodes)
    centre = values @ weights
    deviations = values - centre[..., None]
    slope = deviations @ (weights * nodes) / std.clamp_min(torch.finfo(std.dtype).tiny)
    return centre, deviations.square() @ weights, slope


def _average(module: Any, h: Moments) -> Moments:
    size = getattr(module, "divisor_override", None) or math.prod(_each(module.kernel_size, h.mean.ndim - 2))
    return Moments(module(h.mean), module(h.variance) / size)


def _largest(module: Any, h: Moments) -> Moments:
    """Return the moments of the largest entries, pair by pair, as if the larger of two were normal (Clark 1961)."""
    pairs = list(zip(_windows(module, h.mean), _windows(module, h.variance), strict=True))
    while len(pairs) > 1:
        pairs = [*itertools.starmap(_larger, zip(pairs[::2], pairs[1::2], strict=False)), *pairs[len(pairs) // 2 * 2 :]]
    return Moments(*pairs[0])


def _larger(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and variance of max(a, b) = b + relu(a - b) for independent normal a and b."""
    (a, var_a), (b, var_b) = one, other
    mean, variance, slope = rectified(0.0, a - b, var_a + var_b)
    return b + mean, (var_b * (1 - 2 * slope) + variance).clamp_min(0)


def _windows(module: Any, x: Tensor) -> Iterator[Tensor]:
    """Yield the entry at each place of the windows of a pooling layer, in the shape of its outputs."""
    sizes, steps = (_each(value, x.ndim - 2) for value in (module.kernel_size, module.stride))
    for start in itertools.product(*map(range, sizes)):
        ends = (first + length - size + 1 for first, length, size in zip(start, x.shape[2:], sizes, strict=True))
        yield x[(slice(None), slice(None), *itertools.starmap(slice, zip(start, ends, steps, strict=True)))]


def _each(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    """Return a setting of a pooling layer for each axis."""
    return value if isinstance(value, tuple) else (value,) * dims


def _has_whole_windows(module: Any) -> bool:
    return not any(_each(module.padding, 1)) and not module.ceil_mode
