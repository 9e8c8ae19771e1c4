"""Forward-mode differentiation, made ready without torch's own warnings."""

import functools
import warnings

import torch


@functools.cache
def load_forward_mode() -> None:
    """Load torch's rules of forward mode, which warns of a deprecation inside torch when it happens first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.func.jvp(torch.sin, (torch.zeros(()),), (torch.zeros(()),))
