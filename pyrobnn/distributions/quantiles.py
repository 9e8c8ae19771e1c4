"""Quantiles of an equal-weight mixture, by closing a bracket on its distribution function."""

from typing import Any

import torch
from torch import Tensor

_KAPPA = 0.2
"""The constant kappa_1 of the ITP method for a bracket of width 1; kappa_2 is 2 and n_0 is 1."""


def real_quantile(components: Any, level: float) -> Tensor:
    """Return the quantile of a mixture of distributions of real numbers, between the quantiles of its components.

    The bracket is closed by the ITP method (Oliveira & Takahashi 2020, "An Enhancement of the Bisection Method Average
    Performance Preserving Minmax Optimality", ACM TOMS 47): a secant step, moved a little towards the middle, and kept
    as close to it as at most one step more than bisection asks. Smooth functions take a third of the steps.

    Args:
        components: a distribution of batch shape (S, ...) with `cdf` and `icdf`; the mixture is over the first axis.
        level: in (0, 1).

    Returns:
        The smallest value whose distribution function reaches the level, (...), up to rounding.
    """
    each = components.icdf(torch.full_like(components.mean, level))

    def excess(value: Tensor) -> Tensor:
        return components.cdf(value.expand(each.shape)).mean(0) - level

    low, high = each.amin(0), each.amax(0)
    at_low, at_high = excess(low), excess(high)
    tiny = torch.finfo(each.dtype).tiny
    error = (torch.finfo(each.dtype).eps * torch.maximum(low.abs(), high.abs())).clamp_min(tiny)
    kappa = _KAPPA / (high - low).clamp_min(tiny)
    reach = error * 2 ** (((high - low) / (2 * error)).clamp_min(1).log2().ceil() + 1)
    while bool((high - low > 2 * error).any()):
        middle, width = (low + high) / 2, high - low
        secant = (low - at_low * width / (at_high - at_low).clamp_min(tiny)).clamp(low, high)
        inwards = (middle - secant).sign()
        shift, room = torch.maximum(kappa * width.square(), error), (reach - width / 2).clamp_min(0)
        value = torch.where((middle - secant).abs() > shift, secant + inwards * shift, middle)
        value = torch.where((value - middle).abs() > room, middle - inwards * room, value)
        at_value = excess(value)
        below = at_value < 0
        low, at_low = torch.where(below, value, low), torch.where(below, at_value, at_low)
        high, at_high = torch.where(below, high, value), torch.where(below, at_high, at_value)
        reach = reach / 2
    return (low + high) / 2


def count_quantile(components: Any, level: float) -> Tensor:
    """Return the quantile of a mixture of distributions of counts: the smallest count with P(Y <= count) >= level.

    The search starts below mean + std sqrt(level / (1 - level)), which no quantile exceeds (Cantelli's inequality).
    Components need `cdf`, a mean and a variance; else all is as for `real_quantile`, with counts as floats.
    """
    means = components.mean.double()
    mean, variance = means.mean(0), components.variance.double().mean(0) + means.var(0, correction=0)
    high = (mean + (variance * level / (1 - level)).sqrt()).ceil() + 1
    low = torch.full_like(high, -1)
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        below = components.cdf(middle.expand(means.shape)).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high.to(components.mean.dtype)
