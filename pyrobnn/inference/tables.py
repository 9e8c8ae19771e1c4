"""Methods as tables, apart from their guides."""

import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from pyrobnn._core.errors import InputError, nearest, unknown_setting
from pyrobnn._core.settings import fields_of, to_dict
from pyrobnn.inference.method import registry, with_innermost
from pyrobnn.inference.svi.svi import SVI

resolve = registry.resolve
_DEFAULT = SVI()


def with_settings(method: Any, table: Mapping[str, Any]) -> Any:
    """Return a method with other settings in its innermost method."""
    return with_innermost(method, lambda inner: from_table(table, start=inner))


def to_table(method: Any) -> dict[str, Any]:
    """Return a method as a table without its guide, which has a separate table."""
    table = {key: value for key, value in to_dict(method).items() if key != "guide"}
    inner = method.offer().inner
    return table if inner is None else table | {"method": to_table(inner)}


def from_table(table: Mapping[str, Any], *, also: Sequence[str] = (), start: Any = _DEFAULT) -> Any:
    """Return the method described by a table without a guide: `type` and settings, of which `method` is a table too.

    The type, guide and settings of `start` hold where the table says nothing; `also` are further valid keys.
    """
    options = dict(table)
    cls: Any = registry.get(options.pop("type")) if "type" in options else type(start)
    fields = fields_of(cls)
    unknown = [key for key in options if key not in fields or key == "guide"]
    if unknown:
        known = ["type", *also, *(name for name in fields if name != "guide")]
        elsewhere = "" if nearest(unknown[0], known) else _hint(unknown[0], fields)
        raise InputError(unknown_setting(unknown[0], known) + elsewhere)
    if "method" in options:
        options["method"] = _inner(options["method"], fields["method"].default)
    if type(start) is not cls:
        return cls(**options)
    shorter = {"steps": None} if "epochs" in options else {}  # `epochs` replaces `steps`
    return dataclasses.replace(start, **(shorter | options))


def _hint(key: str, fields: Mapping[str, Any]) -> str:
    """Return where a setting belongs, and which methods have it, in words."""
    if key == "guide":
        return ". The guide has a separate section, [guide]"
    names = [name for name in registry.names if key in fields_of(registry.get(name))]
    owners = f". `{key}` is a setting of {', '.join(names)}: name the method by `type`" if names else ""
    return (f". `{key}` may belong to the inner method, [fit.method]" if "method" in fields else "") + owners


def _inner(table: Any, default: Any) -> Any:
    if not isinstance(table, Mapping):
        table = {"type": table}
    try:
        return from_table(table, start=default)
    except InputError as error:
        raise InputError(f"`method`: {error}") from None


def retyped(table: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the table of a method changed to another type, with the settings that both types share.

    A type with an inner method takes in the old method; an inner method of the new type comes out; else settings of the
    same name stay.
    """
    new = fields_of(registry.get(kind))
    chain = list(_from_outside_in(table))
    same = next((old for old in chain if old.get("type", "svi") == kind), None)
    if same is not None:
        return dict(same) | {"type": kind}
    inside = next((old for old in chain if "method" in new and _fits(old, new["method"].type)), None)
    if inside is not None:
        return {"type": kind, "method": dict(inside)}
    return {"type": kind} | {key: value for key, value in table.items() if key in new}


def _from_outside_in(table: Any) -> Iterator[Mapping[str, Any]]:
    while isinstance(table, Mapping):
        yield table
        table = table.get("method")


def _fits(table: Mapping[str, Any], annotation: Any) -> bool:
    accepted = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return isinstance(accepted, (type, types.UnionType)) and issubclass(
        registry.get(table.get("type", "svi")), accepted
    )
