"""Guides: families of approximate posteriors over the latent sites of a model."""

from pyrobnn.guides.base import BaseGuide, BuiltGuide, Guide, Model, built, registry
from pyrobnn.guides.correlated import FullRank, LowRank
from pyrobnn.guides.dropout import Dropout
from pyrobnn.guides.empirical import Empirical
from pyrobnn.guides.flow import Flow
from pyrobnn.guides.given import Auto, ByName, autoguide_names, resolve
from pyrobnn.guides.laplace import BlockGaussian, Laplace
from pyrobnn.guides.map import Map
from pyrobnn.guides.matrix_normal import MatrixNormal
from pyrobnn.guides.mean_field import MeanField
from pyrobnn.guides.pruned import Pruned
from pyrobnn.guides.radial import Radial
from pyrobnn.guides.sites import Site, latent_sites

__all__ = [
    "Auto",
    "BaseGuide",
    "BlockGaussian",
    "BuiltGuide",
    "ByName",
    "Dropout",
    "Empirical",
    "Flow",
    "FullRank",
    "Guide",
    "Laplace",
    "LowRank",
    "Map",
    "MatrixNormal",
    "MeanField",
    "Model",
    "Pruned",
    "Radial",
    "Site",
    "autoguide_names",
    "built",
    "latent_sites",
    "registry",
    "resolve",
]
__dir__ = __all__.copy
