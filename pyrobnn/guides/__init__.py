"""Guides: families of approximate posteriors over the latent sites of a model."""

from typing import Any

from pyrobnn.guides.auto import Auto, autoguide_names, resolve_one
from pyrobnn.guides.base import Guide, Model, registry
from pyrobnn.guides.by_name import ByName
from pyrobnn.guides.dropout import Dropout
from pyrobnn.guides.empirical import Empirical
from pyrobnn.guides.flow import Flow
from pyrobnn.guides.full_rank import FullRank
from pyrobnn.guides.low_rank import LowRank
from pyrobnn.guides.map import Map
from pyrobnn.guides.matrix_normal import MatrixNormal
from pyrobnn.guides.mean_field import MeanField
from pyrobnn.guides.pruned import Pruned
from pyrobnn.guides.radial import Radial
from pyrobnn.guides.sites import Site, latent_sites

__all__ = [
    "Auto",
    "ByName",
    "Dropout",
    "Empirical",
    "Flow",
    "FullRank",
    "Guide",
    "LowRank",
    "Map",
    "MatrixNormal",
    "MeanField",
    "Model",
    "Pruned",
    "Radial",
    "Site",
    "autoguide_names",
    "latent_sites",
    "registry",
    "resolve",
]


def resolve(value: Any) -> Guide:
    """Return the guide that a name, a table, a mapping from name patterns, or an object stands for."""
    if isinstance(value, dict) and "type" not in value:
        return ByName(choices=tuple(value.items()))
    return resolve_one(value)
