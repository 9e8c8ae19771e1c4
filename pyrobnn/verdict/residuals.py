"""Targets without any network: the errors of a Gaussian process at rows left out, and what they tell of the noise.

The kernel is squared exponential. Source: Rasmussen and Williams (2006), Gaussian Processes for Machine Learning.
"""

import dataclasses
import math
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.random import derive
from pyrobnn.data.in_memory import Data

_SQUARED_LENGTHS = (0.125, 0.5, 2.0, 8.0)
_RELATIVE_NOISES = (1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
_MOST_JUDGED = 500
"""Rows that are looked at: a Gaussian process of as many takes a tenth of a second."""
_HEAVY = 4.0
"""Standard errors by which the excess kurtosis must be above that of a Gaussian."""
_CHANCE_OF_DEPENDENCE = 1e-4
"""The chance that residuals alike everywhere seem to depend on an input: so low that rows held out need to agree by no
more than a standard error."""


def ranks(values: Tensor | np.ndarray) -> np.ndarray:
    """Return the ranks in each column of values (N,) or (N, K) as vectors of mean 0 and length 1, or 0 if all alike.

    Their products are Spearman's rank correlations. NaN has no rank and becomes 0, so that it says nothing.
    """
    from scipy.stats import rankdata

    array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    found = rankdata(array.reshape(len(array), -1), axis=0, nan_policy="omit")
    found = np.nan_to_num(found - np.nanmean(found, axis=0))
    return found / np.linalg.norm(found, axis=0).clip(1e-9)


def standardised(values: Tensor) -> Tensor:
    """Return values (N, ...) less their mean, in standard deviations."""
    return (values - values.mean(0)) / values.std(0).clamp_min(1e-12)


def errors_left_out(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the errors (N,) of a Gaussian process at rows left out one by one, and the same in standard deviations.

    Inputs (N, columns), in float64, and targets (N,) are standardised. Length scale and noise are those of a grid whose
    predictions of rows left out have the smallest mean absolute error, which outliers change little. Equation 5.12.
    """
    squared = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    usual = squared[squared > 0].median() if bool((squared > 0).any()) else 1.0
    least, errors, residuals = math.inf, y, y
    for length in _SQUARED_LENGTHS:
        values, vectors = torch.linalg.eigh((-squared / (2 * length * usual)).exp())
        turned = vectors.T @ y
        for noise in _RELATIVE_NOISES:
            spectrum = values.clamp_min(0) + noise
            weights = vectors @ (turned / spectrum)
            precisions = vectors.square() @ (1 / spectrum)
            mean = float((weights / precisions).abs().mean())
            if mean < least:
                least, errors, residuals = mean, weights / precisions, weights / precisions.sqrt()
    return errors, residuals


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals (N,) of a Gaussian process at inputs x (N, columns), each of a fit to the others, standardised."""

    x: Tensor
    values: Tensor

    @classmethod
    def of(cls, data: Data, seed: int) -> "Residuals":
        """Return those of at most 500 rows, drawn by a seed; of inputs that are no tensor, the targets themselves."""
        generator = torch.Generator().manual_seed(derive(seed, "residuals"))
        rows = torch.randperm(len(data), generator=generator)[:_MOST_JUDGED]
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
        columns = [column for column in self.x.numpy().T if len(np.unique(column[~np.isnan(column)])) > 2]
        if not columns:
            return False
        values = np.stack(columns, 1)
        away = np.abs(values - np.nanmedian(values, axis=0))
        found = ranks(np.hstack([values, away])).T @ ranks(self.values.abs())
        bound = NormalDist().inv_cdf(1 - _CHANCE_OF_DEPENDENCE / (2 * len(found))) / math.sqrt(len(self.values) - 1)
        return bool(abs(found).max() > bound)
