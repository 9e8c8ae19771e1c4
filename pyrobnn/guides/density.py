"""The density of a guide at any draws, from the distributions of its independent parts on the unconstrained side."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal

from pyrobnn._core.errors import InputError

_LARGEST = 10_000
"""Entries of a dense covariance, which then takes 0.8 GB."""
Part = tuple[list[str], Callable[[Tensor], Tensor]]
"""Names of sites, and the log density (S,) of their entries (S, entries), flat and in float64, unconstrained."""


def log_density(draws: Mapping[str, Tensor], transforms: Mapping[str, Any], parts: Iterable[Part]) -> Tensor | None:
    """Return log q of joint draws (S, *event) by site, (S,), in float64, or None where a site is in no part.

    Each site has a transform from unconstrained values, None for the identity; q is the product of its parts.
    """
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
    """Return a part with any covariance, which is asked for unless there are too many entries.

    Raises:
        InputError: more than 10,000 entries.
    """
    if loc.numel() > _LARGEST:
        raise InputError(
            f"The density of a mixture of such guides would need the covariance of {loc.numel()} weights, more than "
            f"{_LARGEST}: pass the members one by one."
        )
    return names, MultivariateNormal(loc.reshape(-1).double(), covariance().double()).log_prob


def affine(names: list[str], loc: Tensor, transform: Callable[[Tensor], Tensor]) -> Part:
    """Return the part loc + transform(noise), for a linear map of standard normal noise of the shape of loc."""

    def covariance() -> Tensor:
        unit = torch.eye(loc.numel(), dtype=loc.dtype, device=loc.device)
        images = torch.func.vmap(transform)(unit.view(-1, *loc.shape)).reshape(len(unit), -1).double()
        return images.T @ images

    return correlated(names, loc, covariance)
