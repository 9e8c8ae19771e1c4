"""Common parts of guides over all sites at once: a flat vector of means, and sites that are parts of a joint draw."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import Independent, Normal, constraints, kl_divergence, register_kl

from pyrobnn._core.errors import InputError
from pyrobnn.guides.base import BuiltGuide, Part, log_density
from pyrobnn.guides.sites import Site

_ONE_DRAW = torch.Size()
_QUADRATURE_POINTS = 32
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_TENSORS_PER_PARAMETER = 5
"""A step holds the parameter, its gradient, two tensors of Adam, and a product."""
_MOST_TRAINING_BYTES = 2**35


class JointPart(TorchDistribution):
    """The part of a joint draw for a single site, `value`, with its log density () given the previous parts."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real
    has_rsample = True

    def __init__(self, value: Tensor, log_density: Tensor) -> None:
        super().__init__(_ONE_DRAW, value.shape, validate_args=False)
        self.value, self.log_density = value, log_density

    def expand(self, batch_shape: Any, _instance: Any = None) -> "JointPart":
        """Return the distribution itself for its batch shape; a single draw cannot serve a larger shape."""
        if tuple(batch_shape):
            raise NotImplementedError("A part of a joint draw is a single draw and cannot be expanded.")
        return self

    def rsample(self, sample_shape: Any = _ONE_DRAW) -> Tensor:
        if tuple(sample_shape):
            raise NotImplementedError("A part of a joint draw is a single draw: ask for one draw.")
        return self.value

    def log_prob(self, value: Tensor) -> Tensor:
        if value is not self.value:
            raise NotImplementedError("A part of a joint draw knows the density of its own draw only.")
        return self.log_density

    def through(self, transform: Any) -> "JointPart":
        if transform is None:
            return self
        image = transform(self.value)
        return JointPart(image, self.log_density - transform.log_abs_det_jacobian(self.value, image).sum())


class RealPart(JointPart):
    """A part on the whole real line, whose KL to independent normals is known.

    The KLs of all parts add up to the KL of the joint distribution: each counts -entropy () of the part given the
    previous parts, and -E[log p] of its entries, of mean `loc` and deviation `scale`. For a normal p, or `normal`
    entries, these suffice.
    """

    def __init__(
        self, value: Tensor, log_density: Tensor, *, loc: Tensor, scale: Tensor, entropy: Tensor, normal: bool = True
    ) -> None:
        super().__init__(value, log_density)
        self.loc, self.scale, self._entropy, self.normal = loc, scale, entropy, normal

    def entropy(self) -> Tensor:
        return self._entropy

    @property
    def entries(self) -> dist.Normal:
        """Independent normals with the mean and variance of each entry."""
        return dist.Normal(self.loc, self.scale, validate_args=False)

    @property
    def excess(self) -> Tensor:
        """The total entropy of `entries`, less the entropy of the part: the correction of a KL of the entries, ()."""
        return self.entries.entropy().sum() - self._entropy


@register_kl(RealPart, Independent)
@register_kl(RealPart, Normal)
def _kl_of_part(q: RealPart, p: Any) -> Tensor:
    p = p.base_dist if isinstance(p, Independent) else p
    if p.batch_shape != q.event_shape or not (q.normal or isinstance(p, Normal)):
        raise NotImplementedError
    return kl_divergence(q.entries, p).sum() + q.excess


class FlatGuide(BuiltGuide, PyroModule):
    """A guide with a flat vector `loc` of the centres of its draws, with a segment per site.

    They start at `start`, unconstrained values by site, or at the starts of the sites.
    """

    vmappable = True
    _moves: Tensor | None

    def __init__(self, sites: list[Site], start: list[Tensor] | None = None) -> None:
        super().__init__()
        values = [site.unconstrained for site in sites]
        self._sites = [(site.name, value.shape, site.transform) for site, value in zip(sites, values, strict=True)]
        self._sizes = [value.numel() for value in values]
        self.loc = nn.Parameter(torch.cat([value.reshape(-1) for value in start or values]))
        pairs = zip(sites, values, strict=True)
        moves = torch.cat([torch.full_like(value, not site.is_kept).reshape(-1) for site, value in pairs])
        self.register_buffer("_moves", moves if any(site.is_kept for site in sites) else None, persistent=False)

    @property
    def centre(self) -> Tensor:
        """`loc`, with a gradient for the entries that are not kept."""
        return self.loc if self._moves is None else self.loc.detach().lerp(self.loc, self._moves)

    def _named(self) -> Iterator[tuple[str, Any]]:
        return ((name, transform) for name, _, transform in self._sites)

    def _split(self, flat: Tensor) -> list[Tensor]:
        pieces = flat.split(self._sizes)
        return [piece.view(shape) for piece, (_, shape, _) in zip(pieces, self._sites, strict=True)]

    def _segments(self, *flat: Tensor) -> Iterator[tuple[Any, ...]]:
        """Yield the name and the transform of each site, and its segment of each flat vector."""
        for (name, transform), *parts in zip(self._named(), *map(self._split, flat), strict=True):
            yield name, transform, *parts


class GuideWithMoments(FlatGuide):
    """A flat guide that knows the standard deviation of every entry."""

    def spread(self) -> Tensor:
        """Return the standard deviation of every entry, flat, on the unconstrained side."""
        raise NotImplementedError

    def parts(self) -> Iterable[Part]:
        """Return the independent parts whose density is known everywhere."""
        return ()

    def log_density(self, draws: Mapping[str, Tensor]) -> Tensor | None:
        """Return log q of joint draws, (S,); None where a site is in no part."""
        return log_density(draws, dict(self._named()), self.parts())

    def mean(self) -> dict[str, Tensor]:
        """Return the mean of each site; for a constrained site by Gauss-Hermite quadrature, entry by entry."""
        named = dict(self._named())
        if all(transform is None for transform in named.values()):  # spreads of millions of weights take long
            return {name: loc for name, _, loc in self._segments(self.loc.detach().clone())}
        return {
            name: loc if named[name] is None else _mean_of_image(named[name], loc, scale)
            for name, (loc, scale) in self.moments().items()
        }

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return mean and standard deviation of each site by name, on the unconstrained side for constrained sites."""
        segments = self._segments(self.loc.detach().clone(), self.spread().detach())
        return {name: (loc, scale) for name, _, loc, scale in segments}


class JointGuide(GuideWithMoments):
    """A guide whose sites are parts of a joint draw."""

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {
            name: pyro.sample(name, part.through(transform))
            for (name, transform), part in zip(self._named(), self.draw(), strict=True)
        }

    def draw(self) -> list[RealPart]:
        raise NotImplementedError


def normal_part(value: Tensor, noise: Tensor, log_volume: Tensor, *, loc: Tensor, scale: Tensor) -> RealPart:
    """Return a part that, given the parts before it, is an affine image of noise, of log determinant `log_volume`.

    `loc` and `scale` are mean and standard deviation of each entry with the parts before it unknown.
    """
    log_density = -0.5 * noise.square().sum() - noise.numel() * HALF_LOG_2PI - log_volume
    entropy = log_volume + noise.numel() * (HALF_LOG_2PI + 0.5)
    return RealPart(value, log_density, loc=loc, scale=scale, entropy=entropy)


def check_size(guide: str, numbers: int, like: Tensor, instead: str) -> None:
    """Refuse a guide whose `numbers` parameters, in the precision of `like`, would not fit into memory."""
    needed = _TENSORS_PER_PARAMETER * numbers * like.element_size()
    if needed > _MOST_TRAINING_BYTES:
        raise InputError(
            f"{guide} would have {numbers:,} parameters for this network and need {needed / 2**30:,.0f} GiB in "
            f"training, more than {_MOST_TRAINING_BYTES / 2**30:.0f}: use {instead}."
        )


def _mean_of_image(transform: Any, loc: Tensor, scale: Tensor) -> Tensor:
    nodes, weights = (loc.new_tensor(values) for values in np.polynomial.hermite_e.hermegauss(_QUADRATURE_POINTS))
    images = torch.stack([transform(loc + scale * node) for node in nodes], -1)
    return images @ (weights / weights.sum())
