"""Toy regression problems whose noise-free curve is known."""

import math

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data


def sinusoid(num: int = 32, noise: float = 1.0, *, seed: int = 0) -> Data:
    """Return y = 10 sin(2 pi x) + e, e ~ N(0, noise^2), at even points of [-0.5, 0.5].

    The problem of Krasser (2019), "Variational inference in Bayesian neural networks".

    Args:
        num: number of points N, at least 2.
        noise: standard deviation of the noise, at least 0.
        seed: seed of the noise; the global random state is left alone.

    Returns:
        Data with x of shape (N, 1) and y of shape (N,), both float32.

    Raises:
        InputError: `num` or `noise` out of range.
    """
    x = _grid(0.5, num)
    return Data(x, sinusoid_curve(x)[:, 0] + _noise(num, noise, seed))


def sinusoid_curve(x: Tensor) -> Tensor:
    """Return 10 sin(2 pi x), the noise-free curve of `sinusoid`, in the shape of x."""
    return 10.0 * torch.sin(2.0 * math.pi * x)


def quartic(num: int = 64, noise: float = 0.5, *, seed: int = 0) -> Data:
    """Return y = -x^4 + 3 x^2 + 1 + e, e ~ N(0, noise^2), at even points of [-2, 2].

    Args:
        num: number of points N, at least 2.
        noise: standard deviation of the noise, at least 0.
        seed: seed of the noise; the global random state is left alone.

    Returns:
        Data with x of shape (N, 1) and y of shape (N,), both float32.

    Raises:
        InputError: `num` or `noise` out of range.
    """
    x = _grid(2.0, num)
    return Data(x, quartic_curve(x)[:, 0] + _noise(num, noise, seed))


def quartic_curve(x: Tensor) -> Tensor:
    """Return -x^4 + 3 x^2 + 1, the noise-free curve of `quartic`, in the shape of x."""
    return -(x**4) + 3.0 * x**2 + 1.0


def _grid(limit: float, num: int) -> Tensor:
    if num < 2:
        raise InputError(f"`num` must be at least 2, got {num}: pass the number of points to generate.")
    return torch.linspace(-limit, limit, num, dtype=torch.float32)[:, None]


def _noise(num: int, scale: float, seed: int) -> Tensor:
    if not 0.0 <= scale < math.inf:
        raise InputError(f"`noise` must be a finite standard deviation of at least 0, got {scale}.")
    return scale * torch.randn(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
