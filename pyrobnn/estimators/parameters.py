"""Settings of parts as parameters of scikit-learn, under names such as guide__rank."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from pyrobnn._core.errors import did_you_mean
from pyrobnn.inference import tables as methods


def nested(prefix: str, part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a part and of the parts in it, by names such as guide__rank."""
    for name in methods.fields_of(type(part)):
        value = getattr(part, name)
        yield f"{prefix}__{name}", value
        yield from nested(f"{prefix}__{name}", value)


def replaced(part: Any, values: Mapping[str, Any]) -> Any:
    """Return a part with other settings by name; "method__lr" is the setting `lr` of the inner part `method`.

    Raises:
        ValueError: a name that the part does not have, as in scikit-learn.
        InputError: a value that the part refuses.
    """
    direct, inner = grouped(values)
    known = list(methods.fields_of(type(part)))
    for name in (*direct, *inner):
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(f"Invalid parameter {name!r} for {part!r}.{hint} Valid parameters are: {known!r}.")
    changed = dataclasses.replace(part, **direct) if direct else part
    below = {name: replaced(getattr(changed, name), settings) for name, settings in inner.items()}
    return dataclasses.replace(changed, **below) if below else changed


def grouped(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split values into those under plain names, and those under nested names by the first name."""
    direct = {key: value for key, value in values.items() if "__" not in key}
    inner: dict[str, dict[str, Any]] = {}
    for key in [key for key in values if key not in direct]:
        name, _, rest = key.partition("__")
        inner.setdefault(name, {})[rest] = values[key]
    return direct, inner
