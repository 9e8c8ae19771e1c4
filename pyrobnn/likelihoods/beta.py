"""The beta likelihood for shares: targets between 0 and 1."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.distributions import bounded
from pyrobnn.likelihoods.base import LEAVE_OUT, PAGE, check_width, range_in_words, registry, stays_narrow
from pyrobnn.likelihoods.second_number import Number, SecondNumber, WithSecondNumber

_LARGEST_LOGIT = 12.0
_SMALLEST_CONCENTRATION = 1e-3
_FIRST_CONCENTRATION = 5.0


@registry.register
@setting
class Beta(WithSecondNumber):
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

    concentration: (
        Annotated[float, Field(ge=_SMALLEST_CONCENTRATION)] | Literal["tuned", "learned", "heteroscedastic"]
    ) = "tuned"
    second_number: ClassVar[str] = "concentration"
    is_symmetric: ClassVar[bool] = False
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = False

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps logits of means to beta distributions."""
        return BetaTargets(self.concentration, like, target_scale)

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

    def limits(self, low: Tensor, high: Tensor, y: Tensor) -> str | None:
        """Report the range of means, if their logits stay in a narrow range."""
        if not stays_narrow(low, high):
            return None
        least, largest = float(low.min().floor().sigmoid()), float(high.max().ceil().sigmoid())
        return (
            f"{range_in_words(low, high)}. Beta takes them as logits of means: a mean can only be {least:.2g} to "
            f"{largest:.2g}. {LEAVE_OUT}"
        )


class BetaTargets(SecondNumber):
    """Shares whose mean logits are the network's outputs."""

    def __init__(self, concentration: Number, like: Tensor, target_scale: Tensor) -> None:
        super().__init__(
            "concentration",
            concentration,
            like,
            target_scale,
            start=_FIRST_CONCENTRATION,
            least=_SMALLEST_CONCENTRATION,
        )

    def entries(self, loc: Tensor, *others: Tensor) -> TorchDistributionMixin:
        """Return beta distributions."""
        within = loc.clamp(-_LARGEST_LOGIT, _LARGEST_LOGIT)
        return bounded.Beta(within.detach() + (loc - loc.detach()), self.number(others))
