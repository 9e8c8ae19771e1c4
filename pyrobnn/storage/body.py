"""The frozen part of a network, which a posterior may be saved without: its tensors, and a digest to know it by."""

import hashlib

import torch
from torch import Tensor

from pyrobnn.bnn import BNN


def frozen_tensors(bnn: BNN) -> dict[str, Tensor]:
    """Return the frozen tensors of a model, by their names in its state."""
    state = bnn.net.state_dict()
    return {f"net.{name}": state[name] for name in bnn.frozen_names}


def digest_of(tensors: dict[str, Tensor]) -> str:
    """Return the SHA-256 of tensors and their names, the same on every device."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
