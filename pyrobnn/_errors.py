"""The error that pyrobnn raises for input it cannot use, and the hint for names that it does not know."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Raised before any work starts; the message says what came, what was expected and what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known name, or nothing if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
