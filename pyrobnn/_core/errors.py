"""The error that pyrobnn raises for input it cannot use, and the hint for names that it does not know."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Raised before any work starts; the message says what came, what was expected and what to do.

    Control characters in it, as names of columns may have, are written as escapes: a terminal would obey them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Return text with everything that is not printed, beside spaces and ends of lines, written as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known name, or nothing if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
