"""Likelihoods whose first output for a target column is the log of its mean or median."""

from typing import ClassVar

from torch import Tensor

from pyrobnn.likelihoods.base import LEAVE_OUT, BaseLikelihood, first_limited, num_columns, range_in_words

_LARGEST_LOG = 20.0


class LogLink(BaseLikelihood):
    """Base for likelihoods with a log link."""

    is_symmetric: ClassVar[bool] = False

    def limits(self, low: Tensor, high: Tensor, y: Tensor) -> str | None:
        """Report the range of means, if their logs stay in a narrow range or on one side of 0."""
        logs = first_limited(low[: num_columns(y)], high[: num_columns(y)])
        if logs is None:
            return None
        least, largest = (float(value.exp()) for value in logs)
        return (
            f"{range_in_words(*logs)}. {type(self).__name__} takes them as logs of means: a mean can only be "
            f"{least:.2g} to {largest:.2g}. {LEAVE_OUT}"
        )


def capped(f: Tensor, *, below: bool = False) -> Tensor:
    """Return logs no larger than 20, and no smaller than -20 if asked for, with the gradient of f everywhere."""
    within = f.clamp(-_LARGEST_LOG if below else None, _LARGEST_LOG)
    return within.detach() + (f - f.detach())
