"""Functions of rooms above that a class offers as a method too, imported when the method is called."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def verb(place: str) -> Callable[..., Any]:
    """Return a function by its module in the package and its name, as in "inference.sugar:fit_svi"."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"pyrobnn.{module}"), name)
    return function
