"""The parts of a fit: where each is declared, which of them were given, and the model that they make."""

import dataclasses
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data import InputColumns
from pyrobnn.data.in_memory import Data
from pyrobnn.inference import tables
from pyrobnn.inference.method import with_guide
from pyrobnn.inference.tables import with_settings
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.tables.reading import Task

PARTS: dict[str, ModuleType] = {
    "net": nets,
    "prior": priors,
    "likelihood": likelihoods,
    "guide": guides,
    "method": tables,
}
"""Where each part is declared: `registry` knows the names, and `resolve` turns a name or a table into a setting."""
_INSTEAD: dict[Task, str] = {
    "regression": "gaussian or poisson, or BNNClassifier, `data.task=classification`",
    "classification": "categorical, ordinal or bernoulli, or BNNRegressor, `data.task=regression`",
}
"""What to take in place of a likelihood of the other task."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given:
    """The choices of a user: parts as settings, None where open, and settings of the method by name."""

    net: Any = None
    prior: Any = None
    likelihood: Any = None
    guide: Any = None
    method: Any = None
    inputs: InputColumns | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def only_bounds(self) -> bool:
        """Whether `steps` is the only choice for the method: it then bounds the fit that is the default."""
        return set(self.settings) == {"steps"} and self.guide is None

    @property
    def leaves_length(self) -> bool:
        """Whether neither the method nor its length was chosen."""
        return self.method is None and {"steps", "epochs"}.isdisjoint(self.settings)

    def method_for(self, default: Any) -> Any:
        """Return the method that was given, or a default, with the guide and settings that were given.

        `steps` alone bounds a default.
        """
        if self.method is None and self.only_bounds:
            check_count(self.settings["steps"], "steps")
            return default.bounded(self.settings["steps"])
        method = default if self.method is None else self.method
        method = method if self.guide is None else with_guide(method, self.guide)
        return with_settings(method, self.settings) if self.settings else method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a fit; the method has its guide.

    `trial` is the training by which rows held out judge them, and find their length; None for the method.
    """

    net: Any
    prior: Any
    likelihood: Any
    method: Any
    inputs: InputColumns = "plain"
    trial: Any = None

    def model(self, data: Data) -> BNN:
        """Return the model, with the widths that its network leaves open."""
        with seeded(0, "model"):  # a fit draws the first weights of a declared network anew
            outputs = self.likelihood.num_outputs(data.y)
            net = with_width(with_width(self.net, "in_features", data.num_inputs), "out_features", outputs)
            return BNN(net, prior=self.prior, likelihood=self.likelihood)


def with_width(net: Any, name: str, width: int) -> Any:
    """Return a network with the width of its inputs or outputs, if its declaration leaves it open."""
    return dataclasses.replace(net, **{name: width}) if getattr(net, name, 0) is None else net


def require_task(task: Task, likelihood: Any, y: Tensor) -> None:
    """Refuse a likelihood of classes for numbers as targets, and one of numbers for classes."""
    if predicts_classes(likelihood, y) == (task == "classification"):
        return
    given, wanted = ("classes", "numbers") if task == "classification" else ("numbers", "classes")
    raise InputError(f"The targets are {given}, and {likelihood!r} is for {wanted}: take {_INSTEAD[task]}.")


def predicts_classes(likelihood: Any, y: Tensor) -> bool:
    """Return whether a likelihood predicts classes; targets y (N,) or (N, K) tell the number of columns."""
    labels = torch.zeros((1, *y.shape[1:]), dtype=torch.int64)
    with seeded(0), torch.no_grad(), fast_pyro(), poutine.block():
        module = likelihood.build(torch.zeros(()), torch.ones(y.shape[1:]))
        return Prediction(module(torch.zeros(1, 1, likelihood.num_outputs(labels)))).is_classification
