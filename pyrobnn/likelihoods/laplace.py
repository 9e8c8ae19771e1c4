"""The Laplace likelihood for real targets with outliers: its log density falls with the distance, not its square."""

import pyro.distributions as dist
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.likelihoods.base import registry
from pyrobnn.likelihoods.noise import NoisyLikelihood, NoisyOutputs, Scale


@registry.register
@setting
class Laplace(NoisyLikelihood):
    """y ~ Laplace(f, scale), independently for each target column; f is the median, as in absolute-error regression.

    Attributes:
        scale: mean absolute deviation of the noise in the units of y, its standard deviation over sqrt(2): a number, a
            tuple with one for each target column, "learned", a prior, or "heteroscedastic"; see
            `pyrobnn.likelihoods.noise.Scale`.
    """

    scale: Scale = "tuned"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to Laplace distributions."""
        return NoisyOutputs(self.scale, like, target_scale, dist.Laplace)
