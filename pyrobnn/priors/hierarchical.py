"""Normal priors whose scales are inferred: a scale for each parameter, or for each input unit (ARD)."""

from collections.abc import Mapping
from typing import Literal

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.priors.base import Latent, LatentSitePrior, Scale, constant, registry, scale_of

ScalePrior = Literal["half_cauchy", "half_normal", "gamma", "log_normal"]
_SPREAD = 0.5
"""Standard deviation of the logarithm of a log-normal scale."""


@registry.register
@setting
class Hierarchical(LatentSitePrior):
    """Normal weights with a common scale for each parameter, w ~ N(0, tau^2), and tau inferred (Neal 1996).

    The weight and the bias of a layer have separate scales, the sites "prior.<parameter>.scale". With a gamma or
    log-normal prior tau stays away from 0, the others let it go there.

    A guide that takes weights and scales as independent, as `MeanField` does, underestimates the spread of tau. Under
    `Map` the density grows without bound where weights and tau go to 0 together: use a guide with spread.

    Attributes:
        scale_prior: the prior of tau: "half_cauchy" (Gelman 2006), "half_normal", "gamma" for Gamma(2, 2 / scale),
            which vanishes at 0 (Chung et al. 2013), or "log_normal", under which log tau has a standard deviation of
            1/2: tau is within a factor of 2.7 of the scale in 95 of 100 draws.
        scale: the scale of that prior: the median of "half_cauchy" and "log_normal", the standard deviation of the
            uncut normal of "half_normal", the mean of "gamma". A number, or "fan_in" or "he" as in `Normal`. The guide
            starts there.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Hierarchical("gamma"))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> bool(posterior.mean()["prior.0.weight.scale"] > 0)
        True
    """

    scale_prior: ScalePrior = "half_cauchy"
    scale: Scale = 1.0

    def latents(self, name: str, value: Tensor) -> dict[str, Latent]:
        return {"scale": positive(self.scale_prior, scale_of(self.scale, value))}

    def conditional(self, name: str, value: Tensor, latents: Mapping[str, Tensor]) -> dist.Normal:
        return centred_normal(latents["scale"])


@registry.register
@setting
class ARD(LatentSitePrior):
    """Automatic relevance determination: normal weights with a scale for each input unit of a layer, all inferred.

    w_ij ~ N(0, tau_j^2): the weights of a useless input shrink together with their tau_j (MacKay 1994; Neal 1996, sec.
    4.3). The sites are "prior.<parameter>.scale", with an entry for each input feature of a dense layer or channel of a
    convolution. Biases are N(0, 1). For the inputs of the network alone, name its first layer: `prior={"0.weight":
    ARD(), "*": "normal"}`.

    Attributes:
        scale_prior: the prior of each tau_j, as in `Hierarchical`.
        scale: the scale of that prior, likewise.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(3, [5], 1), prior={"0.weight": bnn.priors.ARD(), "*": bnn.priors.Normal(1.0)})
        >>> posterior = model.fit(torch.eye(3), torch.arange(3.0), steps=20, seed=0, progress=False)
        >>> posterior.mean()["prior.0.0.weight.scale"].shape  # a scale for each input
        torch.Size([3])
    """

    scale_prior: ScalePrior = "half_cauchy"
    scale: Scale = 1.0

    def latents(self, name: str, value: Tensor) -> dict[str, Latent]:
        if value.ndim < 2:
            return {}
        return {"scale": positive(self.scale_prior, scale_of(self.scale, value), value.shape[1:2])}

    def conditional(self, name: str, value: Tensor, latents: Mapping[str, Tensor]) -> dist.Normal:
        return centred_normal(per_input(latents["scale"], value) if latents else constant(1.0, value))


def positive(kind: ScalePrior, scale: Tensor, shape: tuple[int, ...] = ()) -> Latent:
    """Return independent positive latents of a kind and a scale, which is also where they start."""
    entries: dist.TorchDistribution
    if kind == "gamma":
        concentration = torch.full_like(scale, 2.0)
        entries = dist.Gamma(concentration, concentration / scale)
    elif kind == "log_normal":
        entries = dist.LogNormal(scale.log(), torch.full_like(scale, _SPREAD))
    else:
        entries = dist.HalfCauchy(scale) if kind == "half_cauchy" else dist.HalfNormal(scale)
    return Latent(entries.expand(shape).to_event(len(shape)), scale.expand(shape))


def per_input(scales: Tensor, value: Tensor) -> Tensor:
    """Return scales of input units (inputs,) in a shape that expands to the weight (outputs, inputs, ...)."""
    return scales.reshape(-1, *[1] * (value.ndim - 2))


def centred_normal(scale: Tensor) -> dist.Normal:
    """Return N(0, scale^2)."""
    return dist.Normal(torch.zeros_like(scale), scale)
