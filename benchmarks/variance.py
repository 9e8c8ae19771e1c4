"""The variance of an estimate of the gradient."""

from collections.abc import Callable

import torch
from torch import Tensor


def variance(draw: Callable[[], Tensor], draws: int) -> Tensor:
    """Return the variance of each entry of a tensor over draws, in float64."""
    torch.manual_seed(1)
    mean = squares = torch.zeros(())
    for count in range(1, draws + 1):
        change = draw().double() - mean
        mean = mean + change / count
        squares = squares + change.square() * (1 - 1 / count)
    return squares / (draws - 1)
