"""Settings are values, frozen and validated: they print, compare, hash, round-trip as tables, and have names."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, ClassVar, dataclass_transform

import pydantic
from pydantic import AfterValidator, ConfigDict, Field

from pyrobnn._core.errors import InputError, did_you_mean, shown, unknown_setting

_CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
_LARGEST_FLOAT = 3.4028234663852886e38


class FrozenDict(dict[str, Any]):
    """A dictionary that hashes and cannot be changed, so that it can be part of a setting."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset((key, repr(value)) for key, value in self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("The options of a setting cannot be changed; make a new setting.")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse


Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
Options = Annotated[dict[str, Any], AfterValidator(FrozenDict)]  # keyword arguments, passed on to what is built


@dataclass_transform(frozen_default=True)
def setting[T](cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass validated by pydantic; an `InputError` has its name or `error_prefix`."""
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=_CONFIG)(cls)
    init, prefix = made.__init__, getattr(cls, "error_prefix", f"{cls.__name__}: ")

    @functools.wraps(init)
    def wrapped(self: Any, /, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except pydantic.ValidationError as error:
            raise InputError(prefix + describe(error, self).removeprefix(prefix)) from None
        for field in dataclasses.fields(self):
            _check_range(getattr(self, field.name), f"{prefix}`{field.name}`")

    made.__init__ = wrapped
    return made


def _check_range(value: Any, where: str) -> None:
    """Refuse numbers beyond the range of single precision, which networks compute in, or of 64-bit integers."""
    if isinstance(value, (tuple, list)):
        for item in value:
            _check_range(item, where)
    elif isinstance(value, float) and abs(value) > _LARGEST_FLOAT:
        raise InputError(f"{where} must lie within ±{_LARGEST_FLOAT:.2g}, the range of single precision, got {value!r}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"{where} must be a whole number of 64 bits, got {value}")


_EXPECTED = {"bool": "true or false", "float": "a number", "int": "a whole number"}
_EXPECTED |= {"list": "a list", "tuple": "a list", "dict": "a table", "string": "a text"}
"""What is expected where pydantic says it in words of programmers, by the type that its error begins with."""
_FAULTS = {"missing": "is missing", "missing_argument": "is missing", "multiple_argument_values": "is given twice"}


def describe(error: pydantic.ValidationError, owner: Any = None) -> str:
    """Describe in one line the values that pydantic refused: `field` must be what, got value."""
    names = [field.name for field in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
    said: dict[tuple[str, str], dict[str, None]] = {}  # what is expected, by the words before and after it
    for item in error.errors():
        before, expected, after = _described(item, names)
        said.setdefault((before, after), {})[expected] = None
    return "; ".join(before + ", or ".join(expected) + after for (before, after), expected in said.items())


def _described(item: Any, names: list[str]) -> tuple[str, str, str]:
    head, *rest = item["loc"] or ("input",)
    path = names[head] if isinstance(head, int) and head < len(names) else head
    path = ".".join([str(path), *(str(part) for part in rest if isinstance(part, int))])
    if item["type"] == "unexpected_keyword_argument":
        return "", unknown_setting(path, names), ""
    if item["type"] in _FAULTS:
        return f"`{path}` ", _FAULTS[item["type"]], ""
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return "", str(cause), ""
    said = item["msg"].removeprefix("Value error, ")
    kind, _, fault = item["type"].partition("_")
    is_type = fault in ("type", "parsing", "from_float")
    expected = _EXPECTED[kind] if is_type and kind in _EXPECTED else said.removeprefix("Input should be ")
    hint = did_you_mean(item["input"], re.findall(r"'(.*?)'", expected)) if isinstance(item["input"], str) else ""
    got = f", got {shown(item['input'])}{hint and '.'}{hint}"
    return f"`{path}`: " if expected == said else f"`{path}` must be ", expected, got


def snake_case(name: str) -> str:
    """Return the name a class has in files and on the command line: `ScaleMixture` is scale_mixture, `SVI` is svi."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def to_dict(value: Any) -> Any:
    """Return a setting as nested dictionaries, lists, strings and numbers, with fields that are None left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if hasattr(value, "as_dict"):
            return value.as_dict()
        items = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {"type": snake_case(type(value).__name__)} | {k: to_dict(v) for k, v in items if v is not None}
    if isinstance(value, Mapping):
        return {str(k): to_dict(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_dict(item) for item in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise InputError(f"{value!r} cannot be written to a spec file: only settings, or parts registered by name, can")


def in_short(value: Any) -> str:
    """Return a setting in words: its class, with the fields that differ from their defaults, numbers in four digits."""
    if isinstance(value, float):
        return repr(float(f"{value:.4g}"))
    if isinstance(value, tuple):
        return f"({', '.join(map(in_short, value))}{',' * (len(value) == 1)})"
    if inspect.isroutine(value):
        return value.__name__
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value)
    pairs = [(field, getattr(value, field.name)) for field in dataclasses.fields(value) if field.repr]
    if [field.name for field, _ in pairs] == ["choices"]:  # parts by the names of weights
        return f"{{{', '.join(f'{name!r}: {in_short(part)}' for name, part in pairs[0][1])}}}"
    told = (f"{field.name}={in_short(given)}" for field, given in pairs if given != field.default)
    return f"{type(value).__name__}({', '.join(told)})"


def described(value: Any) -> Any:
    """Return a setting as `to_dict` does, or in words, where a spec file could not have it."""
    try:
        return to_dict(value)
    except InputError:
        return repr(value)


def fields_of(cls: type) -> dict[str, Any]:
    """Return the fields of a setting's class by name."""
    return {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}


@functools.cache
def _plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages; the search takes 30 ms."""
    return {point.name: point for point in entry_points(group=group)}


class Registry:
    """The named settings of a kind, such as prior or guide; `accepts` says which plain objects may stand for one.

    Other packages add theirs with `register`, or an entry point of the setting's name in the group `pyrobnn.<kind>`.
    """

    _every: ClassVar[list["Registry"]] = []

    def __init__(self, kind: str, accepts: Callable[[Any], bool], page: str) -> None:
        self.kind, self.page, self.accepts = kind, page, accepts
        self._classes: dict[str, type] = {}
        self._every.append(self)

    def register[T: type](self, cls: T) -> T:
        """Make a setting class known under its snake_case name (use as a decorator)."""
        self._classes[snake_case(cls.__name__)] = cls
        return cls

    def holds(self, value: Any) -> bool:
        """Return whether a value is a setting of this kind."""
        return type(value) in self._classes.values()

    @property
    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._all())

    def _all(self) -> dict[str, Any]:
        return _plugins(f"pyrobnn.{self.kind}") | self._classes

    def get(self, name: Any) -> type:
        """Return the class of that name; `InputError` with the nearest name if there is none."""
        known = self._all()
        if not isinstance(name, str):
            raise InputError(f"The type of a {self.kind} must be a name, got {name!r}: one of {', '.join(self.names)}.")
        if name not in known:
            kinds = [other.kind for other in self._every if other is not self and name in other.names]
            fits = f" It is a {kinds[0]}: {' or '.join(f'{kind}={name!r}' for kind in kinds)}." if kinds else ""
            hint = fits or did_you_mean(name, known)
            raise InputError(f"Unknown {self.kind} {name!r}.{hint} Known: {', '.join(sorted(known))}.", page=self.page)
        entry = known[name]
        return entry if isinstance(entry, type) else entry.load()

    def resolve(self, value: Any) -> Any:
        """Turn a name, or a dictionary with a `type`, into a setting; let settings and suitable objects through."""
        if isinstance(value, str):
            return self.get(value)()
        if isinstance(value, Mapping):
            options = dict(value)
            if "type" not in options:
                known = ", ".join(self.names)
                raise InputError(f"A {self.kind} given as a table needs a `type`: {known}; got {shown(options)}.")
            cls = self.get(options.pop("type"))
            try:
                return cls(**options)
            except TypeError as error:  # of a class that is no `setting`, which would have said so itself
                name = snake_case(cls.__name__)
                raise InputError(f"The {self.kind} {name!r} does not take these settings: {error}.") from None
        if not isinstance(value, type) and self.accepts(value):
            return value
        remedy = f": pass an instance, {value.__name__}(...)" if isinstance(value, type) else ""
        expected = f"one of the names {', '.join(self.names)}, a setting, or a suitable object"
        raise InputError(f"Expected a {self.kind}: {expected}; got {shown(value)}{remedy}.", page=self.page)


def assign(patterns: Iterable[str], names: Iterable[str], what: str) -> dict[str, list[str]]:
    """Return the names that each shell-style pattern covers; `what` is chosen ("prior") is for messages."""
    names, patterns = list(names), list(patterns)
    covered: dict[str, list[str]] = {pattern: [] for pattern in patterns}
    for name in names:
        first = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
        if first is None:
            raise InputError(f"No {what} for {name!r}: add a pattern that matches it, such as '*', as the last one.")
        covered[first].append(name)
    empty = next((pattern for pattern, matched in covered.items() if not matched), None)
    if empty is not None:
        said = f"The {what} pattern {empty!r} matches nothing that an earlier pattern has not taken."
        raise InputError(f"{said} Names: {', '.join(names)}.")
    return covered
