"""What suites of several tasks have in common: [[entries]] that are methods, and keys that must be known."""

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


def methods(suite: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Return the settings of each of [[entries]], complete, with its name as "entry".

    Args:
        suite: the tables of a suite.
        more: settings of an entry that the task has beside those of `METHOD`, and their defaults.

    Raises:
        InputError: no entries, one without a name, an unknown key, or a guide or prior that is not one.
    """
    if not suite.get("entries"):
        raise bnn.InputError("The suite needs [[entries]], each with a `name`.")
    return [_method(entry, METHOD | more) for entry in suite["entries"]]


def _method(entry: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    check_keys(f"entry {entry.get('name')}", entry, ("name", *defaults))
    if not entry.get("name"):
        raise bnn.InputError(f"Each entry needs a `name`, got {entry}.")
    settings = defaults | {key: value for key, value in entry.items() if key != "name"}
    bnn.guides.resolve(settings["guide"])
    bnn.priors.resolve(settings["prior"])
    return {"entry": entry["name"], **settings}


def num_draws(settings: dict[str, Any]) -> int:
    """Return how many draws to predict with: `draws`, or one of each member where members are points."""
    is_point = isinstance(bnn.guides.resolve(settings["guide"]), bnn.guides.Map)
    return settings["members"] if is_point else settings["draws"]
