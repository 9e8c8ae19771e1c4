"""Forward-mode differentiation, set up without torch's warnings."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vmap

from pyrobnn._torch.batching import first_sentence, vmap_or_loop


@functools.cache
def load_forward_mode() -> None:
    """Load torch's rules of forward mode, which warns of a deprecation inside torch when it happens first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jvp(torch.sin, (torch.zeros(()),), (torch.zeros(()),))


def missing_forward_mode(function: Callable[..., Any], *at: Tensor) -> str:
    """Return why torch has no derivative of a function in forward mode, or "" if it has."""
    load_forward_mode()
    try:
        jvp(function, at, at)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return first_sentence(error)
    return ""


def rows_of(row: Callable[[Tensor], Tensor], num: int, at: Tensor, chunk_size: int | None = None) -> Tensor:
    """Return the results of a function of 0, 1, ..., batched if torch can, else one by one, (num, ...)."""
    indices = torch.arange(num, device=at.device)

    def one_by_one(some: Tensor) -> Tensor:
        return torch.stack([row(index) for index in some])

    return vmap_or_loop(vmap(row, chunk_size=chunk_size), one_by_one, indices[:2])(indices)


def own_derivatives(gradient: Callable[[Tensor], Tensor], at: Tensor, chunk_size: int | None = None) -> Tensor:
    """Return d gradient(at)[b, i] / d at[b, i], (B, D), for a function of (B, D) that does not mix rows."""
    load_forward_mode()

    def column(index: Tensor) -> Tensor:
        tangent = torch.zeros(at.shape[1]).to(at).scatter(0, index[None], 1.0).expand(at.shape)
        return (jvp(gradient, (at,), (tangent,))[1] * tangent).sum(1)

    return rows_of(column, at.shape[1], at, chunk_size).T
