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
from pyrobnn.likelihoods.base import PAGE, check_width, registry
from pyrobnn.likelihoods.log_link import LogLink, capped
from pyrobnn.likelihoods.second_number import Number, SecondNumber, WithSecondNumber

_SMALLEST_LOG_SCALE = 1e-3
_FIRST_LOG_SCALE = 0.5
_SMALLEST_DISPERSION = 1e-6
_FIRST_DISPERSION = 0.25


class PositiveLikelihood(WithSecondNumber, LogLink):
    """Base for likelihoods of positive targets; the first output for each target column is a log.

    With `standardize=True`, targets are divided by their mean, so that an output of 0 stands for it. Logs are kept
    between -20 and 20 in these units, with the gradient of the limit beyond, so that outputs come back.
    """

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
        check_width(self, y, outputs)  # type: ignore[arg-type]


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

    log_scale: Annotated[float, Field(ge=_SMALLEST_LOG_SCALE)] | Literal["tuned", "learned", "heteroscedastic"] = (
        "tuned"
    )
    second_number: ClassVar[str] = "log_scale"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps logs of medians to log-normal distributions."""
        return LogNormalTargets(self.log_scale, like, target_scale)


class LogNormalTargets(SecondNumber):
    """Positive targets whose log medians are the network's outputs."""

    def __init__(self, log_scale: Number, like: Tensor, target_scale: Tensor) -> None:
        super().__init__("log_scale", log_scale, like, target_scale, start=_FIRST_LOG_SCALE, least=_SMALLEST_LOG_SCALE)

    def entries(self, loc: Tensor, *others: Tensor) -> TorchDistributionMixin:
        """Return log-normal distributions."""
        return dist.LogNormal(capped(loc, below=True), self.number(others))


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

    dispersion: Annotated[float, Field(ge=_SMALLEST_DISPERSION)] | Literal["tuned", "learned", "heteroscedastic"] = (
        "tuned"
    )
    second_number: ClassVar[str] = "dispersion"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps logs of means to gamma distributions."""
        return GammaTargets(self.dispersion, like, target_scale)


class GammaTargets(SecondNumber):
    """Positive targets whose log means are the network's outputs."""

    def __init__(self, dispersion: Number, like: Tensor, target_scale: Tensor) -> None:
        super().__init__(
            "dispersion", dispersion, like, target_scale, start=_FIRST_DISPERSION, least=_SMALLEST_DISPERSION
        )

    def entries(self, loc: Tensor, *others: Tensor) -> TorchDistributionMixin:
        """Return gamma distributions."""
        return bounded.Gamma(capped(loc, below=True), self.number(others))
