"""The normal prior, with a fixed scale or a scale that follows the width of each layer."""

from typing import ClassVar

from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.distributions.latents import NormalOfMany
from pyrobnn.priors.base import Scale, ScaledPrior, constant, registry, scale_of


@registry.register
@setting
class Normal(ScaledPrior):
    """Independent normals, w ~ N(loc, scale^2).

    Attributes:
        scale: standard deviation: a number; "fan_in" for 1 / sqrt(fan-in), which keeps the prior over functions the
            same at every width (Neal 1996); "he" for sqrt(2 / fan-in), which keeps ReLU activations at the same
            variance (He et al. 2015); under both, biases have standard deviation 1. "tuned" for a number per parameter
            that the evidence of a Laplace approximation chooses before a fit of automatic length. In other fits, and
            where that is too costly, it is "he" (`pyrobnn.fit`).
        loc: mean.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [100], 1), prior=bnn.priors.Normal("fan_in"))
        >>> prior = model.prior("2.weight", model.initial_values["2.weight"])
        >>> round(float(prior.stddev[0, 0]), 3)  # 1 / sqrt(100)
        0.1
    """

    is_normal: ClassVar[bool] = True
    scale: Scale = "tuned"
    loc: float = 0.0

    def site(self, name: str, value: Tensor) -> NormalOfMany:
        return NormalOfMany(constant(self.loc, value), scale_of(self.scale, value))
