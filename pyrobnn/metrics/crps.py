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

_AT_ONCE, _MOST_VALUES = 2**18, 2**22
"""Values of the components' distribution functions at one time, and in the quadrature for a target."""
_PANELS = 8
"""Times as many numbers as a target has components that quadrature holds for it."""
_TAIL_PROBABILITY, _TAIL = 1e-12, 1e-6
"""Probability beyond the ends of the integral, under every component, and of the sum over counts."""
_PRECISION, _NODES = 1e-7, 32
_COUNTS = 1000
"""Counts at which the distribution function is known: all of them, or else with lines between them."""


def ranked_probability(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the CRPS of each target under the mixture, the integral of (F(z) - 1{z >= y})^2 over z, (N,) or (N, K).

    It is in the units of the target (Gneiting & Raftery 2007). Normal components have a closed form, a sum over pairs
    of draws (Grimit et al. 2006); counts are summed; all other cases are integrated by adaptive quadrature.
    """
    return prediction.scaler.inverse_scale(prediction.by_rows(_scores, y, width=_PANELS))


def _scores(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the scores in the model's units."""
    components = prediction.components
    tensors, build = take_apart(components.distribution)
    flat = [tensor.flatten(1, y.ndim) for tensor in tensors]
    target = prediction.scaler.transform(y.double()).to(flat[0].device).flatten()
    scores = _of_pairs if isinstance(components.distribution, Normal) else _integral
    scores = _of_counts if components.distribution.support.is_discrete else scores
    return scores(_Mixtures(flat, build), target).reshape(y.shape)


class _Mixtures:
    """Mixtures of S components for each of M targets."""

    def __init__(self, tensors: list[Tensor], build: Callable[[list[Tensor]], Any]) -> None:
        self._tensors, self._build = tensors, build
        self.components = Components(build(tensors))
        self.num_draws = int(self.components.distribution.batch_shape[0])

    def cdf(self, index: Tensor, values: Tensor) -> Tensor:
        """Return the distribution functions of the targets with these numbers (P,) at values (P, Q)."""
        size = max(1, _AT_ONCE // (self.num_draws * values.shape[1]))
        found = []
        for rows, at in zip(index.split(size), values.split(size), strict=True):
            chosen = Components(self._build([tensor[:, rows].unsqueeze(2) for tensor in self._tensors]))
            found.append(chosen.cdf(at).mean(0))
        return torch.cat(found)


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


def _of_counts(mixtures: _Mixtures, y: Tensor) -> Tensor:
    """Return the sums over whole numbers; of many, with lines between steps that are small in the bulk."""
    low, median, high = (count_quantile(mixtures.components, level) for level in (_TAIL, 0.5, 1 - _TAIL))
    high = high + 1
    scale = ((high - low) / _COUNTS).clamp_min(1.0)
    start, end = ((ends - median).div(scale).asinh() for ends in (low, high))
    steps = torch.arange(_COUNTS + 1, device=y.device, dtype=y.dtype)[:, None]
    spread = median + scale * (start + (end - start) * steps / _COUNTS).sinh()
    counts = torch.where(high - low <= _COUNTS, low + steps, spread.round()).clamp(low, high)
    counts = torch.cat([counts, y.clamp(low, high)[None]]).sort(0).values
    cdf = mixtures.cdf(torch.arange(len(y), device=y.device), counts.T).T
    side, width = (counts[:-1] >= y).to(cdf), counts.diff(dim=0)
    first, last = (cdf[:-1] - side).square(), (cdf[1:] - side).square()
    sums = (width * first + (width - 1).clamp_min(0) / 2 * (last - first)).sum(0)
    return (low - y).clamp_min(0) + (y - high).clamp_min(0) + sums


def _integral(mixtures: _Mixtures, y: Tensor) -> Tensor:
    """Return the integrals for continuous distributions, on both sides of y, by halving panels with too large an error.

    The variable is t with z = middle + scale sinh(t). The rules of Clenshaw and Curtis with 33 and 17 nodes give the
    error. They have nodes at the panel's ends, and F is monotone, so no jump of F is missed.
    """
    lowest, middle, scale, highest = _extent(mixtures.components)
    outside = (lowest - y).clamp_min(0) + (y - highest).clamp_min(0)
    places = ((torch.stack([lowest, y.clamp(lowest, highest), highest]) - middle) / scale).asinh()
    start, end = places[:2].flatten(), places[1:].flatten()
    index = torch.arange(len(y), device=scale.device).repeat(2)
    side = torch.arange(2, device=scale.device).repeat_interleave(len(y)).to(scale)[:, None]
    nodes, fine, coarse = (torch.from_numpy(values).to(scale) for values in _rules())
    total, budget = torch.zeros_like(scale), torch.full_like(scale, _MOST_VALUES // mixtures.num_draws / len(nodes))
    while len(index):
        half = (end - start) / 2
        t = (start + half)[:, None] + half[:, None] * nodes
        step = scale[index, None]
        heights = (mixtures.cdf(index, middle[index, None] + step * t.sinh()) - side).square()
        values = heights * step * t.cosh() * half[:, None]
        sums, errors = _estimates(values, fine, coarse)
        budget.index_add_(0, index, -torch.ones_like(sums))
        can_halve = (budget[index] > 0) & (half > 4 * torch.finfo(half.dtype).eps * (start.abs() + 1))
        is_open = can_halve & (errors > _PRECISION * (outside + total.index_add(0, index, sums))[index])
        total.index_add_(0, index[~is_open], sums[~is_open])
        start, halfway, end = start[is_open], (start + half)[is_open], end[is_open]
        start, end = torch.cat([start, halfway]), torch.cat([halfway, end])
        index, side = index[is_open].repeat(2), side[is_open].repeat(2, 1)
    return outside + total


def _extent(components: Components) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the lowest number of each mixture, the middle and the scale of its bulk, and the highest number."""
    lowest = component_bounds(components, _TAIL_PROBABILITY)[0].amin(0)
    highest = component_bounds(components, 1 - _TAIL_PROBABILITY)[1].amax(0)
    first_quarter, third_quarter = (component_bounds(components, level) for level in (0.25, 0.75))
    scale = (third_quarter[1] - first_quarter[0]).median(0).values
    middle = ((third_quarter[1] + first_quarter[0]) / 2).median(0).values
    scale = torch.where(scale > 0, scale, (highest - lowest) / 8).clamp_min(torch.finfo(scale.dtype).tiny)
    return lowest, middle, scale, highest


def _estimates(values: Tensor, fine: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integrals over panels (P,), from values at the nodes (P, Q), and their errors as QUADPACK has them."""
    sums = values @ fine
    difference, spread = (sums - values @ coarse).abs(), (values - sums[:, None] / 2).abs() @ fine
    return sums, torch.where(spread > 0, spread * (200 * difference / spread).clamp(0, 1).pow(1.5), difference)


@functools.cache
def _rules() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the nodes in [-1, 1], and the weights of the rule of Clenshaw and Curtis on all and on every second."""
    coarse = np.zeros(_NODES + 1)
    coarse[::2] = _weights(_NODES // 2)
    return -np.cos(np.pi * np.arange(_NODES + 1) / _NODES), _weights(_NODES), coarse


def _weights(num: int) -> np.ndarray:
    """Return the weights of the rule of Clenshaw and Curtis with num + 1 nodes, for an even number."""
    angles = np.pi * np.arange(num + 1) / num
    orders = np.arange(1, num // 2 + 1)
    shares = np.where(orders == num // 2, 1.0, 2.0) / (4 * orders**2 - 1)
    weights = 2 / num * (1 - np.cos(2 * angles[:, None] * orders) @ shares)
    weights[[0, -1]] /= 2
    return weights
