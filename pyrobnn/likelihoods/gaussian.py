"""The Gaussian likelihood for real targets."""

import pyro.distributions as dist
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.likelihoods.base import registry
from pyrobnn.likelihoods.noise import NoisyLikelihood, Scale, Spread


@registry.register
@setting
class Gaussian(NoisyLikelihood):
    """y ~ N(f, scale^2), independently for each target column.

    Attributes:
        scale: noise standard deviation in the units of y: a number, a tuple with a number per target column, "tuned",
            "learned", a prior, or "heteroscedastic"; see `pyrobnn.likelihoods.noise.Scale`.

    Examples:
        >>> likelihood = bnn.likelihoods.Gaussian(scale="heteroscedastic")
        >>> model = bnn.BNN(bnn.MLP(1, [10], 2), likelihood=likelihood)  # outputs: location and scale
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.0], [0.5]]).aleatoric_std.shape
        torch.Size([2])
    """

    scale: Scale = "tuned"

    @property
    def is_normal(self) -> bool:
        """Whether the scale is the same for all inputs."""
        return not self.varies_normally

    @property
    def varies_normally(self) -> bool:
        """Whether the scale is an output."""
        return self.noise == "heteroscedastic"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to Normal distributions."""
        return Spread(self.scale, like, target_scale, dist.Normal)
