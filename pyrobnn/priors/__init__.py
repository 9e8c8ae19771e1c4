"""Priors over the weights of a network."""

from pyrobnn.priors.anchored import Anchored
from pyrobnn.priors.base import BasePrior, Latent, LatentSitePrior, Prior, SitePrior, registry
from pyrobnn.priors.by_name import ByName, resolve
from pyrobnn.priors.from_posterior import FromPosterior
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
    "BasePrior",
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


def __dir__() -> list[str]:
    return __all__
