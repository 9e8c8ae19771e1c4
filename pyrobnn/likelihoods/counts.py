"""Likelihoods of counts with a log link: Poisson, negative binomial, and either with more zeros."""

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.nn.functional import pad

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.distributions import counts
from pyrobnn.likelihoods.base import (
    BaseLikelihood,
    check_width,
    limited,
    num_columns,
    registry,
    require_whole,
    squeeze_single,
)
from pyrobnn.likelihoods.noise import Estimated, Spread, WithNumber

SMALLEST_DISPERSION = 1e-6
LARGEST_LOG = 20.0


class CountLikelihood(BaseLikelihood):
    """Base for likelihoods of counts; the first output for each target column is the log of the mean.

    The log mean is capped at 20, a mean of 5e8, so that no output overflows. Beyond the cap the gradient is that at the
    cap, so that outputs come back. There is no lower bound: a mean may vanish, and its log stays exact.

    Counts of unequal exposure, as of hours or of people, have the rate exp(f) for each unit of it: name the column of x
    with its log as `offset`. It is added to the log of the mean as it is, neither scaled nor seen by the network, and
    predictions need it too. As x of the Pyro model it is the last column.
    """

    is_symmetric: ClassVar[bool] = False
    link: ClassVar[Literal["logs"]] = "logs"
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = True

    def num_outputs(self, y: Tensor) -> int:
        return num_columns(y)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        require_whole(y, type(self).__name__, "counts")
        check_width(self, y, outputs)

    def shifted(self, f: Tensor, offset: Tensor) -> Tensor:
        num = f.shape[1] // self.num_outputs(f.new_empty(1))
        return f + (offset if num == f.shape[1] else pad(offset.expand(-1, num), (0, f.shape[1] - num)))


@registry.register
@setting
class Poisson(CountLikelihood):
    """y ~ Poisson(exp(f)), independently for each target column; targets are counts 0, 1, 2, ...

    The log mean is capped at 20, as in `CountLikelihood`. The variance equals the mean; use `NegativeBinomial` where
    counts vary more.

    Attributes:
        offset: the column of x with the log of the exposure, as in `CountLikelihood`; None for equal exposure.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.Poisson(offset="log_hours"))
        >>> data = bnn.Data([[0.0, 0.0], [1.0, 0.7], [2.0, 1.1]], [0, 2, 7], feature_names=["x", "log_hours"])
        >>> posterior = model.fit(data, steps=20, seed=0, progress=False)
        >>> prediction = posterior.predict([[1.0, 0.7]])
    """

    offset: str | None = None

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return PoissonCounts()


class PoissonCounts(PyroModule):
    """Counts whose log rates are the network's outputs."""

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        log_rate, event_dim = squeeze_single(limited(f, None, LARGEST_LOG))
        return counts.Poisson(log_rate).to_event(event_dim)


@registry.register
@setting
class NegativeBinomial(WithNumber, CountLikelihood):
    """Counts 0, 1, 2, ... with the mean m = exp(f) and the variance m + dispersion m^2, column by column.

    This is the NB2 model (Cameron & Trivedi 1998, "Regression Analysis of Count Data", sec. 3.3): a Poisson with a rate
    that varies about m with squared coefficient of variation `dispersion`. The log mean is capped at 20, as in
    `CountLikelihood`.

    Attributes:
        dispersion: a number of at least 1e-6, "learned" for a value per target column, optimised with the guide, which
            starts at 1 and stays above 1e-6, where the distribution is nearly Poisson, "tuned" for a value chosen by
            the evidence, as in `pyrobnn.likelihoods.noise.Scale`, or "heteroscedastic" for a second output per column.
        offset: the column of x with the log of the exposure, as in `CountLikelihood`; None for equal exposure.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.NegativeBinomial(dispersion=0.5))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0, 2, 7], steps=20, seed=0, progress=False)
    """

    dispersion: Annotated[float, Field(ge=SMALLEST_DISPERSION)] | Estimated = "tuned"
    offset: str | None = None
    number: ClassVar[str] = "dispersion"
    least: ClassVar[float | None] = SMALLEST_DISPERSION

    @staticmethod
    def family(loc: Tensor, number: Tensor) -> TorchDistributionMixin:
        return counts.NegativeBinomial(limited(loc, None, LARGEST_LOG), number)


def _as_dispersion(value: float) -> float:
    if value == 0 or value >= SMALLEST_DISPERSION:
        return value
    raise InputError(f"`dispersion` must be 0, for Poisson counts, or {SMALLEST_DISPERSION:g} and more; got {value:g}.")


@registry.register
@setting
class ZeroInflated(WithNumber, CountLikelihood):
    """Counts that are 0 with the probability sigmoid(g), and else negative binomial or Poisson with the mean exp(f).

    The network has the outputs f and g for each target column, first all f, then all g (Lambert 1992). The log mean is
    capped at 20, as in `Poisson`.

    Attributes:
        dispersion: as in `NegativeBinomial`, or 0 for Poisson counts. A heteroscedastic one is a third output.
        offset: the column of x with the log of the exposure, as in `CountLikelihood`; None for equal exposure.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 2), likelihood=bnn.likelihoods.ZeroInflated(dispersion=0))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0, 0, 7], steps=20, seed=0, progress=False)
    """

    dispersion: Annotated[float, AfterValidator(_as_dispersion)] | Estimated = "tuned"
    offset: str | None = None
    number: ClassVar[str] = "dispersion"
    least: ClassVar[float | None] = SMALLEST_DISPERSION

    def opened(self) -> WithNumber:
        return self if self.dispersion == 0 else super().opened()

    def num_outputs(self, y: Tensor) -> int:
        return super().num_outputs(y) + num_columns(y)

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return ZeroInflatedCounts(self, like, target_scale)


class ZeroInflatedCounts(Spread):
    """Counts whose log means, and logits of further zeros, are the network's outputs."""

    num_others = 1

    def __init__(self, setting: ZeroInflated, like: Tensor, target_scale: Tensor) -> None:
        super().__init__(setting, like, target_scale)
        self.is_poisson = setting.dispersion == 0

    def entries(self, loc: Tensor, number: Tensor, *others: Tensor) -> TorchDistributionMixin:
        log_mean = limited(loc, None, LARGEST_LOG)
        base = counts.Poisson(log_mean) if self.is_poisson else counts.NegativeBinomial(log_mean, number)
        return counts.ZeroInflated(base, *others)
