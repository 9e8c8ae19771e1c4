"""Exact second derivatives of the negative log-likelihood: all of them, the diagonal, or the largest."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad, jvp
from torch.overrides import TorchFunctionMode

from pyrobnn._torch.inputs import X
from pyrobnn._torch.matrices import from_matrix
from pyrobnn._torch.transforms import load_forward_mode, own_derivatives, rows_of
from pyrobnn.curvature.base import Curvature, Examples, Kind, Point
from pyrobnn.curvature.metric import log_probs
from pyrobnn.curvature.tracker import Tracker
from pyrobnn.curvature.uses import Use

Energy = Callable[[Mapping[str, Tensor]], Tensor]
_ENTRIES_AT_ONCE = 2**24
_POWER_STEPS = 10
_DIFFERENCE_LENGTH = 1e-3


class Hessian(Kind):
    """The second derivatives themselves, which may be negative."""

    name: ClassVar[str] = "hessian"
    structures: ClassVar[tuple[str, ...]] = ("full", "diag")

    def diagonal(self, point: Point, data: Examples) -> Curvature:
        """Return the diagonal, by a product with the Hessian per unit where each example passes a linear layer once.

        Second derivatives in its weights are those in its outputs times squared inputs.
        """
        total = {name: torch.zeros_like(point.weights[name]) for name in point.sites}
        tracked = {**point.weights, **{name: point.weights[name].detach().clone() for name in point.sites}}
        for x, *targets in data:
            energy = _energy(point, x, *targets)
            uses = Tracker(point.bnn, point.weights, point.sites, x[:1]).run(x).uses
            by_unit = [use for use in uses if use.kind == "matrix" and use.inputs.shape[1] == 1]
            for use in by_unit:
                second = _in_units(energy, tracked, use)
                for name in use.sites:
                    value, shape = second.T @ use.inputs_of([name], use.inputs[:, 0]).square(), total[name].shape
                    total[name] += from_matrix(value, shape, transposed=use.transposed).view(shape)
            done = {name for use in by_unit for name in use.sites}
            for name in [name for name in point.sites if name not in done]:
                total[name] += _by_entry(energy, tracked, name)
        return Curvature(diagonal=total)

    def full(self, point: Point, data: Examples, index: Tensor | None = None) -> Curvature:
        load_forward_mode()
        flat = point.flat({name: point.weights[name].detach() for name in point.sites})
        total = flat.new_zeros(len(flat), len(flat))
        for batch in data:
            energy = _energy(point, *batch)

            def of_sites(z: Tensor, energy: Energy = energy) -> Tensor:
                return energy({**point.weights, **point.by_site(z)})

            def row(entry: Tensor, of_sites: Callable[[Tensor], Tensor] = of_sites) -> Tensor:
                return jvp(grad(of_sites), (flat,), (torch.zeros_like(flat).scatter(0, entry[None], 1.0),))[1]

            total += rows_of(row, len(flat), flat, _products_at_once(flat))
        total = (total + total.T) / 2
        return Curvature(full=total if index is None else total[index][:, index], index=index)


def _energy(point: Point, x: X, *targets: Tensor) -> Energy:
    """Return the negative log-likelihood of some examples as a function of the weights."""
    return lambda weights: -log_probs(point.likelihood, point.bnn.outputs(weights, x), *targets).sum()


def _products_at_once(values: Tensor) -> int:
    return max(1, _ENTRIES_AT_ONCE // (64 * max(64, values.numel())))


def _by_entry(energy: Energy, weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Return the diagonal in a site by a product with the Hessian for each entry."""
    value = weights[name].detach()
    gradient = grad(lambda row: energy({**weights, name: row.view(value.shape)}))
    return own_derivatives(gradient, value.reshape(1, -1), _products_at_once(value)).reshape(value.shape)


def _in_units(energy: Energy, weights: Mapping[str, Tensor], use: Use) -> Tensor:
    """Return second derivatives in the outputs of a use, for each example alone, (B, O)."""
    marked = weights[use.sites[0]]

    def shifted(shift: Tensor) -> Tensor:
        with _Shifted(marked, shift.view(use.output.shape)):
            return energy(weights)

    zero = torch.zeros_like(use.output.detach()).flatten(1)
    return own_derivatives(grad(shifted), zero, max(1, _ENTRIES_AT_ONCE // (8 * zero.numel())))


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
