"""Likelihoods of positive targets with a log link, log-normal and gamma, and of shares, beta."""

from typing import Annotated, ClassVar, Literal

import pyro.distributions as dist
import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.distributions import targets
from pyrobnn.distributions.units import Scaler
from pyrobnn.likelihoods.base import PAGE, check_width, limited, registry
from pyrobnn.likelihoods.noise import Estimated, WithNumber

_SMALLEST_LOG_SCALE = 1e-3
_SMALLEST_DISPERSION = 1e-6
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
        if standard.is_identity:
            return standard
        return Scaler(torch.zeros_like(standard.loc), standard.loc.clamp_min(torch.finfo(standard.loc.dtype).tiny))

    def check_targets(self, y: Tensor, outputs: int) -> None:
        if not bool((y > 0).all()):
            remedy = "for zeros among positive numbers take a likelihood of real numbers, or of counts"
            name, got = type(self).__name__, float(y.min())
            raise InputError(f"{name} needs positive targets, got {got:g}: {remedy}.", page=PAGE)
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
    first: ClassVar[float] = 0.5
    least: ClassVar[float | None] = _SMALLEST_LOG_SCALE

    @staticmethod
    def family(loc: Tensor, number: Tensor) -> TorchDistributionMixin:
        return dist.LogNormal(limited(loc, -_LARGEST_LOG, _LARGEST_LOG), number)


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
    """

    dispersion: Annotated[float, Field(ge=_SMALLEST_DISPERSION)] | Estimated = "tuned"
    number: ClassVar[str] = "dispersion"
    first: ClassVar[float] = 0.25
    least: ClassVar[float | None] = _SMALLEST_DISPERSION

    @staticmethod
    def family(loc: Tensor, number: Tensor) -> TorchDistributionMixin:
        return targets.TargetGamma(limited(loc, -_LARGEST_LOG, _LARGEST_LOG), number)


_LARGEST_LOGIT = 12.0
_SMALLEST_CONCENTRATION = 1e-3


@registry.register
@setting
class Beta(WithNumber):
    """Shares with the mean m = sigmoid(f) and the variance m (1 - m) / (1 + concentration), column by column.

    This is beta regression (Ferrari & Cribari-Neto 2004). Means stay between 6e-6 and 1 - 6e-6, with the gradient of
    the limit beyond.

    Attributes:
        concentration: at least 0.001: a number, "tuned", "learned" or "heteroscedastic"; see
            `pyrobnn.likelihoods.noise.Scale`. It has no units; the spread is smaller where it is larger.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood="beta")
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0.1, 0.4, 0.9], steps=20, seed=0, progress=False)
        >>> bool(posterior.predict([[1.0]]).quantile(0.9) < 1)
        True
    """

    concentration: Annotated[float, Field(ge=_SMALLEST_CONCENTRATION)] | Estimated = "tuned"
    number: ClassVar[str] = "concentration"
    first: ClassVar[float] = 5.0
    least: ClassVar[float | None] = _SMALLEST_CONCENTRATION
    is_symmetric: ClassVar[bool] = False
    link: ClassVar[Literal["log odds"]] = "log odds"
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = False

    @staticmethod
    def family(loc: Tensor, number: Tensor) -> TorchDistributionMixin:
        return targets.TargetBeta(limited(loc, -_LARGEST_LOGIT, _LARGEST_LOGIT), number)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        least, largest = float(y.min()), float(y.max())
        if least <= 0 or largest >= 1:
            at_ends = least == 0 or largest == 1
            hint = "divide percentages by 100, or scale the targets into this range"
            if at_ends and 0 <= least <= largest <= 1:
                hint = "move 0 and 1 inwards, y = (y (N - 1) + 0.5) / N"
            text = f"Beta needs targets above 0 and below 1, got {least:g} to {largest:g}"
            raise InputError(f"{text}: {hint}, or take a likelihood of real numbers.", page=PAGE)
        check_width(self, y, outputs)
