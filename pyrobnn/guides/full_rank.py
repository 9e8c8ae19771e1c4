"""The full-rank Gaussian guide: a normal over all weights, with every correlation."""

from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyrobnn._core.settings import setting
from pyrobnn.guides.base import Model, StartsNarrow, registry
from pyrobnn.guides.joint import CorrelatedGuide, RealPart, check_size, normal_part
from pyrobnn.guides.sites import Site, latent_sites


@registry.register
@setting
class FullRank(StartsNarrow):
    """q(w) = N(mu, S L L^T S) over all weights jointly, drawn as mu + S L eps.

    S = diag(softplus(rho)), and L is lower triangular with ones on its diagonal. Sites with a constrained support take
    part in the unconstrained space of Pyro's bijection. D weights have D^2 parameters.

    Attributes:
        init_rho: initial rho, with L the identity; None as for `MeanField`. mu starts at the network's weights.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> guide = bnn.guides.FullRank(init_rho=-4.0)
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide=guide, steps=20, seed=0, progress=False)
        >>> draws = posterior.draw(1000)
        >>> torch.corrcoef(torch.cat([draws["0.weight"][..., 0], draws["0.bias"]], 1).T).shape  # no longer the identity
        torch.Size([10, 10])
    """

    init_rho: float | None = None

    def build(self, model: Model, *args: Any) -> PyroModule:
        """Return the guide, with its starting values.

        Raises:
            InputError: the factor would not fit into memory.
        """
        sites = latent_sites(model, *args)
        size = sum(site.unconstrained.numel() for site in sites)
        instead = "LowRank(), or FullRank for some of the weights, such as guide={'4.*': FullRank(), '*': MeanField()}"
        check_size(f"{self!r}", size * (size + 2), sites[0].start, instead)
        return FullRankGuide(sites, self)


class FullRankGuide(CorrelatedGuide):
    """A normal with the flat parameters `loc` and `rho` (D,) and `factor` (D, D), L below its diagonal."""

    def __init__(self, sites: list[Site], setting: FullRank) -> None:
        super().__init__(sites)
        self.rho = nn.Parameter(torch.full_like(self.loc, setting.start_rho))
        self.factor = nn.Parameter(self.loc.new_zeros(len(self.loc), len(self.loc)))

    def draw(self) -> list[RealPart]:
        """Return a draw; given the entries before it, an entry is normal with standard deviation softplus(rho)."""
        scale, noise = softplus(self.rho), torch.randn_like(self.loc)
        drawn = self.loc + scale * (noise + self.factor.tril(-1) @ noise)
        parts = zip(*map(self._split, (drawn, noise, scale.log(), self.loc, self.spread())), strict=True)
        return [
            normal_part(value, eps, log_scale.sum(), loc=loc, scale=spread)
            for value, eps, log_scale, loc, spread in parts
        ]

    def rate_factors(self) -> dict[str, float]:
        """Return the factor for L, whose rows have an entry per weight."""
        return {"factor": len(self.loc) ** -0.5}

    def spread(self) -> Tensor:
        return softplus(self.rho) * (1 + self.factor.tril(-1).square().sum(1)).sqrt()

    def covariance(self) -> Tensor:
        below = self.factor.detach().tril(-1)
        root = softplus(self.rho.detach())[:, None] * (below + torch.eye(len(below)).to(below))
        return root @ root.T
