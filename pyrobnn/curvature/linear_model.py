"""The network linearised around a mode, as a linear model of its weights: evidence and leave-one-out."""

import dataclasses
import math
from functools import cached_property

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import X
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.metric import score_columns
from pyrobnn.curvature.outer_products import GGN
from pyrobnn.curvature.tracker import Tracker

MOST_ENTRIES = 2**26
"""Entries of the Jacobian that are held, half a GiB in double precision."""
_SMALLEST_OPEN_SHARE = 1e-15
_SCORE_DRAWS = 512
_SCORE_DRAWS_AT_ONCE = 32
_RELATIVE_ROUNDING = 10 * torch.finfo(torch.float64).eps
"""Added to the diagonal, as a share of its sum, where rounding has made an eigenvalue negative."""
_GGN = GGN()


@dataclasses.dataclass(frozen=True, eq=False)
class LinearModel:
    """The outputs as a linear function of the weights around a mode, with the likelihood's information about them.

    Attributes:
        jacobian: derivatives of the outputs in the weights, (N, C, P), double precision.
        columns: R (N, C, K), K at most C: R R^T is the Fisher information of a target in the outputs, times its weight.
    """

    jacobian: Tensor
    columns: Tensor

    @cached_property
    def information(self) -> Tensor:
        """J^T R R^T J, (P, P)."""
        rows = _rows(self.jacobian, self.columns)
        return rows.T @ rows

    @property
    def precision(self) -> Tensor:
        """The diagonal of the information, (P,)."""
        return _rows(self.jacobian, self.columns).square().sum(0)

    def with_noise(self, ratio: Tensor) -> "LinearModel":
        """Return the model with noise of a ratio, (C,), of the deviation on each output."""
        model = dataclasses.replace(self, columns=self.columns / ratio)
        if len(ratio) == 1 and "information" in vars(self):
            vars(model)["information"] = self.information / ratio.square()
        return model

    def solve(self, precision: Tensor) -> "Solution":
        """Return the posterior under independent normal priors of given precision, (P,), around the mode.

        With G = R^T J precision^(-1/2), a row per column of each example, all results follow from a triangular root of
        I + G G^T, or of I + G^T G if G has more rows than columns.
        """
        num, _, width = self.columns.shape
        scale = precision.rsqrt()
        if num * width < len(precision):
            rows = _rows(self.jacobian * scale, self.columns)
            gram = rows @ rows.T
        else:
            gram = scale[:, None] * self.information * scale
        rounding = _RELATIVE_ROUNDING * gram.trace()
        gram.diagonal().add_(1)
        root, failed = torch.linalg.cholesky_ex(gram)
        if bool(failed):
            gram.diagonal().add_(rounding)
            root, failed = torch.linalg.cholesky_ex(gram)
        if bool(failed) or not bool(rounding.isfinite()):
            raise FloatingPointError("Squares of the derivatives of the outputs overflow: look for extreme values.")
        return Solution(self.jacobian, scale, self.columns, root)


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The posterior of a linear model: its precision is I + G^T G in units of the prior's deviations.

    `scale` (P,) are these deviations, `root` the triangular root of I + G G^T, or of I + G^T G if that is smaller.
    """

    jacobian: Tensor
    scale: Tensor
    columns: Tensor
    root: Tensor

    @cached_property
    def scaled(self) -> Tensor:
        """Derivatives of the outputs in units of the prior's deviations, (N, C, P)."""
        return self.jacobian * self.scale

    @cached_property
    def rows(self) -> Tensor:
        """G, (N K, P)."""
        return _rows(self.scaled, self.columns)

    @property
    def is_wide(self) -> bool:
        """Whether G has fewer rows than columns."""
        return self.columns.shape[0] * self.columns.shape[2] < len(self.scale)

    @property
    def log_det(self) -> Tensor:
        """Log det(precision of the posterior) - log det(precision of the prior), ()."""
        return 2 * self.root.diagonal().log().sum()

    @cached_property
    def determined(self) -> Tensor:
        """1 - prior precision x posterior variance, (P,), which add up to the well-determined weights (MacKay 1992)."""
        if self.is_wide:
            return self._over_root(self.rows).square().sum(0)
        return 1 - self._over_root(torch.eye(len(self.root)).to(self.root)).square().sum(0)

    @cached_property
    def covariance(self) -> Tensor:
        """Of the outputs of each example, (N, C, C): a sum of squares, so that it is exact however small it is."""
        scaled = self.scaled.flatten(0, 1)
        if self.is_wide:
            shrunk = torch.cholesky_solve(self.rows @ scaled.T, self.root).T
            halves = torch.cat([scaled - shrunk @ self.rows, shrunk], 1)
        else:
            halves = self._over_root(scaled.T).T
        parts = halves.view(*self.scaled.shape[:2], -1)
        return parts @ parts.mT

    @cached_property
    def open(self) -> Tensor:
        """I - R^T covariance R, (N, K, K): the part of each target that the other examples leave open."""
        num, _, width = self.columns.shape
        if not self.is_wide:
            return torch.eye(width).to(self.rows) - self.columns.mT @ self.covariance @ self.columns
        places = torch.arange(num)
        return torch.cholesky_inverse(self.root).view(num, width, num, width)[places, :, places]

    def determined_by(self) -> Tensor:
        """Return the sum over examples of the diagonal of R^T covariance R, (K,), which add up to `determined`."""
        if self.columns.shape[2] == 1:
            return self.determined.sum()[None]
        return (1 - self.open.diagonal(dim1=1, dim2=2)).sum(0)

    def at_mode(self, deviation: Tensor, f: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and scores at the mode of the linear model, a Gauss-Newton step away.

        Left-out examples move by a multiple of an optimiser's last residual if weights nearly interpolate the targets.
        The deviation (P,) from the prior mean is in units of the prior's; outputs `f` (N, C) have the derivative
        `score` (N, C) of the log-likelihood, weights of examples included.
        """
        steps = (torch.linalg.pinv(self.columns) @ score[..., None])[..., 0]
        linear = torch.einsum("ncp,p->nc", self.scaled, deviation)
        targets = ((self.columns.mT @ linear[..., None])[..., 0] + steps).reshape(-1, 1)
        if self.is_wide:
            settled = torch.cholesky_solve(targets, self.root)
            weights = self.rows.T @ settled
        else:
            weights = torch.cholesky_solve(self.rows.T @ targets, self.root)
            settled = targets - self.rows @ weights
        moved = torch.einsum("ncp,p->nc", self.scaled, weights[:, 0] - deviation)
        return f + moved, score + (self.columns @ (settled.view_as(steps) - steps)[..., None])[..., 0]

    def _over_root(self, values: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.root, values, upper=False)

    def left_out(self, f: Tensor, score: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean (N, C) and covariance (N, C, C) of each example's outputs given all other examples.

        The example's term is removed from the posterior, exactly if the model is linear and the likelihood Gaussian
        (Vehtari et al. 2016, sec. 3.3, LA-LOO). `f` and `score` are as in `at_mode`; `share` (N,) is the share of the
        term to remove, all of it if None.
        """
        share = (torch.ones_like(f[:, 0]) if share is None else share)[:, None, None]
        eye = torch.eye(self.open.shape[1]).to(self.open)
        remaining, vectors = torch.linalg.eigh((1 - share) * eye + share * self.open)
        pulled = self.covariance @ self.columns @ vectors
        moved = pulled * (share / remaining.clamp_min(_SMALLEST_OPEN_SHARE)[:, None, :]) @ pulled.mT
        covariance = self.covariance + moved
        return f - (covariance @ (share * score[..., None]))[..., 0], covariance


def _rows(jacobian: Tensor, columns: Tensor) -> Tensor:
    """Return R^T J, a row per column of each example, (N K, P)."""
    return torch.einsum("nck,ncp->nkp", columns, jacobian).flatten(0, 1)


def linear_model(point: Point, x: X, *targets: Tensor) -> tuple[LinearModel, Tensor]:
    """Return the linear model of the weights of interest at a point, for all data, and the outputs there, (N, C)."""
    tracker = Tracker(point.bnn, point.weights, point.sites, x[:1])
    size = tracker.examples_at_once(tracker.alone.f.shape[1], point.size)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for x_part, *rest in zip(*(values.split(size) for values in (x, *targets)), strict=True):
        pulled = tracker.pull(x_part)
        jacobian = pulled.rows(point.sites).movedim(0, 1)
        parts.append((jacobian.detach().double(), information(point, pulled.f, *rest), pulled.f.double()))
    jacobian, columns, f = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    for name, value in (("derivatives of the outputs", jacobian), ("information about the outputs", columns)):
        if not bool(value.isfinite().all()):
            raise FloatingPointError(f"The {name} are not finite: look for extreme values in the data.")
    return LinearModel(jacobian, columns), f


def information(point: Point, f: Tensor, *targets: Tensor) -> Tensor:
    """Return the `columns` of a linear model at outputs f, (N, C), at most C of them.

    Some likelihoods have many more, a column per simulated target: only R R^T counts, and C columns are a root of it.
    """
    columns: Tensor = _GGN.weighted_columns(point, f, *targets).movedim(0, 2).detach().double()
    if columns.shape[2] <= columns.shape[1]:
        return columns
    values, vectors = torch.linalg.eigh(columns @ columns.mT)
    return vectors * values.clamp_min(0).sqrt()[:, None, :]


def check_entries(num_data: int, num_outputs: int, size: int) -> None:
    """Refuse a Jacobian that does not fit into memory."""
    if (needed := num_data * num_outputs * size) > MOST_ENTRIES:
        sizes = f"{counted(num_outputs, 'output')} of {counted(num_data, 'example')} in {counted(size, 'weight')}"
        remedy = 'use SVI(guide="laplace"), which holds them in parts, then tune_prior, or fewer weights'
        raise InputError(f"The derivatives of {sizes} need {8 * needed / 2**30:,.1f} GiB: {remedy}.")


def scores_left_out(point: Point, precision: Tensor, x: X, y: Tensor) -> Tensor:
    """Return the log score of each example (N,) given all others, under a prior of that precision (P,) or (P, P)."""
    model, f = linear_model(point, x, y)
    solution = model.solve(precision)
    (column,) = score_columns(point.likelihood, f.to(point.bnn.like.dtype), y)
    with torch.no_grad():
        return log_scores(point, y, *solution.left_out(f, column.double()), None)


def log_scores(point: Point, y: Tensor, mean: Tensor, covariance: Tensor, noise: Tensor | None) -> Tensor:
    """Return log E p(y | f) of each example, (N,), under normal outputs of mean (N, C) and covariance (N, C, C).

    `noise` (C,) is the deviation of Gaussian noise on each output, for the closed form; None for the mean over draws.
    """
    if noise is not None:
        root = torch.linalg.cholesky(covariance + noise.square().diag())  # MultivariateNormal would import sympy
        missed = (y.view(mean.shape).double() - mean)[..., None]
        squares = torch.linalg.solve_triangular(root, missed, upper=False).square().sum((1, 2))
        return -0.5 * (mean.shape[1] * math.log(2 * math.pi) + squares) - root.diagonal(dim1=1, dim2=2).log().sum(1)
    like = next(iter(point.weights.values()))
    draws = normal_draws(mean, covariance, _SCORE_DRAWS).to(like).split(_SCORE_DRAWS_AT_ONCE)
    scores = torch.cat([point.likelihood(part).log_prob(y) for part in draws])
    return scores.double().logsumexp(0) - math.log(_SCORE_DRAWS)


def normal_draws(mean: Tensor, covariance: Tensor, num_draws: int) -> Tensor:
    """Return draws (S, N, C) of normal outputs in mirrored pairs, the same at every call."""
    values, vectors = torch.linalg.eigh(covariance)
    with seeded(0, "outputs"):
        half = torch.randn(num_draws // 2, *mean.shape, 1, dtype=mean.dtype, device=mean.device)
    eps = torch.cat([half, -half])
    return mean + ((vectors * values.clamp_min(0).sqrt()[:, None, :]) @ eps)[..., 0]
