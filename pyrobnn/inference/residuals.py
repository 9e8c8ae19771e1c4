"""What targets are like around a smooth function of the inputs, before any network is fitted."""

import dataclasses
import math
from statistics import NormalDist

import torch
from torch import Tensor

from pyrobnn._core.random import derive
from pyrobnn.data.directions import Directions, ranks
from pyrobnn.data.in_memory import Data
from pyrobnn.data.smooth_function import errors_left_out, standardised

_MOST_ROWS = 500
"""Rows that are looked at: a Gaussian process of as many takes a tenth of a second."""
_HEAVY = 4.0
"""Standard errors by which the excess kurtosis must be above that of a Gaussian."""
_LEVEL = 1e-4
"""The chance that residuals alike everywhere seem to depend on an input: so low that rows held out need to agree by no
more than a standard error."""


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals of a Gaussian process at some rows, each fitted to the others, in standard deviations.

    Attributes:
        x: inputs of the rows (N, columns), in float64.
        values: the residuals (N,).
    """

    x: Tensor
    values: Tensor

    @classmethod
    def of(cls, data: Data, seed: int) -> "Residuals":
        """Return those of at most 500 rows, drawn by a seed; of inputs that are no tensor, the targets themselves."""
        rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(derive(seed, "residuals")))[
            :_MOST_ROWS
        ]
        y = standardised(data.y.double().cpu()[rows])
        if not isinstance(data.x, Tensor):
            return cls(torch.zeros(len(rows), 0), y)
        x = data.x.double().cpu().flatten(1)[rows]
        return cls(x, errors_left_out(standardised(x), y)[1])

    @property
    def have_heavy_tails(self) -> bool:
        """Whether their excess kurtosis is above that of as many normal numbers."""
        away = self.values - self.values.mean()
        excess = float(away.pow(4).mean() / away.square().mean().square()) - 3
        return excess > _HEAVY * math.sqrt(24 / len(away))

    @property
    def vary_with_inputs(self) -> bool:
        """Whether their size depends on a column, or on the distance from its median, by rank correlations.

        Each is normal of variance 1 / (N - 1) where it does not. The level is for all together (Bonferroni).
        """
        directions = Directions.of(self.x, ())
        if not directions.names:
            return False
        found = directions.ranks.T @ ranks(self.values.abs())
        bound = NormalDist().inv_cdf(1 - _LEVEL / (2 * len(found))) / math.sqrt(len(self.values) - 1)
        return bool(abs(found).max() > bound)
