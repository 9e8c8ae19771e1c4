"""Going on from a posterior: a fit of the same model and guide begins at its parameters."""

import dataclasses
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import nn

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import described
from pyrobnn.bnn import BNN
from pyrobnn.guides.built import built
from pyrobnn.nets import is_custom
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.priors.by_name import by_site

_OPEN = "tuned"
_PAGE = "how-to/own-loop"


def model_of(start: Any, bnn: BNN) -> BNN:
    """Return the model of a posterior to go on from, with its scales and in its units.

    Raises:
        InputError: not a posterior, or one of another model.
    """
    if not isinstance(start, Posterior):
        raise InputError(
            f"`start` must be a Posterior, got {type(start).__name__}; of a Mixture, pass one of its `members`.",
            page=_PAGE,
        )
    difference = next((words for words in _differences(bnn, start.bnn) if words is not None), None)
    if difference is not None:
        raise InputError(
            f"`start` is a posterior of another model: {difference}. Pass its model, `posterior.bnn`, or leave out "
            "`start`.",
            page=_PAGE,
        )
    model = start.bnn.fresh()
    model.units = (start.x_scaler, start.y_scaler)
    return model


def _differences(here: BNN, there: BNN) -> list[str | None]:
    """Return what differs between the parts of two models, in words; None for parts that agree."""
    nets, likelihoods = ([model.settings[part] for model in (here, there)] for part in ("net", "likelihood"))
    sites = [by_site(model.settings["prior"], model.site_names) for model in (here, there)]
    return [
        _difference(here.net, there.net) if is_custom(nets[0]) else _words("network", *nets),
        None if sites[0].keys() == sites[1].keys() else f"it infers {', '.join(there.site_names)}",
        *(_words(f"prior of {name!r}", sites[0][name], there) for name, there in sites[1].items() if name in sites[0]),
        _words("likelihood", *likelihoods),
    ]


def _words(part: str, here: Any, there: Any) -> str | None:
    return None if _agrees(here, there) else f"its {part} is {there!r}, not {here!r}"


def _agrees(here: Any, there: Any) -> bool:
    """Return whether a part is that of a posterior, whose fit may have measured the scales that are open here."""
    if here == there or type(here) is not type(there):
        return bool(here == there)
    if not dataclasses.is_dataclass(here):
        return bool(described(here) == described(there))
    names = [field.name for field in dataclasses.fields(here)]
    measured = {name: getattr(there, name) for name in names if getattr(here, name) == _OPEN}
    return bool(dataclasses.replace(here, **measured) == there)  # type: ignore[type-var]


def _difference(here: nn.Module, there: nn.Module) -> str | None:
    """Return what differs between the classes and tensors of two modules, in words."""
    if type(here).__name__ != type(there).__name__:
        return f"it has a {type(there).__name__}, not a {type(here).__name__}"
    shapes = [{name: tuple(value.shape) for name, value in part.state_dict().items()} for part in (here, there)]
    name = next((name for name in shapes[0] | shapes[1] if shapes[0].get(name) != shapes[1].get(name)), None)
    if name is not None:
        return f"{name!r} has shape {shapes[1].get(name)} there, and {shapes[0].get(name)} here"
    modules = [{name: str(module) for name, module in part.named_modules() if name} for part in (here, there)]
    name = next((name for name in modules[0] | modules[1] if modules[0].get(name) != modules[1].get(name)), None)
    return None if name is None else f"{name!r} is {modules[1].get(name)} there, and {modules[0].get(name)} here"


def go_on(start: Posterior, bnn: BNN, guide: PyroModule, setting: Any) -> None:
    """Put model and guide where a posterior of this model has them.

    Args:
        start: the posterior.
        bnn: a model as `model_of` returns it.
        guide: the guide, built for it.
        setting: the setting that built the guide, as it was asked for.

    Raises:
        InputError: a posterior with another guide, or with a guide that has nothing to train.
    """
    if not built(start.guide).trainable:
        raise InputError(
            f"The guide of `start`, {type(start.guide).__name__}, holds what another method computed and has nothing "
            "to train: start from a fit by a guide such as 'mean_field' or 'map'.",
            page=_PAGE,
        )
    asked, started = described(setting), start.record.guide
    if started is not None and asked != started:
        difference: str | None = f"it is {started}, not {asked}"
    else:
        difference = _difference(guide, start.guide)
    if difference is not None:
        raise InputError(
            f"`start` has another guide: {difference}. Give the method the guide of the posterior, or leave out "
            "`start`.",
            page=_PAGE,
        )
    with torch.no_grad():
        bnn.load_state_dict(start.bnn.state_dict())
        guide.load_state_dict(start.guide.state_dict())


def start_record(start: Posterior | None) -> dict[str, int | None] | None:
    """Return what the record of a fit says of the posterior that it went on from."""
    if start is None:
        return None
    return {"seed": start.seed, "num_steps": start.record.num_steps, "num_data": start.record.num_data}
