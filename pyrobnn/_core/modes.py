"""Modes of torch set by a caller: modes that inference cannot run under are left for the block."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor

_DEVICES = ("cpu", "cuda")
"""Types of devices with an autocast."""
_CALLERS_DEVICE: ContextVar[torch.device | None] = ContextVar("_CALLERS_DEVICE", default=None)
_CALLERS_AUTOCAST: ContextVar[dict[str, torch.dtype]] = ContextVar("_CALLERS_AUTOCAST", default={})  # noqa: B039
"""What the caller has set: a default device other than the CPU, and the precision of autocast by type of device."""


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


@contextmanager
def callers_modes() -> Iterator[None]:
    """Have the default device and the autocast of the caller in the block, which calls a network of the caller's."""
    with ExitStack() as modes:
        for kind, dtype in _CALLERS_AUTOCAST.get().items():
            modes.enter_context(torch.autocast(kind, dtype))
        modes.enter_context(_CALLERS_DEVICE.get() or nullcontext())
        yield


@contextmanager
def autocast_in_networks() -> Iterator[None]:
    """Keep the caller's autocast to calls of a network: draws and densities are computed in full precision."""
    used = {kind: torch.get_autocast_dtype(kind) for kind in _DEVICES if torch.is_autocast_enabled(kind)}
    with ExitStack() as modes:
        modes.callback(_CALLERS_AUTOCAST.reset, _CALLERS_AUTOCAST.set(used))
        _leave_autocast(modes)
        yield


def _leave_autocast(modes: ExitStack) -> None:
    for kind in _DEVICES:
        if torch.is_autocast_enabled(kind):
            modes.enter_context(torch.autocast(kind, enabled=False))


@contextmanager
def gradients() -> Iterator[None]:
    """Record gradients of plain tensors, in the precision of the network; vmap cannot look for NaN meanwhile."""
    with ExitStack() as modes:
        modes.enter_context(plain_tensors())
        modes.enter_context(torch.enable_grad())
        if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
            modes.enter_context(torch.autograd.set_detect_anomaly(mode=True, check_nan=False))
        _leave_autocast(modes)
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
