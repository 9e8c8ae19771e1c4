"""The horseshoe priors: a global scale shrinks all weights of a layer, local scales let those needed escape."""

from collections.abc import Mapping
from typing import Literal

import pyro.distributions as dist
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.priors.base import Latent, LatentSitePrior, Positive, Scale, constant, registry, scale_of
from pyrobnn.priors.hierarchical import centred_normal, per_input, positive

Local = Literal["unit", "weight"]


@registry.register
@setting
class Horseshoe(LatentSitePrior):
    """The horseshoe, w ~ N(0, tau^2 lambda^2) with tau ~ C+(0, global_scale) and lambda ~ C+(0, 1).

    Carvalho, Polson & Scott 2010; for networks Louizos et al. 2017 and Ghosh et al. 2019. Each weight has the sites
    "prior.<parameter>.global_scale" and "prior.<parameter>.local_scale"; biases are N(0, 1), as intercepts are not
    shrunk. The half-Cauchy densities are used as they are: writing each as two inverse-gamma variables (Makalic &
    Schmidt 2016) serves updates in closed form, and only loosens the bound of a guide of independent sites.

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
class RegularizedHorseshoe(LatentSitePrior):
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
        return scales | {"slab_variance": self._slab(value)} if scales else {}

    def _slab(self, value: Tensor) -> Latent:
        half_df, variance = constant(self.slab_df, value) / 2, constant(self.slab_scale, value).square()
        return Latent(dist.InverseGamma(half_df, half_df * variance), variance)

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
