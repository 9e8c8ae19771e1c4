"""What suites of several tasks have in common: [[entries]], grids of settings, and what is refused."""

import copy
import itertools
from collections.abc import Iterable
from typing import Any

import pyrobnn as bnn

METHOD: dict[str, Any] = {"guide": {"type": "map"}, "prior": {"type": "normal", "scale": 1.0}, "members": 1}
"""Settings of an entry, beside its name: a guide, a prior, and the number of members if it is an ensemble."""


def check_keys(where: str, table: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse keys that are not known.

    Raises:
        InputError: with the first of them, and those known.
    """
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise bnn.InputError(f"Unknown key `{unknown[0]}` in {where}. Known: {', '.join(sorted(known))}.")


def check_engine(engine: str) -> None:
    """Refuse an engine that depends on the machine.

    Raises:
        InputError: one that is not captured or eager.
    """
    if engine not in ("captured", "eager"):
        raise bnn.InputError(f"`engine` must be captured or eager, so that bits repeat; got {engine!r}.")


def check_entries(suite: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse a suite without [[entries]], or one of them without a name or with an unknown key.

    Raises:
        InputError: with what is missing or unknown.
    """
    if not suite.get("entries"):
        raise bnn.InputError("The suite needs [[entries]], each with a `name`.")
    for entry in suite["entries"]:
        check_keys(f"entry {entry.get('name')}", entry, {"name", *known})
        if not entry.get("name"):
            raise bnn.InputError(f"Each entry needs a `name`, got {entry}.")


def candidates(tables: dict[str, Any], grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return tables with each combination of the values of a grid, whose keys are paths such as `prior.scale`."""
    return [changed(tables, dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())]


def changed(tables: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    """Return tables with the values of paths such as `prior.scale` in their places."""
    new = copy.deepcopy(tables)
    for path, value in choice.items():
        *sections, key = path.split(".")
        place = new
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return new


def values_at(tables: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the values at paths such as `prior.scale`."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = tables
        for key in path.split("."):
            value = value[key]
        found[path] = value
    return found


def methods(suite: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Return the settings of each of [[entries]], complete, with its name as "entry".

    Args:
        suite: the tables of a suite.
        more: settings of an entry that the task has beside those of `METHOD`, and their defaults.

    Raises:
        InputError: no entries, one without a name, an unknown key, or a guide or prior that is not one.
    """
    check_entries(suite, METHOD | more)
    return [_method(entry, METHOD | more) for entry in suite["entries"]]


def _method(entry: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    settings = defaults | {key: value for key, value in entry.items() if key != "name"}
    bnn.guides.resolve(settings["guide"])
    bnn.priors.resolve(settings["prior"])
    return {"entry": entry["name"], **settings}


def num_draws(settings: dict[str, Any]) -> int:
    """Return how many draws to predict with: `draws`, or one of each member where members are points."""
    is_point = isinstance(bnn.guides.resolve(settings["guide"]), bnn.guides.Map)
    return settings["members"] if is_point else settings["draws"]
