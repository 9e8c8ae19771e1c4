"""Learning rates by the names of parameters."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag
from pyro.nn import PyroModule
from torch import nn

from pyrobnn._core.globs import assign
from pyrobnn._core.settings import FrozenDict
from pyrobnn.bnn import BNN

Rate = Annotated[float, Field(gt=0)]
Rates = Annotated[
    Annotated[Rate, Tag("one")] | Annotated[dict[str, Rate], AfterValidator(FrozenDict), Tag("by name")],
    Discriminator(lambda value: "by name" if isinstance(value, Mapping) else "one"),
]
"""A learning rate, or several by patterns of the names of parameters."""


def named_parameters(bnn: BNN, guide: PyroModule) -> dict[str, nn.Parameter]:
    """Return what is trained by name: `guide.loc` of a guide, and `likelihood...` or `prior...` of the model."""
    of_guide = {f"guide.{name}": parameter for name, parameter in guide.named_parameters()}
    named = dict(bnn.named_parameters()) | of_guide
    return {name: parameter for name, parameter in named.items() if parameter.requires_grad}


def parameter_groups(rates: Mapping[str, float], bnn: BNN, guide: PyroModule) -> list[dict[str, Any]]:
    """Return the groups of an optimiser, one for each pattern, in order.

    Raises:
        InputError: a parameter without a rate, or a pattern that matches nothing, with the names of the parameters.
    """
    named = named_parameters(bnn, guide)
    covered = assign(rates, named, "learning rate")
    return [{"params": [named[name] for name in names], "lr": rates[pattern]} for pattern, names in covered.items()]
