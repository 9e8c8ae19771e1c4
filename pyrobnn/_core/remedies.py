"""Remedies: what may mend a fit, as one writes it in Python and on the command line."""

import dataclasses
import json
import shlex
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Literal

_DROP = "data.drop="
Spelling = Literal["python", "command"]
reader: ContextVar[Spelling] = ContextVar("reader", default="python")
"""The reader of what is said while work goes on, such as warnings; the command line sets it."""


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Something to try: words that go on after "To mend it,", for Python and, if they differ, for the command line.

    `settings` are the changes of a spec that the command line makes for it, such as "fit.max_steps=300000".
    """

    python: str
    command: str = ""
    settings: tuple[str, ...] = ()

    def words(self, spelling: Spelling) -> str:
        """Return the words for a reader, without options."""
        return self.command or self.python if spelling == "command" else self.python

    def said(self, spelling: Spelling) -> str:
        """Return the words for a reader, with options at the command line."""
        changes = f" ({options(*self.settings)})" if spelling == "command" and self.settings else ""
        return f"{self.words(spelling)}{changes}"


def mended(text: str, remedies: Sequence[Remedy], spelling: Spelling | None = None) -> str:
    """Return a text with a sentence on its remedies, which are alternatives; for the `reader` without a spelling."""
    *others, last = [remedy.said(spelling or reader.get()) for remedy in remedies] or [""]
    listed = f"{'; '.join(others)}; or {last}" if others else last
    return f"{text} To mend it, {listed}." if listed else text


def options(*settings: str) -> str:
    """Return the options that change settings of a run, as a shell takes them."""
    words = []
    for setting in settings:
        dropped = json.loads(setting.removeprefix(_DROP)) if setting.startswith(_DROP) else []
        words += [f"--drop {shlex.quote(name)}" for name in dropped] or [f"--set {shlex.quote(setting)}"]
    return " ".join(words)
