"""Devices by name, and which of them suits a network."""

import math

import torch

from pyrobnn._core.errors import InputError

SMALL = 10_000
"""Products of a forward pass for one example, below which a CPU is faster. A captured step took at least .39 ms on an
H200, by the latency of its kernels; on two cores .04 ms for 800 products and 100 examples, .27 ms for 12,000 and 100,
.38 ms for 3,550 and 1,000, and .92 ms for 12,100 and 1,000."""


def has_gpu() -> bool:
    """Return whether "auto" may be a GPU."""
    return torch.cuda.is_available()


def resolve_device(device: str, products: float = math.inf) -> torch.device:
    """Return the device of a name; "auto" is a GPU if there is one and the network is not small, else the CPU.

    Args:
        device: the name.
        products: multiplications of the network's forward pass for one example.

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
