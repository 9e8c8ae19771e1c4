"""Random state: set inside a seeded block, with a separate stream for each purpose, and restored afterwards."""

import functools
import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD


def derive(seed: int, purpose: str) -> int:
    """Return a seed for a purpose, so that one seed gives different numbers for different purposes."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise InputError(f"A seed must be a whole number, got {seed!r}.")
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:4], "little")


@contextmanager
def seeded(seed: int, purpose: str = "") -> Iterator[None]:
    """Seed torch, NumPy and Python for a purpose in the block, restored after it; other threads wait, or are let in."""
    with ONE_THREAD.changed(random_state, set_random_state):
        number = derive(seed, purpose)
        torch.default_generator.manual_seed(number)
        if _has_accelerator():  # it notes the call stack for devices to come, which takes a millisecond
            torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        yield


def mark() -> Callable[[], bool]:
    """Return a function that says whether any random number was drawn since then."""

    def now() -> list[Any]:
        state = random_state()
        return [[each.tolist() for each in (state["torch"], *state["cuda"])], state["numpy"], state["python"]]

    before = now()
    return lambda: now() != before


def random_state() -> dict[str, Any]:
    """Return the random states of torch (CPU and GPUs), NumPy and Python, as tensors, numbers and lists."""
    on_gpus = torch.cuda.get_rng_state_all() if _has_accelerator() and torch.cuda.is_available() else []
    kind, keys, *rest = np.random.get_state()
    numpy = [kind, keys.tolist(), *rest]
    return {"torch": torch.get_rng_state(), "cuda": on_gpus, "numpy": numpy, "python": [*random.getstate()]}


def set_random_state(state: dict[str, Any]) -> None:
    """Restore the random states from a result of `random_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
