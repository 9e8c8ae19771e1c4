"""The radial guide: noise of a random direction and a length that does not grow with the number of weights."""

import dataclasses
import math
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyrobnn._core.settings import setting
from pyrobnn.guides.base import Model, StartsNarrow, registry
from pyrobnn.guides.joint import HALF_LOG_2PI, JointGuide, RealPart, normal_part
from pyrobnn.guides.sites import Site, latent_sites

_MEAN_LOG_LENGTH = -0.5 * (0.5772156649015329 + math.log(2.0))
"""E[log |r|] for standard normal r; the first number is Euler's constant."""


@registry.register
@setting
class Radial(StartsNarrow):
    """w = mu + softplus(rho) r eps / |eps| for each weight tensor (Farquhar, Osborne & Gal 2020, sec. 3).

    eps is standard normal noise of the tensor's shape and r a standard normal number. So the deviation from mu has
    length softplus(rho), for any number D of entries; under mean-field it is sqrt(D) times as long. The
    density is exact, constants included. Sites with a constrained support are mean-field.

    Attributes:
        init_rho: initial rho; None as for `MeanField`. mu starts at the network's weights.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [50], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide=bnn.guides.Radial(), steps=20, seed=0, progress=False)
        >>> posterior.predict([[0.0], [1.0]], num_draws=100)
        Prediction(Normal, num_draws=100, num_inputs=2)
    """

    init_rho: float | None = None

    def build(self, model: Model, *args: Any) -> PyroModule:
        return RadialGuide(latent_sites(model, *args), self)


class RadialGuide(JointGuide):
    """Independent radial distributions whose parameters `loc` and `rho` are two flat vectors, a segment per site."""

    def __init__(self, sites: list[Site], setting: Radial) -> None:
        super().__init__(sites)
        self.rho = nn.Parameter(setting.start_rho([_as_length(site) for site in sites]))

    def draw(self) -> list[RealPart]:
        noise = torch.randn_like(self.loc)
        lengths = torch.randn_like(self.loc[: len(self._sizes)])
        segments = self._segments(self.centre, softplus(self.rho), noise)
        return [
            _radial(loc, scale, eps, length) if transform is None else _normal(loc, scale, eps)
            for (_, transform, loc, scale, eps), length in zip(segments, lengths, strict=True)
        ]

    def spread(self) -> Tensor:
        """Return the standard deviation of every entry, flat: sigma / sqrt(D) for the D entries of a radial site."""
        scales = self._segments(softplus(self.rho))
        return torch.cat([(s / (s.numel() ** 0.5 if t is None else 1.0)).reshape(-1) for _, t, s in scales])


def _as_length(site: Site) -> Site:
    """Return a site whose scale is that of the length of all its entries together."""
    if site.scale is None or site.transform is not None:
        return site
    return dataclasses.replace(site, scale=site.scale * site.scale.numel() ** 0.5)


def _radial(loc: Tensor, scale: Tensor, noise: Tensor, length: Tensor) -> RealPart:
    """Return a part whose deviation u, in units of sigma, has the density 2 N(|u|; 0, 1) / (A |u|^(D - 1)).

    A = 2 pi^(D / 2) / Gamma(D / 2) is the area of the unit sphere, over which directions are spread evenly.
    """
    size = loc.numel()
    log_area = math.log(2.0) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)
    constant, log_volume = math.log(2.0) - HALF_LOG_2PI - log_area, scale.log().sum()
    return RealPart(
        loc + scale * noise * (length / noise.square().sum().sqrt()),
        constant - 0.5 * length.square() - (size - 1) * length.abs().log() - log_volume,
        loc=loc,
        scale=scale / size**0.5,
        entropy=log_volume - constant + 0.5 + (size - 1) * _MEAN_LOG_LENGTH,
        normal=size == 1,
    )


def _normal(loc: Tensor, scale: Tensor, noise: Tensor) -> RealPart:
    return normal_part(loc + scale * noise, noise, scale.log().sum(), loc=loc, scale=scale)
