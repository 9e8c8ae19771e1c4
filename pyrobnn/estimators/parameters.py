"""The parameters of an estimator by scikit-learn's rules, and the model and method that they stand for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from pyrobnn._core.errors import did_you_mean
from pyrobnn._core.settings import fields_of
from pyrobnn.data import InputColumns
from pyrobnn.inference.defaults import Choice, choose
from pyrobnn.inference.method import Engine, Run, guide_of
from pyrobnn.inference.parts import PARTS, Facts, Given
from pyrobnn.tables.schema import Task

_SETTINGS_OF_METHOD = ("steps", "lr", "batch_size")
_PREFIXES = tuple(f"{name}__" for name in PARTS)

type Part = object  # a setting, such as `guides.LowRank(rank=2)`, its name, a table with its type, or None: open


@dataclass(eq=False, repr=False)
class Parameters(BaseEstimator):
    """The parameters of both estimators; `BNNRegressor` says what each is."""

    TASK: ClassVar[Task]
    net: Part = None
    _: KW_ONLY
    prior: Part = None
    likelihood: Part = None
    guide: Part = None
    method: Part = None
    steps: int | None = None
    lr: float | None = None
    batch_size: int | None = None
    num_draws: int = 500
    standardize: bool = True
    categories: str | Sequence[str] = "onehot"
    missing: str = "raise"
    random_state: int | np.random.RandomState | None = None
    inputs: InputColumns | None = None
    device: str = "cpu"
    engine: Engine = "auto"
    verbose: bool | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - signature of scikit-learn
        """Return the parameters; if `deep`, also settings of parts, such as guide__rank, for few rows."""
        params: dict[str, Any] = super().get_params(deep=False)
        try:
            parts = self._parts() if deep else {}
        except (ValueError, TypeError):  # `fit` reports values that cannot be used
            return params
        return params | {key: value for name, part in parts.items() for key, value in _nested(name, part)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters; guide__rank=5 replaces the guide by a guide of rank 5, given by name or as a setting.

        Examples:
            >>> bnn.BNNRegressor(guide="low_rank").set_params(guide__rank=5, prior__scale=0.3).prior
            Normal(scale=0.3, loc=0.0)
        """
        super().set_params(**{key: value for key, value in params.items() if not key.startswith(_PREFIXES)})
        for name in PARTS:
            settings = _below(name, params)
            if settings:
                part = self._method() if name == "method" else self._parts()[name]
                if part is None:
                    raise ValueError(f"Invalid parameters {sorted(settings)}: there is no {name} yet. Set it first.")
                setattr(self, name, _with_settings(part, settings))
        return self

    def _given(self) -> Given:
        """Return the parts and settings that were given, the parts as settings."""
        values = {name: value for name, value in vars(self).items() if value is not None}
        parts = {name: family.resolve(values[name]) for name, family in PARTS.items() if name in values}
        settings = {name: values[name] for name in _SETTINGS_OF_METHOD if name in values}
        return Given(**parts, inputs=self.inputs, settings=settings)

    def _choice(self, *, learns_on: bool = False) -> Choice:
        """Return what the rules choose for few rows."""
        is_scaled = bool(self.standardize)
        return choose(Facts(task=self.TASK, given=self._given(), is_standardized=is_scaled, learns_on=learns_on))

    def _parts(self) -> dict[str, Any]:
        """Return the parts for few rows by name; the method has the guide and settings that were given."""
        choice = self._choice()
        parts = choice.candidates[0]
        guide = choice.facts.given.guide or guide_of(parts.method)
        return {name: guide if name == "guide" else getattr(parts, name) for name in PARTS}

    def _method(self) -> Any:
        """Return the method for few rows without the guide and settings that were given beside it."""
        choice = self._choice()
        return choice.facts.given.method or choice.rule.parts(choice.facts)[0].method

    def _run(self) -> Run:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Run(seed=seed, device=self.device, engine=self.engine, progress=bool(self.verbose))


def _nested(prefix: str, part: Part) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a part and of the parts in it, by names such as guide__rank."""
    for name in fields_of(type(part)):
        value = getattr(part, name)
        yield f"{prefix}__{name}", value
        yield from _nested(f"{prefix}__{name}", value)


def _below(name: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose names begin with `name__`, by the rest of their names."""
    return {key.removeprefix(f"{name}__"): value for key, value in params.items() if key.startswith(f"{name}__")}


def _with_settings(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part with other settings; "method__lr" is the setting `lr` of the part `method` in it."""
    known = list(fields_of(type(part)))
    for name in (key.partition("__")[0] for key in values):
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"Invalid parameter {name!r} for {part!r}.{hint} Valid parameters are: {known!r}.")
    changed = replace(part, **{name: values[name] for name in known if name in values})
    of_inner = {name: settings for name in known if (settings := _below(name, values))}
    return replace(changed, **{name: _with_settings(getattr(changed, name), of_inner[name]) for name in of_inner})
