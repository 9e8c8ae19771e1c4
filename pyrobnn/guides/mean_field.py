"""The mean-field Gaussian guide: an independent normal for every weight."""

from typing import Any, Literal

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn._torch.per_example import NormalNoise, attach
from pyrobnn.distributions.latents import ReparameterizedNormal
from pyrobnn.guides.base import Model, NoisePerExample, NoiseSharing, Part, StartsNarrow, independent, registry
from pyrobnn.guides.joint import GuideWithMoments
from pyrobnn.guides.sites import Site, latent_sites


@registry.register
@setting
class MeanField(StartsNarrow, NoisePerExample):
    """q(w) = N(mu, softplus(rho)^2) for each weight, drawn as mu + softplus(rho) eps (Blundell et al. 2015, sec. 3.2).

    Sites with a constrained support (scales, probabilities) get the same normal in the unconstrained space of Pyro's
    bijection.

    Attributes:
        init_loc: the initial mu: "net" at the network's weights (random for a declared network, trained if it
            was trained), "prior" at a normal draw with the prior's mean and variance (Krasser 2019).
        init_rho: initial rho; None where a fit has measured it, else -5. softplus(-5) = 0.0067.
        noise: how the examples of a mini-batch share a draw while training, as in `NoisePerExample`.
        path_derivative: leave the score of log q, with expectation zero, out of the gradient ("sticking the landing",
            Roeder, Wu & Duvenaud 2017). It needs kl="mc".

    Examples:
        >>> guide = bnn.guides.MeanField(init_rho=-4.0, noise="local")
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), guide=guide, steps=20, progress=False)
        >>> [part.shape for part in posterior.guide.moments()["0.weight"]]
        [torch.Size([5, 1]), torch.Size([5, 1])]
    """

    init_loc: Literal["net", "prior"] = "net"
    init_rho: float | None = None
    noise: NoiseSharing = "auto"
    path_derivative: bool = False

    def build(self, model: Model, *args: Any) -> PyroModule:
        return MeanFieldGuide(latent_sites(model, *args), self)


class MeanFieldGuide(GuideWithMoments):
    """Independent normals whose parameters `loc` and `rho` are two flat vectors, a segment per site."""

    def __init__(self, sites: list[Site], setting: MeanField) -> None:
        super().__init__(sites, [_start(site, setting.init_loc) for site in sites])
        self.rho = nn.Parameter(setting.start_rho(sites))
        self.noise = "shared" if setting.noise == "auto" else setting.noise
        self.path_derivative = setting.path_derivative

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        loc, scale = self.centre, self.spread()
        drawn = loc + scale * torch.randn_like(loc)
        return {
            name: pyro.sample(name, self._distribution(mean, deviation, value, transform))
            for name, transform, mean, deviation, value in self._segments(loc, scale, drawn)
        }

    def _distribution(self, loc: Tensor, scale: Tensor, drawn: Tensor, transform: Any) -> Any:
        if self.noise != "shared" and transform is None:
            attach(drawn, NormalNoise(loc, scale, drawn, local=self.noise == "local"))
        if self.path_derivative:
            loc, scale = loc.detach(), scale.detach()
        normal = ReparameterizedNormal(loc, scale, drawn).to_event(drawn.ndim)
        return normal if transform is None else dist.TransformedDistribution(normal, [transform])

    def spread(self) -> Tensor:
        return softplus(self.rho)

    def parts(self) -> list[Part]:
        return [independent([name], *pair) for name, pair in self.moments().items()]


def _start(site: Site, where: str) -> Tensor:
    if where == "net" or site.transform is not None:
        return site.unconstrained
    if site.mean is None or site.variance is None or not bool((site.mean + site.variance).isfinite().all()):
        said = "MeanField(init_loc='prior') needs a prior of finite mean and variance"
        raise InputError(f"{said}; the prior of {site.name!r} has none: use init_loc='net'.")
    return site.mean + torch.randn_like(site.start) * site.variance.sqrt()
