"""The delta guide: maximum a posteriori as variational inference with a point mass."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import register_kl

from pyrobnn._core.settings import setting
from pyrobnn.guides.base import BaseGuide, BuiltGuide, Model, registry
from pyrobnn.guides.sites import Site, latent_sites

if TYPE_CHECKING:
    from pyrobnn.posterior.posterior import Posterior


class SeeksMode(BaseGuide):
    """Base of the settings of guides whose training moves a point to the mode, which another training may have done."""

    seeks_mode: ClassVar[bool] = True

    def around(
        self,
        model: Any,
        data: Any,
        *,
        weights: Mapping[str, Tensor] | None = None,
        seed: int = 0,
        device: str = "auto",
        progress: bool = True,
    ) -> "Posterior":
        """Return the posterior around weights that were trained elsewhere, without training: `Map` is a point there.

        Args:
            model: a `BNN` around the trained network; or the network itself (any `torch.nn.Module`), which then gets
                the prior N(0, 1) and the likelihood "categorical" for integer targets, else "gaussian" with the
                deviation of the network's residuals in each target column as its noise.
            data: the training data, as for `fit`; standardised only if the network was trained on such data.
            weights: the mode by site name, as `Posterior.mean` returns it. Missing weights are the network's.
            seed: seed of starting values of sites that a likelihood adds, and default seed of draws.
            device: as in `fit`.
            progress: show a progress bar.

        Examples:
            >>> trained = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
            >>> around = bnn.guides.Laplace(structure="full").around(trained, bnn.datasets.sinusoid(), progress=False)
            >>> around.record.laplace.dimension, around.predict([[0.0], [2.0]]).epistemic_std.shape
            (25, torch.Size([2]))
        """
        from pyrobnn.inference.around import around

        return around(model, data, self, weights=weights, seed=seed, device=device, progress=progress)


@registry.register
@setting
class Map(SeeksMode):
    """q(w) = delta(w - theta): the ELBO is log p(D | theta) + log p(theta), with entropy 0 by convention.

    theta starts at the network's weights. (Mateo-Garcia 2018: MAP as the delta limit of variational inference.)

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide="map", steps=20, seed=0, progress=False)
        >>> float(posterior.predict([[0.0]]).epistemic_std)
        0.0
    """

    def build(self, model: Model, *args: Any) -> PyroModule:
        return MapGuide(latent_sites(model, *args))


class PointMass(dist.Delta):
    """A delta that need not check its own draw."""

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008 - as torch has it
        return super().rsample(sample_shape) if tuple(sample_shape) else self.v

    def log_prob(self, value: Tensor) -> Tensor:
        """Return 0 at the point and minus infinity elsewhere, of the batch shape."""
        return value.new_zeros(self.batch_shape) if value is self.v else super().log_prob(value)


class DrawnPoint(dist.Delta):
    """A point that a draw made; no KL has a closed form: Pyro's of a point mass would leave the draw out."""


@register_kl(DrawnPoint, dist.Distribution)
def _no_closed_form(q: DrawnPoint, p: Any) -> NoReturn:
    raise NotImplementedError


class MapGuide(BuiltGuide, PyroModule):
    """A point for every site, on the unconstrained side for sites with a constrained support."""

    vmappable = True

    def __init__(self, sites: list[Site]) -> None:
        super().__init__()
        self._sites = [(site.name, site.transform) for site in sites]
        points = [nn.Parameter(site.unconstrained, requires_grad=not site.is_kept) for site in sites]
        self.points = nn.ParameterList(points)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {name: pyro.sample(name, PointMass(v, event_dim=v.ndim)) for name, v in self.values().items()}

    def fixed_sites(self) -> frozenset[str]:
        return frozenset(name for name, _ in self._sites)

    def mean(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.values().items()}

    def points_by_name(self) -> dict[str, Tensor]:
        """Return the parameters, by site name; they are on the unconstrained side for constrained sites."""
        return {name: point for (name, _), point in zip(self._sites, self.points, strict=True)}

    def values(self) -> dict[str, Tensor]:
        pairs = zip(self._sites, self.points, strict=True)
        return {name: point if transform is None else transform(point) for (name, transform), point in pairs}
