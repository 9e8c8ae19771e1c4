"""The parts of a fit: where each is declared, which of them were given, and the model that they make."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.checks import check_count
from pyrobnn._core.errors import InputError, nearest, unknown_setting
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import fields_of, to_dict
from pyrobnn._torch.inputs import Inputs
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.curvature.tracker import mixes_examples
from pyrobnn.data import InputColumns
from pyrobnn.data.in_memory import Data
from pyrobnn.inference import method as methods
from pyrobnn.inference.data import make_source
from pyrobnn.inference.method import registry, with_guide, with_innermost
from pyrobnn.inference.scales.measure import work_of_gradient
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods.base import as_likelihood, with_offset
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.priors.base import as_prior
from pyrobnn.tables.reading import LEAST_AMOUNT
from pyrobnn.tables.schema import Task

PARTS: dict[str, ModuleType] = {
    "net": nets,
    "prior": priors,
    "likelihood": likelihoods,
    "guide": guides,
    "method": methods,
}
_INSTEAD: dict[Task, str] = {
    "regression": "gaussian or poisson, or fit a classification",
    "classification": "categorical, ordinal or bernoulli, or fit a regression",
}


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

    def method_for(self, default: Any) -> Any:
        """Return the method given, or a default, with the guide and settings given; `steps` alone bounds a default."""
        if self.method is None and self.only_bounds:
            check_count(self.settings["steps"], "steps")
            return default.bounded(self.settings["steps"])
        method = default if self.method is None else self.method
        method = method if self.guide is None else with_guide(method, self.guide)
        if not self.settings:
            return method
        return with_innermost(method, lambda inner: method_from_table(self.settings, start=inner))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a fit; the method has its guide. `trial` is the one that rows held out judge, if it differs."""

    net: Any
    prior: Any
    likelihood: Any
    method: Any
    inputs: InputColumns = "plain"
    trial: Any = None

    def model(self, data: Data) -> BNN:
        with seeded(0, "model"):  # a fit draws the first weights of a declared network anew
            outputs, seen = self.likelihood.num_outputs(data.y), with_offset(self.likelihood, data)
            net = with_width(with_width(self.net, "in_features", seen.num_inputs), "out_features", outputs)
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


_DEFAULT = SVI()


def method_to_table(method: Any) -> dict[str, Any]:
    """Return a method as a table without its guide, which has a separate table."""
    table = {key: value for key, value in to_dict(method).items() if key != "guide"}
    inner = method.offer().inner
    return table if inner is None else table | {"method": method_to_table(inner)}


def method_from_table(table: Mapping[str, Any], *, also: Sequence[str] = (), start: Any = _DEFAULT) -> Any:
    """Return the method described by a table without a guide: `type` and settings, of which `method` is a table too.

    The type, guide and settings of `start` hold where the table says nothing; `also` are further valid keys.
    """
    options = dict(table)
    cls: Any = registry.get(options.pop("type")) if "type" in options else type(start)
    fields = fields_of(cls)
    unknown = [key for key in options if key not in fields or key == "guide"]
    if unknown:
        known = ["type", *also, *(name for name in fields if name != "guide")]
        key, elsewhere = unknown[0], ""
        if key == "guide":
            elsewhere = ". The guide has a separate section, [guide]"
        elif not nearest(key, known):
            names = [name for name in registry.names if key in fields_of(registry.get(name))]
            elsewhere = f". `{key}` may belong to the inner method, [fit.method]" if "method" in fields else ""
            elsewhere += f". `{key}` is a setting of {', '.join(names)}: name the method by `type`" if names else ""
        raise InputError(unknown_setting(key, known) + elsewhere)
    if "method" in options:
        inner = options["method"] if isinstance(options["method"], Mapping) else {"type": options["method"]}
        try:
            options["method"] = method_from_table(inner, start=fields["method"].default)
        except InputError as error:
            raise InputError(f"`method`: {error}") from None
    if type(start) is not cls:
        return cls(**options)
    shorter = {"steps": None} if "epochs" in options else {}  # `epochs` replaces `steps`
    return dataclasses.replace(start, **(shorter | options))


NET = nets.MLP(hidden=(50,), activation="silu", dtype="float64")
FAN_IN, OPEN = priors.Normal(scale="fan_in"), priors.Normal()  # for numbers and for labels
MOST_WEIGHTS_OF_CHAINS, MOST_PRODUCTS_OF_CHAINS = 20_000, 10_000_000  # the latter of weights and rows
_MOST_DERIVATIVES = 2**25  # derivatives of the outputs of all rows in the weights, which the evidence framework holds
_LIKELIHOODS: dict[Task, Any] = {"regression": likelihoods.Gaussian(), "classification": likelihoods.Categorical()}
_NOTHING = Given()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What rules look at: the data, whose copies of a row count once, and what was given. Unknown sizes are 0."""

    task: Task
    num_data: int = 0
    num_rows: int = 0  # in memory, with each copy of a row that lacks values
    num_inputs: int = 0
    num_classes: int = 2
    num_targets: int = 0  # columns of targets (N, K); 0 for (N,)
    spread: float = 1.0  # of the targets
    is_positive: bool = False
    are_counts: bool = False
    are_dispersed: bool = False  # with a variance of at least their mean, as any counts of varying rates
    is_standardized: bool = True
    is_table: bool = True
    learns_on: bool = False  # whether later rows will have the posterior for their prior
    given: Given = _NOTHING
    num_weights: int = 0  # of the network that was given, or of the default
    shares_weights: bool = False  # between positions of an example
    has_derivatives: bool = True  # of the outputs of each row in its weights, which are all that it optimises
    optimises: bool = False  # numbers beside the weights that have a prior

    @classmethod
    def of(
        cls,
        task: Task,
        data: Data,
        given: Given = _NOTHING,
        *,
        num_classes: int | None = None,
        learns_on: bool = False,
        model: BNN | None = None,
    ) -> "Facts":
        """Return the facts of data to fit, whose labels tell `num_classes`, and of a model whose parts were given."""
        y, likelihood = data.y.double(), given.likelihood or _LIKELIHOODS[task]
        if model is None:
            require_task(task, likelihood, data.y)
        parts = Parts(net=given.net or NET, prior=given.prior or OPEN, likelihood=likelihood, method=None)
        bnn = parts.model(data) if model is None else model
        num_groups = len(data) if data.groups is None else len(data.groups.unique())
        num_data = min(len(data), max(num_groups, round(data.total_weight)))  # copies of a row share its weight
        in_net = any(one.requires_grad for one in bnn.net.parameters())
        return cls(
            task=task,
            num_data=num_data,
            num_rows=len(data),
            num_inputs=data.x[0].numel(),
            num_classes=num_classes or (max(2, int(y.max()) + 1) if task == "classification" else 2),
            num_targets=0 if y.ndim == 1 else data.y[0].numel(),
            spread=float(y.std(correction=0)) or 1.0,
            is_positive=bool((y > 0).all()),
            are_counts=y.ndim == 1 and are_counts(data, num_data),
            are_dispersed=y.ndim == 1 and data.mean_of((y - data.mean_of(y)).square()) >= data.mean_of(y),
            is_standardized=bool(data.standardize),
            is_table=not isinstance(data.x, Inputs) and data.x.ndim == 2,
            learns_on=learns_on,
            given=given,
            num_weights=bnn.num_weights,
            shares_weights=model is not None and _shares_weights(model, data),
            has_derivatives=not (in_net or mixes_examples(bnn.net)),
            optimises=any(one.requires_grad for one in bnn.parameters()),
        )

    @property
    def likelihood(self) -> Any:
        return self.given.likelihood or _LIKELIHOODS[self.task]

    def num_outputs(self, likelihood: Any) -> int:
        """Return the number of network outputs for a likelihood of all classes, or of the columns of targets."""
        labels, columns = torch.arange(self.num_classes), (1, self.num_targets) if self.num_targets else (1,)
        has_classes = self.task == "classification" and not self.num_targets
        return int(likelihood.num_outputs(labels if has_classes else torch.zeros(columns)))

    def leaves_width(self, name: str) -> bool:
        """Whether the network is not given, or declared without this width."""
        return self.given.net is None or getattr(self.given.net, name, 0) is None

    @property
    def leaves_likelihood(self) -> bool:
        """Whether the likelihood of a column of targets, and with it the number of outputs, may be chosen."""
        return self.given.likelihood is None and not self.num_targets and self.leaves_width("out_features")

    @property
    def leaves_training(self) -> bool:
        """Whether neither a guide nor settings of a training were given; `steps` alone bounds any."""
        return self.given.guide is None and (self.given.only_bounds or not self.given.settings)

    @property
    def leaves_scales(self) -> bool:
        """Whether the scales of a normal prior may be chosen."""
        prior = self.given.prior
        return prior is None or (as_prior(prior).is_normal and as_prior(prior).has_open_scale)

    @property
    def takes_chains(self) -> bool:
        """Whether chains, which optimise no number and are long for large networks, take what was given."""
        is_open = self.has_derivatives and self.likelihood == likelihoods.Gaussian()  # its noise is drawn too
        num_products = self.num_weights * max(self.num_data, self.num_rows)
        is_small = self.num_weights <= MOST_WEIGHTS_OF_CHAINS and num_products <= MOST_PRODUCTS_OF_CHAINS
        return is_small and (is_open or not self.optimises) and self.leaves_training and not self.learns_on

    @property
    def takes_evidence(self) -> bool:
        told = as_likelihood(self.likelihood)
        takes_noise = told.varies_normally or told.noise not in ("inferred", "heteroscedastic")
        num_outputs = max(self.num_data, self.num_rows) * self.num_outputs(self.likelihood)
        is_small = num_outputs * self.num_weights <= _MOST_DERIVATIVES
        return self.has_derivatives and is_small and self.leaves_scales and self.leaves_training and takes_noise


def are_counts(data: Data, num_data: int) -> bool:
    """Return whether targets (N,), without copies of rows so many, are whole numbers, mostly below 100, that repeat."""
    y = data.y.double()
    is_whole = bool((y >= 0).all()) and torch.equal(y, y.round())
    is_small = data.mean_of((y < LEAST_AMOUNT).double()) >= 0.5
    return is_whole and is_small and len(y.unique()) <= max(num_data, data.total_weight) / 2


def _shares_weights(bnn: BNN, data: Data) -> bool:
    """Return whether an example meets weights at several positions."""
    # a weight that it meets once has a product in the outputs, one in its gradient, and one in that of its inputs
    without_prior = sum(weight.numel() for weight in bnn.net.parameters())
    source = make_source(data, bnn, None, seed=0)
    return work_of_gradient(bnn, source, 1).products > 3 * (bnn.num_weights + without_prior)
