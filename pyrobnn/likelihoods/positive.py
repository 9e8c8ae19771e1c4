"""The log-normal and gamma likelihoods for positive real targets, both with a log link."""

from typing import Annotated, ClassVar, Literal

import pyro.distributions as dist
import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.data.in_memory import Scaler
from pyrobnn.distributions import bounded
from pyrobnn.likelihoods.base import PAGE, check_width, limited, registry
from pyrobnn.likelihoods.noise import Estimated, Spread, WithNumber

_SMALLEST_LOG_SCALE = 1e-3
_FIRST_LOG_SCALE = 0.5
_SMALLEST_DISPERSION = 1e-6
_FIRST_DISPERSION = 0.25
_LARGEST_LOG = 20.0


class PositiveLikelihood(WithNumber):
    """Base for likelihoods of positive targets; the first output for each target column is a log.

    With `standardize=True`, targets are divided by their mean, so that an output of 0 stands for it. Logs are kept
    between -20 and 20 in these units, with the gradient of the limit beyond, so that outputs come back.
    """

    is_symmetric: ClassVar[bool] = False
    link: ClassVar[Literal["logs"]] = "logs"
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = False

    def target_units(self, standard: Scaler) -> Scaler:
        """Return the map that divides targets by their mean."""
        if standard.is_identity:
            return standard
        return Scaler(torch.zeros_like(standard.loc), standard.loc.clamp_min(torch.finfo(standard.loc.dtype).tiny))

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse targets that are not positive, and a network of the wrong width."""
        if not bool((y > 0).all()):
            raise InputError(
                f"{type(self).__name__} needs positive targets, got {float(y.min()):g}: for zeros among positive "
                "numbers take a likelihood of real numbers, or of counts.",
                page=PAGE,
            )
        check_width(self, y, outputs)


@registry.register
@setting
class LogNormal(PositiveLikelihood):
    """log y ~ N(f, log_scale^2), independently for each target column; targets are positive.

    The output is the log of the median. Errors multiply: a log scale of 0.1 is an error of about 10 %.

    Attributes:
        log_scale: standard deviation of log y, at least 0.001: a number, "tuned", "learned" or "heteroscedastic"; see
            `pyrobnn.likelihoods.noise.Scale`. It has no units.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood="log_normal")
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [9.0, 30.0, 70.0], steps=20, seed=0, progress=False)
        >>> bool(posterior.predict([[5.0]]).quantile(0.01) > 0)
        True
    """

    log_scale: Annotated[float, Field(ge=_SMALLEST_LOG_SCALE)] | Estimated = "tuned"
    number: ClassVar[str] = "log_scale"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps logs of medians to log-normal distributions."""
        start, least = _FIRST_LOG_SCALE, _SMALLEST_LOG_SCALE
        return Spread(self.log_scale, like, target_scale, _log_normal, name=self.number, start=start, least=least)


@registry.register
@setting
class Gamma(PositiveLikelihood):
    """Positive targets with the mean m = exp(f) and the variance dispersion m^2, column by column.

    This is the gamma regression of generalised linear models (McCullagh & Nelder 1989, ch. 8), with a log link. The
    coefficient of variation, the root of the dispersion, is the same for all means. Its left tail is heavier than that
    of `LogNormal`, and its right tail lighter.

    Attributes:
        dispersion: at least 1e-6: a number, "tuned", "learned" or "heteroscedastic"; see
            `pyrobnn.likelihoods.noise.Scale`. It has no units.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.Gamma(dispersion=0.1))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [9.0, 30.0, 70.0], steps=20, seed=0, progress=False)
        >>> bool(posterior.predict([[5.0]]).quantile(0.01) > 0)
        True
    """

    dispersion: Annotated[float, Field(ge=_SMALLEST_DISPERSION)] | Estimated = "tuned"
    number: ClassVar[str] = "dispersion"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps logs of means to gamma distributions."""
        start, least = _FIRST_DISPERSION, _SMALLEST_DISPERSION
        return Spread(self.dispersion, like, target_scale, _gamma, name=self.number, start=start, least=least)


def _log_normal(loc: Tensor, scale: Tensor) -> TorchDistributionMixin:
    return dist.LogNormal(limited(loc, -_LARGEST_LOG, _LARGEST_LOG), scale)


def _gamma(log_mean: Tensor, dispersion: Tensor) -> TorchDistributionMixin:
    return bounded.Gamma(limited(log_mean, -_LARGEST_LOG, _LARGEST_LOG), dispersion)
