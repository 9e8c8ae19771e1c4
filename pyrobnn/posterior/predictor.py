"""A posterior with fixed draws as a module, to deploy."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli

from pyrobnn._core.checks import wrong_shape
from pyrobnn._core.errors import REFUSALS, InputError
from pyrobnn._torch.inputs import Inputs, X, single
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn._torch.transforms import load_forward_mode
from pyrobnn._torch.vectorize import StackedLinear, is_alike, stack_linear
from pyrobnn.bnn import BNN
from pyrobnn.distributions.latents import stack_likelihood
from pyrobnn.distributions.support import base_of
from pyrobnn.distributions.units import Scaler, scaler_of
from pyrobnn.nets import leftovers
from pyrobnn.posterior.output_draws import Tangent, along
from pyrobnn.posterior.prediction import Prediction, variance_over_draws


class FixedDraws(NamedTuple):
    """What a predictor needs of a posterior."""

    bnn: BNN
    draws: dict[str, Tensor]  # values (S, *event) of all sites
    mean: dict[str, Tensor] | None  # of the sites, where the network is linearised there
    example: X  # a row of inputs or two, in the units of the model
    outputs: Tensor  # of the network at the example, or a stand-in
    units: tuple[Scaler, Scaler]  # maps of inputs and targets to the units of the model


class Predictor(nn.Module):
    """The mean and the standard deviation of targets, or class probabilities, under fixed draws of the weights.

    It takes inputs as the network does, in original units and as tensors: a batch (N, *in), or several tensors by
    keyword or position. Their values are not checked. It returns the mean and the standard deviation of the targets,
    (N,) or (N, K) each, in original units, or class probabilities (N, C) and (N, *positions, C): those of `predict`
    with the same draws. It is a module like others: `to`, `state_dict`, `inference_mode` and `torch.export` take it. It
    has gradients in x, which `predict` does not have.
    """

    def __init__(self, parts: Sequence[FixedDraws]) -> None:
        super().__init__()
        members, first = [_Member(part) for part in parts], parts[0]
        self.members = nn.ModuleList(members)
        self._names = list(first.example.parts) if isinstance(first.example, Inputs) else []
        units, example = first.units[0], first.example
        self._shape = None if isinstance(example, Inputs) else units.row(example)
        self.x_units, self.y_units = map(_Units, first.units)
        with torch.no_grad():
            prediction = Prediction(members[0].law(first.outputs[None]))
        self._is_binary = isinstance(base_of(prediction.distribution), Bernoulli)
        self._is_categorical = prediction.is_classification and not self._is_binary
        if not prediction.has_moments:
            raise InputError("The likelihood's mean and variance are not known: use `predict`, which has quantiles.")
        self.eval()

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return mean and standard deviation, or class probabilities."""
        other = next((value for value in (*args, *kwargs.values()) if not isinstance(value, Tensor)), None)
        if other is not None:
            text = f"A predictor takes tensors, got {type(other).__name__}: pass the inputs of each batch of a loader"
            raise InputError(f"{text}; `predict` takes loaders and arrays.", page="how-to/save-and-load")
        if self._names:
            parts = kwargs or {str(place): value for place, value in enumerate(args)}
            x: X = Inputs({name: parts[name] for name in self._names})
        else:
            if args[0].shape[1:] != self._shape:
                raise InputError(wrong_shape(tuple(args[0].shape), tuple(self._shape or ())))
            x = self.x_units.transform(args[0])
        laws = [member(x) for member in self.members]
        if self._is_categorical:
            probs = torch.cat([base_of(law).probs for law in laws]).mean(0)
            return probs / probs.sum(-1, keepdim=True)
        means = torch.cat([law.mean for law in laws])
        mean = means.mean(0)
        if self._is_binary:
            return torch.stack([1 - mean, mean], -1)
        noise = torch.cat([law.variance for law in laws]).mean(0)
        std = (variance_over_draws(means) + noise).sqrt()
        return self.y_units.inverse(mean, std)


class _Units(nn.Module):
    """A map between original units and those of a model, as a module."""

    loc: Tensor
    scale: Tensor

    def __init__(self, scaler: Scaler) -> None:
        super().__init__()
        self._is_identity = scaler.is_identity
        for name, value in scaler.tensors.items():
            self.register_buffer(name, value.clone())

    def transform(self, values: Tensor) -> Tensor:
        if self._is_identity:
            return values
        return scaler_of(**dict(self.named_buffers())).standard(values.to(self.loc.dtype))

    def inverse(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        return (mean, std) if self._is_identity else (mean * self.scale + self.loc, std * self.scale)


class _Member(nn.Module):
    """The likelihood's distribution under each draw of a posterior, of batch shape (S, N)."""

    def __init__(self, fixed: FixedDraws) -> None:
        super().__init__()
        self.bnn = copy.deepcopy(fixed.bnn, leftovers(fixed.bnn)).eval().requires_grad_(requires_grad=False)
        weights = {name: fixed.draws[name] for name in self.bnn.site_names}
        self._latents = [name for name in fixed.draws if name not in weights and not name.startswith("prior.")]
        for name in self._latents:
            self._keep("latent", name, fixed.draws[name])
        self._moving = [name for name, value in weights.items() if not is_alike(value)]
        mean = {name: value[0] for name, value in weights.items()} | (fixed.mean or {})
        for name in self.bnn.site_names:
            self.bnn.net.get_buffer(name).copy_(mean[name])
        self._is_linear = fixed.mean is not None and not self._is_exact(fixed.example)
        if self._is_linear:
            load_forward_mode()
        moving = {name: weights[name] for name in self._moving}
        layers = stack_linear(self.bnn.net, weights) if moving and not self._is_linear else None
        takes_rows = isinstance(fixed.example, Tensor) and fixed.example.ndim == 2 and not self.bnn.has_offset
        self.layers = nn.ModuleList(map(_Layer, layers)) if layers is not None and takes_rows else None
        if self.layers is None:
            for name, value in moving.items():
                self._keep("draws", name, value)

    def _keep(self, kind: str, name: str, value: Tensor) -> None:
        self.register_buffer(f"{kind}_{name.replace('.', '_')}", value.detach().clone())

    def _kept(self, kind: str, names: list[str]) -> dict[str, Tensor]:
        return {name: getattr(self, f"{kind}_{name.replace('.', '_')}") for name in names}

    def _is_exact(self, example: X) -> bool:
        """Return whether the linearised network is the network itself, as where its last layer alone moves."""
        weights = {name: self.bnn.net.get_buffer(name) for name in self.bnn.site_names}
        try:
            return Tangent(self.bnn, weights, example).is_exact(tuple(self._moving))
        except REFUSALS:  # of the example, which is zeros after loading
            return False

    def forward(self, x: X) -> Any:
        if self.layers is None:
            return self.law(self._outputs(self.bnn.cast_inputs(x)))
        h = single(x, "This network").to(next(self.layers.buffers()).dtype)
        for layer in self.layers:
            h = layer(h)
        return self.law(h)

    def law(self, f: Tensor) -> Any:
        """Return the distribution for outputs (S, N, outputs)."""
        with fast_pyro():
            latents = self._kept("latent", self._latents)
            if not latents:
                return self.bnn.likelihood(f)
            count = len(next(iter(latents.values())))
            return stack_likelihood(self.bnn.likelihood, f.expand(count, *f.shape[1:]), latents)

    def _outputs(self, x: X) -> Tensor:
        """Return the outputs of the network for each draw, (S, N, outputs)."""
        draws = self._kept("draws", self._moving)
        start = {name: self.bnn.net.get_buffer(name) for name in self.bnn.site_names}
        if not draws:
            return self.bnn.outputs(start, x)[None]
        if not self._is_linear:
            return _over_draws(lambda values: self.bnn.outputs(start | values, x), draws)

        def moved(values: dict[str, Tensor]) -> Tensor:
            f, slope = along(self.bnn, start, {name: value - start[name] for name, value in values.items()}, x)
            return f + slope

        return _over_draws(moved, draws)


def _over_draws(function: Callable[[dict[str, Tensor]], Tensor], draws: dict[str, Tensor]) -> Tensor:
    """Return a function of each draw; an exported program has a copy for each, since vmap fixes the number of rows."""
    if not torch.compiler.is_exporting():
        return torch.func.vmap(function)(draws)
    count = len(next(iter(draws.values())))
    return torch.stack([function({name: value[draw] for name, value in draws.items()}) for draw in range(count)])


class _Layer(nn.Module):
    """A linear layer under each draw, or under one where all are alike, and the entrywise modules that follow it."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: StackedLinear) -> None:
        super().__init__()
        count = 1 if layer.is_alike else len(layer.weight)
        self.register_buffer("weight", layer.weight[:count].mT.clone())
        self.register_buffer("bias", None if layer.bias is None else layer.bias[:count, None].clone())
        self.after = nn.Sequential(*layer.after)

    def forward(self, h: Tensor) -> Tensor:
        """Return activations (S, N, out) for (N, in) or (S, N, in)."""
        h = h @ self.weight
        return self.after(h if self.bias is None else h + self.bias)
