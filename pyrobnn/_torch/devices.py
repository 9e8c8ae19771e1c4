"""Devices by name."""

import torch

from pyrobnn._core.errors import InputError


def resolve_device(device: str) -> torch.device:
    """Return the device of a name; "auto" is a GPU if available, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"Device {device!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return torch.device(device)
