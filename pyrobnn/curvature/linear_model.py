"""The network linearised around a mode, as a linear model of its weights: evidence and leave-one-out."""

import dataclasses
import math
from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from pyrobnn._core.counts import counted
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import X
from pyrobnn.curvature.base import Point
from pyrobnn.curvature.ggn import GGN
from pyrobnn.curvature.tracker import Tracker

MOST_ENTRIES = 2**26
"""Entries of the Jacobian that are held, half a GiB in double precision."""
_LEAST_OPEN = 1e-15
_DRAWS = 512
_GGN = GGN()


@dataclasses.dataclass(frozen=True, eq=False)
class LinearModel:
    """The outputs as a linear function of the weights around a mode, with the likelihood's information about them.

    Attributes:
        jacobian: derivatives of the outputs in the weights, (N, C, P), double precision.
        columns: R with R R^T the Fisher information of a target in the outputs, weights of examples included,
            (N, C, K), K at most C.
    """

    jacobian: Tensor
    columns: Tensor

    def solve(self, precision: Tensor) -> "Solution":
        """Return the posterior under independent normal priors of given precision, (P,), around the mode.

        With G = R^T J precision^(-1/2), a row per column of each example, all results follow from the eigenvalues of G
        G^T, or from the singular values of G if it has more rows than columns.

        Raises:
            FloatingPointError: squares of derivatives that overflow.
        """
        scaled = self.jacobian * precision.rsqrt()
        rows = torch.einsum("nck,ncp->nkp", self.columns, scaled).flatten(0, 1)
        if not bool(rows.square().sum().isfinite()):
            raise FloatingPointError("Squares of the derivatives of the outputs overflow: look for extreme values.")
        if rows.shape[0] < rows.shape[1]:
            values, left = torch.linalg.eigh(rows @ rows.T)
            values = values.clamp_min(0)
            directions = left.T @ rows
        else:
            left, singular, right = torch.linalg.svd(rows, full_matrices=False)
            values, directions = singular.square(), singular[:, None] * right
        return Solution(scaled, self.columns, values, left.unflatten(0, self.columns.shape[::2]), directions)


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The posterior of a linear model: with G = U D, its precision is I + D^T D in units of the prior's deviations.

    Attributes:
        scaled: derivatives of the outputs in these units, (N, C, P).
        columns: as in `LinearModel`.
        values: squares of the singular values of G, (L,).
        left: U, (N, K, L).
        directions: D, (L, P).
    """

    scaled: Tensor
    columns: Tensor
    values: Tensor
    left: Tensor
    directions: Tensor

    @property
    def log_det(self) -> Tensor:
        """Log det(precision of the posterior) - log det(precision of the prior), ()."""
        return self.values.log1p().sum()

    @property
    def determined(self) -> Tensor:
        """For each weight 1 - prior precision x posterior variance, (P,).

        They add up to the number of well-determined weights (MacKay 1992, "Bayesian Interpolation", eq. 4.9).
        """
        return (self.directions / (1 + self.values).sqrt()[:, None]).square().sum(0)

    @cached_property
    def covariance(self) -> Tensor:
        """Of the outputs of each example, (N, C, C): a sum of squares, so that it is exact however small it is."""
        shrunk = torch.einsum("ncp,lp->ncl", self.scaled, self.directions) / (1 + self.values)
        rest = self.scaled - shrunk @ self.directions
        return rest @ rest.mT + shrunk @ shrunk.mT

    @cached_property
    def open(self) -> Tensor:
        """I - R^T covariance R, (N, K, K): the part of each target that the other examples leave open."""
        eye = torch.eye(self.left.shape[1]).to(self.left)
        missing = eye - self.left @ self.left.mT if self.left.flatten(0, 1).shape[0] > len(self.values) else 0 * eye
        return missing + (self.left / (1 + self.values)) @ self.left.mT

    def leverage(self) -> Tensor:
        """Return the diagonal of R^T covariance R, (N, K): the share of each target in its information."""
        return 1 - self.open.diagonal(dim1=1, dim2=2)

    def at_mode(self, deviation: Tensor, f: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs and scores at the mode of the linear model, a Gauss-Newton step away.

        If weights nearly interpolate their targets, an optimiser's last residual says nothing about the residual at the
        mode, and left-out examples move by a large multiple of it.

        Args:
            deviation: deviation of the weights from their prior mean, in units of the prior's deviation, (P,).
            f: outputs, (N, C).
            score: derivative of the log-likelihood in the outputs, weights of examples included, (N, C).
        """
        steps = (torch.linalg.pinv(self.columns) @ score[..., None])[..., 0]
        linear = torch.einsum("ncp,p->nc", self.scaled, deviation)
        targets = (self.columns.mT @ linear[..., None])[..., 0] + steps
        coefficients = torch.einsum("nkl,nk->l", self.left, targets)
        settled = targets - torch.einsum("nkl,l->nk", self.left, coefficients * self.values / (1 + self.values))
        weights = (coefficients / (1 + self.values)) @ self.directions
        moved = torch.einsum("ncp,p->nc", self.scaled, weights - deviation)
        return f + moved, score + (self.columns @ (settled - steps)[..., None])[..., 0]

    def left_out(self, f: Tensor, score: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean (N, C) and covariance (N, C, C) of each example's outputs given all other examples.

        The example's term is removed from the posterior, exactly if the model is linear and the likelihood Gaussian
        (Vehtari et al. 2016, "Bayesian leave-one-out cross-validation approximations for Gaussian latent variable
        models", sec. 3.3, LA-LOO).

        Args:
            f: outputs at the mode, (N, C).
            score: derivative of the log-likelihood in the outputs, weights of examples included, (N, C).
            share: the share of the example's term to remove, (N,); all of it if None.
        """
        share = (torch.ones_like(f[:, 0]) if share is None else share)[:, None, None]
        eye = torch.eye(self.open.shape[1]).to(self.open)
        remaining, vectors = torch.linalg.eigh((1 - share) * eye + share * self.open)
        pulled = self.covariance @ self.columns @ vectors
        moved = pulled * (share / remaining.clamp_min(_LEAST_OPEN)[:, None, :]) @ pulled.mT
        covariance = self.covariance + moved
        return f - (covariance @ (share * score[..., None]))[..., 0], covariance


def linear_model(point: Point, x: X, *targets: Tensor) -> tuple[LinearModel, Tensor]:
    """Return the linear model of the weights of interest at a point, for all data, and the outputs there, (N, C).

    Raises:
        FloatingPointError: derivatives, or information about the outputs, that are not finite.
    """
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
    needed = num_data * num_outputs * size
    if needed > MOST_ENTRIES:
        raise InputError(
            f"The derivatives of {counted(num_outputs, 'output')} of {counted(num_data, 'example')} in "
            f"{counted(size, 'weight')} need {8 * needed / 2**30:,.1f} GiB: use MarginalLikelihood, which holds them "
            "in parts, or fewer weights."
        )


def log_scores(point: Point, y: Tensor, mean: Tensor, covariance: Tensor, noise: Tensor | None) -> Tensor:
    """Return log E p(y | f) of each example under normal outputs, (N,).

    Args:
        point: has the likelihood.
        y: targets.
        mean: of the outputs, (N, C).
        covariance: of the outputs, (N, C, C).
        noise: standard deviation of Gaussian noise on each output, (C,), for the closed form; None for the mean over
            512 draws in mirrored pairs.
    """
    if noise is not None:
        law = torch.distributions.MultivariateNormal(mean, covariance + noise.square().diag())
        return law.log_prob(y.view(mean.shape).double())
    like = next(iter(point.weights.values()))
    single = [point.likelihood(draw.to(like)).log_prob(y) for draw in normal_draws(mean, covariance, _DRAWS)]
    return torch.stack(single).double().logsumexp(0) - math.log(_DRAWS)


def normal_draws(mean: Tensor, covariance: Tensor, num_draws: int) -> Tensor:
    """Return draws (S, N, C) of normal outputs in mirrored pairs, the same at every call."""
    values, vectors = torch.linalg.eigh(covariance)
    with seeded(0, "outputs"):
        half = torch.randn(num_draws // 2, *mean.shape, 1, dtype=mean.dtype, device=mean.device)
    eps = torch.cat([half, -half])
    return mean + ((vectors * values.clamp_min(0).sqrt()[:, None, :]) @ eps)[..., 0]


def groups_of_inputs(weights: dict[str, Tensor], sites: Iterable[str], num_inputs: int | None) -> Tensor:
    """Return the group of each entry of some sites, flat: a site each, and in the first layer a column each.

    Args:
        weights: values by name.
        sites: their names, in order.
        num_inputs: the number of columns of the inputs, or None for no groups by column.
    """
    groups: list[Tensor] = []
    start, is_open = 0, num_inputs is not None
    for name in sites:
        value = weights[name]
        if is_open and value.ndim == 2 and value.shape[1] == num_inputs:
            group = torch.arange(num_inputs).expand(value.shape).reshape(-1)
            is_open = False
        else:
            group = torch.zeros(value.numel(), dtype=torch.int64)
        groups.append(group + start)
        start += int(group.max()) + 1
    return torch.cat(groups)
