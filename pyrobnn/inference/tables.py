"""Methods as tables, apart from their guides."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

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
