"""Priors in the forms that users give them: a distribution of Pyro, a function, and patterns of parameter names."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from pydantic import field_validator
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Distribution, Transform

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import assign, setting, to_dict
from pyrobnn.priors.base import Prior, at_scales_of, over, registry, starts_of

_NONE = {"type": "none"}


class _Unwritable:
    def as_dict(self) -> dict[str, Any]:
        said = f"{self!r} cannot be written to a file, since it is no setting: write a class of settings with `site`"
        raise InputError(f"{said}, and register it in pyrobnn.priors.registry.")


@dataclasses.dataclass(frozen=True)
class FromDistribution(_Unwritable):
    """The same distribution of Pyro for every entry, or a joint distribution of a whole parameter."""

    distribution: Any

    def __post_init__(self) -> None:
        """Refuse objects without the interface of Pyro's distributions."""
        if not isinstance(self.distribution, TorchDistributionMixin):
            raise InputError(
                f"A distribution given as a prior must be one of pyro.distributions, got {self.distribution!r} of "
                f"{type(self.distribution).__module__}: take pyro.distributions.{type(self.distribution).__name__}."
            )

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        return _checked(DistributionPrior(self.distribution, next(iter(values.values()))), values)


@dataclasses.dataclass(frozen=True)
class FromFunction(_Unwritable):
    """A prior made by a function, such as `lambda name, value: dist.Normal(0.0, value.abs().mean())`."""

    function: Callable[[str, Tensor], Any]

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        return _checked(FunctionPrior(self.function), values)


class DistributionPrior(PyroModule):
    """The module of `FromDistribution`: the tensors of the distribution are buffers."""

    def __init__(self, distribution: Any, like: Tensor) -> None:
        super().__init__()
        self._distribution, self._names = distribution, list[str]()

        def hold(tensor: Tensor) -> Tensor:
            self._names.append(f"tensor_{len(self._names)}")
            self.register_buffer(self._names[-1], _like(tensor.detach().clone(), like), persistent=False)
            return tensor

        _with_tensors(distribution, hold)

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        held = iter([self.get_buffer(name) for name in self._names])
        return _over_parameter(_with_tensors(self._distribution, lambda _: next(held)), name, value)


class FunctionPrior(PyroModule):
    """The module of `FromFunction`."""

    def __init__(self, function: Callable[[str, Tensor], Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        distribution = _with_tensors(self._function(name, value), lambda tensor: _like(tensor, value))
        return _over_parameter(distribution, name, value)


def resolve_one(value: Any) -> Prior:
    """Return the prior that a name, a table, a distribution of Pyro, a function, or an object stands for."""
    if isinstance(value, Distribution):
        return FromDistribution(value)
    if callable(value) and not isinstance(value, (type, Prior)):
        return FromFunction(value)
    return registry.resolve(value)


def _with_tensors(value: Any, replace: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a distribution with each of its tensors, in a fixed order, replaced."""
    if isinstance(value, Tensor):
        return replace(value)
    if isinstance(value, list):
        return [_with_tensors(item, replace) for item in value]
    if not isinstance(value, (Distribution, Transform)):
        return value
    new = copy.copy(value)
    vars(new).update({name: _with_tensors(inner, replace) for name, inner in vars(value).items()})
    return new


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    """Return a tensor on the device of another and, unless it holds integers, in its precision."""
    return tensor.to(value.device, value.dtype if tensor.is_floating_point() else tensor.dtype)


def _over_parameter(distribution: Any, name: str, value: Tensor) -> TorchDistributionMixin:
    """Return the distribution of a parameter, from that or from the distribution of its entries; refuse others."""
    if not isinstance(distribution, TorchDistributionMixin):
        raise InputError(f"The prior of {name!r} must be one of pyro.distributions, got {distribution!r}.")
    batch, event = distribution.batch_shape, distribution.event_shape
    if not batch and event == value.shape:
        return distribution
    ends = zip(reversed(batch), reversed(value.shape), strict=False)
    if event or len(batch) > value.ndim or any(have not in (1, want) for have, want in ends):
        raise InputError(
            f"The prior of {name!r} must be a distribution of single entries that expands to {tuple(value.shape)}, or "
            f"one whose event has this shape, got batch shape {tuple(batch)} and event shape {tuple(event)}: choose "
            "priors by name where parameters differ in shape."
        )
    return over(distribution, value)


def _checked(module: PyroModule, values: Mapping[str, Tensor]) -> PyroModule:
    """Ask for every parameter's distribution once, so that a misfit is refused when the model is made."""
    with torch.no_grad(), poutine.block():
        for name, value in values.items():
            module(name, value)
    return module


@setting
class ByName:
    """A prior for each pattern of parameter names; the first pattern that matches wins.

    Usually written as a dictionary, `{"*.bias": Normal(1.0), "*": ScaleMixture()}`. None leaves parameters
    deterministic: they are optimised, not inferred.

    Attributes:
        choices: pairs of a pattern and a prior, its name or table, or None.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior={"2.*": bnn.priors.Normal(1.0), "*": None})
        >>> model.site_names, model.num_weights
        (('2.weight', '2.bias'), 6)
    """

    choices: tuple[tuple[str, Any], ...]

    @field_validator("choices", mode="before")
    @classmethod
    def _resolve(cls, choices: Any) -> Any:
        pairs = choices.items() if isinstance(choices, Mapping) else choices
        return tuple(
            (pattern, None if prior in (None, "none", _NONE) else resolve_one(prior)) for pattern, prior in pairs
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the mapping from pattern to prior: all are tables, which TOML keeps in their order."""
        return {pattern: _NONE if prior is None else to_dict(prior) for pattern, prior in self.choices}

    def covers(self, names: list[str]) -> list[str]:
        by_pattern = assign([pattern for pattern, _ in self.choices], names, "prior")
        bayesian = {name for pattern, prior in self.choices if prior is not None for name in by_pattern[pattern]}
        return [name for name in names if name in bayesian]

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        return PriorByName(self, values)


class PriorByName(PyroModule):
    """The module of `ByName`: a child module for each pattern."""

    def __init__(self, setting: ByName, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        choices = {pattern: prior for pattern, prior in setting.choices if prior is not None}
        by_pattern = assign(list(choices), list(values), "prior")
        self._child_of: dict[str, str] = {}
        for index, (pattern, prior) in enumerate(choices.items()):
            names = by_pattern[pattern]
            self.add_module(str(index), prior.build({name: values[name] for name in names}))
            self._child_of |= dict.fromkeys(names, str(index))

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        return self._child(name)(name, value)

    def starts(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        added = (starts_of(self._child(name), {name: value}) for name, value in values.items())
        return {site: start for starts in added for site, start in starts.items()}

    def at_scales(self, values: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
        added = (at_scales_of(self._child(name), {name: value}, scales) for name, value in values.items())
        return {site: latent for latents in added for site, latent in latents.items()}

    def _child(self, name: str) -> PyroModule:
        return getattr(self, self._child_of[name])


def resolve(value: object) -> Prior:
    """Return the prior given by a name, a table, a mapping from name patterns, or an object.

    A distribution of `pyro.distributions` is understood too, and a function from a parameter's name and value to one.

    Examples:
        >>> import pyro.distributions as dist
        >>> bnn.priors.resolve("student_t")
        StudentT(df=3.0, scale='tuned')
        >>> bnn.priors.resolve(dist.Cauchy(0.0, 1.0)).distribution
        Cauchy(loc: 0.0, scale: 1.0)
    """
    if isinstance(value, dict) and "type" not in value:
        return ByName(choices=tuple(value.items()))
    return resolve_one(value)


def by_site(prior: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the setting of the prior of each parameter, by name."""
    choices = choices_of(prior)
    return {name: next(choice for pattern, choice in choices if fnmatchcase(name, pattern)) for name in names}


def choices_of(prior: Any) -> tuple[tuple[str, Any], ...]:
    """Return pairs of a pattern and a prior: the choices of a `ByName`; otherwise the prior itself for all names."""
    return prior.choices if isinstance(prior, ByName) else (("*", prior),)
