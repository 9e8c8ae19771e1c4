"""The empirical Fisher information: outer products of the gradients of single examples."""

from typing import ClassVar

from torch import Tensor

from pyrobnn.curvature.base import Point
from pyrobnn.curvature.metric import score_columns
from pyrobnn.curvature.outer_products import OuterProducts


class EmpiricalFisher(OuterProducts):
    """The sum over examples of the outer products of the gradients of the log-likelihood in the weights."""

    name: ClassVar[str] = "fisher"
    noise_power: ClassVar[int] = 2

    def columns(self, point: Point, f: Tensor, y: Tensor) -> Tensor:
        """Return the scores."""
        return score_columns(point.likelihood, f, y)
