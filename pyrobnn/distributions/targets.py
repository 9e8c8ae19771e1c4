"""Distributions of targets that torch and Pyro lack, or have without a distribution function or a stable density."""

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all

from pyrobnn.distributions import latents

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Elementwise(TorchDistribution):
    """Base of distributions of single numbers with parameters of any shapes that broadcast together."""

    def __init__(self, *, validate_args: bool | None = None, **parameters: Tensor | float) -> None:
        values = broadcast_all(*parameters.values())
        for name, value in zip(parameters, values, strict=True):
            setattr(self, name, value)
        super().__init__(values[0].shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        new = self._get_checked_instance(type(self), _instance)
        vars(new).update({name: None for name in ("lower", "upper") if hasattr(self, name)})
        for name in self.arg_constraints:
            setattr(new, name, getattr(self, name).expand(batch_shape))
        TorchDistribution.__init__(new, torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _checked(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return value


class TargetStudentT(latents.LatentStudentT):
    """Student's t with location and scale; unlike torch's it has a distribution function and its inverse."""

    has_rsample = False

    @property
    def variance(self) -> Tensor:
        ratio = torch.where(self.df > 2, self.df / (self.df - 2), torch.inf)
        return torch.where(self.df > 1, self.scale.square() * ratio, torch.nan)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            precision = dist.Gamma(0.5 * self.df, 0.5 * self.df).sample(sample_shape)
            return self.loc + self.scale * torch.randn_like(precision) * precision.rsqrt()

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function, computed by SciPy on the CPU; it has no gradient."""
        return scipy_function("stdtr", self.df, (value - self.loc) / self.scale)

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * scipy_function("stdtrit", self.df, value)


class CensoredNormal(Elementwise):
    """A normal variable seen through limits: y = min(max(z, lower), upper), z ~ N(loc, scale^2) (Tobin 1958).

    Values inside the limits have a density, the limits themselves, each a number or None, a probability; `log_prob`
    gives the log of either.
    """

    support = constraints.real
    has_rsample = False

    def __init__(
        self,
        loc: Tensor | float,
        scale: Tensor | float,
        lower: Tensor | float | None = None,
        upper: Tensor | float | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.lower: Any = None
        self.upper: Any = None
        limits = {name: limit for name, limit in (("lower", lower), ("upper", upper)) if limit is not None}
        super().__init__(loc=loc, scale=scale, validate_args=validate_args, **limits)

    @property
    def arg_constraints(self) -> dict[str, Any]:
        """The constraints of the parameters; a limit that is None is not among them."""
        limits = {name: constraints.real for name in ("lower", "upper") if getattr(self, name) is not None}
        return {"loc": constraints.real, "scale": constraints.positive} | limits

    @property
    def mean(self) -> Tensor:
        """The mean of y, not of z, in closed form."""
        above, below = self._moments()
        return self._clip(self._clip(self.loc) + self.scale * (above[0] - below[0]))

    @property
    def variance(self) -> Tensor:
        above, below = self._moments()
        return self.scale.square() * (above[1] + below[1] - (above[0] - below[0]).square()).clamp_min(0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density inside the limits, and the log probability of a limit at or beyond it."""
        z = (self._checked(value) - self.loc) / self.scale
        log_prob = -0.5 * z.square() - self.scale.log() - _HALF_LOG_2PI
        if self.lower is not None:
            tail = log_ndtr((self.lower - self.loc) / self.scale)
            log_prob = torch.where(value <= self.lower, tail, log_prob)
        if self.upper is not None:
            tail = log_ndtr((self.loc - self.upper) / self.scale)
            log_prob = torch.where(value >= self.upper, tail, log_prob)
        return log_prob

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with torch.no_grad():
            noise = torch.randn(self._extended_shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
            return self._clip(self.loc + self.scale * noise)

    def cdf(self, value: Tensor) -> Tensor:
        cdf = torch.special.ndtr((value - self.loc) / self.scale)
        if self.lower is not None:
            cdf = torch.where(value < self.lower, 0.0, cdf)
        return cdf if self.upper is None else torch.where(value >= self.upper, 1.0, cdf)

    def icdf(self, value: Tensor) -> Tensor:
        return self._clip(self.loc + self.scale * torch.special.ndtri(value))

    def _clip(self, value: Tensor) -> Tensor:
        value = value if self.lower is None else torch.maximum(value, self.lower)
        return value if self.upper is None else torch.minimum(value, self.upper)

    def _moments(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return the first two moments of the parts of (y - c) / scale above and below 0, for a centre c.

        The centre is loc if the limits allow, else the nearer limit: no large moments are subtracted from each other.
        """
        limits = (self.lower, self.upper)
        lower, upper = (None if limit is None else (limit - self.loc) / self.scale for limit in limits)
        centre = self._clip(self.loc).sub(self.loc) / self.scale
        return _excess_up_to(centre, upper), _excess_up_to(-centre, None if lower is None else -lower)


class Dispersed(Elementwise):
    """Base of distributions of numbers from 0 up with a mean, by its log, and a dispersion."""

    arg_constraints = {  # noqa: RUF012 - the form torch.distributions asks for
        "log_mean": constraints.real,
        "dispersion": constraints.positive,
    }

    def __init__(
        self, log_mean: Tensor | float, dispersion: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(log_mean=log_mean, dispersion=dispersion, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.log_mean.exp()


class TargetGamma(Dispersed):
    """Positive numbers with the mean m = exp(log_mean) and the variance dispersion m^2; the shape is 1 / dispersion."""

    support = constraints.positive

    @property
    def variance(self) -> Tensor:
        return self.dispersion * self.mean.square()

    def log_prob(self, value: Tensor) -> Tensor:
        shape, log_mean = self.dispersion.double().reciprocal(), self.log_mean.double()
        log_ratio = self._checked(value).double().log() - log_mean
        constant = shape * shape.log() - torch.lgamma(shape)
        return (constant - log_mean - log_ratio + shape * (log_ratio - log_ratio.exp())).to(self.log_mean.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw numbers; a number that would be rounded to 0 is the least positive one."""
        with torch.no_grad():
            shape = self.dispersion.reciprocal()
            drawn = self.mean * dist.Gamma(shape, shape).sample(sample_shape)
            return drawn.clamp_min(torch.finfo(drawn.dtype).tiny)

    def cdf(self, value: Tensor) -> Tensor:
        shape = self.dispersion.double().reciprocal()
        ratio = value.double() / self.log_mean.double().exp()
        shape, scaled = torch.broadcast_tensors(shape, shape * ratio.clamp_min(0))
        return torch.special.gammainc(shape, scaled).to(self.log_mean.dtype)

    def icdf(self, value: Tensor) -> Tensor:
        """Return quantiles at levels in (0, 1), computed by SciPy on the CPU; they have no gradient."""
        shape = self.dispersion.double().reciprocal()
        return self.mean * scipy_function("gammaincinv", shape, value) / shape.to(self.log_mean.dtype)


class TargetBeta(Elementwise):
    """Shares of the mean m = sigmoid(logit) and the variance m (1 - m) / (1 + concentration), a + b of Beta(a, b)."""

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
        return torch.sigmoid(self.logit)

    @property
    def variance(self) -> Tensor:
        return torch.sigmoid(self.logit) * torch.sigmoid(-self.logit) / (1 + self.concentration)

    def shapes(self) -> tuple[Tensor, Tensor]:
        """Return a and b, in double precision."""
        logit, concentration = self.logit.double(), self.concentration.double()
        return concentration * torch.sigmoid(logit), concentration * torch.sigmoid(-logit)

    def log_prob(self, value: Tensor) -> Tensor:
        y, (a, b) = self._checked(value).double(), self.shapes()
        constant = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        return (constant + (a - 1) * y.log() + (b - 1) * torch.log1p(-y)).to(self.logit.dtype)

    def sample(self, sample_shape: Any = ()) -> Tensor:
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
        quantiles = scipy_function("betaincinv", *self.shapes(), value)
        finfo = torch.finfo(self.logit.dtype)
        return quantiles.to(self.logit.dtype).clamp(finfo.tiny, 1 - finfo.eps)


class LabelOrIgnored(dist.Categorical):
    """Labels of classes; the number `ignore_index` stands for no label: its log probability is 0, it is never drawn."""

    def __init__(
        self,
        probs: Tensor | None = None,
        logits: Tensor | None = None,
        ignore_index: int = -100,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.ignore_index = ignore_index
        super().__init__(probs=probs, logits=logits, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        new = self._get_checked_instance(LabelOrIgnored, _instance)
        new.ignore_index = self.ignore_index
        return super().expand(batch_shape, _instance=new)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log probability, 0 where there is no label."""
        is_label = value != self.ignore_index
        return torch.where(is_label, super().log_prob(torch.where(is_label, value, 0)), 0.0)


def log_ndtr(z: Tensor) -> Tensor:
    """Return the log of the normal distribution function; unlike torch's, its gradient is finite in the far tail."""
    low, high = z.clamp_max(-1), z.clamp_min(-1)
    tail = (0.5 * torch.special.erfcx(-low / math.sqrt(2))).log() - 0.5 * low.square()
    return torch.where(z < -1, tail, torch.log1p(-upper_tail(high)))


def upper_tail(z: Tensor) -> Tensor:
    """Return the normal probability of more than z, in the tail too, where torch's ndtr(-z) has no digits."""
    return 0.5 * torch.special.erfc(z / math.sqrt(2))


def _excess_up_to(start: Tensor, end: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the first two moments of min(max(z - start, 0), end - start) for z ~ N(0, 1)."""
    first, second = _excess(start)
    if end is None:
        return first, second
    beyond, beyond_squared = _excess(end)
    return first - beyond, second - beyond_squared - 2 * (end - start) * beyond


def _excess(start: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first two moments of max(z - start, 0) for z ~ N(0, 1)."""
    density = (-0.5 * start.square() - _HALF_LOG_2PI).exp()
    tail = upper_tail(start)
    return density - start * tail, (1 + start.square()) * tail - start * density


def scipy_function(function: str, *arguments: Tensor) -> Tensor:
    """Return a function of scipy.special of tensors, in double precision, as a tensor like the last of them."""
    from scipy import special

    arrays = [argument.detach().cpu().double().numpy() for argument in arguments]
    values = torch.from_numpy(np.asarray(getattr(special, function)(*arrays), dtype=np.float64))
    return values.to(arguments[-1].device, arguments[-1].dtype)
