"""The spike of a scale mixture under a normal, E[log(1 + exp(a - b w^2))]: by quadrature, and from a table.

In units of the spike, m = sqrt(b) |loc| and s = sqrt(b) scale, it is a function of three numbers, f(a, m, s), and of
two for a fixed prior. The table has f and its derivatives on a grid of

    x = m^2 / (1 + 2 s^2) in [0, a + 16]  and  t = (1 + k s^2)^(-1/2) in [0, 1],  k = 2 + max(a, 0) / 2,

between which it is interpolated by bicubic Hermite polynomials. In these coordinates f is smooth everywhere: it is even
in m and s, falls like t exp(-x) where s is large, and is log(1 + exp(a - x)) at s = 0. Beyond the grid it is at most
exp(a - x) < 1.2e-7, since log(1 + exp(d)) < exp(d), whose expectation is exp(a - x) / sqrt(1 + 2 s^2).
"""

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_SPIKE_NODES = 48
"""They are 1e-7 off at worst, where 32 are 3e-5 and 48 of Gauss-Legendre 8e-6 off."""
_REACH_IN_DEVIATIONS = 6.5
"""Standard deviations beyond which a normal has no mass: 8e-11 of it."""
_NEGLIGIBLE_LOG_ODDS = 22.0
"""Log odds at which the spike is negligible beside the slab: it adds 3e-10 to the log density there."""
_GRID_CELLS_X = 256
_GRID_CELLS_T = 96
_GRID_MARGIN = 16.0
"""How far the grid goes beyond x = a, where f is 1e-7."""
_NODES_OF_TABLE = 120
_EDGE_STEP = 1e-9
"""Distance from the grid's edges at which their derivatives are taken, as a fraction of its length."""


def rule(
    a: Tensor, b: Tensor, distance: Tensor, scale: Tensor, num_nodes: int = _SPIKE_NODES
) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes w, (w - distance) / scale and weights for the mean of log(1 + exp(a - b w^2)), w normal.

    The mean of w, distance, has the batch shape; results have a leading axis of nodes. b and distance are not negative.
    """
    # Equal components have b = 0 and no end of the spike: c is infinite, or so large that it does not matter.
    c = ((a + _NEGLIGIBLE_LOG_ODDS).clamp_min(0) / b.clamp_min(torch.finfo(b.dtype).tiny)).sqrt()
    reach = _REACH_IN_DEVIATIONS * scale
    # [-c, c] and distance +- reach overlap in middle +- half, written without differences of nearly equal numbers.
    half = torch.minimum(torch.minimum(reach, c), 0.5 * (reach + c - distance)).clamp_min(0)
    middle = torch.minimum((0.5 * (c + distance - reach)).clamp_min(0), distance)
    nodes = (2 * torch.arange(num_nodes, dtype=scale.dtype, device=scale.device) + (1 - num_nodes)) / num_nodes
    nodes = nodes.view(-1, *[1] * distance.ndim)
    z = (middle - distance) / scale + half / scale * nodes
    weights = half / scale * (2 / num_nodes) * (-0.5 * z.square() - _HALF_LOG_2PI).exp()
    return middle + half * nodes, z, weights


def integrate(a: Tensor, b: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the expectation by quadrature, entry by entry, differentiable in everything."""
    distance = loc.abs()
    w, z, weights = rule(a.detach(), b.detach(), distance.detach(), scale.detach())
    # The nodes follow loc and scale as a reparameterised draw does: values stay, the gradient is the gradient of E.
    w = w + (distance - distance.detach()) + (scale - scale.detach()) * z
    return (weights * softplus(a - b * w.square())).sum(0)


@functools.lru_cache(maxsize=64)
def table(a: float) -> Tensor:
    """Return f and its derivatives by x, t and both, in units of a cell, at the nodes of the grid, (x, t, 4)."""
    length, k = _length(torch.tensor(a, dtype=torch.float64)), _rate(torch.tensor(a, dtype=torch.float64))
    x = torch.linspace(0, 1, _GRID_CELLS_X + 1, dtype=torch.float64).clamp_min(_EDGE_STEP) * length
    t = torch.linspace(0, 1, _GRID_CELLS_T + 1, dtype=torch.float64)
    rows = [_derivatives(a, part[:, None], t[1:].clamp_max(1 - _EDGE_STEP), k) for part in x.split(32)]
    inside = torch.cat(rows)
    # f = t exp(-x) times a constant where t vanishes: the integral of the bump, in units of s, times a normal density.
    w = torch.linspace(-1, 1, 4001, dtype=torch.float64) * math.sqrt(max(a + _NEGLIGIBLE_LOG_ODDS, 1.0))
    slope = torch.trapezoid(softplus(a - w.square()), w) * (k / (2 * math.pi)).sqrt() * (-x).exp()
    nothing = torch.zeros_like(slope)
    at_zero = torch.stack([nothing, nothing, slope, -slope], -1)[:, None]
    width, height = length / _GRID_CELLS_X, 1 / _GRID_CELLS_T
    units = torch.stack([torch.ones_like(width), width, torch.full_like(width, height), width * height])
    return torch.cat([at_zero, inside], 1) * units


def _length(a: Tensor) -> Tensor:
    return (a + _GRID_MARGIN).clamp_min(1.0)


def _rate(a: Tensor) -> Tensor:
    return 2 + 0.5 * a.clamp_min(0)


def _derivatives(a: float, x: Tensor, t: Tensor, k: Tensor) -> Tensor:
    """Return f, df/dx, df/dt and d2f/dxdt, (x, t, 4)."""
    x, t = torch.broadcast_tensors(x, t)
    s = ((t.pow(-2) - 1) / k).sqrt()
    growth = 1 + 2 * s.square()
    m = (x * growth).sqrt()
    w, z, weights = rule(torch.tensor(a, dtype=x.dtype), torch.ones((), dtype=x.dtype), m, s, _NODES_OF_TABLE)
    odds = a - w.square()
    inside = torch.sigmoid(odds)
    first = -2 * w * inside
    second = -2 * inside + 4 * w.square() * inside * (1 - inside)
    parts = (softplus(odds), first, first * z, second * z, second)
    f, f_m, f_s, f_ms, f_mm = ((weights * values).sum(0) for values in parts)
    m_x, m_s = growth / (2 * m), 2 * x * s / m
    m_xs = (2 * s - m_x * m_s) / m
    s_t = -1 / (k * s * t.pow(3))
    return torch.stack([f, f_m * m_x, (f_s + f_m * m_s) * s_t, ((f_ms + f_mm * m_s) * m_x + f_m * m_xs) * s_t], -1)


def interpolate(values: Tensor, a: Tensor, b: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return the expectation by a table (x, t, 4) for a, entry by entry, with the gradient of the interpolant.

    Value and gradient in loc and scale come from the same sixteen numbers for each entry. For a up to 10 the values are
    within 1e-6 of the exact values, and the derivatives, in units of the spike, within 2e-5 (double precision). a () is
    the log odds of the spike against the slab at 0, b () half the difference of their precisions.
    """
    length, k = _length(a), _rate(a)
    mean, sd = loc.detach(), scale.detach()
    shrink = (1 + 2 * b * sd.square()).reciprocal()
    slope = _GRID_CELLS_X / length * b * shrink
    x, t = slope * mean.square(), (1 + k * b * sd.square()).rsqrt()
    f, f_x, f_t = _hermite(values, x, t * _GRID_CELLS_T)
    x_by_scale = -4 * b * sd * shrink * x
    t_by_scale = -_GRID_CELLS_T * k * b * sd * t.pow(3)
    by_loc, by_scale = f_x * 2 * slope * mean, f_x * x_by_scale + f_t * t_by_scale
    return f + by_loc * (loc - mean) + by_scale * (scale - sd)


def _hermite(values: Tensor, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the bicubic interpolant at places in units of a cell and its derivatives by both, 0 beyond the grid."""
    column, row = x.clamp_max(_GRID_CELLS_X - 0.5).floor(), t.clamp_max(_GRID_CELLS_T - 0.5).floor()
    corner = (column * (_GRID_CELLS_T + 1) + row).to(torch.int64)
    corner = corner.clamp(0, _GRID_CELLS_X * (_GRID_CELLS_T + 1) - 2)  # of numbers that are not finite, too
    flat = values.reshape(-1, 4)
    along_t, d_along_t = _basis(t - row)
    f = f_x = f_t = torch.zeros_like(x)
    (values_x, tangents_x), (d_values_x, d_tangents_x) = _basis(x - column)
    for side in (0, 1):
        lower, upper = (flat[corner + side * (_GRID_CELLS_T + 1) + step].unbind(-1) for step in (0, 1))
        here, d_here = (_combined(weights, lower[::2], upper[::2]) for weights in (along_t, d_along_t))
        slope, d_slope = (_combined(weights, lower[1::2], upper[1::2]) for weights in (along_t, d_along_t))
        f = f + values_x[side] * here + tangents_x[side] * slope
        f_x = f_x + d_values_x[side] * here + d_tangents_x[side] * slope
        f_t = f_t + values_x[side] * d_here + tangents_x[side] * d_slope
    beyond = x >= _GRID_CELLS_X
    return f.masked_fill(beyond, 0), f_x.masked_fill(beyond, 0), f_t.masked_fill(beyond, 0)


_Weights = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Weights of the values at both ends of a cell, and of the derivatives there."""


def _basis(u: Tensor) -> tuple[_Weights, _Weights]:
    """Return the weights of cubic Hermite interpolation at u in [0, 1], and their derivatives by u."""
    v = 1 - u
    rise = 6 * u * v
    weights = ((1 + 2 * u) * v * v, (3 - 2 * u) * u * u), (u * v * v, -u * u * v)
    return weights, ((-rise, rise), (v * (1 - 3 * u), u * (3 * u - 2)))


def _combined(weights: _Weights, lower: Sequence[Tensor], upper: Sequence[Tensor]) -> Tensor:
    """Return the interpolant from value and derivative at the lower and the upper end of a cell."""
    values, tangents = weights
    return values[0] * lower[0] + values[1] * upper[0] + tangents[0] * lower[1] + tangents[1] * upper[1]
