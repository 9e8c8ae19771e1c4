"""The largest curvature of a function that only its gradient tells, by power iteration."""

from collections.abc import Callable

import torch
from torch import Tensor

_POWER_STEPS = 10
_REACH = 1e-3
"""Length of the differences that curvature is taken from."""


def largest_curvature(gradient: Callable[[Tensor], Tensor], points: Tensor) -> float:
    """Return the largest curvature at any of some points (C, P), by power iteration on differences of gradients.

    Args:
        gradient: returns the gradient at a point (P,).
        points: where to look.
    """
    sizes = []
    for z in points.detach():
        direction = torch.randn_like(z)
        for _ in range(_POWER_STEPS):
            reach = _REACH * direction / direction.norm()
            direction = (gradient(z + reach) - gradient(z - reach)) / (2 * _REACH)
        sizes.append(float(direction.norm()))
    return max(sizes)
