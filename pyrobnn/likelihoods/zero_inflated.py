"""The zero-inflated likelihood for counts with more zeros than their mean explains."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.distributions import counts
from pyrobnn.likelihoods.base import limited, num_columns, registry
from pyrobnn.likelihoods.counts import FIRST_DISPERSION, LARGEST_LOG, SMALLEST_DISPERSION, CountLikelihood
from pyrobnn.likelihoods.noise import Estimated, Spread, WithNumber


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

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 2), likelihood=bnn.likelihoods.ZeroInflated(dispersion=0))
        >>> posterior = model.fit([[0.0], [1.0], [2.0]], [0, 0, 7], steps=20, seed=0, progress=False)
        >>> posterior.predict([[1.0]]).log_prob([0]).shape
        torch.Size([1])
    """

    dispersion: Annotated[float, AfterValidator(_as_dispersion)] | Estimated = "tuned"
    number: ClassVar[str] = "dispersion"

    def opened(self) -> WithNumber:
        """Return the setting with its dispersion learned; Poisson counts stay so."""
        return self if self.dispersion == 0 else super().opened()

    def num_outputs(self, y: Tensor) -> int:
        """Return 2 K, or 3 K where the dispersion depends on the input."""
        return super().num_outputs(y) + num_columns(y)

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps log means and logits of zeros to distributions."""
        return ZeroInflatedCounts(self.dispersion, like, target_scale)


class ZeroInflatedCounts(Spread):
    """Counts whose log means, and logits of further zeros, are the network's outputs."""

    num_others = 1

    def __init__(self, dispersion: Any, like: Tensor, target_scale: Tensor) -> None:
        start, least = FIRST_DISPERSION, SMALLEST_DISPERSION
        super().__init__(dispersion, like, target_scale, name="dispersion", start=start, least=least)
        self.is_poisson = dispersion == 0

    def entries(self, loc: Tensor, number: Tensor, *others: Tensor) -> TorchDistributionMixin:
        """Return zero-inflated distributions."""
        log_mean = limited(loc, None, LARGEST_LOG)
        base = counts.Poisson(log_mean) if self.is_poisson else counts.NegativeBinomial(log_mean, number)
        return counts.ZeroInflated(base, *others)
