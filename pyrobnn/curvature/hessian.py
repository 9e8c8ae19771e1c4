"""Exact second derivatives of the negative log-likelihood: all of them, or the diagonal."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.overrides import TorchFunctionMode

from pyrobnn._torch.forward_mode import load_forward_mode
from pyrobnn.bnn import BNN
from pyrobnn.curvature.layers import Use, record
from pyrobnn.curvature.metric import Likelihood

Batch = tuple[Tensor, Tensor]
Energy = Callable[[Mapping[str, Tensor]], Tensor]
_ENTRIES = 2**24


def full_hessian(
    bnn: BNN, weights: Mapping[str, Tensor], likelihood: Likelihood, data: Iterable[Batch], sites: list[str]
) -> Tensor:
    """Return the Hessian in the entries of some sites, in their order, (D, D).

    Args:
        bnn: the model, in evaluation mode.
        weights: the point: values of all weights by name.
        likelihood: maps outputs to the distribution of targets.
        data: all examples, in parts.
        sites: names of the weights of interest.
    """
    load_forward_mode()
    sizes = [weights[name].numel() for name in sites]
    size = sum(sizes)
    flat = torch.cat([weights[name].detach().reshape(-1) for name in sites])
    total = flat.new_zeros(size, size)
    for x, y in data:

        def energy(z: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            named = {n: part.view(weights[n].shape) for n, part in zip(sites, z.split(sizes), strict=True)}
            return _energy(bnn, {**weights, **named}, likelihood, x, y)

        total += _rows(grad(energy), flat, torch.arange(size, device=flat.device))
    return (total + total.T) / 2


def diagonal_hessian(
    bnn: BNN, weights: Mapping[str, Tensor], likelihood: Likelihood, data: Iterable[Batch], sites: list[str]
) -> dict[str, Tensor]:
    """Return the diagonal of the Hessian by site; arguments are those of `full_hessian`.

    An output of a linear layer depends linearly on the weights of its row. Where each example passes the layer once,
    their second derivatives are those in the output times squared inputs: one product with the Hessian for each unit
    instead of one for each weight.
    """
    load_forward_mode()
    total: dict[str, Tensor] = {name: torch.zeros_like(weights[name]) for name in sites}
    tracked = {**weights, **{name: weights[name].detach().clone() for name in sites}}
    for x, y in data:

        def energy(values: Mapping[str, Tensor], x: Tensor = x, y: Tensor = y) -> Tensor:
            return _energy(bnn, values, likelihood, x, y)

        uses = record(bnn, weights, x, sites).uses
        by_unit = [use for use in uses if use.kind == "matrix" and use.inputs.shape[1] == 1]
        for use in by_unit:
            for name, value in _in_weights(use, _in_units(energy, tracked, use)).items():
                total[name] += value.view(total[name].shape)
        done = {name for use in by_unit for name in use.sites}
        for name in [name for name in sites if name not in done]:
            total[name] += _by_entry(energy, tracked, name)
    return total


def _energy(bnn: BNN, weights: Mapping[str, Tensor], likelihood: Likelihood, x: Tensor, y: Tensor) -> Tensor:
    return -likelihood(bnn.outputs(weights, x)).log_prob(y).sum()


def _rows(gradient: Callable[[Tensor], Tensor], point: Tensor, entries: Tensor) -> Tensor:
    """Return the rows of a Jacobian that some entries of the point pick, (entries, *)."""
    flat = point.reshape(-1)

    def row(entry: Tensor) -> Tensor:
        tangent = torch.zeros_like(flat).scatter(0, entry[None], 1.0)
        return jvp(gradient, (point,), (tangent.view(point.shape),))[1]

    return vmap(row, chunk_size=max(1, _ENTRIES // (64 * max(64, flat.numel()))))(entries)


def _by_entry(energy: Energy, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the diagonal in one site by one product with the Hessian for each entry."""
    point = weights[name].detach()
    gradient = grad(lambda w: energy({**weights, name: w}))

    def entry(index: Tensor) -> Tensor:
        tangent = torch.zeros(point.numel()).to(point).scatter(0, index[None], 1.0).view(point.shape)
        return (jvp(gradient, (point,), (tangent,))[1] * tangent).sum()

    indices = torch.arange(point.numel(), device=point.device)
    return vmap(entry, chunk_size=max(1, _ENTRIES // (64 * max(64, point.numel()))))(indices).view(point.shape)


def _in_units(energy: Energy, weights: Mapping[str, Tensor], use: Use) -> Tensor:
    """Return second derivatives in the outputs of a use, for each example alone, (B, O)."""
    marked = weights[use.sites[0]]

    def shifted(shift: Tensor) -> Tensor:
        with _Shifted(marked, shift.view(use.output.shape)):
            return energy(weights)

    zero = torch.zeros_like(use.output.detach()).flatten(1)

    def unit(index: Tensor) -> Tensor:
        tangent = torch.zeros(zero.shape[1]).to(zero).scatter(0, index[None], 1.0).expand(zero.shape)
        return (jvp(grad(shifted), (zero,), (tangent,))[1] * tangent).sum(1)

    indices = torch.arange(zero.shape[1], device=zero.device)
    return vmap(unit, chunk_size=max(1, _ENTRIES // (8 * zero.numel())))(indices).T


class _Shifted(TorchFunctionMode):
    """Adds to the outputs of the call that gets a certain tensor."""

    def __init__(self, marked: Tensor, shift: Tensor) -> None:
        super().__init__()
        self._marked, self._shift = marked, shift

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        is_marked = any(value is self._marked for value in (*args, *kwargs.values()))
        return result + self._shift if is_marked and isinstance(result, Tensor) else result


def _in_weights(use: Use, second: Tensor) -> dict[str, Tensor]:
    """Return the diagonal in weight and bias from that in the outputs, (B, O)."""
    found = {}
    if use.weight is not None:
        total = second.T @ use.inputs[:, 0].square()
        found[use.weight] = (total.T if use.transposed else total).contiguous()
    if use.bias is not None:
        found[use.bias] = second.sum(0)
    return found
