"""Curvature of the negative log prior at a point, for any prior, kept positive."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.autograd.functional import hessian
from torch.distributions import AffineTransform, Independent, Normal, TransformedDistribution

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN

_MOMENT_DRAWS = 1000
_NORMAL_MAD = 0.6745
"""Median absolute deviation of a standard normal."""
_SMALLEST_PRIOR_SCALE = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class PriorCurvature:
    """Second derivatives of the negative log prior at a point, the diagonal `precision` by site name, positive.

    Entries without positive curvature, `clipped` of each site, have 1 / variance of the prior instead. `joint` has the
    whole matrix of sites whose entries the prior correlates.
    """

    precision: dict[str, Tensor]
    clipped: dict[str, int] = dataclasses.field(default_factory=dict)
    joint: dict[str, Tensor] = dataclasses.field(default_factory=dict)


def prior_laws(bnn: BNN, weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the prior distribution of each weight site, given the sites that prior and likelihood add."""
    with fast_pyro(), poutine.block(), poutine.condition(data=dict(others)):
        return {name: bnn.prior(name, bnn.net.get_buffer(name)) for name in weights}


def prior_curvature(
    bnn: BNN, weights: Mapping[str, Tensor], others: Mapping[str, Tensor], sites: list[str]
) -> PriorCurvature:
    """Return the curvature of the negative log prior of some weight sites, by automatic differentiation."""
    laws = prior_laws(bnn, weights, others)
    precision, clipped, joint = {}, {}, {}
    for name in sites:
        law, value = laws[name], weights[name].detach()
        if not _entrywise(law)[0].event_shape:  # independent entries
            diagonal = _diagonal(law, value)
        else:
            matrix = hessian(lambda w, law=law: -law.log_prob(w).sum(), value)
            joint[name] = matrix.reshape(value.numel(), value.numel())
            diagonal = joint[name].diagonal().reshape(value.shape)
        spread = _precision_of(law, value)
        is_bad = ~(diagonal > _SMALLEST_PRIOR_SCALE * spread)
        precision[name] = torch.where(is_bad, spread, diagonal)
        clipped[name] = int(is_bad.sum())
        if not bool((precision[name] > 0).all()):
            fault = f"the prior of {name!r} is flat, its precision is zero in {value.dtype}"
            raise InputError(f"Laplace: {fault}: give it a scale.")
    return PriorCurvature(precision, clipped, joint)


def log_entries(law: Any, value: Tensor) -> Tensor:
    """Return the log density of each entry under a prior of independent entries, in the shape of the value."""
    entries, shifts = _entrywise(law)
    log_volume: Any = 0.0
    for shift in shifts:
        value = shift.inv(value)
        log_volume = log_volume + torch.as_tensor(shift.scale).abs().log()
    return (entries.log_prob(value) - log_volume).expand(value.shape)


def _entrywise(law: Any) -> tuple[Any, list[Any]]:
    """Return a prior's distribution of single entries as far as it is known, and the maps from its draws, last first.

    It unwraps `Independent` and affine maps of each entry.
    """
    shifts: list[Any] = []
    while isinstance(law, (Independent, TransformedDistribution)):
        if isinstance(law, TransformedDistribution):
            if not all(isinstance(transform, AffineTransform) for transform in law.transforms):
                break
            shifts += reversed(law.transforms)
        law = law.base_dist
    return law, shifts


def _diagonal(law: Any, value: Tensor) -> Tensor:
    """Return the second derivatives of independent entries: of their sum, along a vector of ones."""
    entries, shifts = _entrywise(law)
    if isinstance(entries, Normal) and not shifts:
        return entries.scale.detach().square().reciprocal().expand(value.shape)
    with torch.enable_grad():
        point = value.clone().requires_grad_()
        (slope,) = torch.autograd.grad(-law.log_prob(point).sum(), point, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros_like(value)
        (second,) = torch.autograd.grad(slope.sum(), point, allow_unused=True)
    return torch.zeros_like(value) if second is None else second.detach()


def _precision_of(law: Any, value: Tensor) -> Tensor:
    """Return 1 / variance of the prior, or if that is not finite 1 / spread^2 with a normal's spread of its draws."""
    try:
        variance = law.variance.detach().expand(value.shape)
    except (NotImplementedError, AttributeError):
        variance = torch.full_like(value, torch.nan)
    if bool((variance.isfinite() & (variance > 0)).all()):
        return variance.reciprocal()
    with seeded(0, "spread of a prior"), torch.no_grad():
        drawn = law.sample((_MOMENT_DRAWS,))
    spread = (drawn - drawn.median(0).values).abs().median(0).values / _NORMAL_MAD
    return spread.square().reciprocal()
