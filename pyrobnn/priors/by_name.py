"""Different priors for different parameters, chosen by patterns of their names."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import field_validator
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.registry import assign
from pyrobnn._core.settings import setting, to_dict
from pyrobnn.priors.base import Prior, starts
from pyrobnn.priors.given import resolve_one

_NONE = {"type": "none"}


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
        given: dict[str, Tensor] = {}
        for name, value in values.items():
            given |= starts(self._child(name), {name: value})
        return given

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
