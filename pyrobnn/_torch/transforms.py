"""Transforms of functions where torch can: batched functions beside loops, and forward-mode differentiation."""

import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from pyrobnn._core.random import mark, seeded
from pyrobnn._torch.private import tree_leaves

_ANSWERS: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, Any]] = weakref.WeakKeyDictionary()


def vmap_or_loop[R](mapped: Callable[..., R], looped: Callable[..., R], *example: Any) -> Callable[..., R]:
    """Return a function under vmap if it runs on an example and agrees with a loop, else the loop, with a warning.

    Errors that the loop raises too are raised, and so is running out of memory. Functions with noise are not compared.
    """
    has_drawn = mark()
    try:
        batched = mapped(*example)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "DefaultCPUAllocator" in str(error):  # torch has no exception class for CPU memory
            raise
        looped(*example)
        reason = "torch.func.vmap does not take the model, which therefore runs in a slower loop"
        reason = f"{reason}: {first_sentence(error)}"
    else:
        if has_drawn() or all(map(are_close, tree_leaves(batched), tree_leaves(looped(*example)))):
            return mapped
        reason = "torch.func.vmap gives other numbers for the model than a loop, which therefore runs, slower"
    warnings.warn(reason, stacklevel=2)
    return looped


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error of torch."""
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__


def are_close(result: Tensor, expected: Tensor) -> bool:
    """Return whether tensors are the same up to rounding."""
    if result.shape != expected.shape:
        return False
    result, expected = result.detach(), expected.detach()
    tolerance = torch.finfo(expected.dtype).eps ** 0.5
    largest = expected.nan_to_num(posinf=0.0, neginf=0.0).abs().amax() if expected.numel() else 0.0
    return torch.allclose(result, expected, rtol=tolerance, atol=tolerance * float(largest), equal_nan=True)


def once[R](net: nn.Module, question: Hashable, ask: Callable[[], R]) -> R:
    """Return the answer to a question about a network, which is asked once, off the random stream.

    It is asked again of a network that has other modules since then, or tensors of another shape, type or device.
    """
    answers, key = _ANSWERS.setdefault(net, {}), (question, *_state(net))
    if key not in answers:
        with seeded(0, "batching"):
            answers[key] = ask()
    answer: R = answers[key]
    return answer


def _state(net: nn.Module) -> tuple[Hashable, ...]:
    """Return what answers about a network rest on; a module that is gone equals no other, as its address might."""
    tensors = itertools.chain(net.named_parameters(), net.named_buffers())
    kinds = tuple((name, value.shape, value.dtype, value.device) for name, value in tensors)
    return tuple((name, weakref.ref(module)) for name, module in net.named_modules()), kinds


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
