"""Exact second derivatives of the negative log-likelihood: all of them, the diagonal, or the largest."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad, jvp

from pyrobnn._torch.inputs import X
from pyrobnn._torch.transforms import load_forward_mode, own_derivatives, rows_of
from pyrobnn.curvature.base import Curvature, Examples, Kind, Point
from pyrobnn.curvature.metric import log_probs

Energy = Callable[[Mapping[str, Tensor]], Tensor]
_ENTRIES_AT_ONCE = 2**24
_POWER_STEPS = 10
_DIFFERENCE_LENGTH = 1e-3


class Hessian(Kind):
    """The second derivatives themselves, which may be negative."""

    name: ClassVar[str] = "hessian"
    structures: ClassVar[tuple[str, ...]] = ("full", "diag")

    def diagonal(self, point: Point, data: Examples) -> Curvature:
        """Return the diagonal, by a product with the Hessian for each weight."""
        total = {name: torch.zeros_like(point.weights[name]) for name in point.sites}
        for batch in data:
            for name in point.sites:
                total[name] += _by_entry(_energy(point, *batch), point.weights, name)
        return Curvature(diagonal=total)

    def full(self, point: Point, data: Examples, index: Tensor | None = None) -> Curvature:
        load_forward_mode()
        flat = point.flat({name: point.weights[name].detach() for name in point.sites})
        total = flat.new_zeros(len(flat), len(flat))
        for batch in data:
            energy = _energy(point, *batch)

            def of_sites(z: Tensor, energy: Energy = energy) -> Tensor:
                return energy({**point.weights, **point.by_site(z)})

            total += _rows(grad(of_sites), flat)
        total = (total + total.T) / 2
        return Curvature(full=total if index is None else total[index][:, index], index=index)


def _energy(point: Point, x: X, *targets: Tensor) -> Energy:
    """Return the negative log-likelihood of some examples as a function of the weights."""
    return lambda weights: -log_probs(point.likelihood, point.bnn.outputs(weights, x), *targets).sum()


def _rows(gradient: Callable[[Tensor], Tensor], flat: Tensor) -> Tensor:
    """Return the Jacobian of a gradient at a vector, (D, D)."""

    def row(entry: Tensor) -> Tensor:
        return jvp(gradient, (flat,), (torch.zeros_like(flat).scatter(0, entry[None], 1.0),))[1]

    return rows_of(row, len(flat), flat, _products_at_once(flat))


def _products_at_once(values: Tensor) -> int:
    return max(1, _ENTRIES_AT_ONCE // (64 * max(64, values.numel())))


def _by_entry(energy: Energy, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the diagonal in a site by a product with the Hessian for each entry."""
    value = weights[name].detach()
    gradient = grad(lambda row: energy({**weights, name: row.view(value.shape)}))
    return own_derivatives(gradient, value.reshape(1, -1), _products_at_once(value)).reshape(value.shape)


def largest_curvature(gradient: Callable[[Tensor], Tensor], points: Tensor) -> float:
    """Return the largest curvature at any of some points (C, P), by power iteration on differences of gradients."""
    sizes = []
    for z in points.detach():
        direction = torch.randn_like(z)
        for _ in range(_POWER_STEPS):
            reach = _DIFFERENCE_LENGTH * direction / direction.norm()
            direction = (gradient(z + reach) - gradient(z - reach)) / (2 * _DIFFERENCE_LENGTH)
        sizes.append(float(direction.norm()))
    return max(sizes)
