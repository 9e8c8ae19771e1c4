"""Distributions of positive targets and of shares, by their means, with distribution functions and quantiles."""

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from pyrobnn.distributions.targets import ONE_DRAW, Elementwise, scipy_function


class Gamma(Elementwise):
    """Positive numbers with the mean m = exp(log_mean) and the variance dispersion m^2.

    Args:
        log_mean: log of the mean.
        dispersion: squared coefficient of variation, positive: one over the shape.
    """

    arg_constraints = {  # noqa: RUF012 - the form torch.distributions asks for
        "log_mean": constraints.real,
        "dispersion": constraints.positive,
    }
    support = constraints.positive

    def __init__(
        self, log_mean: Tensor | float, dispersion: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(log_mean=log_mean, dispersion=dispersion, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean, m."""
        return self.log_mean.exp()

    @property
    def variance(self) -> Tensor:
        """The variance, dispersion m^2."""
        return self.dispersion * self.mean.square()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; its large terms are added in double precision."""
        shape, log_mean = self.dispersion.double().reciprocal(), self.log_mean.double()
        log_ratio = self._checked(value).double().log() - log_mean
        constant = shape * shape.log() - torch.lgamma(shape)
        return (constant - log_mean - log_ratio + shape * (log_ratio - log_ratio.exp())).to(self.log_mean.dtype)

    def sample(self, sample_shape: Any = ONE_DRAW) -> Tensor:
        """Draw numbers; a number that would be rounded to 0 is the least positive one."""
        with torch.no_grad():
            shape = self.dispersion.reciprocal()
            drawn = self.mean * dist.Gamma(shape, shape).sample(sample_shape)
            return drawn.clamp_min(torch.finfo(drawn.dtype).tiny)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function, the regularised lower incomplete gamma function."""
        shape = self.dispersion.double().reciprocal()
        ratio = value.double() / self.log_mean.double().exp()
        shape, scaled = torch.broadcast_tensors(shape, shape * ratio.clamp_min(0))
        return torch.special.gammainc(shape, scaled).to(self.log_mean.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles at levels in (0, 1), computed by SciPy on the CPU; they have no gradient."""
        shape = self.dispersion.double().reciprocal()
        return self.mean * scipy_function("gammaincinv", shape, value) / shape.to(self.log_mean.dtype)


class Beta(Elementwise):
    """Shares between 0 and 1, with the mean m = sigmoid(logit) and the variance m (1 - m) / (1 + concentration).

    Args:
        logit: logit of the mean.
        concentration: a + b of the Beta(a, b) distribution, positive.
    """

    arg_constraints = {  # noqa: RUF012 - the form torch.distributions asks for
        "logit": constraints.real,
        "concentration": constraints.positive,
    }
    support = constraints.unit_interval

    def __init__(
        self, logit: Tensor | float, concentration: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(logit=logit, concentration=concentration, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """The mean, m."""
        return torch.sigmoid(self.logit)

    @property
    def variance(self) -> Tensor:
        """The variance, m (1 - m) / (1 + concentration)."""
        return torch.sigmoid(self.logit) * torch.sigmoid(-self.logit) / (1 + self.concentration)

    def shapes(self) -> tuple[Tensor, Tensor]:
        """Return a and b, in double precision."""
        logit, concentration = self.logit.double(), self.concentration.double()
        return concentration * torch.sigmoid(logit), concentration * torch.sigmoid(-logit)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density; its large terms are added in double precision."""
        y, (a, b) = self._checked(value).double(), self.shapes()
        constant = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        return (constant + (a - 1) * y.log() + (b - 1) * torch.log1p(-y)).to(self.logit.dtype)

    def sample(self, sample_shape: Any = ONE_DRAW) -> Tensor:
        """Draw numbers on the CPU; one that would be rounded to 0 or 1 is the nearest number inside."""
        with torch.no_grad():
            a, b = (shape.cpu() for shape in self.shapes())
            drawn = dist.Beta(a, b).sample(sample_shape).to(self.logit)
            finfo = torch.finfo(drawn.dtype)
            return drawn.clamp(finfo.tiny, 1 - finfo.eps)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function, computed by SciPy on the CPU; it has no gradient."""
        return scipy_function("betainc", *self.shapes(), value.clamp(0, 1))

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles at levels in (0, 1), likewise."""
        quantiles = scipy_function("betaincinv", *self.shapes(), value)
        finfo = torch.finfo(self.logit.dtype)
        return quantiles.to(self.logit.dtype).clamp(finfo.tiny, 1 - finfo.eps)
