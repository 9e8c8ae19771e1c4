"""Modes of torch set by a caller: modes that inference cannot run under are left for the block."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_DEVICES = ("cpu", "cuda")
"""Types of devices with an autocast."""
_CALLERS_DEVICE: ContextVar[torch.device | None] = ContextVar("_CALLERS_DEVICE", default=None)
"""The default device from outside the block, where it is another than the CPU."""
_CALLERS_AUTOCAST: ContextVar[dict[str, torch.dtype]] = ContextVar("_CALLERS_AUTOCAST", default={})  # noqa: B039
"""The precision of autocast by type of device, where the caller has switched it on."""


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
            modes.callback(_CALLERS_DEVICE.reset, _CALLERS_DEVICE.set(device))
            modes.enter_context(torch.device("cpu"))
        yield


def callers_modes() -> AbstractContextManager[Any]:
    """Return a context with the default device and the autocast of the caller, for a network of the caller's."""
    device, autocast = _CALLERS_DEVICE.get() or nullcontext(), _CALLERS_AUTOCAST.get()
    return _with_autocast(device, autocast) if autocast else device


@contextmanager
def _with_autocast(device: AbstractContextManager[Any], autocast: dict[str, torch.dtype]) -> Iterator[None]:
    with ExitStack() as modes:
        for kind, dtype in autocast.items():
            modes.enter_context(torch.autocast(kind, dtype))
        modes.enter_context(device)
        yield


@contextmanager
def autocast_in_networks() -> Iterator[None]:
    """Keep the caller's autocast to calls of a network: draws and densities are computed in full precision."""
    used = {kind: torch.get_autocast_dtype(kind) for kind in _DEVICES if torch.is_autocast_enabled(kind)}
    before = _CALLERS_AUTOCAST.set(used)
    try:
        with _no_autocast():
            yield
    finally:
        _CALLERS_AUTOCAST.reset(before)


@contextmanager
def _no_autocast() -> Iterator[None]:
    with ExitStack() as modes:
        for kind in _DEVICES:
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def gradients() -> Iterator[None]:
    """Record gradients of plain tensors, in the precision of the network; vmap cannot look for NaN meanwhile."""
    with ExitStack() as modes:
        modes.enter_context(plain_tensors())
        modes.enter_context(torch.enable_grad())
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            modes.enter_context(torch.autograd.set_detect_anomaly(mode=True, check_nan=False))
        modes.enter_context(_no_autocast())
        yield


def under[**P, R](modes: Callable[[], AbstractContextManager[None]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of functions that run under modes, by a frame of this package, which warnings pass over."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with modes():
                return function(*args, **kwargs)

        return run

    return decorate


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor that can be differentiated: a copy if it was made in inference mode."""
    if not tensor.is_inference():
        return tensor
    with no_inference_mode():
        return tensor.clone()
