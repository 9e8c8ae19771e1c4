"""Forward-mode differentiation, made ready without torch's own warnings."""

import functools
import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import jvp, vmap


@functools.cache
def load_forward_mode() -> None:
    """Load torch's rules of forward mode, which warns of a deprecation inside torch when it happens first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jvp(torch.sin, (torch.zeros(()),), (torch.zeros(()),))


def value_and_slope(
    function: Callable[[dict[str, Tensor]], Tensor], at: Mapping[str, Tensor], along: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return a function's value and its derivative along a direction, both of the shape of the value.

    Operations that have no rule of forward mode, such as those on packed sequences, are differentiated backwards twice:
    the pullback of u is linear in u, and its derivative is the pushforward.
    """
    load_forward_mode()
    try:
        value, slope, *_ = jvp(function, (dict(at),), (dict(along),))
    except NotImplementedError:
        with torch.enable_grad():
            start = {name: tensor.detach().requires_grad_() for name, tensor in at.items()}
            value = function(start)
            u = torch.zeros_like(value, requires_grad=True)
            pulled = torch.autograd.grad(value, list(start.values()), u, create_graph=True, materialize_grads=True)
            total = torch.stack([(part * along[name]).sum() for name, part in zip(start, pulled, strict=True)]).sum()
            (slope,) = torch.autograd.grad(total, u)
    return value.detach(), slope


def own_derivatives(gradient: Callable[[Tensor], Tensor], at: Tensor, chunk_size: int | None = None) -> Tensor:
    """Return d gradient(at)[b, i] / d at[b, i] for a function that does not mix rows, (B, D).

    Args:
        gradient: maps (B, D) to (B, D).
        at: the point, (B, D).
        chunk_size: how many columns to take at once; None for all.
    """
    load_forward_mode()

    def column(index: Tensor) -> Tensor:
        tangent = torch.zeros(at.shape[1]).to(at).scatter(0, index[None], 1.0).expand(at.shape)
        return (jvp(gradient, (at,), (tangent,))[1] * tangent).sum(1)

    return vmap(column, chunk_size=chunk_size)(torch.arange(at.shape[1], device=at.device)).T
