"""A normal variable seen through a monotone spline: flexible densities with exact distribution functions."""

import math
from typing import Any

import numpy as np
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import pad, softmax, softplus

from pyrobnn.distributions.targets import ONE_DRAW, upper_tail

BOUND = 3.0
"""The spline moves numbers between -3 and 3; beyond it changes nothing."""
_LEAST = 1e-3
_NODES = 24


class SplineNormal(TorchDistribution):
    """y = loc + scale g(u), u ~ N(0, 1), with g a monotone rational-quadratic spline on (-3, 3), linear beyond.

    The inverse of g is the spline of Durkan, Bekasov, Murray & Papamakarios (2019), "Neural Spline Flows", with B bins.

    Args:
        loc: location, (*batch,).
        scale: scale, positive, (*batch,).
        widths: logits of the shares of the bins among (y - loc) / scale, (*batch, B).
        heights: logits of their shares among u, (*batch, B).
        slopes: slopes of the inverse between bins, before softplus, (*batch, B - 1); 0 stands for a slope of 1.
    """

    arg_constraints = {  # noqa: RUF012 - the form torch.distributions asks for
        "loc": constraints.real,
        "scale": constraints.positive,
        "widths": constraints.real_vector,
        "heights": constraints.real_vector,
        "slopes": constraints.real_vector,
    }
    support = constraints.real

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor,
        widths: Tensor,
        heights: Tensor,
        slopes: Tensor,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.scale, self.widths, self.heights, self.slopes = loc, scale, widths, heights, slopes
        super().__init__(loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "SplineNormal":
        """Return the distribution over a larger batch shape."""
        shape = torch.Size(batch_shape)
        vectors = (value.expand(*shape, value.shape[-1]) for value in (self.widths, self.heights, self.slopes))
        return SplineNormal(self.loc.expand(shape), self.scale.expand(shape), *vectors, validate_args=False)

    def _in_double(self) -> "SplineNormal":
        parts = (self.loc, self.scale, self.widths, self.heights, self.slopes)
        return SplineNormal(*(part.double() for part in parts), validate_args=False)

    def _knots(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return places (*batch, B + 1) of the knots, their values, and the slopes there."""
        places, values = (_cumulative(logits) for logits in (self.widths, self.heights))
        shift = math.log(math.expm1(1 - _LEAST))
        return places, values, pad(_LEAST + softplus(self.slopes + shift), (1, 1), value=1.0)

    def _normal_of(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return u for values of y, and the log of du/dy."""
        z = (value - self.loc) / self.scale
        inside = z.clamp(-BOUND, BOUND)
        x0, width, y0, height, slope, left, right = self._bins(inside, from_values=False)
        share, log_slope = _rise((inside - x0) / width, slope, left, right)
        is_inside = z.abs() < BOUND
        return torch.where(is_inside, y0 + height * share, z), torch.where(is_inside, log_slope, 0.0) - self.scale.log()

    def value_of(self, u: Tensor) -> Tensor:
        """Return y for normal numbers u."""
        inside = u.clamp(-BOUND, BOUND)
        x0, width, y0, height, slope, left, right = self._bins(inside, from_values=True)
        above, bend = inside - y0, left + right - 2 * slope
        a = height * (slope - left) + above * bend
        b = height * left - above * bend
        c = -slope * above
        root = (b.square() - 4 * a * c).clamp_min(0).sqrt()
        t = 2 * c / (-b - root)
        return self.loc + self.scale * torch.where(u.abs() < BOUND, x0 + width * t, u)

    def _bins(self, place: Tensor, *, from_values: bool) -> tuple[Tensor, ...]:
        """Return start and length on both axes of the bin of each place, its mean slope, and those at its ends."""
        places, values, slopes = self._knots()
        knots = values if from_values else places
        index = (place[..., None] >= knots[..., 1:-1]).sum(-1, keepdim=True)
        shape = (*index.shape[:-1], knots.shape[-1])

        def take(array: Tensor, offset: int) -> Tensor:
            return array.expand(shape).gather(-1, index + offset)[..., 0]

        x0, x1, y0, y1 = take(places, 0), take(places, 1), take(values, 0), take(values, 1)
        return x0, x1 - x0, y0, y1 - y0, (y1 - y0) / (x1 - x0), take(slopes, 0), take(slopes, 1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; the place in its bin is computed in double precision."""
        exact = self._in_double()
        u, log_slope = exact._normal_of(value.double())
        return (log_slope - 0.5 * u.square() - 0.5 * math.log(2 * math.pi)).to(self.loc.dtype)

    def sample(self, sample_shape: Any = ONE_DRAW) -> Tensor:
        """Draw normal numbers, and map them."""
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            return self.value_of(torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device))

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function."""
        return upper_tail(-self._normal_of(value)[0])

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles at levels in (0, 1)."""
        u = torch.special.ndtri(value.to(self.loc))
        return self.value_of(u.expand(torch.broadcast_shapes(u.shape, self.loc.shape)))

    @property
    def mean(self) -> Tensor:
        """The mean, by Gauss-Legendre quadrature in each bin."""
        return self.loc + self.scale * self._moments()[0]

    @property
    def variance(self) -> Tensor:
        """The variance, likewise."""
        first, second = self._moments()
        return self.scale.square() * (second - first.square()).clamp_min(0)

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Return the first two moments of z = (y - loc) / scale.

        Integrated by parts, they are 3 - int F and 9 (F(3) - F(-3)) - 2 int z F over (-3, 3), with the distribution
        function F, and the normal moments beyond.
        """
        places, widths = self.quadrature()
        z, widths = (places - self.loc) / self.scale, widths / self.scale
        mass = widths * self.cdf(places)
        inside = math.erf(BOUND / math.sqrt(2))
        tails = 2 * BOUND * math.exp(-0.5 * BOUND**2) / math.sqrt(2 * math.pi) + 1 - inside
        return BOUND - mass.sum(0), BOUND**2 * inside - 2 * (mass * z).sum(0) + tails

    def quadrature(self, tails: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return Gauss-Legendre nodes of y, (K, *batch), and weights, in each bin and as far beyond them, in scales."""
        knots = self._knots()[0]
        if tails:
            knots = pad(knots, (1, 1))
            knots[..., 0], knots[..., -1] = -BOUND - tails, BOUND + tails
        nodes, weights = (knots.new_tensor(values) for values in np.polynomial.legendre.leggauss(_NODES))
        half = knots.diff(dim=-1)[..., None] / 2
        z = knots[..., :-1, None] + half * (1 + nodes)
        places, widths = (values.flatten(-2).movedim(-1, 0) for values in (z, half * weights))
        return self.loc + self.scale * places, self.scale * widths


def _rise(t: Tensor, slope: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the share of a bin's height below the place t of (0, 1), and the log of the slope there.

    Args:
        t: place in the bin.
        slope: mean slope of the bin.
        left: slope at its start.
        right: slope at its end.
    """
    below = slope + (left + right - 2 * slope) * t * (1 - t)
    share = (slope * t.square() + left * t * (1 - t)) / below
    rise = right * t.square() + 2 * slope * t * (1 - t) + left * (1 - t).square()
    return share, 2 * slope.log() + rise.log() - 2 * below.log()


def _cumulative(logits: Tensor) -> Tensor:
    """Return knots from -3 to 3 whose distances are shares, each 0.001 at least, (..., B + 1)."""
    num_bins = logits.shape[-1]
    shares = _LEAST + (1 - _LEAST * num_bins) * softmax(logits, -1)
    inner = -BOUND + 2 * BOUND * shares.cumsum(-1)[..., :-1]
    return torch.cat([torch.full_like(inner[..., :1], -BOUND), inner, torch.full_like(inner[..., :1], BOUND)], -1)
