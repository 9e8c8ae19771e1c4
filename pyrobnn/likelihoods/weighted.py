"""Weights on examples: another likelihood, with the log density of each target times its weight."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field
from pyro.distributions import TorchDistribution
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import constraints

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn.likelihoods.base import registry


@setting
class Weighted:
    """log p(y | f) times a weight, which stands in the last column of the targets: weight 2 is the example twice.

    With it the ELBO, its mini-batches, MCMC and Laplace's curvature count every example as often as its weight says. It
    is for training only: it does not predict. Units go with it, since targets that carry weights are scaled beforehand.

    Attributes:
        likelihood: what the other columns come from.
        units: original units in one unit of each of these columns, as `build` of a likelihood takes them.
    """

    likelihood: Annotated[Any, BeforeValidator(registry.resolve)]
    units: Annotated[tuple[float, ...], Field(min_length=1)] = (1.0,)
    standardizes_targets: ClassVar[bool] = False
    integer_targets: ClassVar[bool] = False

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module of the likelihood, whose distributions take weights."""
        module: PyroModule = self.likelihood.build(like, units_of(self).to(target_scale.device))
        module.register_forward_hook(_with_weights)
        return module

    def num_outputs(self, y: Tensor) -> int:
        """Return the number of network outputs that targets (N, K + 1) need."""
        return int(self.likelihood.num_outputs(split_weights(y)[0]))

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse weights that are not positive, and targets that the likelihood refuses."""
        targets, weights = split_weights(y)
        if not bool((weights > 0).all()):
            raise InputError(
                f"Weights of examples must be positive, got {float(weights.min()):g}: leave out such rows."
            )
        self.likelihood.check_targets(targets, outputs)


def units_of(likelihood: Weighted) -> Tensor:
    """Return original units in one unit of the targets, () for one column and (K,) for several."""
    units = torch.tensor(likelihood.units, dtype=torch.float64)
    return units[0] if len(units) == 1 else units


def split_weights(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return targets (N,) or (N, K), and weights (N,), of targets (N, K + 1) that carry them."""
    targets = y[..., :-1]
    return targets[..., 0] if targets.shape[-1] == 1 else targets, y[..., -1]


def unweighted(likelihood: Any) -> Any:
    """Return the likelihood inside a weighted one, and any other as it is."""
    return likelihood.likelihood if isinstance(likelihood, Weighted) else likelihood


def with_noise(likelihood: Any, scale: Sequence[float]) -> Any:
    """Return a likelihood with known scales of noise, in the units of the targets that the model is fitted to.

    Args:
        likelihood: of real targets.
        scale: one number for all columns, or one a column.
    """
    if not isinstance(likelihood, Weighted):
        return dataclasses.replace(likelihood, scale=scale[0] if len(scale) == 1 else tuple(scale))
    inner = with_noise(likelihood.likelihood, [s * unit for s, unit in zip(scale, likelihood.units, strict=True)])
    return dataclasses.replace(likelihood, likelihood=inner)


def _with_weights(module: PyroModule, inputs: tuple[Tensor, ...], distribution: Any) -> "WeightedTargets":
    return WeightedTargets(distribution)


class WeightedTargets(TorchDistribution):
    """Targets of some distribution that carry weights in one more column, with weighted log densities.

    Args:
        base_dist: the distribution of the targets, of batch shape (B,) and event shape () or (K,).
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, base_dist: Any) -> None:
        self.base_dist = base_dist
        columns = base_dist.event_shape.numel()
        super().__init__(base_dist.batch_shape, torch.Size((columns + 1,)), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return weight times log density, (B,), of targets with weights (B, K + 1)."""
        targets, weights = split_weights(value)
        return weights * self.base_dist.log_prob(targets)
