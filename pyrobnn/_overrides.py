"""Changes to a spec from the command line, such as guide.type=map."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._errors import InputError
from pyrobnn.inference import SVI

_REGISTRIES = {
    "net": nets.registry,
    "prior": priors.registry,
    "likelihood": likelihoods.registry,
    "guide": guides.registry,
}
_DEFAULT_TYPES = {"net": "mlp", "prior": "normal", "guide": "mean_field"}


def apply_overrides(tables: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the tables of a spec with changes applied, those of a `type` first.

    A new `type` drops the options of the old one that it does not have.

    Args:
        tables: the sections of the spec.
        overrides: assignments "section.key=value"; the value is read as TOML, or else as text.

    Raises:
        InputError: not an assignment to a key.
    """
    changed: dict[str, Any] = {name: _copy(table) for name, table in tables.items()}
    parsed = [_parse(text) for text in overrides]
    for keys, value in sorted(parsed, key=lambda item: item[0][-1] != "type"):
        _assign(changed, keys, value)
    return changed


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _parse(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    keys = _keys(key)
    if not equals or not keys:
        raise InputError(f"A change of the spec must read section.key=value, got {text!r}, such as guide.type=map.")
    try:
        return keys, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return keys, value.strip()


def _keys(text: str) -> list[str]:
    """Return the parts of a dotted TOML key; none if it is not one."""
    try:
        table: Any = tomllib.loads(f"{text} = 0")
    except tomllib.TOMLDecodeError:
        return []
    keys = []
    while isinstance(table, dict) and len(table) == 1:
        ((key, table),) = table.items()
        keys.append(key)
    return keys


def _assign(tables: dict[str, Any], keys: list[str], value: Any) -> None:
    *path, last = keys
    table: Any = tables
    for depth, key in enumerate(path):
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = {"type": inner} if isinstance(inner, str) else _start(path[: depth + 1])
        table[key] = inner
        table = inner
    if last == "type":
        _keep_only(table, _options(path, value))
    table[last] = value


def _start(path: list[str]) -> dict[str, Any]:
    is_part = len(path) == 1 and path[0] in _DEFAULT_TYPES
    return {"type": _DEFAULT_TYPES[path[0]]} if is_part else {}


def _options(path: list[str], new_type: Any) -> set[str]:
    """Return the options that a type has; of an optimizer or schedule only `lr` outlives a change of type."""
    if path == ["fit"]:
        return {"seed", "device", *_field_names(SVI)}
    registry = _REGISTRIES.get(path[0]) if path else None
    if registry is None or not isinstance(new_type, str):
        return {"lr"}
    return set(_field_names(registry.get(new_type)))


def _field_names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def _keep_only(table: dict[str, Any], names: set[str]) -> None:
    for name in set(table) - names:
        del table[name]
