"""The continuous ranked probability score of the exact mixture, from its distribution function."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from pyrobnn.distributions.parts import take_apart
from pyrobnn.distributions.quantiles import component_bounds, count_quantile
from pyrobnn.distributions.support import Components
from pyrobnn.posterior.prediction import Prediction

_AT_ONCE = 2**18
_MOST_VALUES = 2**22
"""Largest number of values of the components' distribution functions in the quadrature for a target."""
_PANELS = 8
"""Times as many numbers as a target has components that quadrature holds for it."""
_FAR = 1e-12
"""Probability beyond the first and the last number of the integral, under every component."""
_PRECISION, _PRECISION_OF_COUNTS = 1e-7, 3e-5
_TAIL = 1e-6
_MOST_COUNTS = 300
_NODES = 32


def ranked_probability(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the CRPS of each target under the mixture, the integral of (F(z) - 1{z >= y})^2 over z, (N,) or (N, K).

    It is in the units of the target, and the absolute error for a point mass (Matheson & Winkler 1976; Gneiting &
    Raftery 2007). It is infinite where the integral is infinite. Normal components have a closed form, a sum over pairs
    of draws (Grimit et al. 2006); counts are summed one by one if few are probable; all other cases are integrated by
    adaptive quadrature.
    """
    scores = prediction.by_rows(_scores, y, width=_PANELS)
    return prediction.scaler.inverse_scale(scores)


def _scores(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the scores in the model's units."""
    components = prediction.components
    tensors, build = take_apart(components.distribution)
    num_axes = y.ndim
    flat = [tensor.flatten(1, num_axes) for tensor in tensors]
    target = prediction.scaler.transform(y.double()).to(flat[0].device).flatten()
    mixtures = _Mixtures(flat, build)
    if components.distribution.support.is_discrete:
        scores = _of_counts(mixtures, target)
    elif isinstance(components.distribution, Normal):
        scores = _of_pairs(mixtures, target)
    else:
        scores = _integral(mixtures, target)
    return scores.reshape(y.shape)


class _Mixtures:
    """Mixtures of S components for each of M targets; `take` picks some."""

    def __init__(self, tensors: list[Tensor], build: Callable[[list[Tensor]], Any]) -> None:
        self._tensors, self._build = tensors, build
        self.components = Components(build(tensors))
        self.num_draws, self.num = (int(size) for size in self.components.distribution.batch_shape)

    def take(self, index: Tensor) -> "_Mixtures":
        return _Mixtures([tensor[:, index] for tensor in self._tensors], self._build)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution functions at a value each, (M,)."""
        return self.components.cdf(value).mean(0)

    def cdf_at(self, index: Tensor, values: Tensor) -> Tensor:
        """Return the distribution functions of the targets with these numbers (P,) at values (P, Q)."""
        size = max(1, _AT_ONCE // (self.num_draws * values.shape[1]))
        pieces = zip(index.split(size), values.split(size), strict=True)
        return torch.cat([self._cdf_at(*piece) for piece in pieces])

    def _cdf_at(self, index: Tensor, values: Tensor) -> Tensor:
        chosen = Components(self._build([tensor[:, index].unsqueeze(2) for tensor in self._tensors]))
        return chosen.cdf(values).mean(0)


def _of_pairs(mixtures: _Mixtures, y: Tensor) -> Tensor:
    """Return E|Y - y| - E|Y - Y'| / 2 of normal mixtures, a sum over all pairs of components."""
    normal = mixtures.components.distribution
    loc, scale = normal.loc, normal.scale
    scores = _mean_size(y - loc, scale).mean(0)
    for first in range(len(loc)):
        distances = _mean_size(loc[first] - loc[first:], torch.hypot(scale[first], scale[first:]))
        scores -= (distances.sum(0) - distances[0] / 2) / len(loc) ** 2
    return scores


def _mean_size(loc: Tensor, scale: Tensor) -> Tensor:
    """Return E|X| for X ~ N(loc, scale^2)."""
    z = loc / scale / math.sqrt(2)
    return loc * torch.erf(z) + scale * math.sqrt(2 / math.pi) * (-z.square()).exp()


def _integral(mixtures: _Mixtures, y: Tensor) -> Tensor:
    """Return the integrals for continuous distributions."""
    components = mixtures.components
    lowest, highest = component_bounds(components, _FAR)[0].amin(0), component_bounds(components, 1 - _FAR)[1].amax(0)
    first_quarter, third_quarter = (component_bounds(components, level) for level in (0.25, 0.75))
    width = (third_quarter[1] - first_quarter[0]).median(0).values
    middle = ((third_quarter[1] + first_quarter[0]) / 2).median(0).values
    outside = (lowest - y).clamp_min(0) + (y - highest).clamp_min(0)

    def integrand(index: Tensor, values: Tensor, side: Tensor) -> Tensor:
        return (mixtures.cdf_at(index, values) - side).square()

    cuts = torch.stack([lowest, y.clamp(lowest, highest), highest])
    most = _MOST_VALUES // mixtures.num_draws
    return outside + _quadrature(
        integrand, cuts, middle, width, outside, most=most, precision=_PRECISION, is_smooth=True
    )


def _of_counts(mixtures: _Mixtures, y: Tensor) -> Tensor:
    """Return the sums over whole numbers: one by one, or for many by quadrature of the lines between them."""
    low, high = count_quantile(mixtures.components, _TAIL), count_quantile(mixtures.components, 1 - _TAIL) + 1
    scores = (low - y).clamp_min(0) + (y - high).clamp_min(0)
    is_few = high - low <= _MOST_COUNTS
    few, many = is_few.nonzero()[:, 0], (~is_few).nonzero()[:, 0]
    if len(few):
        scores[few] += _sum(mixtures.take(few), y[few], low[few], high[few])
    if len(many):
        scores[many] += _sum_by_quadrature(mixtures.take(many), y[many], low[many], high[many])
    return scores


def _sum(mixtures: _Mixtures, y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Sum over the whole numbers from `low` to below `high`."""
    total = torch.zeros_like(low)
    for step in range(int((high - low).max())):
        z = low + step
        total += torch.where(z < high, (mixtures.cdf(z) - (z >= y).to(low)).square(), 0.0)
    return total


def _sum_by_quadrature(mixtures: _Mixtures, y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Sum likewise, by the integral of the lines between the terms, which counts the first and the last by half."""
    cut = y.clamp(low, high)

    def integrand(index: Tensor, values: Tensor, side: Tensor) -> Tensor:
        before = values.floor()
        share = values - before
        terms = mixtures.cdf_at(torch.cat([index, index]), torch.cat([before, before + 1])) - torch.cat([side, side])
        return (1 - share) * terms[: len(index)].square() + share * terms[len(index) :].square()

    cuts = torch.stack([low, cut, high])
    total = _quadrature(
        integrand,
        cuts,
        (low + high) / 2,
        (high - low) / 8,
        torch.zeros_like(low),
        most=_MOST_VALUES // mixtures.num_draws,
        precision=_PRECISION_OF_COUNTS,
        is_smooth=False,
    )
    at_low, at_cut, at_high = mixtures.cdf(low), mixtures.cdf(cut), mixtures.cdf(high)
    ends = at_low.square() - at_cut.square() + (1 - at_cut).square() - (1 - at_high).square()
    return total + torch.where(cut > low, ends, (1 - at_low).square() - (1 - at_high).square()) / 2


def _quadrature(
    integrand: Callable[[Tensor, Tensor, Tensor], Tensor],
    cuts: Tensor,
    middle: Tensor,
    scale: Tensor,
    known: Tensor,
    *,
    most: int,
    precision: float,
    is_smooth: bool,
) -> Tensor:
    """Integrate over z on both sides of a cut, by halving the panels with too large an error.

    The variable is t with z = middle + scale sinh(t): even steps in the bulk, growing steps in the tails. A panel has
    the rules of Clenshaw and Curtis with 33 and 17 nodes; their difference estimates its error. They have nodes at the
    panel's ends, and F is monotone, so no jump of F is missed. A panel is halved while its error is above `precision`
    times the integral and the integral has taken fewer than `most` values.

    Args:
        integrand: takes numbers of integrals (P,), values z (P, Q) and sides (P, 1), 0 below the cut and 1 above it.
        cuts: lower end, cut and upper end, (3, M).
        middle: the point of the smallest steps, (M,).
        scale: the size of these steps, (M,).
        known: values added to the integrals, (M,).
        most: as above.
        precision: as above.
        is_smooth: whether the integrand is smooth, so that the finer rule is far better than the difference suggests
            (as in QUADPACK, Piessens et al. 1983).

    Returns:
        The integrals (M,).
    """
    scale = torch.where(scale > 0, scale, (cuts[2] - cuts[0]) / 8).clamp_min(torch.finfo(scale.dtype).tiny)
    places = ((cuts - middle) / scale).asinh()
    start, end = places[:2].flatten(), places[1:].flatten()
    num = len(middle)
    index = torch.arange(num, device=scale.device).repeat(2)
    side = torch.arange(2, device=scale.device).repeat_interleave(num).to(scale)[:, None]
    nodes, fine, coarse = (torch.from_numpy(values).to(scale) for values in _rules())
    total, budget = torch.zeros_like(scale), torch.full_like(scale, most / len(nodes))
    while len(index):
        half = (end - start) / 2
        t = (start + half)[:, None] + half[:, None] * nodes
        own_middle, own_scale = middle[index, None], scale[index, None]
        values = integrand(index, own_middle + own_scale * t.sinh(), side) * own_scale * t.cosh() * half[:, None]
        fine_sum, coarse_sum = values @ fine, values @ coarse
        whole = known + total.index_add(0, index, fine_sum)
        error = (fine_sum - coarse_sum).abs()
        spread = (values - fine_sum[:, None] / 2).abs() @ fine
        if is_smooth:
            error = torch.where(spread > 0, spread * (200 * error / spread).clamp(0, 1).pow(1.5), error)
        budget.index_add_(0, index, -torch.ones_like(fine_sum))
        is_open = error > precision * whole[index]
        is_open &= (budget[index] > 0) & (half > 4 * torch.finfo(half.dtype).eps * (start.abs() + 1))
        total.index_add_(0, index[~is_open], fine_sum[~is_open])
        start, middle_of, end = start[is_open], (start + half)[is_open], end[is_open]
        start, end = torch.cat([start, middle_of]), torch.cat([middle_of, end])
        index, side = index[is_open].repeat(2), side[is_open].repeat(2, 1)
    return total


@functools.cache
def _rules() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the nodes in [-1, 1], and the weights of the rule of Clenshaw and Curtis on all and on every second."""
    angles = np.pi * np.arange(_NODES + 1) / _NODES
    fine, coarse = _weights(_NODES), np.zeros(_NODES + 1)
    coarse[::2] = _weights(_NODES // 2)
    return -np.cos(angles), fine, coarse


def _weights(num: int) -> np.ndarray:
    """Return the weights of the rule of Clenshaw and Curtis with num + 1 nodes, for an even number."""
    angles = np.pi * np.arange(num + 1) / num
    orders = np.arange(1, num // 2 + 1)
    shares = np.where(orders == num // 2, 1.0, 2.0) / (4 * orders**2 - 1)
    weights = 2 / num * (1 - np.cos(2 * angles[:, None] * orders) @ shares)
    weights[[0, -1]] /= 2
    return weights
