"""What targets are like around a smooth function of the inputs, before any network is fitted."""

import dataclasses
import math
from statistics import NormalDist

import torch
from torch import Tensor

from pyrobnn._core.random import derive
from pyrobnn.data.directions import Directions, ranks
from pyrobnn.data.in_memory import Data

_MOST_ROWS = 500
"""Rows that are looked at: a Gaussian process of as many takes a tenth of a second."""
_LENGTHS, _NOISES = (0.125, 0.5, 2.0, 8.0), (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Squared length scales of that process, relative to the median squared distance, and noise relative to the signal."""
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
        """Return those of at most 500 rows, drawn by a seed; of inputs other than one tensor, the targets themselves.

        The kernel is squared exponential, with the length scale and the noise on a grid whose predictions of rows left
        out have the smallest mean absolute error, which outliers change little. Source: Rasmussen and Williams (2006),
        Gaussian Processes for Machine Learning, equation 5.12.
        """
        rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(derive(seed, "residuals")))[
            :_MOST_ROWS
        ]
        y = _standardised(data.y.double().cpu()[rows])
        if not isinstance(data.x, Tensor):
            return cls(torch.zeros(len(rows), 0), y)
        x = data.x.double().cpu().flatten(1)[rows]
        return cls(x, _left_out(_standardised(x), y))

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


def _standardised(values: Tensor) -> Tensor:
    return (values - values.mean(0)) / values.std(0).clamp_min(1e-12)


def _left_out(x: Tensor, y: Tensor) -> Tensor:
    squared = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    usual = squared[squared > 0].median() if bool((squared > 0).any()) else 1.0
    least, residuals = math.inf, y
    for length in _LENGTHS:
        values, vectors = torch.linalg.eigh((-squared / (2 * length * usual)).exp())
        for noise in _NOISES:
            spectrum = values.clamp_min(0) + noise
            weights = vectors @ ((vectors.T @ y) / spectrum)
            precisions = vectors.square() @ (1 / spectrum)
            error = float((weights / precisions).abs().mean())
            if error < least:
                least, residuals = error, weights / precisions.sqrt()
    return residuals
