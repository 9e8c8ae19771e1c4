"""The features of any built guide, also of guides from Pyro and other packages."""

from collections.abc import Mapping
from typing import Any

from pyro.infer.autoguide import AutoContinuous, AutoGuide, AutoNormal
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import biject_to

from pyrobnn.guides.base import BuiltGuide
from pyrobnn.guides.density import independent, log_density


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
