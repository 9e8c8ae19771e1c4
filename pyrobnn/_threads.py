"""Threads: one for small work, where handing it out costs more than doing it, and as many as torch has for large."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SMALL = 2**24
"""Multiplications in a forward pass below which one thread is quicker."""


@contextmanager
def threads_for(num_weights: int, batch_size: int) -> Iterator[None]:
    """Run the block with one thread if a pass of that size is small; the number of threads is restored afterwards."""
    before = torch.get_num_threads()
    if num_weights * batch_size < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
