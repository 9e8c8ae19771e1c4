"""The Fisher information of a likelihood in the outputs of the network, as columns whose outer products sum to it.

Generalised Gauss-Newton curvature is J^T F J, with J the Jacobian of the outputs and F the information of a target
about them (Schraudolph 2002; Martens 2020, "New Insights and Perspectives on the Natural Gradient Method", sec. 9).
If the outputs are natural parameters (Gaussian of known noise, classes, counts), F is the Hessian of the negative log
likelihood; otherwise it is its expectation over targets, and so never negative.
"""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.random import seeded
from pyrobnn.curvature.outer import DiagonalLess
from pyrobnn.distributions import targets
from pyrobnn.distributions.support import base_of
from pyrobnn.likelihoods.base import known_fisher_columns, known_fisher_diagonal

_DRAWS = 256
_NODES = 64
_WIDEST = 8.0
Likelihood = Callable[[Tensor], Any]
Terms = list[tuple[Tensor, Tensor]]


def fisher_columns(likelihood: Likelihood, f: Tensor) -> Tensor:
    """Return columns v with sum_k v[k, b] v[k, b]^T the Fisher information of a target in f[b], (K, B, C).

    It is exact for the likelihoods of this library. For another distribution it is the mean over 256 draws of the
    outer products of its scores. If a likelihood has a function `fisher_columns`, that is used.

    Args:
        likelihood: maps outputs (B, C) to the distribution of targets, of batch shape (B,).
        f: outputs (B, C).
    """
    known = known_fisher_columns(likelihood, f.detach())
    return columns_by_autograd(likelihood, f) if known is None else known


def diagonal_less(likelihood: Likelihood, f: Tensor) -> DiagonalLess | None:
    """Return the same information where it is a diagonal less one outer product; None where that is not known."""
    known = known_fisher_diagonal(likelihood, f.detach())
    return None if known is None else DiagonalLess(*known)


def columns_by_autograd(likelihood: Likelihood, f: Tensor) -> Tensor:
    """Return the same columns from the derivatives of the distribution's parameters in f."""
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        terms = [term for term in _information(base_of(likelihood(f))) if term[0].requires_grad]
        columns_of_terms = [_columns(*term, f) for term in terms]
        return torch.cat([columns for columns in columns_of_terms if columns is not None])


def log_probs(likelihood: Likelihood, f: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return log p(y[b] | f[b]) of each example, times its weight if given, (B,)."""
    values: Tensor = likelihood(f).log_prob(y)
    return values if weights is None else weights * values


def score_columns(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    """Return the derivative of log p(y[b] | f[b]) in f[b] as a column, (1, B, C): the empirical Fisher's root."""
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        (score,) = torch.autograd.grad(likelihood(f).log_prob(y).sum(), f)
    return score[None]


def _columns(parameter: Tensor, information: Tensor, f: Tensor) -> Tensor | None:
    """Return sqrt(information) times the derivative of each entry of a parameter (B, *) in f, (entries, B, C)."""
    flat = parameter.reshape(len(f), -1)
    roots = information.detach().expand(parameter.shape).reshape(len(f), -1).sqrt()
    picks = torch.eye(flat.shape[1]).to(f)[:, None, :] * roots
    return torch.autograd.grad(flat, f, picks, is_grads_batched=True, retain_graph=True, allow_unused=True)[0]


@singledispatch
def _information(distribution: Any) -> Terms:
    """Return parameters with the information about each of their entries; together they are all there is."""
    with seeded(0, "scores"):
        drawn = distribution.sample((_DRAWS,))
    scores = distribution.log_prob(drawn).movedim(0, -1)
    return [(scores, torch.full_like(scores, 1 / _DRAWS))]


@_information.register
def _(distribution: torch.distributions.Categorical) -> Terms:
    return [(distribution.logits, distribution.probs)]


@_information.register
def _(distribution: torch.distributions.Bernoulli) -> Terms:
    return [(distribution.logits, distribution.probs * (1 - distribution.probs))]


@_information.register
def _(distribution: torch.distributions.Normal) -> Terms:
    return _location_scale(distribution, 1.0, 2.0)


@_information.register
def _(distribution: torch.distributions.Laplace) -> Terms:
    return _location_scale(distribution, 1.0, 1.0)


@_information.register
def _(distribution: targets.StudentT) -> Terms:
    df = distribution.df
    return _location_scale(distribution, (df + 1) / (df + 3), 2 * df / (df + 3))


@_information.register
def _(distribution: targets.Poisson) -> Terms:
    return [(distribution.log_rate, distribution.mean)]


@_information.register
def _(distribution: targets.NegativeBinomial) -> Terms:
    return [(distribution.log_mean, distribution.mean / (1 + distribution.dispersion * distribution.mean))]


@_information.register
def _(distribution: targets.CensoredNormal) -> Terms:
    """Gauss-Legendre quadrature between the limits, and the limits themselves, weighed with their probabilities."""
    loc, scale = distribution.loc.detach(), distribution.scale.detach()
    ends = [
        loc - _WIDEST * scale if distribution.lower is None else torch.maximum(distribution.lower, loc - 8 * scale),
        loc + _WIDEST * scale if distribution.upper is None else torch.minimum(distribution.upper, loc + 8 * scale),
    ]
    nodes, weights = (loc.new_tensor(values) for values in np.polynomial.legendre.leggauss(_NODES))
    half = ((ends[1] - ends[0]) / 2).clamp_min(0)[..., None]
    inside = ends[0][..., None] + half * (1 + nodes)
    density = torch.exp(-0.5 * ((inside - loc[..., None]) / scale[..., None]) ** 2) / scale[..., None]
    places = list(zip(inside.unbind(-1), (half * weights * density / math.sqrt(2 * math.pi)).unbind(-1), strict=True))
    for limit, sign in ((distribution.lower, 1.0), (distribution.upper, -1.0)):
        if limit is not None:
            places.append((limit, torch.special.ndtr(sign * (limit - loc) / scale)))
    return [(distribution.log_prob(place), weight) for place, weight in places]


def _location_scale(distribution: Any, of_loc: float | Tensor, of_scale: float | Tensor) -> Terms:
    precision = distribution.scale.square().reciprocal()
    return [(distribution.loc, of_loc * precision), (distribution.scale, of_scale * precision)]
