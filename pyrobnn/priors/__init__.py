"""Priors over the weights of a network."""

from pyrobnn.priors.anchored import Anchored
from pyrobnn.priors.base import Latent, LatentSitePrior, Prior, SitePrior, registry
from pyrobnn.priors.by_name import ByName
from pyrobnn.priors.from_posterior import FromPosterior
from pyrobnn.priors.given import resolve_one
from pyrobnn.priors.heavy_tails import Laplace, StudentT
from pyrobnn.priors.hierarchical import ARD, Hierarchical
from pyrobnn.priors.horseshoe import Horseshoe, RegularizedHorseshoe
from pyrobnn.priors.moped import Moped
from pyrobnn.priors.normal import Normal
from pyrobnn.priors.scale_mixture import ScaleMixture
from pyrobnn.priors.spike_and_slab import SpikeAndSlab

__all__ = [
    "ARD",
    "Anchored",
    "ByName",
    "FromPosterior",
    "Hierarchical",
    "Horseshoe",
    "Laplace",
    "Latent",
    "LatentSitePrior",
    "Moped",
    "Normal",
    "Prior",
    "RegularizedHorseshoe",
    "ScaleMixture",
    "SitePrior",
    "SpikeAndSlab",
    "StudentT",
    "registry",
    "resolve",
]


def resolve(value: object) -> Prior:
    """Return the prior that a name, a table, a mapping from name patterns, or an object stands for.

    A distribution of `pyro.distributions` is understood too, and so is any function from a parameter's name and initial
    value to one.
    """
    if isinstance(value, dict) and "type" not in value:
        return ByName(choices=tuple(value.items()))
    return resolve_one(value)
