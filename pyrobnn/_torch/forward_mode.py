"""Forward-mode differentiation, made ready without torch's own warnings."""

import functools
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp, vmap


@functools.cache
def load_forward_mode() -> None:
    """Load torch's rules of forward mode, which warns of a deprecation inside torch when it happens first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jvp(torch.sin, (torch.zeros(()),), (torch.zeros(()),))


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
