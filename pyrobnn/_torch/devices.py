"""The machine: devices by name, the number of threads, kept memory, and numbers below float32's normal range."""

import ctypes
import functools
import math
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro

SMALL = 10_000
"""Products of a forward pass for one example, below which a CPU is faster; see docs/how-to/speed.md."""
_PRODUCTS_WORTH_THREADS = 2**24
"""Multiplications in a forward pass below which one thread is faster."""
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
"""The largest threshold that glibc allows, where its dynamic threshold settles."""
_MEANWHILE = {_MMAP_THRESHOLD: _LARGEST_MMAP_THRESHOLD, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
_AFTERWARDS = {_TRIM_THRESHOLD: 2 * _LARGEST_MMAP_THRESHOLD, _TOP_PAD: 128 * 2**10}
_LOCK = threading.Lock()
_inside = 0


def has_gpu() -> bool:
    """Return whether "auto" may be a GPU."""
    return torch.cuda.is_available()


def resolve_device(device: str, products: float = math.inf) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one and a forward pass has many products, else the CPU.

    Raises:
        InputError: the device cannot be used here.
    """
    if device == "auto":
        return torch.device("cuda" if products >= SMALL and has_gpu() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"Device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return torch.device(device)


@contextmanager
def threads_for(net: nn.Module, batch_size: int) -> Iterator[int]:
    """Run the block with one thread if passes through the network are small, and yield the number of threads.

    Networks with weights of rank above 2, such as convolutions, always count as large.
    """
    before = torch.get_num_threads()
    values = list(net.state_dict().values())
    small = sum(value.numel() for value in values) * batch_size < _PRODUCTS_WORTH_THREADS
    if small and all(value.ndim <= 2 for value in values):
        torch.set_num_threads(1)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Count numbers below 1e-38 as zero inside the block: with them a CPU is up to 20 times slower."""
    before = float(torch.tensor(1e-40) * 1.0) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory inside the block, and give it back at its end; the last of several blocks does so.

    A step of 784-1200-1200-10 had 8,000 page faults, and has two. Systems without glibc are left as they are.
    """
    global _inside  # noqa: PLW0603
    with _LOCK:
        _inside += 1
        if _inside == 1:
            _set(_MEANWHILE)
    try:
        yield
    finally:
        with _LOCK:
            _inside -= 1
            if _inside == 0:
                _set(_AFTERWARDS)
                if _glibc() is not None:
                    _glibc().malloc_trim(0)


@contextmanager
def running(net: nn.Module, batch_size: int, seed: int, purpose: str, *, copies: int = 1) -> Iterator[int]:
    """Seed the block, and run it with the threads and settings of that many fits; yield the number of threads."""
    with (
        seeded(seed, purpose),
        fast_pyro(),
        threads_for(net, batch_size * copies) as threads,
        flushed_denormals(),
        kept_memory(),
    ):
        yield threads


@functools.cache
def _glibc() -> Any:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def _set(values: dict[int, int]) -> None:
    if _glibc() is not None:
        for name, value in values.items():
            _glibc().mallopt(name, value)
