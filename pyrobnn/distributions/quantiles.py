"""Quantiles of an equal-weight mixture, by closing a bracket on its distribution function."""

from typing import Any

import torch
from torch import Tensor

_KAPPA = 0.2
"""The constant kappa_1 of the ITP method for a bracket of width 1; kappa_2 is 2 and n_0 is 1."""


def component_bounds(components: Any, level: float) -> tuple[Tensor, Tensor]:
    """Return numbers below and above the quantile of each component: the quantile twice where `icdf` is known.

    Elsewhere they are mean - std sqrt((1 - level) / level) and mean + std sqrt(level / (1 - level)), which no quantile
    passes (Cantelli's inequality).
    """
    if components.icdf is not None:
        each = components.icdf(torch.tensor(level, dtype=torch.float64))
        return each, each
    mean, std = components.mean, components.variance.sqrt()
    return mean - std * ((1 - level) / level) ** 0.5, mean + std * (level / (1 - level)) ** 0.5


def real_quantile(components: Any, level: float, eps: float | None = None) -> Tensor:
    """Return the quantile of a mixture of distributions of real numbers, between the quantiles of its components.

    The bracket is closed by the ITP method (Oliveira & Takahashi 2020, "An Enhancement of the Bisection Method Average
    Performance Preserving Minmax Optimality", ACM TOMS 47): a secant step, moved a little towards the middle, and kept
    close enough to it that at most one step more than in bisection is taken. Smooth functions take a third of the
    steps. If the quantile is far smaller than its bracket, bisection goes on until its digits are right.

    Args:
        components: distributions of batch shape (S, ...) with `cdf`, and with `icdf`, or None in its place and a mean
            and a variance; the mixture is over the first axis.
        level: in (0, 1).
        eps: the relative error to reach; the precision of the numbers if not given.

    Returns:
        The smallest value whose distribution function reaches the level, (...), up to rounding.
    """
    lower, upper = component_bounds(components, level)

    def excess(value: Tensor) -> Tensor:
        return components.cdf(value.expand(lower.shape)).mean(0) - level

    low, high = lower.amin(0), upper.amax(0)
    at_low, at_high = excess(low), excess(high)
    tiny, eps = torch.finfo(low.dtype).tiny, torch.finfo(low.dtype).eps if eps is None else eps
    error = (eps * torch.maximum(low.abs(), high.abs())).clamp_min(tiny)
    kappa = _KAPPA / (high - low).clamp_min(tiny)
    reach = error * 2 ** (((high - low) / (2 * error)).clamp_min(1).log2().ceil() + 1)
    while bool((is_open := _is_open(low, high, at_high - at_low, error, eps)).any()):
        middle, width = (low + high) / 2, high - low
        secant = (low - at_low * width / (at_high - at_low).clamp_min(tiny)).clamp(low, high)
        inwards = (middle - secant).sign()
        shift, room = torch.maximum(kappa * width.square(), error), (reach - width / 2).clamp_min(0)
        value = torch.where((middle - secant).abs() > shift, secant + inwards * shift, middle)
        value = torch.where((value - middle).abs() > room, middle - inwards * room, value)
        at_value = excess(value)
        below, above = is_open & (at_value < 0), is_open & (at_value >= 0)
        low, at_low = torch.where(below, value, low), torch.where(below, at_value, at_low)
        high, at_high = torch.where(above, value, high), torch.where(above, at_value, at_high)
        reach = reach / 2
    return (low + high) / 2


def _is_open(low: Tensor, high: Tensor, share: Tensor, error: Tensor, eps: float) -> Tensor:
    """Return the brackets to close further: until their ends, or the shares below them, agree to rounding.

    A bracket with an infinite end or NaN, as from a network that overflows, is left unchanged: it cannot close.
    """
    width = high - low
    is_exact = width <= 2 * (eps * torch.maximum(low.abs(), high.abs())).clamp_min(torch.finfo(low.dtype).tiny)
    return width.isfinite() & ~(is_exact | ((width <= 2 * error) & (share <= 4 * eps)))


def count_quantile(components: Any, level: float) -> Tensor:
    """Return the quantile of a mixture of distributions of counts: the smallest count with P(Y <= count) >= level.

    The search starts at the bounds of Cantelli's inequality, mean - std sqrt((1 - level) / level) and mean + std
    sqrt(level / (1 - level)). Components need `cdf`, a mean and a variance; else all is as for `real_quantile`, with
    counts as floats.
    """
    means = components.mean.double()
    mean, variance = means.mean(0), components.variance.double().mean(0) + means.var(0, correction=0)
    low = (mean - (variance * (1 - level) / level).sqrt()).floor() - 2
    high = (mean + (variance * level / (1 - level)).sqrt()).ceil() + 1
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        below = components.cdf(middle.expand(means.shape)).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high.to(components.mean.dtype)
