"""Random state: used inside a seeded block, and put back as it was afterwards."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyro
import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, NumPy and Python inside the block, and restore every random state after it."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        pyro.set_rng_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)
