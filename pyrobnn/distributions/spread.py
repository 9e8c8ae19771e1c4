"""Mixtures over draws whose distances from their centre are multiplied by a number."""

from typing import Any

from torch import Tensor
from torch.distributions import Independent, MixtureSameFamily

from pyrobnn._core.errors import InputError
from pyrobnn.distributions.parts import with_arguments


def centre(distribution: Any) -> Tensor:
    """Return the mean location over draws and components, for a distribution of batch shape (S, N): (N, *event).

    It is the mean of normal, Student-t and Laplace targets and of mixtures of them; of log-normal ones that of logs.
    """
    if isinstance(distribution, Independent):
        return centre(distribution.base_dist)
    if isinstance(distribution, MixtureSameFamily):
        loc = _loc(distribution.component_distribution)
        return (distribution.mixture_distribution.probs * loc).sum(-1).mean(0)
    return _loc(distribution).expand(distribution.batch_shape).mean(0)


def spread(distribution: Any, around: Tensor, factor: float) -> Any:
    """Return the distribution with locations at `around + factor (loc - around)` and scales times the factor."""
    if isinstance(distribution, Independent):
        inner = spread(distribution.base_dist, around, factor)
        return type(distribution)(inner, distribution.reinterpreted_batch_ndims, validate_args=False)
    if isinstance(distribution, MixtureSameFamily):
        each = spread(distribution.component_distribution, around[..., None], factor)
        return with_arguments(distribution, component_distribution=each)
    loc = around + factor * (_loc(distribution) - around)
    return with_arguments(distribution, loc=loc, scale=factor * distribution.scale)


def _loc(distribution: Any) -> Tensor:
    if not {"loc", "scale"} <= {*distribution.arg_constraints}:
        fault = f"Predictions are spread by their location and scale, and {type(distribution).__name__} has none"
        raise InputError(f"{fault}: use bnn.conformal for intervals that hold their level.")
    loc: Tensor = distribution.loc
    return loc
