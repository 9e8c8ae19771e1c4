"""Threads: one for small work, where distributing it costs more than the work, and all of torch's for large work."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_SMALL = 2**24
"""Multiplications in a forward pass below which one thread is faster."""


@contextmanager
def threads_for(net: nn.Module, batch_size: int) -> Iterator[int]:
    """Run the block with one thread if passes through the network are small, and yield the number of threads.

    The number of threads is restored afterwards. Convolutions use a weight many times: networks with weights of rank
    above 2 always count as large.
    """
    before = torch.get_num_threads()
    values = list(net.state_dict().values())
    small = sum(value.numel() for value in values) * batch_size < _SMALL
    if small and all(value.ndim <= 2 for value in values):
        torch.set_num_threads(1)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
