"""The prior of all engines as a distribution of Pyro."""

from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from benchmarks.peers.cases import PI, SIGMA1, SIGMA2
from benchmarks.peers.torch_parts import log_prior


class ScaleMixture(TorchDistribution):
    """pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2); quicker than Pyro's MixtureSameFamily of the same."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 as torch declares it
    support = constraints.real
    has_rsample = False

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ScaleMixture":
        """Return the distribution of independent entries in that shape."""
        return ScaleMixture(torch.Size(batch_shape), validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw from the mixture."""
        shape = torch.Size(sample_shape) + self.batch_shape
        return torch.randn(shape) * torch.where(torch.rand(shape) < PI, SIGMA1, SIGMA2)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, entry by entry."""
        return log_prior(value)
