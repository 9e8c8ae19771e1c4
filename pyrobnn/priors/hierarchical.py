"""Normal priors whose scales are inferred: of a parameter, of input units (ARD), and the horseshoes, of both."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import pyro.distributions as dist
import torch
from torch import Tensor

from pyrobnn._core.settings import Positive, setting
from pyrobnn.priors.base import Latent, LatentSitePrior, Scale, constant, per_input, registry, scale_of

ScalePrior = Literal["half_cauchy", "half_normal", "gamma", "log_normal"]
Local = Literal["unit", "weight"]
_SPREAD = 0.5
"""Standard deviation of the logarithm of a log-normal scale."""


class InferredScale(LatentSitePrior):
    """Base for those whose latents are scales."""

    infers_scale: ClassVar[bool] = True


@registry.register
@setting
class Hierarchical(InferredScale):
    """Normal weights with a common scale for each parameter, w ~ N(0, tau^2), and tau inferred (Neal 1996).

    The weight and the bias of a layer have separate scales, the sites "prior.<parameter>.scale". With a gamma or
    log-normal prior tau stays away from 0, the others let it go there.

    `MeanField` underestimates the spread of tau. Where no fit has measured tau, the density under `Map` grows without
    bound where weights and tau go to 0 together: use a guide with spread.

    Attributes:
        scale_prior: the prior of tau: "half_cauchy" (Gelman 2006), "half_normal", "gamma" for Gamma(2, 2 / scale),
            which vanishes at 0 (Chung et al. 2013), or "log_normal", under which log tau has a standard deviation of
            1/2: tau is within a factor of 2.7 of the scale in 95 of 100 draws.
        scale: the scale of that prior: the median of "half_cauchy" and "log_normal", the standard deviation of the
            uncut normal of "half_normal", the mean of "gamma". A number, or "fan_in" or "he" as in `Normal`. The guide
            starts there if tau is not measured.

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
class ARD(InferredScale):
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


@registry.register
@setting
class Horseshoe(InferredScale):
    """The horseshoe, w ~ N(0, tau^2 lambda^2) with tau ~ C+(0, global_scale) and lambda ~ C+(0, 1).

    Carvalho, Polson & Scott 2010; for networks Louizos et al. 2017 and Ghosh et al. 2019. Each weight has the sites
    "prior.<parameter>.global_scale" and "prior.<parameter>.local_scale"; biases are N(0, 1).

    Attributes:
        global_scale: the scale of tau: a number, or "fan_in" or "he" as in `Normal`. Where p0 of D inputs matter,
            noise has standard deviation sigma and there are N examples, Piironen & Vehtari (2017, sec. 3) advise
            p0 / (D - p0) sigma / sqrt(N).
        local: a lambda for each input "unit", which is switched off as a whole, or for each "weight".

    Examples:
        >>> prior = {"0.weight": bnn.priors.Horseshoe(global_scale=0.1), "*": bnn.priors.Normal(1.0)}
        >>> model = bnn.BNN(bnn.MLP(4, [5], 1), prior=prior)
        >>> posterior = model.fit(torch.eye(4), torch.arange(4.0), steps=20, seed=0, progress=False)
        >>> posterior.mean()["prior.0.0.weight.local_scale"].shape  # a scale for each input
        torch.Size([4])
    """

    global_scale: Scale = 1.0
    local: Local = "unit"

    def latents(self, name: str, value: Tensor) -> dict[str, Latent]:
        return _scales(self.global_scale, self.local, value)

    def conditional(self, name: str, value: Tensor, latents: Mapping[str, Tensor]) -> dist.Normal:
        return centred_normal(_product(self.local, value, latents) if latents else constant(1.0, value))


@registry.register
@setting
class RegularizedHorseshoe(InferredScale):
    """The horseshoe with a slab: weights that escape from shrinkage are N(0, c^2) instead of nearly free.

    The standard deviation of a weight is tau lambda / sqrt(1 + (tau lambda / c)^2), with tau and lambda as in
    `Horseshoe` and c^2 ~ InverseGamma(slab_df / 2, slab_df slab_scale^2 / 2) for each parameter, so that large weights
    follow a Student-t of scale slab_scale (Piironen & Vehtari 2017, sec. 2.3; Ghosh et al. 2019). c^2 is the site
    "prior.<parameter>.slab_variance".

    Attributes:
        global_scale: as in `Horseshoe`.
        slab_scale: scale of the weights that are not shrunk.
        slab_df: degrees of freedom of the slab.
        local: as in `Horseshoe`.

    Examples:
        >>> prior = bnn.priors.RegularizedHorseshoe(global_scale=0.1, slab_scale=1.0)
        >>> model = bnn.BNN(bnn.MLP(4, [5], 1), prior={"0.weight": prior, "*": bnn.priors.Normal(1.0)})
        >>> model.fit(torch.eye(4), torch.arange(4.0), steps=20, seed=0, progress=False).predict(torch.eye(4))
        Prediction(Normal, num_draws=500, num_inputs=4)
    """

    global_scale: Scale = 1.0
    slab_scale: Positive = 2.0
    slab_df: Positive = 4.0
    local: Local = "unit"

    def latents(self, name: str, value: Tensor) -> dict[str, Latent]:
        scales = _scales(self.global_scale, self.local, value)
        half_df, variance = constant(self.slab_df, value) / 2, constant(self.slab_scale, value).square()
        slab = Latent(dist.InverseGamma(half_df, half_df * variance), variance)
        return scales | {"slab_variance": slab} if scales else {}

    def conditional(self, name: str, value: Tensor, latents: Mapping[str, Tensor]) -> dist.Normal:
        if not latents:
            return centred_normal(constant(1.0, value))
        free = _product(self.local, value, latents)
        return centred_normal(free / (1 + free.square() / latents["slab_variance"]).sqrt())


def _scales(global_scale: float | str | Tensor, local: Local, value: Tensor) -> dict[str, Latent]:
    if value.ndim < 2:
        return {}
    shape = value.shape if local == "weight" else value.shape[1:2]
    return {
        "global_scale": positive("half_cauchy", scale_of(global_scale, value)),
        "local_scale": positive("half_cauchy", constant(1.0, value), shape),
    }


def _product(local: Local, value: Tensor, latents: Mapping[str, Tensor]) -> Tensor:
    """Return tau lambda in a shape that expands to the shape of the weight."""
    scales = latents["local_scale"]
    return latents["global_scale"] * (scales if local == "weight" else per_input(scales, value))


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


def centred_normal(scale: Tensor) -> dist.Normal:
    """Return N(0, scale^2)."""
    return dist.Normal(torch.zeros_like(scale), scale)
