"""Distributions of counts, with log probabilities that are exact for counts and means of any size."""

from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from pyrobnn.distributions.targets import Dispersed, Elementwise, scipy_function


class Poisson(Elementwise):
    """Counts with a rate given by its log; log probabilities are exact for counts and rates of any size."""

    arg_constraints = {"log_rate": constraints.real}  # noqa: RUF012 - the form torch.distributions asks for
    support = constraints.nonnegative_integer

    def __init__(self, log_rate: Tensor | float, *, validate_args: bool | None = None) -> None:
        super().__init__(log_rate=log_rate, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.log_rate.exp()

    @property
    def variance(self) -> Tensor:
        return self.mean

    def log_prob(self, value: Tensor) -> Tensor:
        count, log_rate = self._checked(value).double(), self.log_rate.double()
        return (count * log_rate - log_rate.exp() - torch.lgamma(count + 1)).to(self.log_rate.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            return torch.poisson(self.mean.expand(self._extended_shape(sample_shape)))

    def cdf(self, value: Tensor) -> Tensor:
        count, rate = torch.broadcast_tensors(value.double().floor(), self.log_rate.double().exp())
        cdf = torch.special.gammaincc(count.clamp_min(0) + 1, rate)
        return torch.where(count < 0, 0.0, cdf).to(self.log_rate.dtype)


class NegativeBinomial(Dispersed):
    """Counts with the mean m = exp(log_mean) and the variance m + dispersion m^2 (NB2, Cameron & Trivedi 1998).

    Poisson, whose rate is m times a Gamma(r, r) variable, r = 1 / dispersion; at 1e-6 it is Poisson's up to rounding.
    """

    support = constraints.nonnegative_integer

    @property
    def variance(self) -> Tensor:
        return self.mean + self.dispersion * self.mean.square()

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability; its large terms are added in double precision."""
        count, log_mean = self._checked(value).double(), self.log_mean.double()
        r = self.dispersion.double().reciprocal()
        log_odds = log_mean - r.log()
        ways = torch.lgamma(count + r) - torch.lgamma(r) - torch.lgamma(count + 1)
        log_prob = ways + count * logsigmoid(log_odds)
        return (log_prob + r * logsigmoid(-log_odds)).to(self.log_mean.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            r = self.dispersion.reciprocal()
            return torch.poisson(self.mean * dist.Gamma(r, r).sample(sample_shape))

    def cdf(self, value: Tensor) -> Tensor:
        """Return the probability of a count of at most `value`, computed by SciPy on the CPU; it has no gradient."""
        count, r = value.double().floor(), self.dispersion.double().reciprocal()
        none = torch.sigmoid(r.log() - self.log_mean.double())
        cdf = scipy_function("betainc", r, count.clamp_min(0) + 1, none)
        return torch.where(count < 0, 0.0, cdf).to(self.log_mean.dtype)


class ZeroInflated(TorchDistribution):
    """Counts that are 0 with the probability sigmoid(gate_logit), else as under `base`."""

    arg_constraints = {"gate_logit": constraints.real}  # noqa: RUF012 - the form torch.distributions asks for
    support = constraints.nonnegative_integer

    def __init__(self, base: Any, gate_logit: Tensor, *, validate_args: bool | None = None) -> None:
        shape = torch.broadcast_shapes(base.batch_shape, gate_logit.shape)
        self.base, self.gate_logit = base.expand(shape), gate_logit.expand(shape)
        super().__init__(shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ZeroInflated":
        shape = torch.Size(batch_shape)
        return ZeroInflated(self.base.expand(shape), self.gate_logit.expand(shape), validate_args=False)

    @property
    def mean(self) -> Tensor:
        return torch.sigmoid(-self.gate_logit) * self.base.mean

    @property
    def variance(self) -> Tensor:
        share = torch.sigmoid(-self.gate_logit)
        return share * (self.base.variance + (1 - share) * self.base.mean.square())

    def log_prob(self, value: Tensor) -> Tensor:
        counted = logsigmoid(-self.gate_logit) + self.base.log_prob(value)
        zero = torch.logaddexp(logsigmoid(self.gate_logit).expand(counted.shape), counted)
        return torch.where(value == 0, zero, counted)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            counts = self.base.sample(sample_shape)
            return torch.where(torch.rand_like(counts) < torch.sigmoid(self.gate_logit), 0.0, counts)

    def cdf(self, value: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate_logit)
        return torch.where(value < 0, 0.0, gate + (1 - gate) * self.base.cdf(value))
