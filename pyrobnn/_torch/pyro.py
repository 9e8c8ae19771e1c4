"""How pyrobnn runs Pyro: parameters live in the modules, never in the global parameter store."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyro
from pyro import distributions, infer, poutine
from pyro.nn import PyroModule
from pyro.poutine.runtime import _PYRO_STACK
from torch import nn
from torch.distributions import biject_to, constraints, transform_to

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.modes import no_inference_mode, plain_tensors

_CHECKED: tuple[Any, ...] = (distributions, infer, poutine)
"""Parts of Pyro that check arguments, each with a separate switch."""


@biject_to.register(constraints.MixtureSameFamilyConstraint)
@transform_to.register(constraints.MixtureSameFamilyConstraint)
def _to_mixture(constraint: Any) -> Any:
    """Return the map from all reals to the support of a mixture, that of its components, which torch does not have."""
    return biject_to(constraint.base_constraint)


@contextmanager
def local_parameters() -> Iterator[None]:
    """Keep parameters of Pyro modules made and used inside the block in the modules; other such threads wait."""
    with no_inference_mode(), ONE_THREAD.changed(_locality_and_handlers, _set_locality_and_handlers):
        pyro.settings.set(module_local_params=True)
        yield


@contextmanager
def fast_pyro() -> Iterator[None]:
    """Keep parameters local, and leave out the argument checks that Pyro and torch make at every sample statement."""
    with plain_tensors(), local_parameters(), ONE_THREAD.changed(_validation, _set_validation):
        _set_validation([False] * len(_CHECKED))
        yield


def _locality_and_handlers() -> tuple[bool, list[Any]]:
    return pyro.settings.get("module_local_params"), [*_PYRO_STACK]


def _set_locality_and_handlers(state: tuple[bool, list[Any]]) -> None:
    is_local, _PYRO_STACK[:] = state
    pyro.settings.set(module_local_params=is_local)


def _validation() -> list[bool]:
    return [part.is_validation_enabled() for part in _CHECKED]


def _set_validation(states: list[bool]) -> None:
    for part, state in zip(_CHECKED, states, strict=True):
        part.enable_validation(state)


def allow_new_home(part: nn.Module) -> None:
    """Let a part become a child here, though it has run once or was made without `local_parameters`."""
    for module in part.modules():
        if isinstance(module, PyroModule):
            module._pyro_context.used = False
            vars(module._pyro_context).setdefault("param_state", {"params": {}, "constraints": {}})


def parameters_outside(guide: PyroModule) -> list[str]:
    """Return the names of parameters that calls under `local_parameters` asked Pyro for, and that no module holds."""
    held = {id(parameter) for parameter in guide.parameters()}
    return [name for name, value in guide._pyro_context.param_state["params"].items() if id(value) not in held]
