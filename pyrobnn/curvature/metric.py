"""The Fisher information of a likelihood in the outputs of the network, as columns whose outer products sum to it.

Generalised Gauss-Newton curvature is J^T F J, with J the Jacobian of the outputs and F the information of a target
about them (Schraudolph 2002; Martens 2020, sec. 9). If the outputs are natural parameters (Gaussian of known noise,
classes, counts), F is the Hessian of the negative log likelihood; else its expectation, and so never negative.
"""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.random import seeded
from pyrobnn.distributions import counts, targets
from pyrobnn.distributions.support import base_of
from pyrobnn.likelihoods.base import as_module


class Columns(NamedTuple):
    """sum_k g_k g_k^T for g (K, B, O)."""

    g: Tensor

    def squares(self) -> Tensor:
        """Return the diagonals, (B, O)."""
        return self.g.square().sum(0)

    def total(self) -> Tensor:
        """Return the sum over examples, (O, O)."""
        rows = self.g.flatten(0, 1)
        return rows.T @ rows

    def row(self, o: int) -> Tensor:
        """Return the entries of row o from the diagonal on, (B, O - o)."""
        return (self.g[:, :, o, None] * self.g[:, :, o:]).sum(0)


class DiagonalLess(NamedTuple):
    """diag(d) - v v^T for d and v (B, O), as the information of a label in its logits, where d = v = p."""

    d: Tensor
    v: Tensor

    def squares(self) -> Tensor:
        return self.d - self.v.square()

    def total(self) -> Tensor:
        """Return the sum over examples, (O, O), which has no entry above 0 off its diagonal."""
        return self.d.sum(0).diag() - self.v.T @ self.v

    def row(self, o: int) -> Tensor:
        row = -self.v[:, o, None] * self.v[:, o:]
        row[:, 0] += self.d[:, o]
        return row

    def weighted(self, weights: Tensor) -> "DiagonalLess":
        """Return the matrices, each times the weight of its example, (B,)."""
        return DiagonalLess(self.d * weights[:, None], self.v * weights.sqrt()[:, None])


Outer = Columns | DiagonalLess
"""A matrix (O, O) for each of B examples, never held: a sum of outer products of derivatives in a layer's outputs."""
_FISHER_DRAWS = 256
_NUM_NODES = 64
_REACH_IN_DEVIATIONS = 8.0
_SINH_REACH = 6.0
_MOST_COUNT_NODES = 512
_COUNT_REACH_IN_DEVIATIONS = 20.0
Likelihood = Callable[[Tensor], Any]
Information = Tensor | Callable[[], Tensor]
Terms = list[tuple[Tensor, Information]]


def fisher_columns(likelihood: Likelihood, f: Tensor) -> Tensor:
    """Return columns v with sum_k v[k, b] v[k, b]^T the Fisher information of a target in f[b], (K, B, C).

    It is exact for the likelihoods of this library, up to quadrature. For another distribution it is the mean over 256
    draws of the outer products of its scores, unless it is a `LikelihoodModule` that knows it.
    """
    known = as_module(likelihood).fisher_columns(f.detach())
    return columns_by_autograd(likelihood, f) if known is None else known


def diagonal_less(likelihood: Likelihood, f: Tensor) -> DiagonalLess | None:
    """Return the same information where it is a diagonal less one outer product; None where that is not known."""
    known = as_module(likelihood).fisher_diagonal(f.detach())
    return None if known is None else DiagonalLess(*known)


def columns_by_autograd(likelihood: Likelihood, f: Tensor) -> Tensor:
    """Return the same columns from the derivatives of the distribution's parameters in f."""
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        information = _information(base_of(likelihood(f)))
        if information is None:
            return _columns_by_nodes(likelihood, f.detach())
        columns_of_terms = [_columns(*term, f) for term in information if term[0].requires_grad]
        return torch.cat([columns for columns in columns_of_terms if columns is not None])


def _columns_by_nodes(likelihood: Likelihood, f: Tensor) -> Tensor:
    """Return as many columns as outputs, from the weighted mean over targets of the outer products of their scores."""
    with torch.no_grad(), seeded(0, "scores"):
        places, weights = _nodes(base_of(likelihood(f)))
    with torch.enable_grad():
        many = f.repeat(len(places), 1).requires_grad_()
        each = base_of(likelihood(many)).log_prob(places.flatten(0, 1)).reshape(len(places), len(f), -1)
        fisher = f.new_zeros(*f.shape, f.shape[1], dtype=torch.float64)
        for column, weight in zip(each.unbind(-1), weights.reshape(each.shape).unbind(-1), strict=True):
            (scores,) = torch.autograd.grad(column.sum(), many, retain_graph=True)
            scores = scores.double().view(len(places), *f.shape)
            fisher += torch.einsum("kb,kbc,kbd->bcd", weight.double(), scores, scores)
    values, vectors = torch.linalg.eigh(fisher)
    return (vectors * values.clamp_min(0).sqrt()[:, None, :]).movedim(-1, 0).to(f)


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


def _columns(parameter: Tensor, information: Information, f: Tensor) -> Tensor | None:
    """Return sqrt(information) times the derivative of each entry of a parameter (B, *) in f, (entries, B, C)."""
    flat = parameter.reshape(len(f), -1)
    slopes = [torch.autograd.grad(total, f, retain_graph=True, allow_unused=True)[0] for total in flat.sum(0)]
    if slopes[0] is None:
        return None
    known = information() if callable(information) else information
    return torch.stack(slopes) * known.detach().expand(parameter.shape).reshape(len(f), -1).sqrt().to(f).T[:, :, None]


@singledispatch
def _information(distribution: Any) -> Terms | None:
    """Return parameters with the information about each of their entries, all there is; None where it is not known."""
    return None


@_information.register
def _(distribution: torch.distributions.Categorical) -> Terms:
    return [(distribution.logits, distribution.probs)]


@_information.register
def _(distribution: torch.distributions.Bernoulli) -> Terms:
    return [(distribution.logits, distribution.probs * (1 - distribution.probs))]


@_information.register(torch.distributions.Normal)
@_information.register(torch.distributions.LogNormal)
def _(distribution: Any) -> Terms:
    return _location_scale(distribution, 1.0, 2.0)


@_information.register
def _(distribution: torch.distributions.Laplace) -> Terms:
    return _location_scale(distribution, 1.0, 1.0)


@_information.register
def _(distribution: targets.TargetStudentT) -> Terms:
    df = distribution.df
    return _location_scale(distribution, (df + 1) / (df + 3), 2 * df / (df + 3))


@_information.register
def _(distribution: counts.Poisson) -> Terms:
    return [(distribution.log_rate, distribution.mean)]


@_information.register
def _(distribution: counts.NegativeBinomial) -> Terms:
    of_mean = distribution.mean / (1 + distribution.dispersion * distribution.mean)
    return [(distribution.log_mean, of_mean), (distribution.dispersion, lambda: _of_dispersion(distribution))]


@_information.register
def _(distribution: targets.TargetGamma) -> Terms:
    """Mean and shape are orthogonal; the information about the shape a is trigamma(a) - 1 / a."""
    shape = distribution.dispersion.detach().double().reciprocal()
    of_shape = torch.special.polygamma(1, shape) - shape.reciprocal()
    return [(distribution.log_mean, shape), (distribution.dispersion, of_shape * shape.pow(4))]


@_information.register
def _(distribution: targets.TargetBeta) -> Terms:
    """The information about a and b as the product of a triangular matrix with itself."""
    a, b = distribution.shapes()
    of_a, of_b, of_sum = (torch.special.polygamma(1, value.detach()) for value in (a, b, a + b))
    root = (of_a - of_sum).sqrt()
    rest = (of_b - of_sum - (of_sum / root).square()).clamp_min(0)
    return [(root * a - of_sum / root * b, torch.ones_like(rest)), (b, rest)]


Nodes = tuple[Tensor, Tensor]


@singledispatch
def _nodes(distribution: Any) -> Nodes:
    """Return targets (K, *batch) and weights, so that sum w g(y) is the mean of g; draws where nothing is known."""
    drawn = distribution.sample((_FISHER_DRAWS,))
    return drawn, torch.full(drawn.shape[: 1 + len(distribution.batch_shape)], 1 / _FISHER_DRAWS, dtype=torch.float64)


@_nodes.register
def _(distribution: targets.CensoredNormal) -> Nodes:
    """Gauss-Legendre quadrature between the limits, and the limits themselves, weighed with their probabilities."""
    loc, scale = distribution.loc, distribution.scale
    lower, upper = loc - _REACH_IN_DEVIATIONS * scale, loc + _REACH_IN_DEVIATIONS * scale
    if distribution.lower is not None:
        lower = torch.maximum(distribution.lower, lower)
    if distribution.upper is not None:
        upper = torch.minimum(distribution.upper, upper)
    rule = np.polynomial.legendre.leggauss(_NUM_NODES)
    nodes, weights = (loc.new_tensor(values).view(-1, *[1] * loc.ndim) for values in rule)
    half = ((upper - lower) / 2).clamp_min(0)
    places = [lower + half * (1 + nodes)]
    density = torch.exp(-0.5 * ((places[0] - loc) / scale) ** 2) / scale / math.sqrt(2 * math.pi)
    shares = [half * weights * density]
    for limit, sign in ((distribution.lower, 1.0), (distribution.upper, -1.0)):
        if limit is not None:
            places.append(limit.expand(1, *loc.shape))
            shares.append(torch.special.ndtr(sign * (limit - loc) / scale)[None])
    return torch.cat(places), torch.cat(shares)


@_nodes.register
def _(distribution: torch.distributions.MixtureSameFamily) -> Nodes:
    """Quadrature of each component, weighed with its probability; draws for components that are not located so."""
    each = distribution.component_distribution
    if distribution.event_shape or not isinstance(each, (torch.distributions.Normal, targets.TargetStudentT)):
        return _nodes.dispatch(object)(distribution)
    like = distribution.mixture_distribution.logits  # the trapezoidal rule for all real numbers, dense near 0
    t = torch.linspace(-_SINH_REACH, _SINH_REACH, 4 * _NUM_NODES, dtype=like.dtype).to(like).view(-1, *[1] * like.ndim)
    nodes, weights = torch.sinh(t), torch.cosh(t) * (2 * _SINH_REACH / (4 * _NUM_NODES - 1))
    places = each.loc + each.scale * nodes
    shares = distribution.mixture_distribution.probs * each.scale * weights * each.log_prob(places).exp()
    return places.movedim(-1, 0).flatten(0, 1), shares.movedim(-1, 0).flatten(0, 1)


def _of_dispersion(distribution: counts.NegativeBinomial) -> Tensor:
    """Return the information about the dispersion, which is orthogonal to the mean."""
    with torch.no_grad():
        places, weights = _nodes_of_counts(distribution)
    with torch.enable_grad():
        dispersion = distribution.dispersion.detach().expand(places.shape).clone().requires_grad_()
        log_prob = counts.NegativeBinomial(distribution.log_mean.detach(), dispersion).log_prob(places)
        (scores,) = torch.autograd.grad(log_prob.sum(), dispersion)
    return (weights * scores.double().square()).sum(0)


@_nodes.register(counts.ZeroInflated)
def _nodes_of_counts(distribution: Any) -> Nodes:
    """All counts that matter, or the middles of as many ranges of them."""
    mean, std = distribution.mean.double(), distribution.variance.double().sqrt()
    first = (mean - _COUNT_REACH_IN_DEVIATIONS * std).floor().clamp_min(0)
    stride = ((2 * _COUNT_REACH_IN_DEVIATIONS * std + 8) / _MOST_COUNT_NODES).ceil().clamp_min(1)
    steps = torch.arange(_MOST_COUNT_NODES, device=mean.device, dtype=torch.float64).view(-1, *[1] * mean.ndim)
    places = (first + stride * steps + ((stride - 1) / 2).floor()).to(distribution.mean.dtype)
    return places, stride * distribution.log_prob(places).double().exp()


def _location_scale(distribution: Any, of_loc: float | Tensor, of_scale: float | Tensor) -> Terms:
    precision = distribution.scale.square().reciprocal()
    return [(distribution.loc, of_loc * precision), (distribution.scale, of_scale * precision)]
