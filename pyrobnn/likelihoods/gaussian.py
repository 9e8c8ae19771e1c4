"""The Gaussian likelihood for real targets, with noise that is known, learned, or depends on the input."""

from typing import Annotated, ClassVar, Literal

import pyro.distributions as dist
import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import softplus

from pyrobnn._settings import setting
from pyrobnn.likelihoods.base import check_width, num_columns, registry, squeeze_single

_SMALLEST_SCALE = 1e-3


@registry.register
@setting
class Gaussian:
    """y ~ N(f, scale^2), independently for each target column.

    Attributes:
        scale: noise standard deviation in the units of y, or "learned" for one value a target column, optimised with
            the guide (it starts at 1 in the units that the model sees), or "heteroscedastic" for noise that depends on
            the input: the network then has 2 K outputs for K targets, the means first, and the standard deviation is
            softplus(second half) + 0.001 in the units that the model sees.
    """

    scale: Annotated[float, Field(gt=0)] | Literal["learned", "heteroscedastic"] = "learned"
    standardizes_targets: ClassVar[bool] = True
    integer_targets: ClassVar[bool] = False

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to Normal distributions."""
        if self.scale == "heteroscedastic":
            return HeteroscedasticGaussian()
        if self.scale == "learned":
            return HomoscedasticGaussian(PyroParam(like.new_ones(target_scale.shape), constraints.positive))
        return HomoscedasticGaussian((self.scale / target_scale.double()).to(like.device, like.dtype))

    def num_outputs(self, y: Tensor) -> int:
        """Return K, or 2 K for heteroscedastic noise."""
        return num_columns(y) * (2 if self.scale == "heteroscedastic" else 1)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse a network of the wrong width."""
        check_width(self, y, outputs)


class HomoscedasticGaussian(PyroModule):
    """Normal noise of the same scale everywhere, a buffer if known and a parameter if learned."""

    def __init__(self, scale: Tensor | PyroParam) -> None:
        super().__init__()
        if isinstance(scale, Tensor):
            self.register_buffer("scale", scale)
        else:
            self.scale = scale

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map outputs (..., N, K) to Normal targets of batch shape (..., N)."""
        loc, event_dim = squeeze_single(f)
        return dist.Normal(loc, self.scale).to_event(event_dim)


class HeteroscedasticGaussian(PyroModule):
    """Normal noise whose scale is the second half of the network's outputs."""

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map outputs (..., N, 2 K) to Normal targets of batch shape (..., N)."""
        first, second = torch.chunk(f, 2, dim=-1)
        loc, event_dim = squeeze_single(first)
        raw_scale, _ = squeeze_single(second)
        return dist.Normal(loc, softplus(raw_scale) + _SMALLEST_SCALE).to_event(event_dim)
