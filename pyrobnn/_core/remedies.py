"""Remedies: a change of settings that may mend a fit, as one writes it in Python and on the command line."""

import dataclasses
import json
import shlex
from contextvars import ContextVar
from typing import Literal

Spelling = Literal["python", "command"]
reader: ContextVar[Spelling] = ContextVar("reader", default="python")
"""The reader of what is said while work goes on, such as warnings; the command line sets it."""
_CALLS = {"data.test": "`data.split({})`", "data.drop": "", "data.groups": "`groups=`", "data.test_last": ""}
"""Settings of a spec that Python spells otherwise, or not at all."""
_OPTIONS = {"data.drop": "--drop", "data.groups": "--groups", "data.test_last": "--test-last"}
"""Settings that the command line has options for."""


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Something to try: words that go on after "To mend it,", and the settings of a spec that change.

    `settings` are such as "fit.max_steps=300000". `python` stands in for their spelling in Python.
    """

    words: str
    settings: tuple[str, ...] = ()
    python: str = ""

    def said(self, spelling: Spelling) -> str:
        """Return the words for a reader, with options at the command line, or with code."""
        if spelling == "command":
            return f"{self.words} ({options(*self.settings)})" if self.settings else self.words
        code = self.python or ", ".join(filter(None, map(_code, self.settings)))
        return f"{self.words}, {code}" if code else self.words


def mended(text: str, remedy: Remedy | None, spelling: Spelling | None = None) -> str:
    """Return a text with a sentence on its remedy; for the `reader` without a spelling."""
    return text if remedy is None else f"{text} To mend it, {remedy.said(spelling or reader.get())}."


def options(*settings: str) -> str:
    """Return the options that change settings of a run, as a shell takes them."""
    words = []
    for setting in settings:
        path, _, value = setting.partition("=")
        if path not in _OPTIONS:
            words.append(f"--set {shlex.quote(setting)}")
            continue
        values = json.loads(value) if value.startswith("[") else [value]
        words += [f"{_OPTIONS[path]} {shlex.quote(each)}" for each in values]
    return " ".join(words)


def _code(setting: str) -> str:
    """Return a setting as an argument: `method="nuts"` for "fit.type=nuts", `steps=400` for "fit.steps=400"."""
    path, _, value = setting.partition("=")
    if path in _CALLS:
        return _CALLS[path].format(value)
    section, _, key = path.rpartition(".")
    name = {"fit": "method"}.get(section, section) if key == "type" else key
    try:
        return f"`{name}={json.loads(value)!r}`"
    except json.JSONDecodeError:
        return f'`{name}="{value}"`'
