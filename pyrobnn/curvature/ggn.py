"""The generalised Gauss-Newton matrix: the Fisher information of the likelihood, pulled back through the network."""

from typing import ClassVar

from torch import Tensor

from pyrobnn.curvature.base import Point
from pyrobnn.curvature.metric import diagonal_less, fisher_columns
from pyrobnn.curvature.outer import DiagonalLess
from pyrobnn.curvature.outer_products import OuterProducts
from pyrobnn.likelihoods.base import as_module


class GGN(OuterProducts):
    """J^T F J, with F the Fisher information of a target in the outputs; never negative."""

    name: ClassVar[str] = "ggn"

    def columns(self, point: Point, f: Tensor, y: Tensor) -> Tensor:
        """Return columns whose outer products are the information."""
        columns, present = fisher_columns(point.likelihood, f), as_module(point.likelihood).present(y)
        return columns if present is None else columns * present

    def information(self, point: Point, f: Tensor) -> DiagonalLess | None:
        """Return the information where it needs no columns."""
        return diagonal_less(point.likelihood, f)
