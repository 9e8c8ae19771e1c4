"""Keywords that a function does not have: the error names the near one, or the setting that was meant."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from pyrobnn._core.errors import nearest


def explained[**P, R](**parts: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: a keyword that a function lacks is Python's `TypeError`, with a suggestion.

    Args:
        **parts: classes of settings that the function takes, by the names of its arguments.
    """

    def decorator(call: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(call).parameters if name != "self" and not name.startswith("_")]

        @functools.wraps(call)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    title = type(args[0]).__name__ if call.__name__ == "__init__" else call.__name__
                    said = f"{title}() got an unexpected keyword argument {name!r}."
                    raise TypeError(said + _suggestion(name, known, parts))
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
