"""The log evidence of a Laplace approximation as a function of precisions, and priors of these (`Hyperprior`)."""

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from pyrobnn.curvature.base import Curvature, Point
from pyrobnn.curvature.prior import PriorCurvature
from pyrobnn.guides.laplace import BlockGuide
from pyrobnn.inference import defaults
from pyrobnn.inference.laplace.gaussian import Result, assemble


@dataclasses.dataclass(frozen=True)
class Hyperprior:
    """The prior of scales: gamma priors of precisions, and a price for weights.

    Attributes:
        counts: weights that each group counts beside those that the data determine: twice the shape of the prior of its
            precision.
        share: mean square of the counted weights, as a share of the variance that the prior declares. A group then
            counts at most its weights. None for a mean square of 1, and no bound.
        noise_counts: targets that Gaussian noise counts likewise, with a tenth of their variance as mean square.
        penalty: nats taken off the leave-one-out score for each weight that the data determine.
    """

    counts: float = 0.0
    share: float | None = None
    noise_counts: float = 0.0
    penalty: float = 0.0

    @classmethod
    def of_real_targets(cls, num_data: float, num_inputs: int, counts: float | None = None) -> "Hyperprior":
        """Return the prior for real targets; without counts, fewer than six rows per input are few."""
        if counts is None:
            counts = defaults.FEW_ROW_COUNTS if num_data < defaults.ROWS_FOR_EACH_INPUT * num_inputs else 0.0
        return cls(counts, defaults.PRIOR_SHARE, min(counts, 1.0), penalty=1.0)

    @classmethod
    def of_labels(cls, counts: float | None = None, *, is_linear: bool = False) -> "Hyperprior":
        """Return the prior for labels and counts, of which any number of rows is few.

        The counted weights of a linear model are of the size that its prior declares. Each input has one or a few
        weights there, and counted weights near zero would decide with them.

        Without the penalty the mode of most flexible functions is taken where cases are rare: of 400 rows with 21 cases
        the leave-one-out score was 0.09 nats a row too good, and the log loss was above a constant's.
        """
        share = defaults.SHARE_OF_LINEAR_LABELS if is_linear else defaults.PRIOR_SHARE
        return cls(defaults.LABEL_COUNTS if counts is None else counts, share, penalty=1.0)


FLAT = Hyperprior()


LARGEST_LOG = 25.0
_UNDETERMINED, _LEAST_SQUARES = 1e-8, 1e-30
"""Share of a group's weights that the data determine below which they say nothing of its precision."""


def next_precisions(
    gamma: Tensor,
    squares: Tensor,
    sizes: Tensor,
    stay: Tensor,
    *,
    counts: Tensor | float = 0.0,
    counted_squares: Tensor | float = 0.0,
    rounding: float = 0.0,
) -> Tensor:
    """Return MacKay's next precision of each group of weights, gamma / squares, under a gamma prior (MacKay 1992).

    Groups that the outputs do not depend on, as those of an input that is constant, stay.

    Args:
        gamma: number of weights that the data determine.
        squares: sum of the squared distances of the weights to the means of their prior.
        sizes: number of weights.
        stay: the precision where the data say nothing.
        counts: number of weights that the hyperprior counts.
        counted_squares: their sum of squares.
        rounding: relative error of gamma.
    """
    is_determined = gamma > max(_UNDETERMINED, rounding) * sizes
    moved = (gamma + counts) / (squares + counted_squares).clamp_min(_LEAST_SQUARES)
    return torch.where(is_determined, moved, stay)


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """The log evidence as a function of log precisions, with the mode and the likelihood's curvature held fixed.

    Attributes:
        point: the mode.
        curvature: of the likelihood, at the present noise.
        guide: a Gaussian to fill.
        group: for each covered entry the number of its group, flat over the sites of the blocks.
        squares: squared distance of each entry to the mean of its prior, likewise.
        log_likelihood: at the present noise, in the units of the model.
        num_targets: how many numbers the targets are, with their weights, and 0 if the noise stays as it is.
        precision: 1 / variance of the noise at present, in the units of the model.
        power: of the noise's precision in the curvature: 2 for squares of gradients, 1 for second derivatives.
    """

    point: Point
    curvature: Curvature
    guide: BlockGuide
    group: Tensor
    squares: Tensor
    log_likelihood: float
    num_targets: float
    precision: float
    power: int

    def fill(self, logs: np.ndarray) -> Result:
        """Fill the guide for log precisions of groups, and of noise if it is tuned; return the blocks' content."""
        scaled = self.curvature.scaled(self.ratio(logs) ** self.power)
        result = assemble(self.point, PriorCurvature(self.precisions(logs)), scaled)
        result.fill(self.guide)
        return result

    def precisions(self, logs: np.ndarray) -> dict[str, Tensor]:
        """Return the precision of the prior of each weight, by site."""
        return self.point.by_site(torch.from_numpy(np.exp(logs[: self.num_groups])).to(self.squares)[self.group])

    def ratio(self, logs: np.ndarray) -> float:
        """Return the noise's precision as a multiple of the present precision."""
        return math.exp(logs[-1]) / self.precision if self.num_targets else 1.0

    @property
    def num_groups(self) -> int:
        """The number of groups of weights."""
        return int(self.group.max()) + 1

    def __call__(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        """Return log evidence and its gradient in the logs (MacKay 1992, "Bayesian Interpolation", eq. 4.10 on).

        With alpha the precision of n weights, d/dlog alpha = (n - alpha (sum w^2 + trace of their covariance)) / 2;
        with beta the precision of the noise, d/dlog beta = (targets - beta SSE - power gamma) / 2, gamma the number of
        well-determined weights.
        """
        self.fill(logs)
        ratio = self.ratio(logs)
        alphas = np.exp(logs[: self.num_groups])
        counts, squares, traces = (self.by_group(value) for value in self._entries())
        value = self.log_likelihood_at(ratio) - 0.5 * float(self.guide.log_det())
        value += 0.5 * float((counts * logs[: self.num_groups] - alphas * squares).sum())
        gradient = 0.5 * (counts - alphas * (squares + traces))
        if self.num_targets:
            gamma = float((counts - alphas * traces).sum())
            gradient = np.append(gradient, 0.5 * (self.num_targets - ratio * self._errors - self.power * gamma))
        return value, gradient

    def fixed_point(self, logs: np.ndarray) -> np.ndarray:
        """Return MacKay's next precisions: gamma / sum w^2, and (targets - power gamma) / SSE for the noise.

        A group that the outputs do not depend on keeps its precision.
        """
        self.fill(logs)
        present = np.exp(logs[: self.num_groups])
        counts, squares, traces = (self.by_group(value) for value in self._entries())
        gamma = np.clip(counts - present * traces, 1e-10 * counts, counts)
        rounding = 10 * torch.finfo(self.squares.dtype).eps
        groups = map(torch.from_numpy, (gamma, squares, counts, present))
        new_logs = next_precisions(*groups, rounding=rounding).log().numpy()
        if self.num_targets:
            beta = (self.num_targets - self.power * gamma.sum()) / (self.ratio(logs) * self._errors)
            new_logs = np.append(new_logs, logs[-1] + math.log(max(beta, 1e-10)))
        return np.clip(new_logs, -LARGEST_LOG, LARGEST_LOG)

    @property
    def _errors(self) -> float:
        """The sum of squared errors times the present precision of the noise."""
        return self.num_targets * (math.log(self.precision) - math.log(2 * math.pi)) - 2 * self.log_likelihood

    def log_likelihood_at(self, ratio: float) -> float:
        """Return the log likelihood for a multiple of the noise's precision."""
        if not self.num_targets:
            return self.log_likelihood
        return self.log_likelihood + 0.5 * self.num_targets * math.log(ratio) - 0.5 * (ratio - 1) * self._errors

    def _entries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for the entries that are Gaussian, 1, the squares, and the variances; 0 for others."""
        spreads = {name: s for block in self.guide.gaussian_blocks() for name, s in block.split(block.spread()).items()}
        variance = self.point.flat(spreads).square()
        is_covered = (variance > 0).to(variance)
        return is_covered, self.squares * is_covered, variance

    def by_group(self, values: Tensor) -> np.ndarray:
        """Return the sum of the entries' values in each group."""
        total = torch.zeros(self.num_groups, dtype=torch.float64).to(values.device)
        return total.index_add(0, self.group, values.double()).cpu().numpy()
