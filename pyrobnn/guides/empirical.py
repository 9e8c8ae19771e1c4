"""Stored draws as a guide: the output of Markov chains, in order."""

from typing import Any, NoReturn

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import Count, setting
from pyrobnn.guides.base import BuiltGuide, Model, built, registry
from pyrobnn.guides.map import DrawnPoint
from pyrobnn.guides.sites import Site, latent_sites

_NO_DENSITY = (
    "Stored draws of Markov chains have no density log q(w), so there is no ELBO, KL or importance weight to have: "
    "judge them by `function_rhat` and by predictive scores, and train another guide."
)


@registry.register
@setting
class Empirical:
    """q(w) is uniform over stored joint draws, such as the chains of `NUTS`, `MCLMC` or `SGLD`.

    S draws of T stored draws are spread evenly over the chains; each appears S / T times, rounded up or down. These
    methods fill it. It has no density, so functions that need an ELBO, a KL or importance weights refuse it.

    Attributes:
        num_chains: number of chains.
        num_draws: draws of each chain.
        statistics: names of the statistics kept with each draw, such as "diverging".

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior="normal", likelihood=bnn.likelihoods.Gaussian(1.0))
        >>> method = bnn.HMC(step_size=0.01, trajectory_length=0.05, num_draws=10, warmup=5, num_chains=2)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
        >>> bnn.guides.resolve(posterior.record.guide).num_draws
        10
    """

    num_chains: Count
    num_draws: Count
    statistics: tuple[str, ...] = ()

    def build(self, model: Model, *args: Any) -> PyroModule:
        return EmpiricalGuide(latent_sites(model, *args), self)


class EmpiricalGuide(BuiltGuide, PyroModule):
    """Chains of joint draws (chain, draw, P), a segment per site in its constrained space, and their statistics."""

    vmappable, trainable = True, False

    def __init__(self, sites: list[Site], setting: Empirical) -> None:
        super().__init__()
        self._shapes = {site.name: site.start.shape for site in sites}
        self._statistics = setting.statistics
        start = torch.cat([site.start.detach().reshape(-1) for site in sites])
        shape = (setting.num_chains, setting.num_draws)
        self.register_buffer("draws", start.repeat(*shape, 1))
        self.register_buffer("statistics", start.new_zeros(*shape, len(setting.statistics), dtype=torch.float64))

    def hold(self, draws: Tensor, statistics: Tensor) -> None:
        """Store draws (chain, draw, P) and their statistics (chain, draw, number of statistics)."""
        self.draws.copy_(draws)
        self.statistics.copy_(statistics)

    def forward(self, *args: Any, pick: Tensor | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Draw every site from a stored draw, of number `pick` () or at random, and return the values by name."""
        stored = self.draws.flatten(0, 1)
        index = torch.randint(len(stored), (1,), device=stored.device) if pick is None else pick[None]
        values = self._by_name(stored.index_select(0, index)[0])
        return {name: pyro.sample(name, StoredDraw(v, event_dim=v.ndim)) for name, v in values.items()}

    def mean(self) -> dict[str, Tensor]:
        return self._by_name(self.draws.double().mean((0, 1)).to(self.draws.dtype))

    def picks(self, num_draws: int) -> Tensor:
        """Return every k-th number from a random start, chain after chain; k is below 1 where more are asked for."""
        total = self.draws.shape[0] * self.draws.shape[1]
        start = torch.randint(total, (), device=self.draws.device)
        return (torch.arange(num_draws, device=self.draws.device) * total + start) // num_draws

    def chains(self) -> dict[str, Tensor]:
        return self._by_name(self.draws)

    def sample_stats(self) -> dict[str, Tensor]:
        return dict(zip(self._statistics, self.statistics.unbind(-1), strict=True))

    def _by_name(self, flat: Tensor) -> dict[str, Tensor]:
        values = segments(flat, list(self._shapes.values()))
        return dict(zip(self._shapes, values, strict=True))


class StoredDraw(DrawnPoint):
    """A stored draw: a point with an unknown density under the guide."""

    def log_prob(self, value: Tensor) -> NoReturn:
        """Refuse: an ELBO or an importance weight with the density of a point mass would be wrong."""
        raise InputError(_NO_DENSITY)


def require_density(guide: PyroModule) -> None:
    """Refuse a guide of stored draws where log q(w) is needed."""
    if built(guide).chains() is not None:
        raise InputError(_NO_DENSITY)


def segments(flat: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    """Return the parts of flat vectors (..., P) as tensors (..., *shape) of the shapes given, in their order."""
    pieces = flat.split([shape.numel() for shape in shapes], -1)
    return [piece.reshape((*flat.shape[:-1], *shape)) for piece, shape in zip(pieces, shapes, strict=True)]
