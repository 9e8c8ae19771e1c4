"""The spike-and-slab prior: each weight is needed or not, with the share of those needed inferred."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from torch import Tensor

from pyrobnn._core.settings import setting
from pyrobnn.distributions.latents import Beta, ScaleMixtureNormal
from pyrobnn.priors.base import Latent, LatentSitePrior, Positive, constant, registry


@registry.register
@setting
class SpikeAndSlab(LatentSitePrior):
    """Each weight is N(0, slab_scale^2) if included, else N(0, spike_scale^2); the inclusion probability is inferred.

    The indicators of George & McCulloch 1993 are summed out, which leaves the density of a `ScaleMixture` given the
    probability. This is exact, while gates relaxed to (0, 1) would add an approximation and a looser bound. Unlike in
    `ScaleMixture`, each parameter's probability is a latent with a beta prior, the site "prior.<parameter>.inclusion",
    and the spike is narrow.

    Attributes:
        inclusion: prior mean of the inclusion probability.
        concentration: weight of that mean: Beta(inclusion concentration, (1 - inclusion) concentration); 2 with the
            mean 0.5 is the uniform distribution.
        slab_scale: standard deviation of included weights.
        spike_scale: standard deviation of the other weights.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.SpikeAndSlab(inclusion=0.2))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> 0 < float(posterior.mean()["prior.0.weight.inclusion"]) < 1
        True
    """

    inclusion: Annotated[float, Field(gt=0, lt=1)] = 0.5
    concentration: Positive = 2.0
    slab_scale: Positive = 1.0
    spike_scale: Positive = 0.01

    def latents(self, name: str, value: Tensor) -> dict[str, Latent]:
        mean, weight = constant(self.inclusion, value), constant(self.concentration, value)
        return {"inclusion": Latent(Beta(mean * weight, (1 - mean) * weight), mean)}

    def conditional(self, name: str, value: Tensor, latents: Mapping[str, Tensor]) -> ScaleMixtureNormal:
        slab, spike = constant(self.slab_scale, value), constant(self.spike_scale, value)
        return ScaleMixtureNormal(latents["inclusion"], slab, spike)
