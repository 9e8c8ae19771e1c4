"""Any guide of pyro.infer.autoguide, by name."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer import autoguide
from pyro.infer.autoguide import AutoGuide, AutoNormalizingFlow
from pyro.infer.autoguide.initialization import init_to_sample, init_to_value
from pyro.nn import PyroModule

from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import FrozenDict, Options, setting
from pyrobnn.guides.base import Guide, Model, registry

_NOT_STANDALONE = (
    "AutoGuide",
    "AutoGuideList",
    "AutoCallable",
    "AutoContinuous",
    "AutoDiscreteParallel",
    "AutoStructured",
)


@registry.register
@setting
class Auto:
    """An autoguide of Pyro, such as Auto("AutoLowRankMultivariateNormal", {"rank": 5}).

    It starts at the network's weights, and not at Pyro's default of 0 for every weight, a saddle of a neural network.
    Other sites start at a draw from their prior.

    Attributes:
        name: name of a class in `pyro.infer.autoguide`.
        options: further arguments of its constructor.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> guide = bnn.guides.Auto("AutoLowRankMultivariateNormal", {"rank": 5})
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide=guide, steps=20, seed=0, progress=False)
        >>> type(posterior.guide).__name__
        'AutoLowRankMultivariateNormal'
    """

    name: str
    options: Options = FrozenDict()

    def __post_init__(self) -> None:
        known = autoguide_names()
        if self.name not in known:
            raise InputError(f"Unknown autoguide {self.name!r}. Known: {', '.join(known)}.")
        accepted = set(inspect.signature(getattr(autoguide, self.name)).parameters) - {"model"}
        unknown = set(self.options) - accepted
        if unknown:
            raise InputError(
                f"{self.name} has no option {sorted(unknown)[0]!r}. It takes: {', '.join(sorted(accepted))}."
            )

    def build(self, model: Model, *args: Any) -> PyroModule:
        cls = getattr(autoguide, self.name)
        options = dict(self.options)
        if "init_loc_fn" in inspect.signature(cls).parameters and not issubclass(cls, AutoNormalizingFlow):
            values = {name: value.clone() for name, value in getattr(model, "initial_values", {}).items()}
            options.setdefault("init_loc_fn", init_to_value(values=values, fallback=init_to_sample))
        return _with_parameters(model, functools.partial(cls, **options), *args)


@dataclasses.dataclass(frozen=True)
class FromCallable:
    """A guide made by a function of the model, such as `lambda model: AutoNormal(model, init_scale=0.01)`."""

    make: Callable[[Model], PyroModule]

    def build(self, model: Model, *args: Any) -> PyroModule:
        return _with_parameters(model, self.make, *args)


def _with_parameters(model: Model, make: Callable[[Model], PyroModule], *args: Any) -> PyroModule:
    """Return a guide after a call, with the precision of the network where Pyro takes torch's default."""
    starts = iter(getattr(model, "initial_values", {}).values())
    given = torch.get_default_dtype()
    dtype = next((value.dtype for value in starts), given)
    with torch.no_grad(), poutine.block():
        with ONE_THREAD.changed(torch.get_default_dtype, torch.set_default_dtype):
            torch.set_default_dtype(dtype)
            guide = make(model)
            guide(*args)
        if dtype != given:
            try:
                with seeded(0, "guide"):
                    guide(*args)
            except RuntimeError as error:
                raise InputError(
                    f"{type(guide).__name__} computes in {given} alone, and the network is in {dtype} ({error}): use a "
                    "network in float32, such as MLP(..., dtype='float32'), or another guide, such as full_rank.",
                    page="how-to/guides",
                ) from None
    return guide


def autoguide_names() -> list[str]:
    """Return the names of the autoguides that Pyro has.

    Examples:
        >>> "AutoMultivariateNormal" in bnn.guides.autoguide_names()
        True
    """
    classes = ((name, getattr(autoguide, name)) for name in autoguide.__all__)
    return sorted(
        name
        for name, cls in classes
        if isinstance(cls, type) and issubclass(cls, AutoGuide) and name not in _NOT_STANDALONE
    )


def resolve_one(value: Any) -> Guide:
    """Return the guide of a name, a table, a setting, an autoguide (in a `functools.partial`, too), or a function."""
    if isinstance(value, str) and value in autoguide_names():
        return Auto(value)
    if isinstance(value, functools.partial) and _is_autoguide(value.func) and not value.args:
        return Auto(value.func.__name__, dict(value.keywords))
    if _is_autoguide(value):
        return Auto(value.__name__)
    if callable(value) and not isinstance(value, (type, Guide)):
        return FromCallable(value)
    return registry.resolve(value)


def _is_autoguide(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, AutoGuide)
