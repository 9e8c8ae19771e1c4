"""Remedies: a change of settings that may mend a fit, as one writes it in Python and on the command line."""

import dataclasses
import json
import shlex
from contextvars import ContextVar
from typing import Literal

Spelling = Literal["python", "estimator", "command"]
current_spelling: ContextVar[Spelling] = ContextVar("spelling", default="python")  # estimators and the cli set it
_CALLS = {"data.test": "`data.split({})`", "data.drop": "", "data.groups": "`groups=`", "data.test_last": ""}
_OF_ESTIMATORS = _CALLS | {"data.test": "`train_test_split(X, y, test_size={})`", "data.task": "in a `BNNRegressor`"}
_OF_ESTIMATORS |= {"data.decimal": '`X[column].str.replace(".", "").str.replace(",", ".").astype(float)`'}
_OF_DATA = ("drop", "groups", "test_last", "decimal", "sep", "encoding", "categories", "task")
_OPTIONS = {f"data.{key}": f"--{key.replace('_', '-')}" for key in _OF_DATA}


@dataclasses.dataclass(frozen=True)
class Remedy:
    """Words that follow "To mend it,", and changes of a spec, such as "fit.steps=9"; `python` may spell them there."""

    words: str
    settings: tuple[str, ...] = ()
    python: str = ""

    def said(self, spelling: Spelling) -> str:
        """Return the words for a reader, with options at the command line, or with code."""
        code = self.code(spelling)
        return self.words + (f" ({code})" if spelling == "command" else f", {code}") * bool(code)

    def code(self, spelling: Spelling) -> str:
        """Return the changes as options or code; estimators take their parameters, joined by two underscores."""
        if spelling == "command":
            return options(*self.settings)
        if self.python and not (spelling == "estimator" and self.settings):
            return self.python
        calls = _OF_ESTIMATORS if spelling == "estimator" else _CALLS
        pairs = [setting.partition("=")[::2] for setting in self.settings]
        changes = [_change(path, value, spelling) for path, value in pairs if path not in calls]
        if changes and spelling == "estimator":
            changes = [f"set_params({', '.join(changes)})"]
        said = [calls[path].format(value) for path, value in pairs if path in calls]
        return ", ".join(filter(None, [*(f"`{change}`" for change in changes), *said]))


def mended(text: str, remedy: Remedy | None, spelling: Spelling | None = None) -> str:
    """Return a text with a sentence on its remedy; by the current spelling if none is given."""
    return text if remedy is None else f"{text} To mend it, {remedy.said(spelling or current_spelling.get())}."


def advised(words: str, *settings: str) -> str:
    """Return what to do in words, and by which changes of a spec, in the current spelling."""
    return Remedy(words, settings).said(current_spelling.get())


def options(*settings: str) -> str:
    """Return the options that change settings of a run, as a shell takes them."""
    words = []
    for path, _, value in (setting.partition("=") for setting in settings):
        given = value if path in _OPTIONS else f"{path}={value}"
        values = json.loads(given) if given[0] == "[" else [given]
        words += [f"{_OPTIONS.get(path, '--set')} {shlex.quote(each)}" for each in values]
    return " ".join(words)


def _change(path: str, value: str, spelling: Spelling) -> str:
    *parts, key = ["method" if name == "fit" else name for name in path.removeprefix("data.").split(".")]
    if key == "type":
        *parts, key = parts
    is_direct = spelling == "python" or key in ("steps", "lr", "batch_size")
    shown = value if value[0] in "[-0123456789" else value.title() if value in ("true", "false") else f'"{value}"'
    return f"{key if is_direct else '__'.join([*parts, key])}={shown}"
