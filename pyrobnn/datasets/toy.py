"""Toy regression problems with a known noise-free curve."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data


def sinusoid(num: int = 32, noise: float = 1.0, *, seed: int = 0) -> Data:
    """Return y = 10 sin(2 pi x) + e, e ~ N(0, noise^2), at even points of [-0.5, 0.5].

    The problem of Krasser (2019), "Variational inference in Bayesian neural networks". The data have x of shape (N, 1)
    and y of shape (N,), both float32.

    Args:
        num: number of points N, at least 2.
        noise: standard deviation of the noise.
        seed: seed of the noise.

    Examples:
        >>> data = bnn.datasets.sinusoid(5, noise=0.5)
        >>> data.x[:, 0], data.y.shape
        (tensor([-0.5000, -0.2500,  0.0000,  0.2500,  0.5000]), torch.Size([5]))
    """
    return _noisy(sinusoid_curve, 0.5, num, noise, seed=seed)


def sinusoid_curve(x: Tensor) -> Tensor:
    """Return 10 sin(2 pi x), the noise-free curve of `sinusoid`, in the shape of x.

    Examples:
        >>> bnn.datasets.sinusoid_curve(torch.tensor([0.0, 0.25]))
        tensor([ 0., 10.])
    """
    return 10.0 * torch.sin(2.0 * math.pi * x)


def quartic(num: int = 64, noise: float = 0.5, *, seed: int = 0) -> Data:
    """Return y = -x^4 + 3 x^2 + 1 + e, e ~ N(0, noise^2), at even points of [-2, 2].

    Arguments are those of `sinusoid`.

    Examples:
        >>> data = bnn.datasets.quartic(10, noise=0.1)
    """
    return _noisy(quartic_curve, 2.0, num, noise, seed=seed)


def quartic_curve(x: Tensor) -> Tensor:
    """Return -x^4 + 3 x^2 + 1, the noise-free curve of `quartic`, in the shape of x.

    Examples:
        >>> bnn.datasets.quartic_curve(torch.tensor([0.0, 1.0, 2.0]))
        tensor([ 1.,  3., -3.])
    """
    return -(x**4) + 3.0 * x**2 + 1.0


def _noisy(curve: Callable[[Tensor], Tensor], limit: float, num: int, noise: float, *, seed: int) -> Data:
    """Return a curve with noise at even points of [-limit, limit]."""
    if num < 2:
        raise InputError(f"`num` must be at least 2, got {num}: pass the number of points to generate.")
    if not 0.0 <= noise < math.inf:
        raise InputError(f"`noise` must be a finite standard deviation of at least 0, got {noise}.")
    x = torch.linspace(-limit, limit, num, dtype=torch.float32)[:, None]
    drawn = torch.randn(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return Data(x, curve(x)[:, 0] + noise * drawn)
