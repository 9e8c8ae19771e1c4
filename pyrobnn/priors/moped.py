"""A prior around the weights of a trained network."""

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.priors.base import Positive, SitePrior, constant, registry


@registry.register
@setting
class Moped(SitePrior):
    """Normals around the network's weights, w ~ N(w0, (delta |w0|)^2) (Krishnan et al. 2020, MOPED).

    w0 are the weights that the network has when the `BNN` is made: give a trained `torch.nn.Module`. A declared network
    such as `MLP` has random weights, new in each fit, so MOPED gains nothing.

    Attributes:
        delta: standard deviation as a share of the size of the weight.
        floor: smallest standard deviation, for weights at and near 0.

    Examples:
        >>> trained = torch.nn.Linear(2, 1)
        >>> model = bnn.BNN(trained, prior=bnn.priors.Moped(delta=0.2))
        >>> prior = model.prior("weight", trained.weight)
        >>> torch.equal(prior.mean, trained.weight)
        True
    """

    delta: Positive = 0.1
    floor: Positive = 1e-3

    def site(self, name: str, value: Tensor) -> dist.Normal:
        scale = torch.maximum(constant(self.delta, value) * value.abs(), constant(self.floor, value))
        return dist.Normal(value, scale)
