"""The beta likelihood for shares: targets between 0 and 1."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.distributions import bounded
from pyrobnn.likelihoods.base import PAGE, check_width, limited, registry
from pyrobnn.likelihoods.noise import Estimated, Spread, WithNumber

_LARGEST_LOGIT = 12.0
_SMALLEST_CONCENTRATION = 1e-3
_FIRST_CONCENTRATION = 5.0


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
        >>> bool(posterior.predict([[5.0]]).quantile(0.99) < 1)
        True
    """

    concentration: Annotated[float, Field(ge=_SMALLEST_CONCENTRATION)] | Estimated = "tuned"
    number: ClassVar[str] = "concentration"
    is_symmetric: ClassVar[bool] = False
    link: ClassVar[Literal["log odds"]] = "log odds"
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = False

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps logits of means to beta distributions."""
        start, least = _FIRST_CONCENTRATION, _SMALLEST_CONCENTRATION
        return Spread(self.concentration, like, target_scale, _beta, name=self.number, start=start, least=least)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse targets that are not between 0 and 1, and a network of the wrong width."""
        least, largest = float(y.min()), float(y.max())
        if least <= 0 or largest >= 1:
            at_ends = least == 0 or largest == 1
            hint = "move 0 and 1 inwards, y = (y (N - 1) + 0.5) / N," if at_ends and 0 <= least <= largest <= 1 else (
                "divide percentages by 100, or scale the targets into this range,"
            )  # fmt: skip
            raise InputError(
                f"Beta needs targets above 0 and below 1, got {least:g} to {largest:g}: {hint} or take a likelihood "
                "of real numbers.",
                page=PAGE,
            )
        check_width(self, y, outputs)


def _beta(logit: Tensor, concentration: Tensor) -> TorchDistributionMixin:
    return bounded.Beta(limited(logit, -_LARGEST_LOGIT, _LARGEST_LOGIT), concentration)
