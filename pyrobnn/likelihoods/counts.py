"""The Poisson and negative binomial likelihoods for counts, both with a log link."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints

from pyrobnn._core.settings import setting
from pyrobnn.distributions import targets
from pyrobnn.likelihoods.base import (
    LEAVE_OUT,
    as_likelihood,
    check_width,
    first_limited,
    num_columns,
    range_in_words,
    registry,
    require_whole,
    squeeze_single,
)

_LARGEST_LOG_MEAN = 20.0
_SMALLEST_DISPERSION = 1e-6


class CountLikelihood:
    """Base for likelihoods of counts, with one output for each target column: the log of the mean.

    The log mean is capped at 20, a mean of 5e8, so that no output overflows. Beyond the cap the gradient is that at the
    cap, so that outputs come back. There is no lower bound: a mean may vanish, and its log stays exact.
    """

    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = True

    def num_outputs(self, y: Tensor) -> int:
        """Return K, a log mean per target column."""
        return num_columns(y)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse targets that are not counts, and a network of the wrong width."""
        require_whole(y, type(self).__name__, "counts")
        check_width(self, y, outputs)  # type: ignore[arg-type]

    def limits(self, low: Tensor, high: Tensor, y: Tensor) -> str | None:
        """Report the range of means, if their logs stay in a narrow range or on one side of 0."""
        logs = first_limited(low, high)
        if logs is None:
            return None
        least, largest = (float(value.exp()) for value in logs)
        return (
            f"{range_in_words(*logs)}. {type(self).__name__} takes them as logs of means: a mean can only be "
            f"{least:.2g} to {largest:.2g}. {LEAVE_OUT}"
        )


@registry.register
@setting
class Poisson(CountLikelihood):
    """y ~ Poisson(exp(f)), independently for each target column; targets are counts 0, 1, 2, ...

    The log mean is capped at 20, as in `CountLikelihood`. The variance equals the mean; use `NegativeBinomial` where
    counts vary more.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.Poisson())
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0, 2, 7], steps=20, seed=0, progress=False)
        >>> posterior.predict([[1.0]]).log_prob([2]).shape
        torch.Size([1])
    """

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps log rates to Poisson distributions."""
        return PoissonCounts()


class PoissonCounts(PyroModule):
    """Counts whose log rates are the network's outputs."""

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map log rates (..., N, K) to Poisson targets of batch shape (..., N)."""
        log_rate, event_dim = squeeze_single(_capped(f))
        return targets.Poisson(log_rate).to_event(event_dim)


@registry.register
@setting
class NegativeBinomial(CountLikelihood):
    """Counts 0, 1, 2, ... with the mean m = exp(f) and the variance m + dispersion m^2, column by column.

    This is the NB2 model (Cameron & Trivedi 1998, "Regression Analysis of Count Data", sec. 3.3): a Poisson with a rate
    that varies about m with squared coefficient of variation `dispersion`. The log mean is capped at 20, as in
    `CountLikelihood`.

    Attributes:
        dispersion: a number of at least 1e-6, "learned" for a value per target column, optimised with the guide, which
            starts at 1 and stays above 1e-6, where the distribution is nearly Poisson, or "tuned" for a value chosen by
            the evidence, as in `pyrobnn.likelihoods.noise.Scale`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.NegativeBinomial(dispersion=0.5))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0, 2, 7], steps=20, seed=0, progress=False)
        >>> prediction = posterior.predict([[1.0]])
        >>> bool((prediction.variance > prediction.mean).all())
        True
    """

    dispersion: Annotated[float, Field(ge=_SMALLEST_DISPERSION)] | Literal["tuned", "learned"] = "tuned"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps log means to negative binomial distributions."""
        return NegativeBinomialCounts(self.dispersion, like, target_scale)


class NegativeBinomialCounts(PyroModule):
    """Counts whose log means are the network's outputs, with a dispersion that is a buffer or a parameter."""

    def __init__(self, dispersion: float | Literal["tuned", "learned"], like: Tensor, target_scale: Tensor) -> None:
        super().__init__()
        if isinstance(dispersion, str):
            allowed = constraints.greater_than(_SMALLEST_DISPERSION)
            self.dispersion = PyroParam(like.new_ones(target_scale.shape), allowed)
        else:
            self.register_buffer("dispersion", like.new_full((), dispersion))

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map log means (..., N, K) to negative binomial targets of batch shape (..., N)."""
        log_mean, event_dim = squeeze_single(_capped(f))
        return targets.NegativeBinomial(log_mean, self.dispersion).to_event(event_dim)


def _capped(f: Tensor) -> Tensor:
    """Return log means no larger than the largest, with the gradient of f everywhere."""
    return f.clamp_max(_LARGEST_LOG_MEAN).detach() + (f - f.detach())


def with_open_noise(likelihood: Any) -> Any:
    """Return a likelihood that learns its noise, or its dispersion, even if it was known."""
    if as_likelihood(likelihood).noise not in (None, "heteroscedastic"):
        return dataclasses.replace(likelihood, scale="learned")
    if isinstance(likelihood, NegativeBinomial):
        return dataclasses.replace(likelihood, dispersion="learned")
    return likelihood
