"""The normal prior, with a fixed scale or one that follows the width of each layer."""

import math
from typing import Annotated, Literal

import pyro.distributions as dist
import torch
from pydantic import Field
from torch import Tensor

from pyrobnn._settings import setting
from pyrobnn.priors.base import SitePrior, constant, fan_in, registry


@registry.register
@setting
class Normal(SitePrior):
    """Independent normals, w ~ N(loc, scale^2).

    Attributes:
        scale: standard deviation; "fan_in" for 1 / sqrt(fan-in), which keeps the prior over functions the same at
            every width (Neal 1996), or "he" for sqrt(2 / fan-in), which keeps ReLU activations at the same variance
            (He et al. 2015). Under both, biases have standard deviation 1.
        loc: mean.
    """

    scale: Annotated[float, Field(gt=0)] | Literal["fan_in", "he"] = 1.0
    loc: float = 0.0

    def site(self, name: str, value: Tensor) -> dist.Normal:
        """Return N(loc, scale^2) with the scale of this parameter."""
        return dist.Normal(constant(self.loc, value), constant(self._scale(value.shape), value))

    def _scale(self, shape: torch.Size) -> float | Tensor:
        if isinstance(self.scale, str):
            gain = 2.0 if self.scale == "he" and len(shape) > 1 else 1.0
            return math.sqrt(gain / fan_in(shape))
        return self.scale
