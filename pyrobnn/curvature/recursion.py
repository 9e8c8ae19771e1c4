"""The diagonal of the Hessian by back-propagation, without off-diagonal terms.

With a_j the input of unit j and z_i the outputs of the layer before (Bishop 1992; Becker & LeCun 1989)
d2E/dw_ji^2 = (d2E/da_j^2) z_i^2, and d2E/da_j^2 = h'(a_j)^2 sum_k w_kj^2 d2E/da_k^2 + h''(a_j) sum_k w_kj dE/da_k. The
last is the residual term. The recursion drops sum_{k != l} w_kj w_lj d2E/da_k da_l: it is exact for the last layer, and
for the layer before it if outputs do not interact.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad, jvp

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import X, shape_of, single
from pyrobnn._torch.transforms import own_derivatives
from pyrobnn.bnn import BNN
from pyrobnn.curvature.base import Curvature, Examples, Kind, Point
from pyrobnn.curvature.metric import Likelihood, log_probs


class Recursion(Kind):
    """The diagonal that the recursion gives, for networks that are a sequence of linear layers and activations."""

    name: ClassVar[str] = "recursion"
    structures: ClassVar[tuple[str, ...]] = ("diag",)

    def check(self, bnn: BNN, weights: Mapping[str, Tensor]) -> None:
        _layers_of(bnn.net, weights)

    def diagonal(self, point: Point, data: Examples) -> Curvature:
        steps = _layers_of(point.bnn.net, point.weights)
        total = {name: torch.zeros_like(point.weights[name]) for name in point.sites}
        for batch in data:
            for name, value in _of_batch(steps, point.likelihood, *batch).items():
                if name in total:
                    total[name] += value
        return Curvature(diagonal=total)


def _layers_of(net: nn.Module, weights: Mapping[str, Tensor]) -> list[Any]:
    """Return the layers in their order: dictionaries of linear maps, and modules of activations."""
    if not isinstance(net, nn.Sequential):
        raise InputError(_refusal(net))
    steps: list[Any] = []
    held = dict(net.named_parameters()) | dict(weights)
    for name, module in net.named_modules(remove_duplicate=False):
        if isinstance(module, (nn.Sequential, nn.Flatten)):
            continue
        if isinstance(module, nn.Linear):
            names = {kind: f"{name}.{kind}" for kind in ("weight", "bias") if getattr(module, kind) is not None}
            if not held.keys() >= set(names.values()):
                fault = f"has no terms for weights that layers share, as {name!r} does"
                raise InputError(f"Laplace(curvature='recursion') {fault}: use curvature='hessian' or 'ggn'.")
            steps.append({kind: (full, held[full].detach()) for kind, full in names.items()})
        elif _is_elementwise(module):
            steps.append(module)
        else:
            raise InputError(_refusal(module))
    return steps


def _is_elementwise(module: nn.Module) -> bool:
    """Say whether a module has no weights and treats each entry by itself: without the first, others are the same."""
    if list(module.children()) or module.state_dict():
        return False
    z = torch.linspace(-2.0, 2.0, 9)[None]
    try:
        whole, rest = module(z.clone()), module(z[:, 1:].clone())
    except (RuntimeError, IndexError, ValueError):
        return False
    return whole.shape == z.shape and torch.allclose(whole[:, 1:], rest)


def _refusal(module: nn.Module) -> str:
    need = "a torch.nn.Sequential of Linear layers and activations, the network has"
    remedy = "use curvature='hessian' or 'ggn'"
    return f"Laplace(curvature='recursion') runs back through {need} {type(module).__name__}: {remedy}."


def _of_batch(steps: list[Any], likelihood: Likelihood, x: X, *targets: Tensor) -> dict[str, Tensor]:
    inputs = [single(x, "Laplace(curvature='recursion')").flatten(1)]
    for step in steps:
        if isinstance(step, dict) and inputs[-1].shape[1] != step["weight"][1].shape[1]:
            fault = f"runs on inputs (N, features), not on sequences such as {shape_of(x)}"
            raise InputError(f"Laplace(curvature='recursion') {fault}: use curvature='hessian' or 'ggn'.")
        inputs.append(_apply(step, inputs[-1]))
    energy = grad(lambda f: -log_probs(likelihood, f, *targets).sum())
    first, second = energy(inputs[-1]), own_derivatives(energy, inputs[-1])
    diagonals = {}
    for step, z in zip(reversed(steps), reversed(inputs[:-1]), strict=True):
        if isinstance(step, dict):
            name, weight = step["weight"]
            diagonals[name] = second.T @ z.square()
            if "bias" in step:
                diagonals[step["bias"][0]] = second.sum(0)
            first, second = first @ weight, second @ weight.square()
        else:
            slope, bend = _derivatives(step, z)
            first, second = slope * first, slope.square() * second + bend * first
    return diagonals


def _apply(step: Any, z: Tensor) -> Tensor:
    if not isinstance(step, dict):
        return step(z.clone())
    return nn.functional.linear(z, step["weight"][1], step["bias"][1] if "bias" in step else None)


def _derivatives(activation: nn.Module, a: Tensor) -> tuple[Tensor, Tensor]:
    slope = grad(lambda value: _apply(activation, value).sum())
    ones = torch.ones_like(a)
    return slope(a), jvp(slope, (a,), (ones,))[1]
