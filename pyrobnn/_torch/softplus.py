"""The inverse of softplus, by which standard deviations become unconstrained parameters."""

import torch
from torch import Tensor


def inverse_softplus(scale: Tensor) -> Tensor:
    """Return rho with softplus(rho) = scale, accurate for large and small scales above 0."""
    return scale + torch.log(-torch.expm1(-scale))
