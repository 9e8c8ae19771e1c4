"""Random state: used inside a seeded block, with a stream of its own for each purpose, and put back afterwards."""

import functools
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pyrobnn._exclusive import ONE_THREAD


def derive(seed: int, purpose: str) -> int:
    """Return a seed for one purpose, so that the same seed given for two purposes does not give the same numbers."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:4], "little")


@contextmanager
def seeded(seed: int, purpose: str = "") -> Iterator[None]:
    """Seed torch, NumPy and Python for a purpose inside the block, and restore every random state after it.

    Other threads wait with theirs until the block ends.
    """
    with ONE_THREAD:
        numpy_state, python_state = np.random.get_state(), random.getstate()
        with torch.random.fork_rng():
            _seed_all(derive(seed, purpose))
            try:
                yield
            finally:
                np.random.set_state(numpy_state)
                random.setstate(python_state)


def random_state() -> dict[str, Any]:
    """Return the random states of torch (CPU and GPUs), NumPy and Python, as tensors, numbers and lists."""
    kind, keys, *numpy_rest = np.random.get_state()
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": {"kind": kind, "keys": torch.from_numpy(keys.astype(np.int64)), "rest": numpy_rest},
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put the random states back to what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    own = state["numpy"]
    np.random.set_state((own["kind"], own["keys"].numpy().astype(np.uint32), *own["rest"]))
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))


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
