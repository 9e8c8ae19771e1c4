"""Modes of torch set by a caller: those that inference cannot run under are left, in a block or by a decorator."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_CALLERS: ContextVar[tuple[Callable[[], AbstractContextManager[Any]], ...]] = ContextVar("_CALLERS", default=())
"""Modes that the caller has set: a default device other than the CPU, and autocast for `prepare`."""


@contextmanager
def no_inference_mode() -> Iterator[None]:
    """Make tensors that can be differentiated later, also in inference mode; gradients stay off there."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Leave these modes, and make tensors on the CPU if no device is named, for any default device."""
    with ExitStack() as modes:
        modes.enter_context(no_inference_mode())
        device = torch.get_default_device()
        if device.type != "cpu":
            modes.callback(_CALLERS.reset, _CALLERS.set((*_CALLERS.get(), functools.partial(torch.device, device))))
            modes.enter_context(torch.device("cpu"))
        yield


@contextmanager
def callers_modes() -> Iterator[None]:
    """Have the default device and the autocast of the caller in the block, which calls a network of the caller's."""
    with ExitStack() as modes:
        for mode in _CALLERS.get():
            modes.enter_context(mode())
        yield


@contextmanager
def autocast_in_networks() -> Iterator[None]:
    """Keep the caller's autocast to calls of a network: draws and densities are computed in full precision."""
    with ExitStack() as modes:
        used = [functools.partial(torch.autocast, kind, torch.get_autocast_dtype(kind)) for kind in _left(modes)]
        modes.callback(_CALLERS.reset, _CALLERS.set((*_CALLERS.get(), *used)))
        yield


def _left(modes: ExitStack) -> list[str]:
    """Leave the autocasts of the caller, and return the types of their devices."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    for kind in kinds:
        modes.enter_context(torch.autocast(kind, enabled=False))
    return kinds


@contextmanager
def gradients() -> Iterator[None]:
    """Record gradients of plain tensors, in the precision of the network; vmap cannot look for NaN meanwhile."""
    with ExitStack() as modes:
        modes.enter_context(plain_tensors())
        modes.enter_context(torch.enable_grad())
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            modes.enter_context(torch.autograd.set_detect_anomaly(mode=True, check_nan=False))
        _left(modes)
        yield


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor that can be differentiated: a copy if it was made in inference mode."""
    if not tensor.is_inference():
        return tensor
    with no_inference_mode():
        return tensor.clone()
