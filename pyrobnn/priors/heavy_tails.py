"""Priors with heavier tails than the normal: Student's t and Laplace."""

import pyro.distributions as dist
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.distributions import latents
from pyrobnn.priors.base import Positive, Scale, ScaledPrior, constant, registry, scale_of


@registry.register
@setting
class StudentT(ScaledPrior):
    """Independent Student-t weights, (w / scale) ~ t(df): most are small, some may be large.

    Trained networks have such weights in dense layers (Fortuin et al. 2022, "Bayesian Neural Network Priors
    Revisited"). The variance is scale^2 df / (df - 2), infinite for df up to 2.

    Attributes:
        df: degrees of freedom; 1 is the Cauchy distribution, and the normal is the limit of many.
        scale: the scale, a number, "tuned", "fan_in" or "he" as in `Normal`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.StudentT(df=4.0, scale=0.5))
        >>> model.prior("0.weight", model.initial_values["0.weight"]).event_shape
        torch.Size([5, 1])
    """

    df: Positive = 3.0
    scale: Scale = "tuned"

    def site(self, name: str, value: Tensor) -> latents.StudentT:
        return latents.StudentT(constant(self.df, value), constant(0.0, value), scale_of(self.scale, value))


@registry.register
@setting
class Laplace(ScaledPrior):
    """Independent double-exponential weights, p(w) = exp(-|w| / scale) / (2 scale).

    Its mode under `Map` is the lasso (Tibshirani 1996); a guide with spread has no exact zeros. KL(normal || Laplace)
    has a closed form, so `kl="analytic"` works with `MeanField`.

    Attributes:
        scale: the scale, a number, "tuned", "fan_in" or "he" as in `Normal`; the standard deviation is sqrt(2) times
            it.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Laplace(scale=0.5))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), kl="analytic", steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.0]]).mean.shape
        torch.Size([1])
    """

    scale: Scale = "tuned"

    def site(self, name: str, value: Tensor) -> dist.Laplace:
        return dist.Laplace(constant(0.0, value), scale_of(self.scale, value))
