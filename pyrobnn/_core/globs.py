"""Choices by name: patterns such as "*.bias" that pick parameters, where the first match wins."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from pyrobnn._core.errors import InputError


def assign(patterns: Iterable[str], names: Iterable[str], what: str) -> dict[str, list[str]]:
    """Return the names that each shell-style pattern covers; `what` is chosen ("prior") is for messages."""
    names, patterns = list(names), list(patterns)
    covered: dict[str, list[str]] = {pattern: [] for pattern in patterns}
    for name in names:
        first = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)
        if first is None:
            raise InputError(f"No {what} for {name!r}: add a pattern that matches it, such as '*', as the last one.")
        covered[first].append(name)
    for pattern, matched in covered.items():
        if not matched:
            raise InputError(
                f"The {what} pattern {pattern!r} matches nothing that an earlier pattern has not taken. "
                f"Names: {', '.join(names)}."
            )
    return covered
