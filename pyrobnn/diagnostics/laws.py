"""The density of a guide anywhere, not at its own draws alone: what the density of a mixture of guides takes."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from pyro.infer.autoguide import AutoContinuous, AutoNormal
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.guides.by_name import GuideByName
from pyrobnn.guides.laplace import BlockGuide
from pyrobnn.guides.matrix_normal import MatrixNormalGuide
from pyrobnn.guides.mean_field import MeanFieldGuide
from pyrobnn.guides.sites import Site, latent_sites
from pyrobnn.posterior.posterior import Posterior

_LARGEST = 10_000
"""Entries of a dense covariance, which then takes 0.8 GB."""


def log_density(posterior: Posterior, draws: Mapping[str, Tensor]) -> Tensor:
    """Return log q of joint draws, wherever they come from, in float64, (S,).

    Args:
        posterior: the posterior whose guide q is: Gaussian on the unconstrained side, or an autoguide of Pyro that
            knows its density.
        draws: values (S, *event) of every site by name.

    Raises:
        InputError: a guide whose density is known at its own draws alone, or that holds sites at points.
    """
    with fast_pyro(), torch.no_grad():
        with seeded(posterior.seed):
            sites = {site.name: site for site in latent_sites(posterior.bnn, *posterior.example)}
        total = torch.zeros((), dtype=torch.float64)
        flat = {}
        for name, site in sites.items():
            flat[name], log_volume = _unconstrained(site, draws[name].double())
            total = total - log_volume
        for names, law in _laws(posterior.guide, posterior.example):
            values = torch.cat([flat.pop(name) for name in names], 1)
            total = total + law(values).double()
    if flat:
        raise _unknown(posterior.guide)
    return total


def _unconstrained(site: Site, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return values (S, *event) on the unconstrained side, (S, entries), and the log volume of the way back, (S,)."""
    if site.transform is None:
        return values.flatten(1) if values.ndim > 1 else values[:, None], values.new_zeros(len(values))
    free = site.transform.inv(values)
    log_volume = site.transform.log_abs_det_jacobian(free, values)
    return free.reshape(len(free), -1), log_volume.reshape(len(free), -1).sum(1)


Law = tuple[list[str], Callable[[Tensor], Tensor]]
"""Names of sites, and the log density (S,) of their entries (S, entries), flat and in float64, unconstrained."""


def _laws(guide: Any, example: tuple[Tensor, Tensor]) -> Iterator[Law]:
    """Yield the independent parts of a guide."""
    if isinstance(guide, GuideByName):
        for part in guide.children():
            yield from _laws(part, example)
    elif isinstance(guide, AutoContinuous):
        law = guide.get_posterior(*example)
        yield list(guide._unconstrained_shapes), lambda values: law.log_prob(values.to(example[0].dtype))
    elif isinstance(guide, AutoNormal):
        for name, _ in guide.prototype_trace.iter_stochastic_nodes():
            yield [name], _independent(*guide._get_loc_and_scale(name))
    elif hasattr(guide, "moments"):
        yield from _gaussians(guide)
    else:
        raise _unknown(guide)


def _gaussians(guide: Any) -> Iterator[Law]:
    """Yield the parts of a guide of this library that knows its moments."""
    moments = guide.moments()
    if isinstance(guide, MeanFieldGuide):
        for name, (loc, scale) in moments.items():
            yield [name], _independent(loc, scale)
    elif hasattr(guide, "covariance"):
        loc = torch.cat([loc.reshape(-1) for loc, _ in moments.values()])
        _refuse_large(guide, len(loc))
        yield list(moments), _joint(loc, guide.covariance())
    elif isinstance(guide, MatrixNormalGuide):
        for factor, (name, (loc, _)) in zip(guide.factors, moments.items(), strict=True):
            yield [name], _affine(guide, loc, factor)
    elif isinstance(guide, BlockGuide):
        for block in guide.covered():
            if block.dimension == sum(block.sizes):
                names = list(block.shapes)
                yield names, _affine(guide, torch.cat([moments[n][0].reshape(-1) for n in names]), block.transform)
    else:
        raise _unknown(guide)


def _independent(loc: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
    law = Normal(loc.reshape(-1).double(), scale.reshape(-1).double())
    return lambda values: law.log_prob(values).sum(1)


def _joint(loc: Tensor, covariance: Tensor) -> Callable[[Tensor], Tensor]:
    return MultivariateNormal(loc.double(), covariance.double()).log_prob


def _affine(guide: Any, loc: Tensor, transform: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the log density of loc + transform(noise) for a linear map of standard normal noise."""
    _refuse_large(guide, loc.numel())
    unit = torch.eye(loc.numel(), dtype=loc.dtype, device=loc.device)
    images = torch.func.vmap(transform)(unit.view(-1, *loc.shape)).reshape(len(unit), -1).double()
    return _joint(loc.reshape(-1), images.T @ images)


def _refuse_large(guide: Any, size: int) -> None:
    if size > _LARGEST:
        raise InputError(
            f"The density of a mixture of {type(guide).__name__}s would need the covariance of {size} weights, more "
            f"than {_LARGEST}: pass the members one by one."
        )


def _unknown(guide: Any) -> InputError:
    return InputError(
        f"{type(guide).__name__} knows its density at its own draws alone, or holds sites at points, so that the "
        "density of a mixture of such guides is not known: pass the members one by one."
    )
