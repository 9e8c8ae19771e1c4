"""Quantiles of an equal-weight mixture, by secants on its distribution function in a bracket that closes."""

from typing import Any

import torch
from torch import Tensor

_MOST_SECANTS = 12
"""Values that are tried by secants before brackets are halved."""
_CLAMPED_SECANTS = 4
"""The first of them may lie next to an end of the bracket, where distributions with limits jump."""


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
    """Return the quantile (N, ...) of a mixture of distributions of real numbers, between those of its components.

    Values are tried by secant steps on the normal quantile of the distribution function, which is nearly straight for
    most mixtures, and for positive numbers on their logarithms. Each closes a bracket. What is open after a dozen
    values, as at a jump, is halved, down to the relative error `eps`, by default the precision of the numbers.
    `components`, of batch shape (S, N, ...), have `cdf`, and `icdf` or a mean and a variance.
    """
    lower, upper = component_bounds(components, level)
    most = torch.finfo(lower.dtype).max / 4  # components whose locations overflowed have no finite quantile
    low, high, start = lower.amin(0).clamp(-most, most), upper.amax(0).clamp(-most, most), (lower + upper).mean(0) / 2
    eps = torch.finfo(low.dtype).eps if eps is None else eps
    if not bool((low > 0).all()):
        low, high = _Search(components, level, (low, high), len(lower), eps).closed(start)
        return (low + high) / 2
    low, high = _Search(components, level, (low.log(), high.log()), len(lower), eps, is_log=True).closed(start.log())
    return ((low + high) / 2).exp()


def count_quantile(components: Any, level: float) -> Tensor:
    """Return the quantile of a mixture of distributions of counts: the smallest count with P(Y <= count) >= level.

    The search starts in the bounds of Cantelli's inequality; all else is as for `real_quantile`, with counts as floats.
    """
    means = components.mean.double()
    mean, variance = means.mean(0), components.variance.double().mean(0) + means.var(0, correction=0)
    low = (mean - (variance * (1 - level) / level).sqrt()).floor() - 2
    high = (mean + (variance * level / (1 - level)).sqrt()).ceil() + 1
    start = (mean + variance.sqrt() * _normal(level).to(mean)).floor()
    return _Search(components, level, (low, high), len(means)).closed(start)[1].to(components.mean.dtype)


class _Search:
    """A bracket (low, high] of each quantile, and the last two values tried in it; without `eps`, of whole numbers."""

    def __init__(
        self,
        components: Any,
        level: float,
        bracket: tuple[Tensor, Tensor],
        num_draws: int,
        eps: float = 0.0,
        *,
        is_log: bool = False,
    ) -> None:
        self.components, self.level, self.num_draws, self.eps, self.is_log = components, level, num_draws, eps, is_log
        self.low, self.high = low, high = bracket
        self.goal = _normal(level).to(low)
        self.reach = torch.maximum(low.abs(), high.abs()).clamp_min(float(is_log))
        self.at_low, self.at_high = torch.full_like(low, -level), torch.full_like(low, 1 - level)
        self.value = self.height = torch.full_like(low, torch.nan)

    def closed(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the brackets, closed by trying the start first."""
        low, high = self.low.clone(), self.high.clone()
        rows, tried, value = torch.arange(len(low), device=low.device), 0, self._inside(start, tried=0)
        while bool((is_open := self._is_open()).any()):
            open_rows = is_open.flatten(1).any(1) if is_open.ndim > 1 else is_open
            if 2 * int(open_rows.sum()) <= len(rows) and (fewer := self.components.take(open_rows)) is not None:
                low[rows], high[rows] = self.low, self.high
                rows, value, is_open, self.components = rows[open_rows], value[open_rows], is_open[open_rows], fewer
                fields = ((name, one) for name, one in vars(self).items() if isinstance(one, Tensor) and one.ndim)
                vars(self).update({name: one[open_rows] for name, one in fields})
            tried += 1
            value = self._next(value, is_open, tried)
        low[rows], high[rows] = self.low, self.high
        return low, high

    def _is_open(self) -> Tensor:
        """Return the brackets to close further: until their ends, or the shares below them, agree to rounding.

        A bracket with an infinite end or NaN, as from a network that overflows, is left unchanged: it cannot close.
        """
        width = self.high - self.low
        if not self.eps:
            return width > 1
        is_exact = width <= 2 * self._error(torch.maximum(self.low.abs(), self.high.abs()))
        is_exact |= (width <= 2 * self._error(self.reach)) & (self.at_high - self.at_low <= 4 * self.eps)
        return width.isfinite() & ~is_exact

    def _error(self, size: Tensor) -> Tensor:
        return (self.eps * size).clamp_min(torch.finfo(size.dtype).tiny)

    def _next(self, value: Tensor, is_open: Tensor, tried: int) -> Tensor:
        """Close the brackets by a value, and return the next one."""
        at = value.exp() if self.is_log else value
        excess = self.components.cdf(at.expand(self.num_draws, *at.shape)).mean(0) - self.level
        below, above = is_open & (excess < 0), is_open & (excess >= 0)
        self.low, self.at_low = torch.where(below, value, self.low), torch.where(below, excess, self.at_low)
        self.high, self.at_high = torch.where(above, value, self.high), torch.where(above, excess, self.at_high)
        last, last_height = self.value, self.height
        self.value, self.height = value, _normal((excess + self.level).clamp(1e-300, 1 - 2**-53)) - self.goal
        step = self.height * (last - value) / (self.height - last_height)
        if tried == 1:
            step = torch.where(below, self.high - value, self.low - value) / 2
        if not self.eps:
            return self._inside(value + torch.where(step > 0, step.ceil(), step.floor()), tried)
        narrow = self.eps ** (1 / 3) * self.reach
        is_narrow = self.high - self.low <= narrow
        is_found = is_open & is_narrow & (excess == 0)
        self.low, self.high = torch.where(is_found, value, self.low), torch.where(is_found, value, self.high)
        beyond = ~is_narrow & (step.abs() <= self.eps**0.25 * self.reach)  # a little more, to reach the other side
        chosen = value + step + torch.where(beyond, step.sign() * narrow / 4, 0.0)
        return self._inside(chosen, tried, is_secant=is_narrow if tried % 2 else ~is_open)

    def _inside(self, value: Tensor, tried: int, is_secant: Tensor | None = None) -> Tensor:
        """Return values inside the bracket: its middle in place of those that are not, or no longer are secants."""
        middle = (self.low + self.high) / 2
        least = self._error(self.reach) if self.eps else torch.ones_like(middle)
        if tried <= _CLAMPED_SECANTS:
            value = torch.minimum(torch.maximum(value, self.low + least), self.high - least)
        is_good = (value > self.low) & (value < self.high)
        if tried > _MOST_SECANTS:
            is_good &= torch.zeros_like(is_good) if is_secant is None else is_secant
        return torch.where(is_good, value, middle if self.eps else middle.floor())


def _normal(share: Tensor | float) -> Tensor:
    """Return the normal quantile."""
    return torch.special.ndtri(torch.as_tensor(share, dtype=torch.float64))
