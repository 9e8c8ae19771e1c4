"""What a guide is: a setting whose `build` gives a Pyro guide over the latent sites of a model."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from pyro.nn import PyroModule

from pyrobnn._core.registry import Registry

Model = Callable[..., Any]


@runtime_checkable
class Guide(Protocol):
    """A guide setting. Any object with this method will do."""

    def build(self, model: Model, *args: Any) -> PyroModule:
        """Return a Pyro guide for the model.

        Args:
            model: a Pyro model; `initial_values`, if it has them, are starting values by site name, `net` is its
                network.
            *args: a batch of its inputs and observed targets, to run it once.

        Returns:
            A `PyroModule` that draws every latent site when called, with or without the model's arguments, and whose
            parameters all exist. `vmappable = True` on it says that calls can be vmapped over independent draws;
            `mean()`, if it has one, returns the mean of each site by name.
        """
        ...


registry = Registry("guide", accepts=lambda value: isinstance(value, Guide))
