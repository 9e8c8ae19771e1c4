"""The parts that are chosen where nobody chose, for the estimators and for a spec; and where each is declared."""

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
from pyrobnn._core.settings import fields_of
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import as_guide
from pyrobnn.inference import limits, tables
from pyrobnn.inference.mcmc.mcmc import NUTS
from pyrobnn.inference.method import with_guide
from pyrobnn.inference.scales.evidence_framework import EvidenceFramework, until_converged
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.tables import with_settings
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.priors.base import as_prior
from pyrobnn.tables.reading import LEAST_AMOUNT, Task
from pyrobnn.verdict.remedies import skewness

PARTS: dict[str, ModuleType] = {
    "net": nets,
    "prior": priors,
    "likelihood": likelihoods,
    "guide": guides,
    "method": tables,
}
"""Where each part is declared: `registry` knows the names, and `resolve` turns a name or a table into a setting."""

_NET = nets.MLP(hidden=(50,), activation="silu", dtype="float64")
_NET_OF_WIDE = nets.MLP(hidden=(50,), activation="relu", dtype="float64")
"""For real targets: a smooth network bends every line a little."""
_LIKELIHOODS: dict[Task, Any] = {"regression": likelihoods.Gaussian(), "classification": likelihoods.Categorical()}
_OF_SKEWED = likelihoods.LogNormal()
_BEYOND_EVIDENCE = ("inferred", "heteroscedastic")
"""Noise that the evidence framework does not take, or, unless it is normal, makes far too small."""
_LEAST_SKEWNESS = 2
_FEWEST_SKEWED_ROWS = 20
"""Skewness from which positive targets count as skewed, that of an exponential distribution, and the fewest rows."""
_GUIDES: dict[Task, Any] = {
    "regression": guides.Laplace(structure="full"),
    "classification": guides.MeanField(init_rho=-3.0),
}
"""Where classes can be told apart a Laplace approximation is too wide: it has the curvature of a plateau."""
_TRAINED = _GUIDES["classification"]
"""Also for priors that are not normal, and for noise that is an output."""
_FAN_IN = priors.Normal(scale="fan_in")
_STEPS_OF_LABELS = 1000
_OF_FEW_LABELS = priors.Hierarchical("log_normal")
"""Chains infer the scales of weights: a fixed or measured scale suits one kind of problem and fits noise in others."""
_CHAINS = NUTS(num_draws=150, warmup=100, num_chains=2, max_tree_depth=8, target_accept=0.9)
"""Few labels leave many functions possible, more than a Gaussian at one mode covers. These lengths take 3 to 9 s."""
_INSTEAD: dict[Task, str] = {
    "regression": "gaussian or poisson, or BNNClassifier, `data.task=classification`",
    "classification": "categorical, ordinal or bernoulli, or BNNRegressor, `data.task=regression`",
}
"""What to take in place of a likelihood of the other task."""
_NATS_LEFT_TO_GAIN = 2.0
"""Nats that a fit of few rows of classes may still gain: it ends sooner with the same log score."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """The properties of the data that decide the defaults; sizes that are not known yet are 0."""

    task: Task
    num_data: int = 0
    num_inputs: int = 0
    num_classes: int = 2
    is_standardized: bool = True
    is_skewed: bool = False
    learns_on: bool = False  # whether later rows have the posterior, as independent normals, for their prior

    @classmethod
    def of(cls, task: Task, data: Data, num_classes: int = 2) -> "Known":
        """Return the properties of data; a row of weight 2 counts as two."""
        return cls(
            task=task,
            num_data=max(len(data), round(data.total_weight)),
            num_inputs=data.num_inputs,
            num_classes=num_classes,
            is_standardized=bool(data.standardize),
            is_skewed=task == "regression" and is_skewed(data.y),
        )

    @property
    def is_wide(self) -> bool:
        """Whether there are few rows for each input."""
        return 0 < self.num_data <= limits.ROWS_OF_WIDE * self.num_inputs

    def num_outputs(self, likelihood: Any, y: Tensor) -> int:
        """Return the number of network outputs for a likelihood of all classes, or of targets y (N,) or (N, K)."""
        labels = torch.arange(self.num_classes)
        return int(likelihood.num_outputs(labels if self.task == "classification" and y.ndim == 1 else y))

    @property
    def most_evidence_rows(self) -> int:
        """The number of rows up to which the evidence framework, or a fit that takes as long, is affordable."""
        fewest = max(limits.FEWEST_ROWS_OF_CLASSES, limits.FEWEST_FOR_AN_INPUT * self.num_inputs)
        if self.task == "classification" and (self.num_classes == 2 or self.num_data > fewest):
            return limits.MOST_EVIDENCE_LABELS // (self.num_classes - 1)
        return limits.MOST_EVIDENCE_ROWS[self.task]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """The choices of a user: parts as settings, None where open, and settings of the method by name."""

    net: Any = None
    prior: Any = None
    likelihood: Any = None
    guide: Any = None
    method: Any = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def only_bounds(self) -> bool:
        """Whether `steps` is the only choice for the method: it then bounds the fit that is the default."""
        return set(self.settings) == {"steps"} and self.guide is None

    @property
    def leaves_length(self) -> bool:
        """Whether neither the method nor its length was chosen."""
        return self.method is None and {"steps", "epochs"}.isdisjoint(self.settings)

    @property
    def has_normal_prior(self) -> bool:
        """Whether no other prior than a normal one was chosen."""
        return self.prior is None or as_prior(self.prior).is_normal

    @property
    def compares(self) -> bool:
        """Whether nothing was chosen but a likelihood and a bound: rows held out then choose."""
        parts = (self.net, self.prior, self.guide, self.method)
        return all(part is None for part in parts) and set(self.settings) <= {"steps"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a fit; the method has its guide."""

    net: Any
    prior: Any
    likelihood: Any
    method: Any


_NOTHING = Chosen()


def parts_for(known: Known, chosen: Chosen = _NOTHING) -> Parts:
    """Return the chosen parts, and the default of each open part; docs/explanations/defaults.md has the rules.

    Few rows of classes get chains. Few rows of any task get the evidence framework, or, under a prior that is not
    normal, a guide trained until it has converged. Others are trained by stochastic steps.
    """
    if chosen.likelihood is None:
        is_log_normal = known.is_skewed and known.is_standardized and not known.learns_on
        usual = _OF_SKEWED if is_log_normal else _LIKELIHOODS[known.task]
        chosen = dataclasses.replace(chosen, likelihood=usual)
    if chosen.only_bounds:
        check_count(chosen.settings["steps"], "steps")
        chosen = dataclasses.replace(chosen, settings={})
    trained = _trained_regression if known.task == "regression" else _trained_classification
    parts = _drawn(known, chosen) or _of_few_rows(known, chosen) or trained(known, chosen)
    given = {name: getattr(chosen, name) for name in ("net", "prior", "method")}
    return dataclasses.replace(parts, **{name: value for name, value in given.items() if value is not None})


def method_for(chosen: Chosen, default: Any) -> Any:
    """Return the chosen method, or a default, with the chosen guide and settings; `steps` alone bounds a default."""
    if chosen.method is None and chosen.only_bounds:
        return default.bounded(chosen.settings["steps"])
    method = default if chosen.method is None else chosen.method
    method = method if chosen.guide is None else with_guide(method, chosen.guide)
    return with_settings(method, chosen.settings) if chosen.settings else method


def _drawn(known: Known, chosen: Chosen) -> Parts | None:
    """Return parts for chains, which draw the weights of few rows of classes; None where others suit."""
    if known.task != "classification" or known.is_wide or known.learns_on:
        return None
    takes_any = _takes_any_prior(known, chosen)
    most = limits.MOST_SAMPLED_ROWS_OF_ANY_PRIOR if takes_any else limits.MOST_SAMPLED_ROWS
    is_few = known.num_data <= most and known.num_data * known.num_inputs <= limits.MOST_SAMPLED_NUMBERS
    if not is_few or chosen.guide is not None or chosen.settings or not (takes_any or _suits_chains(chosen)):
        return None
    prior = _OF_FEW_LABELS if known.is_standardized and chosen.method is None else priors.Normal()
    return Parts(net=_NET, prior=prior, likelihood=chosen.likelihood, method=_CHAINS)


def _of_few_rows(known: Known, chosen: Chosen) -> Parts | None:
    """Return parts for the evidence framework, or a guide trained under another prior; None where they do not suit."""
    if known.num_data > known.most_evidence_rows:
        return None
    if suits_evidence(chosen):
        method: Any = evidence_for(known.task, chosen.guide)
    elif not chosen.has_normal_prior:
        method = until_converged(_TRAINED if chosen.guide is None else chosen.guide)
    else:
        return None
    net = _NET_OF_WIDE if known.is_wide and known.task == "regression" else _NET
    return Parts(net=net, prior=_FAN_IN, likelihood=chosen.likelihood, method=method)


def short_evidence(chosen: Chosen) -> Parts:
    """Return a layer of 50 units with one short start of the evidence framework, for real targets."""
    guide = _GUIDES["regression"] if chosen.guide is None else chosen.guide
    method = EvidenceFramework(guide=guide, starts=1).shortened()
    return Parts(net=_NET, prior=_FAN_IN, likelihood=chosen.likelihood, method=method)


def with_widths(net: Any, data: Data, num_outputs: int) -> Any:
    """Return a network with the widths of inputs and outputs that its declaration leaves open."""
    widths = {"in_features": data.num_inputs, "out_features": num_outputs}
    open_widths = {name: width for name, width in widths.items() if getattr(net, name, 0) is None}
    return dataclasses.replace(net, **open_widths) if open_widths else net


def make_model(parts: Parts, data: Data) -> BNN:
    """Return the model, with the widths that its network leaves open."""
    with seeded(0, "model"):  # a fit draws the first weights of a declared network anew
        net = with_widths(parts.net, data, parts.likelihood.num_outputs(data.y))
        return BNN(net, prior=parts.prior, likelihood=parts.likelihood)


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


def is_skewed(y: Tensor, most: float = _LEAST_SKEWNESS) -> bool:
    """Return whether targets are a column of positive amounts with a long tail that their logarithm lacks."""
    y = y.double()
    if y.ndim > 1 or len(y) < _FEWEST_SKEWED_ROWS or bool((y <= 0).any()):
        return False
    if torch.equal(y, y.round()) and y.median() < LEAST_AMOUNT:
        return False
    skew = skewness(y)
    return skew > most and abs(skewness(y.log())) < skew / 2


def _suits_chains(chosen: Chosen) -> bool:
    """Return whether chains take these parts, which must have no numbers to optimise, and are short."""
    net, likelihood = chosen.net, chosen.likelihood
    is_small = net is None or (isinstance(net, nets.MLP) and sum(net.hidden) <= limits.MOST_SAMPLED_UNITS)
    if not (is_small and chosen.has_normal_prior and as_likelihood(likelihood).has_labels):
        return False
    return not [*likelihood.build(torch.zeros(()), torch.ones(())).parameters()]


def _takes_any_prior(known: Known, chosen: Chosen) -> bool:
    """Return whether a prior that is not normal leaves no numbers to optimise in the network of few labels."""
    is_default = chosen.net is None and known.num_inputs and chosen.likelihood == _LIKELIHOODS["classification"]
    if not is_default or chosen.has_normal_prior:
        return False
    with seeded(0, "model"):
        net = dataclasses.replace(_NET, in_features=known.num_inputs, out_features=known.num_classes)
        model = BNN(net, prior=chosen.prior, likelihood=chosen.likelihood)
        return not any(one.requires_grad for one in model.parameters())


def evidence_for(task: Task, guide: Any = None) -> EvidenceFramework:
    """Return the evidence framework with the guide of a task, or with a guide that was named until it has converged."""
    if guide is None and task == "classification":
        return EvidenceFramework(guide=_GUIDES[task], guide_steps=_STEPS_OF_LABELS)
    return EvidenceFramework(guide=_GUIDES[task] if guide is None else guide)


def suits_evidence(chosen: Chosen) -> bool:
    """Return whether the evidence framework takes these parts, of which a likelihood, and settings.

    Guides other than Laplace suit real targets alone: the evidence of labels prefers a prior that is too wide.
    """
    guide, told = chosen.guide, as_likelihood(chosen.likelihood)
    is_real = told.noise is not None
    takes_guide = guide is None or EvidenceFramework.takes(guide) or (is_real and as_guide(guide).curvature is None)
    takes_noise = told.varies_normally or told.noise not in _BEYOND_EVIDENCE
    takes_settings = set(chosen.settings) <= set(fields_of(EvidenceFramework))
    return chosen.has_normal_prior and takes_guide and takes_noise and takes_settings


def _trained_regression(known: Known, chosen: Chosen) -> Parts:
    """Return two layers of 50 units, by steps of a fixed number if the guide is Laplace's.

    Noise that is not Gaussian gets a short start of the evidence framework, or is trained with a mean-field guide.
    """
    guide, told = chosen.guide, as_likelihood(chosen.likelihood)
    if told.noise == "heteroscedastic" or (open_numbers(chosen.likelihood) and not told.is_normal):
        takes_guide = guide is None or EvidenceFramework.takes(guide)
        is_short = known.num_data <= limits.MOST_ROWS_OF_SHORT_EVIDENCE and takes_guide
        if is_short and suits_evidence(chosen):
            return short_evidence(chosen)
        guide = _TRAINED if guide is None else guide
    method: Any = SVI(guide="laplace", steps=4000, batch_size=128, schedule="cosine_annealing_lr")
    method = method if guide is None else with_guide(method, guide)
    if not chosen.has_normal_prior or as_guide(method.guide).curvature is None:
        method = SVI(guide=method.guide)
    net = nets.MLP(hidden=(50, 50), dtype="float64")
    return Parts(net=net, prior=_FAN_IN, likelihood=chosen.likelihood, method=method)


def _trained_classification(known: Known, chosen: Chosen) -> Parts:
    """Return a layer of 50 units with a tuned prior and a mean-field guide, which ends early on few rows."""
    tolerance = _NATS_LEFT_TO_GAIN if known.num_data < _NATS_LEFT_TO_GAIN / limits.TOLERANCE else None
    method = SVI(guide=guides.MeanField() if chosen.guide is None else chosen.guide, tolerance=tolerance)
    net = nets.MLP(hidden=(50,), dtype="float64")
    return Parts(net=net, prior=priors.Normal(), likelihood=chosen.likelihood, method=method)
