"""A normal variable rounded to whole numbers, in the units of a model and in those of the targets."""

from typing import Any

import torch
from pyro.distributions import constraints
from torch import Tensor

from pyrobnn.distributions.targets import ONE_DRAW, Elementwise, log_ndtr, upper_tail

_NARROW = 1.5
"""Deviation, in steps, from which rounding adds 1/12 to the variance and nothing to the mean, up to 1e-19."""
_TERMS = 15


class BinnedNormal(Elementwise):
    """A normal variable rounded to multiples of a width; `log_prob` is the log probability less the log of the width.

    It is a density in the units of a model whose targets are standardised: in the units of whole numbers it is the
    probability.

    Args:
        loc: mean before rounding.
        scale: standard deviation before rounding, positive.
        width: the distance of neighbours, positive.
    """

    arg_constraints = {  # noqa: RUF012 - the form torch.distributions asks for
        "loc": constraints.real,
        "scale": constraints.positive,
        "width": constraints.positive,
    }
    support: Any = constraints.real

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, width: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(loc=loc, scale=scale, width=width, validate_args=validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return log(F(value + width / 2) - F(value - width / 2)) - log width, in double precision."""
        loc, scale, half = self.loc.double(), self.scale.double(), self.width.double() / 2
        distance = (self._checked(value).double() - loc).abs()
        near, far = (half - distance) / scale, (-half - distance) / scale
        log_near = log_ndtr(near)
        log_prob = log_near + torch.log(-torch.expm1(log_ndtr(far) - log_near)) - (2 * half).log()
        return log_prob.to(self.loc.dtype)

    def sample(self, sample_shape: Any = ONE_DRAW) -> Tensor:
        """Draw normal numbers, and round them."""
        with torch.no_grad():
            noise = torch.randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
            return ((self.loc + self.scale * noise) / self.width).round() * self.width

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function, which is constant between neighbours."""
        upper = ((value / self.width).floor() + 0.5) * self.width
        return torch.special.ndtr((upper - self.loc) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles at levels in (0, 1)."""
        return ((self.loc + self.scale * torch.special.ndtri(value)) / self.width).round() * self.width

    @property
    def mean(self) -> Tensor:
        """The mean after rounding."""
        return self.width * self._moments()[0]

    @property
    def variance(self) -> Tensor:
        """The variance after rounding."""
        return self.width.square() * self._moments()[1]

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance in steps: sums around the nearest neighbour, or closed for wide distributions."""
        loc, scale = self.loc / self.width, self.scale / self.width
        middle, narrow = loc.round(), scale.clamp_max(_NARROW)
        first = second = torch.zeros_like(loc)
        for step in range(1, _TERMS + 1):
            above = upper_tail((middle + step - 0.5 - loc) / narrow)
            below = upper_tail((loc - middle + step - 0.5) / narrow)
            first = first + above - below
            second = second + (2 * step - 1) * (above + below)
        is_narrow = scale < _NARROW
        variance = torch.where(is_narrow, second - first.square(), scale.square() + 1 / 12)
        return torch.where(is_narrow, middle + first, loc), variance

    def in_whole_numbers(self, loc: Tensor, scale: Tensor) -> "RoundedNormal":
        """Return the distribution in the units of the targets, loc + scale z for z in the units of the model."""
        return RoundedNormal(self.loc * scale + loc, self.scale * scale)


class RoundedNormal(BinnedNormal):
    """Whole numbers, a normal variable rounded; `log_prob` is the log probability.

    Args:
        loc: mean before rounding.
        scale: standard deviation before rounding, positive.
    """

    support = constraints.integer

    def __init__(self, loc: Tensor | float, scale: Tensor | float, *, validate_args: bool | None = None) -> None:
        super().__init__(loc, scale, 1.0, validate_args=validate_args)
