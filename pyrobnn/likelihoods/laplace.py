"""The Laplace likelihood for real targets with outliers: its log density falls with the distance, not its square."""

import pyro.distributions as dist
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.likelihoods.base import registry
from pyrobnn.likelihoods.noise import NoisyLikelihood, Scale, Spread


@registry.register
@setting
class Laplace(NoisyLikelihood):
    """y ~ Laplace(f, scale), independently for each target column; f is the median, as in absolute-error regression.

    Attributes:
        scale: mean absolute deviation of the noise in the units of y, its standard deviation over sqrt(2): a number, a
            tuple with a number per target column, "learned", a prior, or "heteroscedastic"; see
            `pyrobnn.likelihoods.noise.Scale`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=bnn.likelihoods.Laplace(scale="learned"))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.0]]).quantile(0.5).shape
        torch.Size([1])
    """

    scale: Scale = "tuned"

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        """Return the module that maps outputs to Laplace distributions."""
        return Spread(self.scale, like, target_scale, dist.Laplace)
