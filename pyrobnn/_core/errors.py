"""The error for input that cannot be used, the warning of poor fits, and the hint for names that are not known."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Raised before any work starts; the message says what came, what was expected and what to do.

    Control characters in it, as names of columns may have, are written as escapes: a terminal would obey them.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class PoorFitWarning(UserWarning):
    """A fit predicts no better than a constant, far worse than a linear model, or has memorised its targets."""


def printable(text: str) -> str:
    """Return text with everything that is not printed, beside spaces and ends of lines, written as an escape."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the nearest known name, or nothing if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
