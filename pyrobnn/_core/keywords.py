"""Arguments that a function does not take so: errors name the near keyword, the setting meant, or what goes by name."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from pyrobnn._core.errors import nearest

_MOST_NAMES = 5


def explained[**P, R](**parts: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: a keyword that a function lacks, or too many by position, is a `TypeError` with a remedy.

    Args:
        **parts: classes of settings that the function takes, by the names of its arguments.
    """

    def decorator(call: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(call).parameters
        if any(entry.kind is inspect.Parameter.VAR_KEYWORD for entry in parameters.values()):
            return call
        known = [name for name in parameters if name != "self" and not name.startswith("_")]
        by_name = [name for name in known if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY]
        most = len(parameters) - sum(entry.kind is inspect.Parameter.KEYWORD_ONLY for entry in parameters.values())

        @functools.wraps(call)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            unknown = next((name for name in kwargs if name not in known), None)
            if unknown is not None or len(args) > most:
                title = type(args[0]).__name__ if call.__name__ == "__init__" else call.__name__
            if unknown is not None:
                said = f"{title}() got an unexpected keyword argument {unknown!r}."
                raise TypeError(said + _suggestion(unknown, known, parts))
            if len(args) > most and by_name:
                before = ", ".join(name for name in known if name not in by_name) or "nothing"
                remedy = _pair([*parameters], args) or f"; give the others by name: {_calls(by_name)}"
                raise TypeError(f"{title}() takes {before} by position{remedy}")
            return call(*args, **kwargs)

        return wrapped

    return decorator


def explained_init[T: type](**parts: type) -> Callable[[T], T]:
    """Return a decorator of a class that does for its constructor what `explained` does for a function."""

    def decorator(cls: T) -> T:
        made: Any = cls
        made.__init__ = explained(**parts)(made.__init__)
        return cls

    return decorator


def _calls(names: list[str]) -> str:
    return ", ".join([*(f"{name}=..." for name in names[:_MOST_NAMES]), *(["..."] if len(names) > _MOST_NAMES else [])])


def _pair(names: list[str], args: tuple[Any, ...]) -> str:
    """Return what to do about targets that follow inputs where the data are one argument, or nothing."""
    after = names.index("data") + 1 if "data" in names else len(args)
    is_array = after < len(args) and isinstance(getattr(args[after], "shape", None), tuple)
    return ": give inputs and targets as a pair, (x, y)." if is_array else ""


def _suggestion(name: str, known: list[str], parts: dict[str, type]) -> str:
    """Return the name that was meant: a setting of that name, or else a near argument or setting."""
    owners = {field.name: part for part, cls in parts.items() for field in dataclasses.fields(cls)}
    meant = name if name in owners else nearest(name, known) or nearest(name, owners)
    if meant is None:
        return f" Known: {', '.join(known)}."
    if meant in known:
        return f" Did you mean {meant!r}?"
    part = owners[meant]
    return f" Did you mean {part}=bnn.{parts[part].__name__}({meant}=...)?"
