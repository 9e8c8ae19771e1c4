"""The delta guide: maximum a posteriori as variational inference with a point mass."""

from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyrobnn._core.settings import setting
from pyrobnn.guides.base import BaseGuide, BuiltGuide, Model, registry
from pyrobnn.guides.sites import Site, latent_sites


@registry.register
@setting
class Map(BaseGuide):
    """q(w) = delta(w - theta): the ELBO is log p(D | theta) + log p(theta), with entropy 0 by convention.

    theta starts at the network's weights. (Mateo-Garcia 2018: MAP as the delta limit of variational inference.)

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide="map", steps=20, seed=0, progress=False)
        >>> float(posterior.predict([[0.0]]).epistemic_std)
        0.0
    """

    seeks_mode: ClassVar[bool] = True

    def build(self, model: Model, *args: Any) -> PyroModule:
        """Return the guide, with its starting values."""
        return MapGuide(latent_sites(model, *args))


class Point(dist.Delta):
    """A delta that need not check its own draw."""

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 - as torch has it
        """Return the point itself."""
        return super().rsample(sample_shape) if tuple(sample_shape) else self.v

    def log_prob(self, value: Tensor) -> Tensor:
        """Return 0 at the point and minus infinity elsewhere, of the batch shape."""
        return value.new_zeros(self.batch_shape) if value is self.v else super().log_prob(value)


class MapGuide(BuiltGuide, PyroModule):
    """A point for every site, on the unconstrained side for sites with a constrained support."""

    vmappable = True

    def __init__(self, sites: list[Site]) -> None:
        super().__init__()
        self._sites = [(site.name, site.transform) for site in sites]
        self.points = nn.ParameterList([site.unconstrained for site in sites])

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every site, always at its point, and return the values by name."""
        return {name: pyro.sample(name, Point(value, event_dim=value.ndim)) for name, value in self.values().items()}

    def fixed_sites(self) -> frozenset[str]:
        """Return all sites."""
        return frozenset(name for name, _ in self._sites)

    def mean(self) -> dict[str, Tensor]:
        """Return the point of each site."""
        return {name: value.detach().clone() for name, value in self.values().items()}

    def points_by_name(self) -> dict[str, Tensor]:
        """Return the parameters, by site name; they are on the unconstrained side for constrained sites."""
        return {name: point for (name, _), point in zip(self._sites, self.points, strict=True)}

    def values(self) -> dict[str, Tensor]:
        """Return the point of each site by name, as the parameters make it."""
        pairs = zip(self._sites, self.points, strict=True)
        return {name: point if transform is None else transform(point) for (name, transform), point in pairs}
