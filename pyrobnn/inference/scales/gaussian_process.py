"""Length scales of inputs: the Gaussian process of largest evidence, from which open scales begin.

The kernel is squared exponential. Source: Rasmussen and Williams (2006), Gaussian Processes for Machine Learning.
"""

import dataclasses
import math

import torch
from torch import Tensor

from pyrobnn._core.random import seeded
from pyrobnn._torch.lbfgs import descend_in_place

_FIRST = (1.0, 2.0, 4.0)
"""Length scales to begin from, in standard deviations of the inputs: the best after a few steps goes on."""
_TRIAL_STEPS = 10
_MOST_STEPS = 60
_RELATIVE_TOLERANCE = 1e-8
_FIRST_NOISE = 0.5
_MOST_LOG = math.log(1e3)
_LEAST_LOG_LENGTH = math.log(0.05)
_LEAST_LOG_NOISE = math.log(0.01)
"""Bounds of the logs of length scales and deviations, of length scales, and of noise, all in standard deviations. With
length scales below the distances of the rows, a process is noise under another name."""
_ROWS_OF_PROCESS = 250
_GRID = 2.0**30
"""Standardised numbers are rounded to its inverse, so that other units of the data lead to the same length scales."""


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A Gaussian process with a length scale for each input."""

    lengths: Tensor  # in the units of the inputs, (D,)
    mean: Tensor  # of the function at the rows, in the units of the targets, (N, C)
    variance: Tensor  # of the function at the rows, (N, C)


def gaussian_process(x: Tensor, y: Tensor, weights: Tensor, seed: int) -> GaussianProcess | None:
    """Return the Gaussian process of largest evidence, or None for targets that are constant or not finite.

    Of inputs (N, D) and targets (N, C), whose columns share the length scales, each row counts with its weight, (N,).
    The seed draws the 250 rows that are looked at, if there are more. Equations 2.25, 2.26, 5.1 and 5.9.
    """
    like, x, y, weights = y, x.double().cpu(), y.double().cpu(), weights.double().cpu()
    rows = weights.nonzero()[:, 0]
    with seeded(seed, "gaussian process"):
        seen = rows[torch.randperm(len(rows))[:_ROWS_OF_PROCESS].sort().values]
    shares = weights / weights.sum()
    middle, mean_of_targets = shares @ x, shares @ y
    spread = (shares @ (x - middle).square()).sqrt()
    unit = torch.where(_vary(x[rows]), spread, 1.0)
    deviation = (shares @ (y - mean_of_targets).square()).mean().sqrt()
    if not bool(_vary(y[rows]).any() & deviation.isfinite() & unit.isfinite().all()):
        return None
    scaled, targets = (
        (values * _GRID).round() / _GRID for values in ((x - middle) / unit, (y - mean_of_targets) / deviation)
    )
    process = _Process(scaled[seen], targets[seen], weights[seen])
    tried = [process.moved(process.first(length), _TRIAL_STEPS) for length in _FIRST]
    logs = process.moved(min(tried, key=lambda each: float(process.slope(each)[0])), _MOST_STEPS)
    mean, variance = process.function(logs, scaled)
    return GaussianProcess(
        (logs[:-2].exp() * unit).to(like),
        (mean * deviation + mean_of_targets).to(like),
        (variance[:, None] * deviation.square()).expand(mean.shape).to(like),
    )


def _vary(columns: Tensor) -> Tensor:
    """Return which columns are not constant; the spread of equal numbers may be above 0 by rounding."""
    return columns.amax(0) > columns.amin(0)


@dataclasses.dataclass(frozen=True, eq=False)
class _Process:
    """Standardised inputs (N, D), targets (N, C) and weights (N,), which count copies of a row.

    Functions take logs of lengths, deviation and noise, (D + 2,).
    """

    x: Tensor
    y: Tensor
    weights: Tensor

    def first(self, length: float) -> Tensor:
        """Return the logs to begin from."""
        lengths = torch.full((self.x.shape[1],), math.log(length), dtype=torch.float64)
        return torch.cat([lengths, torch.tensor([0.0, math.log(_FIRST_NOISE)], dtype=torch.float64)])

    def moved(self, logs: Tensor, steps: int) -> Tensor:
        """Return the logs after steps of L-BFGS."""
        logs = logs.clone()
        least = [_LEAST_LOG_LENGTH] * (len(logs) - 2) + [-_MOST_LOG, _LEAST_LOG_NOISE]
        bounds = [(bound, _MOST_LOG) for bound in least]
        descend_in_place(lambda: self.slope(logs), [logs], bounds=bounds, maxiter=steps, ftol=_RELATIVE_TOLERANCE)
        return logs

    def _kernel(self, logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scaled inputs, the covariance of the function and that of the targets."""
        x = self.x / logs[:-2].exp()
        kernel = (2 * logs[-2] - torch.cdist(x, x).square() / 2).exp()
        return x, kernel, kernel + (2 * logs[-1]).exp() * self.weights.reciprocal().diag()

    def slope(self, logs: Tensor) -> Tensor:
        """Return the negative log evidence without its constant, and its gradient."""
        x, kernel, total = self._kernel(logs)
        root, failed = torch.linalg.cholesky_ex(total)
        if bool(failed):
            return torch.cat([torch.full((1,), torch.inf), torch.zeros(len(logs))]).double()
        solved, columns = torch.cholesky_solve(self.y, root), self.y.shape[1]
        copies = columns * (self.weights - 1).sum()
        value = 0.5 * (self.y * solved).sum() + columns * root.diagonal().log().sum() + copies * logs[-1]
        change = 0.5 * (columns * torch.cholesky_inverse(root) - solved @ solved.T)
        of_kernel = change * kernel
        lengths = 2 * (of_kernel.sum(1) @ x.square() - (x * (of_kernel @ x)).sum(0))
        deviation = 2 * of_kernel.sum()
        noise = 2 * (2 * logs[-1]).exp() * (change.diagonal() / self.weights).sum() + copies
        return torch.cat([value[None], lengths, deviation[None], noise[None]])

    def function(self, logs: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of the function at inputs, (N, C), and its variance there, (N,)."""
        seen, _, total = self._kernel(logs)
        between = (2 * logs[-2] - torch.cdist(x / logs[:-2].exp(), seen).square() / 2).exp()
        solved = torch.linalg.solve(total, torch.cat([self.y, between.T], 1))
        columns = self.y.shape[1]
        explained = (between * solved[:, columns:].T).sum(1)
        return between @ solved[:, :columns], ((2 * logs[-2]).exp() - explained).clamp_min(0)
