"""Common parts of the checks of all kinds."""

import copy
import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyrobnn._core.errors import PoorFitWarning
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import to_dict
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.nets import MLP
from pyrobnn.posterior.posterior import Posterior

DTYPES = (torch.float32, torch.float64)


def require(condition: object, message: str) -> None:
    """Raise AssertionError with a message unless the condition holds; unlike assert, under python -O too."""
    if not condition:
        raise AssertionError(message)


def devices() -> list[str]:
    """Return the devices to check on: the CPU, and a GPU if available."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def make_net(out_features: int = 1, in_features: int = 3) -> nn.Module:
    """Return a small network, parameters "0.weight", "0.bias", "2.weight" and "2.bias"; the same at every call."""
    with seeded(0):
        return MLP(in_features, (4,), out_features, activation="tanh").build()


def make_inputs(num_rows: int = 20, in_features: int = 3) -> Tensor:
    """Return inputs (num_rows, in_features), the same at every call."""
    return torch.randn(num_rows, in_features, generator=torch.Generator().manual_seed(1))


def make_data() -> Data:
    """Return a regression of 20 examples with three features, the same at every call."""
    x = make_inputs()
    return Data(x, x.sum(1) + 0.3 * torch.randn(20, generator=torch.Generator().manual_seed(2)))


def short_fit(bnn: BNN, data: Data, **settings: Any) -> Posterior:
    """Return the posterior after a few steps on the CPU; that it predicts badly is no news."""
    with warnings.catch_warnings(action="ignore", category=PoorFitWarning):
        return bnn.fit(data, seed=0, device="cpu", progress=False, **({"steps": 5} | settings))


@contextmanager
def unchanged_globals(what: str) -> Iterator[None]:
    """Require that the block leaves Pyro's global parameter store alone."""
    before = dict(pyro.get_param_store().items())
    yield
    after = dict(pyro.get_param_store().items())
    added = sorted(set(after) - set(before))
    require(not added, f"{what} left {added} in Pyro's global parameter store: hold parameters in the module.")


def leaves(value: Tensor) -> list[Tensor]:
    """Return the tensors requiring gradients that a value depends on."""
    tensors, stack, seen = [], [value.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        tensors += [] if variable is None else [variable]
        stack += [parent for parent, _ in node.next_functions]
    return tensors


def require_owned(value: Tensor, module: nn.Module, inputs: list[Tensor], what: str) -> None:
    """Require that a value depends on no trainable tensor but the inputs and the module's parameters."""
    known = {id(tensor) for tensor in (*inputs, *module.parameters())}
    strange = [leaf for leaf in leaves(value) if id(leaf) not in known]
    shapes = [tuple(leaf.shape) for leaf in strange]
    require(not strange, f"{what} has trainable tensors of shapes {shapes} that are not in its .parameters().")


def value_checks(kind: str, resolve: Callable[[Any], Any]) -> list[Callable[[Any], None]]:
    """Return the checks that a setting is a value and can be written to a file and read back."""

    def is_value(setting: Any) -> None:
        """The setting prints as its class, and equals its copies, pickled or not, with the same hash."""
        name = type(setting).__name__
        require(repr(setting).startswith(name), f"{name} prints as {setting!r}, expected it to start with its name.")
        copies = {
            "copy.copy": copy.copy(setting),
            "copy.deepcopy": copy.deepcopy(setting),
            "pickle": pickle.loads(pickle.dumps(setting)),
        }
        for how, again in copies.items():
            require(again == setting, f"{setting!r} is not equal to itself after {how}: {again!r}.")
            require(hash(again) == hash(setting), f"{setting!r} has another hash after {how}.")

    def round_trips(setting: Any) -> None:
        """The setting comes back equal from dictionaries and from JSON."""
        table = to_dict(setting)
        for how, written in {"a table": table, "JSON": json.loads(json.dumps(table))}.items():
            again = resolve(written)
            require(again == setting, f"{setting!r} came back as {again!r} from {how}, {written!r}.")

    is_value.__name__ = f"check_{kind}_is_value"
    round_trips.__name__ = f"check_{kind}_round_trips"
    return [is_value, round_trips]
