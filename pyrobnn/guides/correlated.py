"""Normals over all weights at once: with every correlation, and with those of a few directions."""

from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyrobnn._core.settings import Count, setting
from pyrobnn._torch.matrices import inverse_softplus
from pyrobnn._torch.per_example import NormalNoise, attach
from pyrobnn.guides.base import Model, NoisePerExample, NoiseSharing, Part, StartsNarrow, correlated, registry
from pyrobnn.guides.joint import HALF_LOG_2PI, JointGuide, RealPart, check_size, normal_part
from pyrobnn.guides.sites import Site, latent_sites


class CorrelatedGuide(JointGuide):
    """A normal over all sites at once."""

    def covariance(self) -> Tensor:
        """Return the covariance of all entries in the order of the sites, (D, D), on the unconstrained side."""
        raise NotImplementedError

    def parts(self) -> list[Part]:
        return [correlated([name for name, _ in self._named()], self.loc, self.covariance)]


@registry.register
@setting
class FullRank(StartsNarrow):
    """q(w) = N(mu, S L L^T S) over all weights jointly, drawn as mu + S L eps.

    S = diag(softplus(rho)), and L is lower triangular with ones on its diagonal. Sites with a constrained support take
    part in the unconstrained space of Pyro's bijection. D weights have D^2 parameters.

    Attributes:
        init_rho: initial rho, with L the identity; None as for `MeanField`. mu starts at the network's weights.

    Examples:
        >>> guide = bnn.guides.FullRank(init_rho=-4.0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), guide=guide, steps=20, progress=False)
        >>> posterior.draw(100)["0.weight"].shape
        torch.Size([100, 5, 1])
    """

    init_rho: float | None = None

    def build(self, model: Model, *args: Any) -> PyroModule:
        sites = latent_sites(model, *args)
        size = sum(site.unconstrained.numel() for site in sites)
        instead = "LowRank(), or FullRank for some of the weights, such as guide={'4.*': FullRank(), '*': MeanField()}"
        check_size(f"{self!r}", size * (size + 2), sites[0].start, instead)
        return FullRankGuide(sites, self)


class FullRankGuide(CorrelatedGuide):
    """A normal with the flat parameters `loc` and `rho` (D,) and `factor` (D, D), L below its diagonal."""

    def __init__(self, sites: list[Site], setting: FullRank) -> None:
        super().__init__(sites)
        self.rho = nn.Parameter(setting.start_rho(sites))
        self.factor = nn.Parameter(self.loc.new_zeros(len(self.loc), len(self.loc)))

    def draw(self) -> list[RealPart]:
        """Return a draw; given the entries before it, an entry is normal with standard deviation softplus(rho)."""
        scale, noise = softplus(self.rho), torch.randn_like(self.loc)
        drawn = self.centre + scale * (noise + self.factor.tril(-1) @ noise)
        parts = zip(*map(self._split, (drawn, noise, scale.log(), self.centre, self.spread())), strict=True)
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


@registry.register
@setting
class LowRank(StartsNarrow, NoisePerExample):
    """q(w) = N(mu, S (I + F F^T) S) over all weights jointly, drawn as mu + S (eps + F z), eps and z standard normal.

    S = diag(softplus(rho)), and F has a column for each rank. (Ong, Nott & Smith 2018, "Gaussian variational
    approximation with a factor covariance structure", with F in units of S.) Sites with a constrained support take part
    in the unconstrained space of Pyro's bijection.

    Attributes:
        rank: number of columns R of F; D weights have D (R + 2) parameters.
        init_rho: initial standard deviation of every weight, before softplus, with half of the variance from F; None as
            for `MeanField`. mu starts at the network's weights.
        noise: how the examples of a mini-batch share eps while training, as for `MeanField`; z is shared by all.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [20], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide=bnn.guides.LowRank(rank=3), steps=20, progress=False)
        >>> model.num_weights, sum(value.numel() for value in posterior.guide.parameters())  # D (R + 2)
        (61, 305)
    """

    rank: Count = 10
    init_rho: float | None = None
    noise: NoiseSharing = "auto"

    def build(self, model: Model, *args: Any) -> PyroModule:
        sites = latent_sites(model, *args)
        size = sum(site.unconstrained.numel() for site in sites)
        check_size(f"{self!r}", size * (self.rank + 2), sites[0].start, "a lower rank, or MeanField()")
        return LowRankGuide(sites, self)


class LowRankGuide(CorrelatedGuide):
    """A normal with the flat parameters `loc` and `rho` (D,) and `factor` (D, R), in units of softplus(rho)."""

    def __init__(self, sites: list[Site], setting: LowRank) -> None:
        super().__init__(sites)
        self.rho = nn.Parameter(inverse_softplus(softplus(setting.start_rho(sites)) * 0.5**0.5))
        # A zero factor is a saddle: no direction would be better than its opposite.
        self.factor = nn.Parameter(torch.randn_like(self.loc[:, None].expand(-1, setting.rank)) / setting.rank**0.5)
        self.noise = "shared" if setting.noise == "auto" else setting.noise

    def draw(self) -> list[RealPart]:
        """Return a draw; its densities follow from the joint density of the first k sites, for every k."""
        scale, factor = softplus(self.rho), self.factor
        noise = torch.randn_like(self.loc)
        common = factor @ torch.randn_like(factor[0])
        standard = noise + common
        log_scales = torch.stack([part.sum() for part in scale.log().split(self._sizes)])
        squares, log_dets = self._first_sites(standard)
        shares = _increments(-0.5 * (squares + log_dets)) - log_scales
        entropies = _increments(0.5 * log_dets) + log_scales
        values = self._values(self.centre + scale * standard, self.centre + scale * common, scale)
        moments = map(self._split, (self.centre, self.spread()))
        parts = zip(values, *moments, shares, entropies, strict=True)
        return [
            RealPart(
                value,
                share - value.numel() * HALF_LOG_2PI,
                loc=loc,
                scale=deviation,
                entropy=entropy + value.numel() * (HALF_LOG_2PI + 0.5),
            )
            for value, loc, deviation, share, entropy in parts
        ]

    def _values(self, drawn: Tensor, loc: Tensor, scale: Tensor) -> list[Tensor]:
        """Return the draw of each site; given z its entries are independent, with these means and deviations."""
        values = []
        for _, transform, value, mean, deviation in self._segments(drawn, loc, scale):
            if self.noise != "shared" and transform is None:
                attach(value, NormalNoise(mean, deviation, value, local=self.noise == "local"))
            values.append(value)
        return values

    def _first_sites(self, standard: Tensor) -> tuple[Tensor, Tensor]:
        """Return x^T C^-1 x and log det C for C = I + F F^T of the first 1, 2, ... sites, by the lemma of Woodbury."""
        factors, values = self.factor.split(self._sizes), standard.split(self._sizes)
        inner = torch.stack([factor.T @ factor for factor in factors]).cumsum(0)
        products = torch.stack([factor.T @ value for factor, value in zip(factors, values, strict=True)]).cumsum(0)
        squares = torch.stack([value.square().sum() for value in values]).cumsum(0)
        identity = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
        root, _ = torch.linalg.cholesky_ex(inner + identity)
        solved = torch.linalg.solve_triangular(root, products[..., None], upper=False)
        log_dets = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return squares - solved.square().sum((-2, -1)), log_dets

    def rate_factors(self) -> dict[str, float]:
        """Return the factor for F, whose columns each move all weights together."""
        return {"factor": len(self.loc) ** -0.25}

    def spread(self) -> Tensor:
        return softplus(self.rho) * (1 + self.factor.square().sum(1)).sqrt()

    def covariance(self) -> Tensor:
        factor, scale = self.factor.detach(), softplus(self.rho.detach())
        return scale[:, None] * (torch.eye(len(scale)).to(scale) + factor @ factor.T) * scale


def _increments(totals: Tensor) -> Tensor:
    return torch.cat([totals[:1], totals[1:] - totals[:-1]])
