"""Models and numbers that the checks of guides compare with."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from pyrobnn._core.random import seeded
from pyrobnn._torch.inputs import single
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.likelihoods import Gaussian
from pyrobnn.priors import Normal
from pyrobnn.testing.common import DTYPES, make_data, make_net

NOISE = 0.3


@dataclasses.dataclass(frozen=True)
class HierarchicalNormal:
    """Normal weights with a positive latent scale, inferred with them."""

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        """Return the module that holds the latent scale, site "prior.scale"."""
        return _HierarchicalNormalPrior(next(iter(values.values())))


class _HierarchicalNormalPrior(PyroModule):
    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.scale = PyroSample(dist.LogNormal(like.new_zeros(()), like.new_full((), 0.5)))

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        return dist.Normal(torch.zeros_like(self.scale), self.scale).expand(value.shape).to_event(value.ndim)


def make_models(dtypes: Sequence[torch.dtype] = DTYPES) -> dict[str, BNN]:
    """Return models by description: weights alone, and with a positive latent in their prior."""
    priors = {"normal weights": Normal(), "a positive latent scale": HierarchicalNormal()}
    return {
        f"{name}, {dtype}": BNN(make_net().to(dtype), prior=prior, likelihood=Gaussian(NOISE))
        for name, prior in priors.items()
        for dtype in dtypes
    }


def arguments(bnn: BNN) -> tuple[Tensor, Tensor]:
    """Return inputs and targets in the precision of a model."""
    data = make_data()
    inputs = single(bnn.cast_inputs(data.x), "This model")
    return inputs, bnn.cast_targets(data.y, inputs)


class _TwoLinear(nn.ModuleDict):
    """The sum of two linear maps, with the parameter names of the other networks."""

    def __init__(self) -> None:
        super().__init__({"0": nn.Linear(3, 1), "2": nn.Linear(3, 1)})

    def forward(self, x: Tensor) -> Tensor:
        return self["0"](x) + self["2"](x)


def linear_regression() -> tuple[BNN, Data, float]:
    """Return Bayesian linear regression, its data, and its exact log evidence."""
    data = make_data()
    with seeded(0):
        bnn = BNN(_TwoLinear(), prior=Normal(1.0), likelihood=Gaussian(NOISE))
    features = torch.cat([single(data.x, "This model"), torch.ones(len(data), 1)], 1).double()
    covariance = 2 * features @ features.T + NOISE**2 * torch.eye(len(data), dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(len(data), dtype=torch.float64), covariance)
    return bnn, data, float(evidence.log_prob(data.y.double()))


def distance_in_errors(first: Tensor, second: Tensor) -> dict[str, float]:
    """Return how far two samples (S, D) differ in mean and standard deviation, the largest in standard errors.

    The standard error of a standard deviation s is sqrt((m4 - s^4) / (4 s^2 S)), m4 the fourth central moment.
    """
    means, spreads, mean_errors, spread_errors = zip(
        *(_moments(sample.double()) for sample in (first, second)), strict=True
    )
    return {
        "mean": _largest(means[0] - means[1], torch.hypot(*mean_errors)),
        "standard deviation": _largest(spreads[0] - spreads[1], torch.hypot(*spread_errors)),
    }


def _moments(sample: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    deviations = sample - sample.mean(0)
    spread = deviations.square().mean(0).sqrt()
    fourth = deviations.pow(4).mean(0)
    spread_error = ((fourth - spread**4).clamp_min(0) / len(sample)).sqrt() / (2 * spread).clamp_min(1e-12)
    return sample.mean(0), spread, spread / math.sqrt(len(sample)), spread_error


def _largest(difference: Tensor, error: Tensor) -> float:
    return float((difference.abs() / (error + 1e-6)).max())


def flatten(draws: Mapping[str, Any]) -> Tensor:
    """Return joint draws as a matrix (S, D), with a column for the sum of all entries, which reveals correlations."""
    entries = torch.cat([draws[name].reshape(len(draws[name]), -1) for name in sorted(draws)], 1)
    return torch.cat([entries, entries.sum(1, keepdim=True)], 1)
