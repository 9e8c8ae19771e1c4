"""The diagonal of the Hessian by back-propagation, with off-diagonal terms dropped on the way.

With a_j the input of unit j and z_i the outputs of the layer before (Bishop 1992, "Exact Calculation of the Hessian
Matrix for the Multilayer Perceptron"; Becker & LeCun 1989):

    d2E/dw_ji^2 = (d2E/da_j^2) z_i^2
    d2E/da_j^2  = h'(a_j)^2 sum_k w_kj^2 d2E/da_k^2 + h''(a_j) sum_k w_kj dE/da_k

The second term is the residual term; what is dropped is sum_{k != l} w_kj w_lj d2E/da_k da_l, so that the recursion is
exact for the last layer, and for the one before it where outputs do not interact.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from pyrobnn._core.errors import InputError
from pyrobnn._torch.forward_mode import load_forward_mode
from pyrobnn.bnn import BNN
from pyrobnn.curvature.metric import Likelihood

_PASSIVE = (nn.Flatten, nn.Identity, nn.Dropout)


def recursive_diagonal(
    bnn: BNN,
    weights: Mapping[str, Tensor],
    likelihood: Likelihood,
    data: Iterable[tuple[Tensor, Tensor]],
    sites: list[str],
) -> dict[str, Tensor]:
    """Return the diagonal that the recursion gives, by site.

    Args:
        bnn: the model, whose network is a sequence of linear layers and activations.
        weights: the point: values of all weights by name.
        likelihood: maps outputs to the distribution of targets.
        data: all examples, in parts.
        sites: names of the weights of interest.

    Raises:
        InputError: the network has another layer, layers that share weights, or inputs that are not flat vectors.
    """
    load_forward_mode()
    steps = layers_of(bnn.net, weights)
    total = {name: torch.zeros_like(weights[name]) for name in sites}
    for x, y in data:
        for name, value in _of_batch(steps, likelihood, x, y).items():
            if name in total:
                total[name] += value
    return total


def layers_of(net: nn.Module, weights: Mapping[str, Tensor]) -> list[Any]:
    """Return the layers in their order: dictionaries of linear maps, and modules of activations.

    Raises:
        InputError: the network has another layer, or layers that share weights.
    """
    if not isinstance(net, nn.Sequential):
        raise InputError(_refusal(net))
    steps: list[Any] = []
    held = dict(net.named_parameters()) | dict(weights)
    for name, module in net.named_modules(remove_duplicate=False):
        if isinstance(module, (nn.Sequential, *_PASSIVE)):
            continue
        if isinstance(module, nn.Linear):
            names = {kind: f"{name}.{kind}" for kind in ("weight", "bias") if getattr(module, kind) is not None}
            if not held.keys() >= set(names.values()):
                raise InputError(
                    f"Laplace(curvature='recursion') has no terms for weights that layers share, as {name!r} does: use "
                    "curvature='hessian' or 'ggn'."
                )
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
    return (
        "Laplace(curvature='recursion') runs back through a torch.nn.Sequential of Linear layers and activations, the "
        f"network has {type(module).__name__}: use curvature='hessian' or 'ggn'."
    )


def _of_batch(steps: list[Any], likelihood: Likelihood, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    inputs = [x.flatten(1)]
    for step in steps:
        if isinstance(step, dict) and inputs[-1].shape[1] != step["weight"][1].shape[1]:
            raise InputError(
                "Laplace(curvature='recursion') runs on inputs (N, features), not on sequences such as "
                f"{tuple(x.shape)}: use curvature='hessian' or 'ggn'."
            )
        inputs.append(_apply(step, inputs[-1]))
    energy = grad(lambda f: -likelihood(f).log_prob(y).sum())
    first, second = energy(inputs[-1]), _diagonal(energy, inputs[-1])
    found = {}
    for step, z in zip(reversed(steps), reversed(inputs[:-1]), strict=True):
        if isinstance(step, dict):
            name, weight = step["weight"]
            found[name] = second.T @ z.square()
            if "bias" in step:
                found[step["bias"][0]] = second.sum(0)
            first, second = first @ weight, second @ weight.square()
        else:
            slope, bend = _derivatives(step, z)
            first, second = slope * first, slope.square() * second + bend * first
    return found


def _apply(step: Any, z: Tensor) -> Tensor:
    if not isinstance(step, dict):
        return step(z.clone())
    return nn.functional.linear(z, step["weight"][1], step["bias"][1] if "bias" in step else None)


def _diagonal(gradient: Any, f: Tensor) -> Tensor:
    """Return the second derivatives in each output of each example, (B, C)."""

    def output(index: Tensor) -> Tensor:
        tangent = torch.zeros(f.shape[1]).to(f).scatter(0, index[None], 1.0).expand(f.shape)
        return (jvp(gradient, (f,), (tangent,))[1] * tangent).sum(1)

    return vmap(output)(torch.arange(f.shape[1], device=f.device)).T


def _derivatives(activation: nn.Module, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return h'(a) and h''(a)."""
    slope = grad(lambda value: _apply(activation, value).sum())
    ones = torch.ones_like(a)
    return slope(a), jvp(slope, (a,), (ones,))[1]
