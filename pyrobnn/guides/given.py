"""Guides in the forms that users give them: Pyro's autoguides, and patterns of site names."""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro
import torch
from pydantic import field_validator
from pyro import poutine
from pyro.infer import autoguide
from pyro.infer.autoguide import AutoGuide, AutoNormalizingFlow
from pyro.infer.autoguide.initialization import init_to_sample, init_to_value
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger, unwrap
from torch import Tensor, nn
from torch.distributions import transform_to

from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import FrozenDict, Options, assign, setting, to_dict
from pyrobnn._torch.pyro import allow_new_home, local_parameters
from pyrobnn.guides.base import BuiltGuide, Guide, Model, NoisePerExample, built, registry
from pyrobnn.guides.laplace import BlockGaussian, Laplace
from pyrobnn.guides.sites import latent_sites

_OF_TWO_PHASES = autoguide.AutoLaplaceApproximation
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
        >>> guide = bnn.guides.Auto("AutoLowRankMultivariateNormal", {"rank": 5})
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), guide=guide, steps=20, progress=False)
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
            takes = ", ".join(sorted(accepted))
            raise InputError(f"{self.name} has no option {sorted(unknown)[0]!r}. It takes: {takes}.")

    def build(self, model: Model, *args: Any) -> PyroModule:
        cls = getattr(autoguide, self.name)
        options = dict(self.options)
        if "init_loc_fn" in inspect.signature(cls).parameters and not issubclass(cls, AutoNormalizingFlow):
            options.setdefault("init_loc_fn", _at_weights(model))
        return _with_parameters(model, functools.partial(cls, **options), *args)


@dataclasses.dataclass(frozen=True)
class FromCallable:
    """An instance of a guide, a function of inputs and targets that is one, or a function or class that makes one.

    What takes two arguments and is no class is a guide itself. Each fit trains a copy, for its copy of the model. Of an
    autoguide that has run the copy starts at its parameters, else as `Auto` says, or by an `init_loc_fn` of its own.
    """

    given: Callable[..., Any]

    def build(self, model: Model, *args: Any) -> PyroModule:
        return _with_parameters(model, self._made, *args)

    def _made(self, model: Model) -> Any:
        if isinstance(self.given, nn.Module):
            guide = _copied(self.given, model)
            return guide if isinstance(guide, (AutoGuide, BuiltGuide)) else ProgramGuide(guide)
        try:
            inspect.signature(self.given).bind("x", "y")
        except TypeError:
            return self.given(model)
        return self.given(model) if isinstance(self.given, type) else ProgramGuide(self.given)


class ProgramGuide(BuiltGuide, nn.Module):
    """The guide of a program of Pyro: its `pyro.param`s are parameters of `params`, unconstrained."""

    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        self.program, self.params = program, nn.Module()
        self.constraints: dict[str, Any] = {}

    def forward(self, x: Any, y: Any = None, *_: Any, **__: Any) -> dict[str, Tensor]:
        with local_parameters(), _Parameters(self):
            trace = poutine.trace(self.program).get_trace(x, y)
        return {name: node["value"] for name, node in trace.iter_stochastic_nodes()}


class _Parameters(Messenger):
    """Answers the statements `pyro.param` of a program from its guide, in place of the global store."""

    def __init__(self, guide: ProgramGuide) -> None:
        super().__init__()
        self._guide = guide

    def _pyro_param(self, msg: Any) -> None:
        if msg["fn"] != pyro.get_param_store().get_param:  # a parameter of a module
            return
        name = msg["name"].replace(".", "/")  # torch takes no point in a name
        params, constraints = self._guide.params, self._guide.constraints
        if name not in constraints:
            constraints[name], init = msg["kwargs"]["constraint"], msg["args"][1]
            value = torch.as_tensor(init() if callable(init) else init).detach()
            params.register_parameter(name, nn.Parameter(transform_to(constraints[name]).inv(value).clone()))
        msg["value"], msg["done"] = transform_to(constraints[name])(getattr(params, name)), True


def _copied(guide: nn.Module, model: Model) -> nn.Module:
    """Return a copy of a guide whose autoguides, unless they have run, start at the weights of another model."""
    parts = [part for part in guide.modules() if isinstance(part, AutoGuide)]
    kept = [(part._model, part.master) for part in parts]  # Pyro takes both from a guide that is copied
    copied = copy.deepcopy(guide, {id(part.prototype_trace): part.prototype_trace for part in parts})
    new_parts = (part for part in copied.modules() if isinstance(part, AutoGuide))
    for part, new, (given, master) in zip(parts, new_parts, kept, strict=True):
        part._model, part.master = given, master
        replaced = {id(unwrap(given[0])): model}
        default = inspect.signature(type(part)).parameters.get("init_loc_fn")
        if default is not None and callable(default.default):
            replaced[id(default.default)] = _at_weights(model)
        new._model = copy.deepcopy(given, replaced)
    allow_new_home(copied)
    return copied


def _at_weights(model: Model) -> Any:
    """Return where Pyro starts the sites: at the network's weights, others at a draw from their prior."""
    values = {name: value.clone() for name, value in getattr(model, "initial_values", {}).items()}
    return init_to_value(values=values, fallback=init_to_sample)


def _with_parameters(model: Model, make: Callable[[Model], PyroModule], *args: Any) -> PyroModule:
    """Return a guide after a call, with the precision of the network where Pyro takes torch's default."""
    starts = iter(getattr(model, "initial_values", {}).values())
    given = torch.get_default_dtype()
    dtype = next((value.dtype for value in starts), given)
    with torch.no_grad(), poutine.block():
        with ONE_THREAD.changed(torch.get_default_dtype, torch.set_default_dtype):
            torch.set_default_dtype(dtype)
            guide = make(model)
            if not isinstance(guide, nn.Module):
                raise InputError(
                    f"A function of the model must return a guide, such as AutoNormal(model), got {guide!r}: one that "
                    "draws the sites itself takes inputs and targets, `def guide(x, y)`.",
                    page="how-to/guides",
                )
            if any(isinstance(part, _OF_TWO_PHASES) for part in guide.modules()):
                raise InputError(
                    f"{_OF_TWO_PHASES.__name__} with options, in a function or in a class is a point, without its "
                    "Gaussian: take guides.Laplace(structure='full', curvature='hessian').",
                    page="how-to/laplace",
                )
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
    if isinstance(value, functools.partial) and _name_of(value.func) is not None and not value.args:
        return Auto(value.func.__name__, dict(value.keywords))
    name = value if isinstance(value, str) and value in autoguide_names() else _name_of(value)
    if name is not None:  # the point of AutoLaplaceApproximation is no posterior: `Laplace` has its Gaussian
        return Laplace(structure="full", curvature="hessian") if name == _OF_TWO_PHASES.__name__ else Auto(name)
    if callable(value) and not isinstance(value, Guide):
        return FromCallable(value)
    return registry.resolve(value)


def _name_of(value: Any) -> str | None:
    """Return the name of an autoguide of Pyro; None for other values."""
    return next((name for name in autoguide_names() if getattr(autoguide, name) is value), None)


@setting
class ByName:
    """A guide for each pattern of site names; the first pattern that matches wins. The parts are independent.

    Usually written as a dictionary, `{"4.*": Auto("AutoMultivariateNormal"), "*": MeanField()}`.

    Attributes:
        choices: pairs of a pattern and a guide or a guide's name.

    Examples:
        >>> guide = {"2.*": "full_rank", "*": "mean_field"}
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), guide=guide, steps=20, progress=False)
        >>> [type(part).__name__ for part in posterior.guide.children()]
        ['FullRankGuide', 'MeanFieldGuide']
    """

    choices: tuple[tuple[str, Any], ...]

    @field_validator("choices", mode="before")
    @classmethod
    def _resolve(cls, choices: Any) -> Any:
        pairs = choices.items() if isinstance(choices, Mapping) else choices
        resolved = tuple((pattern, resolve_one(guide)) for pattern, guide in pairs)
        if any(isinstance(guide, (Laplace, BlockGaussian)) for _, guide in resolved):
            said = "A Laplace guide has a second phase over the whole model and cannot be one of several guides by name"
            raise InputError(f"{said}: use Laplace(sites=...), which leaves the other weights at the mode.")
        return resolved

    def as_dict(self) -> dict[str, Any]:
        return {pattern: to_dict(guide) for pattern, guide in self.choices}

    def build(self, model: Model, *args: Any) -> PyroModule:
        names = [site.name for site in latent_sites(model, *args)]
        by_pattern = assign([pattern for pattern, _ in self.choices], names, "guide")
        parts = [guide.build(_Part(model, by_pattern[pattern]), *args) for pattern, guide in self.choices]
        return GuideByName(parts)


class _Part:
    """The model with only some of its latent sites visible."""

    def __init__(self, model: Model, names: list[str]) -> None:
        self._model = poutine.block(model, expose=names)
        starts = getattr(model, "initial_values", {})
        self.initial_values = {name: starts[name] for name in names if name in starts}
        self.initial_scales = getattr(model, "initial_scales", {})
        self.net = getattr(model, "net", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)


class GuideByName(BuiltGuide, PyroModule):
    """Guides for disjoint sets of sites, run in order; it has the features shared by all of them."""

    def __init__(self, parts: list[PyroModule]) -> None:
        super().__init__()
        for index, part in enumerate(parts):
            allow_new_home(part)
            self.add_module(str(index), part)
        self.vmappable = all(built(part).vmappable for part in parts)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        for part in self.children():
            values |= part(*args, **kwargs)
        return values

    def _parts(self) -> list[BuiltGuide]:
        return [built(part) for part in self.children()]

    def fixed_sites(self) -> frozenset[str]:
        return frozenset().union(*(part.fixed_sites() for part in self._parts()))

    def mean(self) -> dict[str, Tensor] | None:
        return _merged([part.mean() for part in self._parts()])

    def moments(self) -> dict[str, tuple[Tensor, Tensor]] | None:
        return _merged([part.moments() for part in self._parts()])

    def log_density(self, draws: Mapping[str, Tensor]) -> Tensor | None:
        densities = [part.log_density(draws) for part in self._parts()]
        known = [values for values in densities if values is not None]
        return torch.stack(known).sum(0) if len(known) == len(densities) else None


def _merged[T](parts: list[dict[str, T] | None]) -> dict[str, T] | None:
    known = [values for values in parts if values is not None]
    return {name: value for values in known for name, value in values.items()} if len(known) == len(parts) else None


def resolve(value: Any) -> Guide:
    """Return the guide that a name, a table, a mapping from name patterns, or an object stands for.

    Examples:
        >>> bnn.guides.resolve("full_rank")
        FullRank(init_rho=None)
        >>> bnn.guides.resolve({"type": "low_rank", "rank": 3}).rank
        3
    """
    if isinstance(value, dict) and "type" not in value:
        return ByName(choices=tuple(value.items()))
    return resolve_one(value)


def noise_of(guide: Any) -> str | dict[str, str] | None:
    """Return the noise of a guide, of each by its pattern where there are several, None without any."""
    if isinstance(guide, NoisePerExample):
        return guide.noise
    if isinstance(guide, ByName):
        return {p: part.noise for p, part in guide.choices if isinstance(part, NoisePerExample)} or None
    return None


def noises_of(guide: Any) -> list[str]:
    """Return the noise of each part of a guide that has any."""
    noise = noise_of(guide) or {}
    return list(noise.values()) if isinstance(noise, dict) else [noise]


def leaves_noise_open(guide: Any) -> bool:
    """Return whether the noise of a guide, or of a part of it, is "auto"."""
    return "auto" in noises_of(guide)


def with_noise_chosen(guide: Any, names: Sequence[str], choose: Callable[[Sequence[str]], str]) -> Any:
    """Return a guide with the noise that is chosen, for the sites which it covers, where it is "auto"."""
    if isinstance(guide, ByName):
        covered = assign([pattern for pattern, _ in guide.choices], names, "guide") if names else {}
        return ByName(tuple((p, with_noise_chosen(part, covered.get(p, []), choose)) for p, part in guide.choices))
    if isinstance(guide, NoisePerExample) and guide.noise == "auto":
        return dataclasses.replace(guide, noise=choose(names))  # type: ignore[type-var]
    return guide
