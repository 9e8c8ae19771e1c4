"""The features of any built guide, also of guides from Pyro and other packages, and its density at any draws."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from pyro.infer.autoguide import AutoContinuous, AutoGuide, AutoNormal
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal, biject_to

from pyrobnn._core.errors import InputError
from pyrobnn.guides.base import BuiltGuide

_MOST_COVARIANCE_ENTRIES = 10_000
"""Entries of a dense covariance, which then takes 0.8 GB."""
Part = tuple[list[str], Callable[[Tensor], Tensor]]
"""Names of sites, and the log density (S,) of their entries (S, entries), flat and in float64, unconstrained."""


def built(guide: PyroModule) -> BuiltGuide:
    """Return the features of a built guide: the guide itself, or a view of a guide that is no `BuiltGuide`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide="AutoNormal", steps=20, seed=0, progress=False)
        >>> bnn.guides.built(posterior.guide).log_density(posterior.draw(10)).shape
        torch.Size([10])
    """
    if isinstance(guide, BuiltGuide):
        return guide
    return _Autoguide(guide) if isinstance(guide, AutoGuide) else _Foreign(guide)


def rate_factors(guide: PyroModule) -> dict[str, float]:
    """Return the factors on the learning rate of a guide and the guides in it, by the names of its parameters."""
    parts = ((prefix, built(part)) for prefix, part in guide.named_modules() if isinstance(part, PyroModule))
    return {
        f"{prefix}.{name}".lstrip("."): factor for prefix, part in parts for name, factor in part.rate_factors().items()
    }


class _Foreign(BuiltGuide):
    """A view of a guide that has some of the attributes of `BuiltGuide` without inheriting from it."""

    def __init__(self, guide: Any) -> None:
        self._guide = guide
        names = [name for name in vars(BuiltGuide) if not name.startswith("_") and hasattr(guide, name)]
        vars(self).update({name: getattr(guide, name) for name in names})


class _Autoguide(_Foreign):
    """A view of a guide of Pyro, with a known density if it is one distribution or a normal per site."""

    def log_density(self, draws: Mapping[str, Tensor]) -> Tensor | None:
        guide = self._guide
        names = {name: biject_to(node["fn"].support) for name, node in guide.prototype_trace.iter_stochastic_nodes()}
        if isinstance(guide, AutoNormal):
            return log_density(draws, names, [independent([name], *guide._get_loc_and_scale(name)) for name in names])
        if isinstance(guide, AutoContinuous):
            dtype, posterior = next(guide.parameters()).dtype, guide.get_posterior()
            return log_density(draws, names, [(list(names), lambda values: posterior.log_prob(values.to(dtype)))])
        return None


def log_density(draws: Mapping[str, Tensor], transforms: Mapping[str, Any], parts: Iterable[Part]) -> Tensor | None:
    """Return log q of joint draws (S, *event) by site, the product of parts, (S,); None where a site is in no part."""
    total, flat = torch.zeros((), dtype=torch.float64), {}
    for name, transform in transforms.items():
        values = draws[name].double()
        if transform is not None:
            image, values = values, transform.inv(values)
            total = total - transform.log_abs_det_jacobian(values, image).reshape(len(image), -1).sum(1)
        flat[name] = values.reshape(len(values), -1)
    for names, log_prob in parts:
        total = total + log_prob(torch.cat([flat.pop(name) for name in names], 1)).double()
    return None if flat else total


def independent(names: list[str], loc: Tensor, scale: Tensor) -> Part:
    """Return a part of independent normals."""
    return names, Independent(Normal(loc.reshape(-1).double(), scale.reshape(-1).double()), 1).log_prob


def correlated(names: list[str], loc: Tensor, covariance: Callable[[], Tensor]) -> Part:
    """Return a part with any covariance, which is asked for unless there are too many entries."""
    if loc.numel() > _MOST_COVARIANCE_ENTRIES:
        raise InputError(
            f"The density of a mixture of such guides would need the covariance of {loc.numel()} weights, more than "
            f"{_MOST_COVARIANCE_ENTRIES}: pass the members one by one."
        )
    return names, MultivariateNormal(loc.reshape(-1).double(), covariance().double()).log_prob


def affine(names: list[str], loc: Tensor, transform: Callable[[Tensor], Tensor]) -> Part:
    """Return the part loc + transform(noise), for a linear map of standard normal noise of the shape of loc."""

    def covariance() -> Tensor:
        unit = torch.eye(loc.numel(), dtype=loc.dtype, device=loc.device)
        images = torch.func.vmap(transform)(unit.view(-1, *loc.shape)).reshape(len(unit), -1).double()
        return images.T @ images

    return correlated(names, loc, covariance)
