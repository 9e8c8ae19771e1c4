"""Distributions that Pyro lacks, written so that they can be recorded as a graph and vmapped."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import Independent, constraints
from torch.distributions.utils import broadcast_all

_ONE_DRAW = torch.Size()
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class ScaleMixtureNormal(TorchDistribution):
    """A mixture of two zero-mean normals, pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2), for each entry.

    Blundell et al. 2015, "Weight Uncertainty in Neural Networks", eq. 7. The log density is a logaddexp of the two
    weighted components: exact, with its gradient, far out in the tails.

    Args:
        pi: weight of the first component, in (0, 1).
        sigma1: standard deviation of the first component, positive.
        sigma2: standard deviation of the second component, positive.
    """

    arg_constraints = {  # noqa: RUF012 - the form torch.distributions asks for
        "pi": constraints.unit_interval,
        "sigma1": constraints.positive,
        "sigma2": constraints.positive,
    }
    support = constraints.real
    has_rsample = False

    def __init__(
        self, pi: Tensor | float, sigma1: Tensor | float, sigma2: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        self.pi, self.sigma1, self.sigma2 = broadcast_all(pi, sigma1, sigma2)
        super().__init__(self.pi.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ScaleMixtureNormal":
        """Return the distribution over a larger batch shape; its parameters stay as small as they are."""
        new = self._get_checked_instance(ScaleMixtureNormal, _instance)
        new.pi, new.sigma1, new.sigma2 = self.pi, self.sigma1, self.sigma2
        TorchDistribution.__init__(new, torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        """The mean, 0."""
        return torch.zeros_like(self.variance)

    @property
    def variance(self) -> Tensor:
        """The variance, pi sigma1^2 + (1 - pi) sigma2^2."""
        return (self.pi * self.sigma1.square() + (1 - self.pi) * self.sigma2.square()).expand(self.batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each entry."""
        if self._validate_args:
            self._validate_sample(value)
        first = self.pi.log() - self.sigma1.log() - 0.5 * (value / self.sigma1).square()
        second = torch.log1p(-self.pi) - self.sigma2.log() - 0.5 * (value / self.sigma2).square()
        # torch.logaddexp says the same with three exponentials where gradients are taken; this needs one.
        return torch.maximum(first, second) + (1 + (-(first - second).abs()).exp()).log() - _HALF_LOG_2PI

    def sample(self, sample_shape: Any = _ONE_DRAW) -> Tensor:
        """Draw a component for each entry, then from it."""
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            first = torch.rand(shape, dtype=self.pi.dtype, device=self.pi.device) < self.pi
            noise = torch.randn(shape, dtype=self.pi.dtype, device=self.pi.device)
            return torch.where(first, self.sigma1, self.sigma2) * noise


class ReparameterizedNormal(dist.Normal):
    """A normal whose draw, loc + scale * noise, is given.

    It is `Normal` in every other respect, closed-form KL included. A guide computes the draws of all its sites at
    once, the recorded graph is free of in-place random operations, and a test can fix the noise.

    Args:
        loc: mean.
        scale: standard deviation, positive.
        drawn: loc + scale * noise for standard normal noise, the shape of loc.
    """

    def __init__(self, loc: Tensor, scale: Tensor, drawn: Tensor) -> None:
        super().__init__(loc, scale)
        self.drawn = drawn

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ReparameterizedNormal":
        """Return the distribution itself for its own batch shape; a single draw cannot serve a larger one."""
        if torch.Size(batch_shape) != self.batch_shape:
            raise NotImplementedError("ReparameterizedNormal carries one draw and cannot be expanded.")
        return self

    def rsample(self, sample_shape: Any = _ONE_DRAW) -> Tensor:
        """Return the draw."""
        if tuple(sample_shape):
            raise NotImplementedError("ReparameterizedNormal carries one draw; ask for one.")
        return self.drawn


def stack_likelihood(likelihood: Callable[[Tensor], Any], outputs: Tensor, latents: Mapping[str, Tensor]) -> Any:
    """Return the distributions of a likelihood with latents of its own, for every draw of outputs and latents.

    Args:
        likelihood: a Pyro program from outputs (N, outputs) to a distribution of batch shape (N,).
        outputs: the outputs under each draw, (S, N, outputs).
        latents: the likelihood's latent sites under each draw, (S, *event) by name.

    Returns:
        One distribution of batch shape (S, N).
    """
    kinds: list[tuple[Any, int]] = []

    def parameters(f: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        base, event_dim = poutine.condition(likelihood, data=values)(f), 0
        while isinstance(base, Independent):
            base, event_dim = base.base_dist, event_dim + base.reinterpreted_batch_ndims
        names = set(base.arg_constraints) - ({"probs"} if "logits" in base.arg_constraints else set())
        kinds.append((type(base), event_dim))
        return {name: getattr(base, name) for name in names}

    stacked = torch.func.vmap(parameters)(outputs, dict(latents))
    kind, event_dim = kinds[0]
    return kind(**stacked).to_event(event_dim)
