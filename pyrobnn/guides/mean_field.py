"""The mean-field Gaussian guide: an independent normal for every weight."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyrobnn._errors import InputError
from pyrobnn._settings import setting
from pyrobnn.distributions import ReparameterizedNormal
from pyrobnn.guides.base import Model, registry
from pyrobnn.guides.sites import Site, latent_sites

_QUADRATURE_POINTS = 32


@registry.register
@setting
class MeanField:
    """q(w) = N(mu, softplus(rho)^2) for each weight, drawn as mu + softplus(rho) eps (Blundell et al. 2015, sec. 3.2).

    Sites with a constrained support (scales, probabilities) get the same normal on the unconstrained side of Pyro's
    bijection.

    Attributes:
        init_loc: where mu starts: "net" at the network's own weights (random for a declared network, trained if it
            was trained), "prior" at a normal draw with the prior's mean and variance (Krasser 2019).
        init_rho: where rho starts; softplus(-3) = 0.049.
    """

    init_loc: Literal["net", "prior"] = "net"
    init_rho: float = -3.0

    def build(self, model: Model, *args: Any) -> PyroModule:
        """Return the guide, with its starting values."""
        return MeanFieldGuide(latent_sites(model, *args), self)


class MeanFieldGuide(PyroModule):
    """Independent normals whose parameters `loc` and `rho` are two flat vectors, one segment a site."""

    vmappable = True

    def __init__(self, sites: list[Site], setting: MeanField) -> None:
        super().__init__()
        self._sites = [(site.name, site.unconstrained.shape, site.transform) for site in sites]
        self._sizes = [site.unconstrained.numel() for site in sites]
        start = torch.cat([_start(site, setting.init_loc).reshape(-1) for site in sites])
        self.loc = nn.Parameter(start)
        self.rho = nn.Parameter(torch.full_like(start, setting.init_rho))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every site once and return the values by name."""
        loc, scale = self.loc, softplus(self.rho)
        drawn = loc + scale * torch.randn_like(loc)
        segments = zip(self._split(loc), self._split(scale), self._split(drawn), strict=True)
        return {
            name: pyro.sample(name, _site_distribution(ReparameterizedNormal(*segment), transform))
            for (name, transform), segment in zip(self._named(), segments, strict=True)
        }

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of each site; for a constrained site by Gauss-Hermite quadrature, entry by entry."""
        pairs = zip(self._named(), self.moments().values(), strict=True)
        return {
            name: loc if transform is None else _mean_of_image(transform, loc, scale)
            for (name, transform), (loc, scale) in pairs
        }

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return mu and sigma of each site by name, on the unconstrained side for constrained sites."""
        pairs = zip(self._split(self.loc.detach().clone()), self._split(softplus(self.rho.detach())), strict=True)
        return {name: pair for (name, _), pair in zip(self._named(), pairs, strict=True)}

    def _named(self) -> Iterator[tuple[str, Any]]:
        return ((name, transform) for name, _, transform in self._sites)

    def _split(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split(self._sizes)
        return [piece.view(shape) for piece, (_, shape, _) in zip(pieces, self._sites, strict=True)]


def _site_distribution(entries: ReparameterizedNormal, transform: Any) -> Any:
    normal = entries.to_event(len(entries.batch_shape))
    return normal if transform is None else dist.TransformedDistribution(normal, [transform])


def _mean_of_image(transform: Any, loc: Tensor, scale: Tensor) -> Tensor:
    nodes, weights = (loc.new_tensor(values) for values in np.polynomial.hermite_e.hermegauss(_QUADRATURE_POINTS))
    images = torch.stack([transform(loc + scale * node) for node in nodes], -1)
    return images @ (weights / weights.sum())


def _start(site: Site, where: str) -> Tensor:
    if where == "net":
        return site.unconstrained
    if site.transform is not None:
        return site.unconstrained
    if site.mean is None or site.variance is None or not bool((site.mean + site.variance).isfinite().all()):
        raise InputError(
            f"MeanField(init_loc='prior') needs a prior with a finite mean and variance, and that of {site.name!r} has "
            "none: use init_loc='net'."
        )
    return site.mean + torch.randn_like(site.start) * site.variance.sqrt()
