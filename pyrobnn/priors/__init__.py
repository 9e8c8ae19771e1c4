"""Priors over the weights of a network."""

from pyrobnn.priors.base import Prior, SitePrior, registry
from pyrobnn.priors.by_name import ByName
from pyrobnn.priors.normal import Normal
from pyrobnn.priors.scale_mixture import ScaleMixture

__all__ = ["ByName", "Normal", "Prior", "ScaleMixture", "SitePrior", "registry", "resolve"]


def resolve(value: object) -> Prior:
    """Return the prior that a name, a table, a mapping from name patterns, or an object stands for."""
    if isinstance(value, dict) and "type" not in value:
        return ByName(choices=tuple(value.items()))
    return registry.resolve(value)
