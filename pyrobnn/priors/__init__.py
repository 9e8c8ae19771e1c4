"""Priors over the weights of a network."""

from pyrobnn.priors.anchored import Anchored
from pyrobnn.priors.base import BasePrior, Latent, LatentSitePrior, Prior, SitePrior, registry
from pyrobnn.priors.factorized import Laplace, Moped, Normal, StudentT
from pyrobnn.priors.from_posterior import FromPosterior
from pyrobnn.priors.given import ByName, resolve
from pyrobnn.priors.hierarchical import ARD, Hierarchical, Horseshoe, RegularizedHorseshoe
from pyrobnn.priors.scale_mixture import ScaleMixture, SpikeAndSlab

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
__dir__ = __all__.copy
