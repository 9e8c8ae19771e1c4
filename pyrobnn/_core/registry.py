"""Names for parts: a registry finds a setting by its snake_case name and explains names that it does not know."""

import functools
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pyrobnn._core.errors import InputError, did_you_mean, shown
from pyrobnn._core.settings import snake_case


@functools.cache
def _plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of installed packages; the search takes 30 ms."""
    return {point.name: point for point in entry_points(group=group)}


_REGISTRIES: "list[Registry]" = []


class Registry:
    """The named settings of a kind, such as prior or guide; `accepts` says which plain objects may stand for one.

    Other packages add theirs with `register`, or an entry point of the setting's name in the group `pyrobnn.<kind>`.
    """

    def __init__(self, kind: str, accepts: Callable[[Any], bool], page: str) -> None:
        self.kind = kind
        self.page = page
        self.accepts = accepts
        self._classes: dict[str, type] = {}
        _REGISTRIES.append(self)

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
            kinds = [other.kind for other in _REGISTRIES if other is not self and name in other.names]
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
