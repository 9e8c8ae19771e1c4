"""Where a network uses its weights: the inputs and outputs of every layer, recorded in one pass.

The Jacobian of the outputs in the weight of a linear map is made of two small parts, the inputs of the layer and the
derivative of the outputs in those of the layer. Curvature in every structure needs only these, never the Jacobian.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pyrobnn._torch.private import tree_leaves
from pyrobnn.bnn import BNN

_LARGEST_TABLE = 4096
"""Rows up to which an embedding is taken as the linear map of one-hot vectors that it is."""
Kind = Literal["matrix", "scale"]


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """One use of a weight and a bias, at T positions of each of B examples.

    A "matrix" maps inputs (B, T, I) to outputs (B, T, O); a "scale" multiplies units, and I = O. At least one of the
    two names is given.

    Attributes:
        kind: which of the two.
        weight: name of the site that is the weight, or None if it is not Bayesian.
        bias: likewise.
        inputs: (B, T, I), of a convolution the patches, of an embedding one-hot vectors.
        output: the outputs as the network has them.
        positions: brings a tensor (*, shape of output) to (*, B, T, O).
        transposed: whether the weight is held as (I, O), as embeddings do, instead of (O, I).
    """

    kind: Kind
    weight: str | None
    bias: str | None
    inputs: Tensor
    output: Tensor
    positions: Callable[[Tensor], Tensor]
    transposed: bool = False

    @property
    def sites(self) -> list[str]:
        """The names of the sites, weight first."""
        return [name for name in (self.weight, self.bias) if name is not None]


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """A pass through a network.

    Attributes:
        f: outputs (B, C), with the graph that made them.
        uses: the uses of weights whose layers are known.
        others: names of the sites that are used in another way, or more than once.
        last: name of the site that is used last; None if none is.
    """

    f: Tensor
    uses: list[Use]
    others: list[str]
    last: str | None = None

    def pull_back(self, columns: Tensor) -> list[Tensor]:
        """Return the derivatives of sum_bc columns[k, b, c] f[b, c] in the outputs of each use, (K, B, T, O) each.

        Args:
            columns: (K, B, C).
        """
        outputs = [use.output for use in self.uses]
        found = torch.autograd.grad(
            self.f, outputs, columns, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
        pairs = zip(self.uses, found, strict=True)
        return [use.positions(_filled(gradient, use, len(columns))) for use, gradient in pairs]


def _filled(gradient: Tensor | None, use: Use, count: int) -> Tensor:
    return use.output.new_zeros(count, *use.output.shape) if gradient is None else gradient


class Tracker:
    """Runs a network in evaluation mode at fixed weights, and records where it uses those of some sites.

    A layer counts as known if its inputs have one row an example, which a run of one example alone confirms: a sequence
    that comes first may be as long as the batch.

    Args:
        bnn: the model.
        weights: values of all its weights by name.
        sites: the names of interest.
        example: inputs of one example, (1, *in).

    Attributes:
        alone: the recording of that example.
    """

    def __init__(self, bnn: BNN, weights: Mapping[str, Tensor], sites: list[str], example: Tensor) -> None:
        self._bnn, self._sites = bnn, sites
        self._values = {name: value.detach() for name, value in weights.items()}
        self._values |= {name: self._values[name].clone().requires_grad_() for name in sites}
        self._known = set(sites)
        self.alone = self.run(example)
        self._known = {name for use in self.alone.uses for name in use.sites}

    def run(self, x: Tensor) -> Recording:
        """Record a pass with inputs (B, *in)."""
        recorder = _Recorder({id(self._values[name]): name for name in self._sites}, len(x))
        with torch.enable_grad(), recorder:
            f = self._bnn.outputs(self._values, x)
        uses = [use for use in recorder.uses if not recorder.is_shared(use) and self._known.issuperset(use.sites)]
        covered = {name for use in uses for name in use.sites}
        return Recording(f, uses, [name for name in self._sites if name not in covered], recorder.last)


def record(bnn: BNN, weights: Mapping[str, Tensor], x: Tensor, sites: list[str]) -> Recording:
    """Record one pass; arguments are those of `Tracker`, with inputs (B, *in)."""
    return Tracker(bnn, weights, sites, x[:1]).run(x)


class _Recorder(TorchFunctionMode):
    """Notes the calls of linear maps, convolutions, embeddings and normalisations with the tensors of interest."""

    def __init__(self, names: dict[int, str], num_examples: int) -> None:
        super().__init__()
        self._names, self._num_examples = names, num_examples
        self.uses: list[Use] = []
        self.last: str | None = None
        self._counts: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, (Tensor, tuple, list)) and not isinstance(result, torch.Size):
            names = [self._names[id(v)] for v in tree_leaves((args, kwargs)) if id(v) in self._names]
            for name in names:
                self._counts[name] = self._counts.get(name, 0) + 1
                self.last = name
            if names and func in _READERS and isinstance(result, Tensor):
                self._read(func, args, kwargs, result)
                return result.clone()  # the next layer may change it in place
        return result

    def _read(self, func: Any, args: Any, kwargs: Any, out: Tensor) -> None:
        reader, defaults = _READERS[func]
        call = _Call(defaults, args, kwargs, out=out, count=self._num_examples, name=self._name)
        use = reader(call) if len(call.input) == self._num_examples else None
        if use is not None:
            self.uses.append(use)

    def _name(self, value: Any) -> str | None:
        return self._names.get(id(value))

    def is_shared(self, use: Use) -> bool:
        """Say whether a site of a use appears elsewhere too."""
        return any(self._counts[name] > 1 for name in use.sites)


class _Call:
    """One call of a function of `torch.nn.functional`, its arguments as attributes.

    Args:
        defaults: parameters in their order, with their defaults.
        args: as given.
        kwargs: likewise.
        out: what it returned.
        count: number of examples.
        name: gives the name of the site that a tensor is, or None.
    """

    def __init__(
        self, defaults: Mapping[str, Any], args: Any, kwargs: Any, *, out: Tensor, count: int, name: Any
    ) -> None:
        self.__dict__.update({**defaults, **dict(zip(defaults, args, strict=False)), **kwargs})
        self.out, self.count = out, count
        self.weight_name, self.bias_name = name(self.weight), name(self.bias)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def use(self, kind: Kind, inputs: Tensor, positions: Any, *, transposed: bool = False) -> Use:
        """Return the use that this call makes of its weight and bias."""
        return Use(kind, self.weight_name, self.bias_name, inputs, self.out, positions, transposed)


def _linear(call: _Call) -> Use | None:
    if call.weight.ndim != 2:
        return None
    inputs = call.input.detach().reshape(call.count, -1, call.input.shape[-1])
    return call.use("matrix", inputs, _last_axis(call.out.ndim))


def _convolution(call: _Call) -> Use | None:
    if call.input.ndim != call.weight.ndim or call.groups != 1:
        return None
    patches = _patches(call.input.detach(), call.weight.shape[2:], call.stride, call.padding, call.dilation)
    return call.use("matrix", patches, _second_axis(call.out.ndim))


def _embedding(call: _Call) -> Use | None:
    is_plain = call.padding_idx is None and call.max_norm is None and not call.scale_grad_by_freq
    if not is_plain or len(call.weight) > _LARGEST_TABLE:
        return None
    one_hot = functional.one_hot(call.input.reshape(call.count, -1), len(call.weight)).to(call.weight.dtype)
    return call.use("matrix", one_hot, _last_axis(call.out.ndim), transposed=True)


def _layer_norm(call: _Call) -> Use:
    plain = functional.layer_norm(call.input.detach(), call.normalized_shape, None, None, call.eps)
    positions = _flat_units(call.out.ndim, len(call.normalized_shape))
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


_AFFINE: dict[str, Any] = {"weight": None, "bias": None}
_READERS: dict[Any, Any] = {
    functional.linear: (_linear, {"input": None} | _AFFINE),
    functional.embedding: (
        _embedding,
        {"input": None, "weight": None, "padding_idx": None, "max_norm": None, "norm_type": 2.0}
        | {"scale_grad_by_freq": False, "sparse": False, "bias": None},
    ),
    functional.layer_norm: (_layer_norm, {"input": None, "normalized_shape": None} | _AFFINE | {"eps": 1e-5}),
    functional.group_norm: (_group_norm, {"input": None, "num_groups": None} | _AFFINE | {"eps": 1e-5}),
    functional.batch_norm: (
        _batch_norm,
        {"input": None, "running_mean": None, "running_var": None}
        | _AFFINE
        | {"training": False, "momentum": 0.1, "eps": 1e-5},
    ),
} | dict.fromkeys(
    (functional.conv1d, functional.conv2d, functional.conv3d),
    (_convolution, {"input": None} | _AFFINE | {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}),
)


def _last_axis(ndim: int) -> Callable[[Tensor], Tensor]:
    """Return what brings (*, B, ..., O) to (*, B, T, O), for outputs of that many axes."""

    def positions(value: Tensor) -> Tensor:
        lead = value.shape[: value.ndim - ndim + 1]
        return value.reshape(*lead, -1, value.shape[-1])

    return positions


def _second_axis(ndim: int) -> Callable[[Tensor], Tensor]:
    """Return what brings (*, B, O, ...) to (*, B, T, O)."""

    def positions(value: Tensor) -> Tensor:
        lead = value.shape[: value.ndim - ndim + 2]
        return value.reshape(*lead, -1).transpose(-1, -2)

    return positions


def _flat_units(ndim: int, axes: int) -> Callable[[Tensor], Tensor]:
    """Return what brings (*, B, ..., units on the last axes) to (*, B, T, units)."""

    def positions(value: Tensor) -> Tensor:
        lead = value.shape[: value.ndim - ndim + 1]
        return value.reshape(*lead, -1, math.prod(value.shape[value.ndim - axes :]))

    return positions


def _patches(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """Return the patches of a convolution's inputs (B, I, *space), as (B, T, I * kernel)."""
    axes = len(kernel)
    strides, dilations = _each(stride, axes), _each(dilation, axes)
    x = functional.pad(x, _padding(padding, kernel, dilations))
    for axis, (size, step, gap) in enumerate(zip(kernel, strides, dilations, strict=True)):
        places = (x.shape[2 + 2 * axis] - gap * (size - 1) - 1) // step + 1
        index = torch.arange(size)[:, None] * gap + torch.arange(places) * step
        x = x.index_select(2 + 2 * axis, index.flatten().to(x.device)).unflatten(2 + 2 * axis, (size, places))
    order = [0, *range(3, 2 + 2 * axes, 2), 1, *range(2, 2 + 2 * axes, 2)]
    x = x.permute(order)
    return x.flatten(1 + axes).flatten(1, axes)


def _each(value: Any, axes: int) -> list[int]:
    return list(value) if isinstance(value, (tuple, list)) and len(value) == axes else [_single(value)] * axes


def _single(value: Any) -> int:
    return int(value[0] if isinstance(value, (tuple, list)) else value)


def _padding(padding: Any, kernel: Any, dilations: list[int]) -> list[int]:
    """Return the padding as `functional.pad` takes it, last axis first."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        totals = [gap * (size - 1) for size, gap in zip(kernel, dilations, strict=True)]
        pairs = [(total // 2, total - total // 2) for total in totals]
    else:
        pairs = [(pad, pad) for pad in _each(padding, len(kernel))]
    return [pad for pair in reversed(pairs) for pad in pair]
