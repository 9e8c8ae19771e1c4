"""Random state: used inside a seeded block, with a stream of its own for each purpose, and put back afterwards."""

import functools
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, purpose: str) -> int:
    """Return a seed for one purpose, so that the same seed given for two purposes does not give the same numbers."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:4], "little")


@contextmanager
def seeded(seed: int, purpose: str = "") -> Iterator[None]:
    """Seed torch, NumPy and Python for a purpose inside the block, and restore every random state after it."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        _seed_all(derive(seed, purpose))
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def _seed_all(seed: int) -> None:
    if _has_accelerator():
        torch.manual_seed(seed)
    else:  # as above, without a note of the call stack for devices to come, which takes a millisecond
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@functools.cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
