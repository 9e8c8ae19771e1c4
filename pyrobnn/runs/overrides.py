"""Changes to a spec from the command line, such as guide.type=map."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyrobnn._core.registry import Registry
from pyrobnn.inference import tables as methods
from pyrobnn.inference.default_parts import PARTS
from pyrobnn.inference.method import registry
from pyrobnn.likelihoods import noise
from pyrobnn.runs.spec_data import OF_ANY_FIT
from pyrobnn.runs.spec_files import parse_change

_OF_COLUMNS = [["data", key] for key in ("drop", "id", "categories", "missing")]
_DEFAULT = "default"
"""In place of a method, what the data and the likelihood call for: its network and its prior come with it."""
_DEFAULT_TYPES = {"net": "mlp", "prior": "normal"}


def apply_overrides(tables: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the tables of a spec with changes applied: the method first, then every other `type`, then the rest.

    A new `type` drops the options of the old type that it lacks. A new method with an inner method, such as ensemble,
    takes in the old method, and an inner method that is named comes out; a method that trains no guide drops the
    section [guide]. The method "default" drops it too, the network and the prior. Other columns of a table bring their
    own number of inputs, and another likelihood its own number of outputs.

    Args:
        tables: the sections of the spec.
        overrides: assignments "section.key=value"; the value is read as TOML, or else as text.

    Raises:
        InputError: not an assignment to a key.
    """
    changed: dict[str, Any] = {name: _copy(table) for name, table in tables.items()}
    parsed = [parse_change(text) for text in overrides]
    for keys, value in sorted(parsed, key=lambda item: (item[0][-1] != "type", not _is_method(item[0][:-1]))):
        if keys == ["fit", "type"] and value == _DEFAULT:
            fit = changed.get("fit", {})
            changed = {name: table for name, table in changed.items() if name not in ("net", "prior", "guide", "fit")}
            changed["fit"] = {key: fit[key] for key in OF_ANY_FIT if key in fit}
            continue
        if keys == ["fit", "type"] and isinstance(value, str) and not _takes_guide(value):
            changed.pop("guide", None)
        _assign(changed, keys, value)
    net, changes = changed.get("net"), [keys for keys, _ in parsed]
    of_width = {
        "in_features": any(keys in _OF_COLUMNS for keys in changes),
        "out_features": any(keys[0] == "likelihood" for keys in changes),
    }
    for width in [width for width, is_new in of_width.items() if is_new and ["net", width] not in changes]:
        if isinstance(net, dict):
            net.pop(width, None)
    return changed


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _assign(tables: dict[str, Any], keys: list[str], value: Any) -> None:
    *path, last = keys
    table: Any = tables
    for depth, key in enumerate(path):
        inner = table.get(key)
        if not isinstance(inner, dict):
            inner = {"type": inner} if isinstance(inner, str) else _start(path[: depth + 1])
        table[key] = inner
        table = inner
    if last == "type" and isinstance(value, str):
        kept = _retyped(path, table, value)
        table.clear()
        table.update(kept)
    table[last] = value


def _start(path: list[str]) -> dict[str, Any]:
    is_part = len(path) == 1 and path[0] in _DEFAULT_TYPES
    return {"type": _DEFAULT_TYPES[path[0]]} if is_part else {}


def _is_method(path: list[str]) -> bool:
    return path[:1] == ["fit"] and set(path[1:]) <= {"method"}


def _takes_guide(method: str) -> bool:
    return not {"guide", "method"}.isdisjoint(methods.fields_of(registry.get(method)))


def _retyped(path: list[str], table: dict[str, Any], new_type: str) -> dict[str, Any]:
    """Return a table with the options that stay when its type changes."""
    if _is_method(path):
        common = {key: table[key] for key in OF_ANY_FIT if key in table}
        return methods.retyped({key: value for key, value in table.items() if key not in common}, new_type) | common
    registry = _registry(path)
    known = {"lr"} if registry is None else methods.fields_of(registry.get(new_type))
    return {key: value for key, value in table.items() if key in known}


def _registry(path: list[str]) -> Registry | None:
    """Return the registry of the type at a path; None for optimizers and schedules, which keep only `lr`."""
    if path[:1] == ["likelihood"] and len(path) > 1:
        return noise.registry
    return PARTS[path[0]].registry if path and path[0] in PARTS else None
