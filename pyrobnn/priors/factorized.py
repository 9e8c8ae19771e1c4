"""Priors of independent weights without latents: normal, Student's t, Laplace, and MOPED around a trained network."""

from typing import ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrobnn._core.settings import Positive, setting
from pyrobnn.distributions import latents
from pyrobnn.priors.base import OpenScale, Scales, SitePrior, constant, registry, scale_of


@registry.register
@setting
class Normal(OpenScale, SitePrior):
    """Independent normals, w ~ N(loc, scale^2).

    Attributes:
        scale: standard deviation: a number, or a tuple of one for each input of a layer; "fan_in" for 1 / sqrt(fan-in),
            which keeps the prior over functions the same at every width (Neal 1996); "he" for sqrt(2 / fan-in), which
            keeps ReLU activations at the same variance (He et al. 2015); under both, biases have standard deviation 1.
            "tuned" for numbers that the evidence chooses before a fit, one per parameter and per input of the first
            layer, and "he" elsewhere.
        loc: mean.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [100], 1), prior=bnn.priors.Normal("fan_in"))
        >>> prior = model.prior("2.weight", model.initial_values["2.weight"])
        >>> round(float(prior.stddev[0, 0]), 3)  # 1 / sqrt(100)
        0.1
    """

    is_normal: ClassVar[bool] = True
    scale: Scales = "tuned"
    loc: float = 0.0

    def site(self, name: str, value: Tensor) -> latents.NormalOfMany:
        return latents.NormalOfMany(constant(self.loc, value), scale_of(self.scale, value))


@registry.register
@setting
class StudentT(OpenScale, SitePrior):
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
    scale: Scales = "tuned"

    def site(self, name: str, value: Tensor) -> latents.LatentStudentT:
        return latents.LatentStudentT(constant(self.df, value), constant(0.0, value), scale_of(self.scale, value))


@registry.register
@setting
class Laplace(OpenScale, SitePrior):
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

    scale: Scales = "tuned"

    def site(self, name: str, value: Tensor) -> dist.Laplace:
        return dist.Laplace(constant(0.0, value), scale_of(self.scale, value))


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
