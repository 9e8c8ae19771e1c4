"""The parts that are chosen where nobody chose, for the estimators and for a spec; and where each is declared."""

import dataclasses
import math
from collections.abc import Collection
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.checks import check_count
from pyrobnn._core.random import seeded
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import as_guide
from pyrobnn.inference import defaults, tables
from pyrobnn.inference.mcmc.mcmc import NUTS
from pyrobnn.inference.scales.evidence_framework import EvidenceFramework, until_converged
from pyrobnn.inference.scales.marginal_likelihood import MarginalLikelihood
from pyrobnn.inference.several.ensemble import Ensemble
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.tables import fields_of, with_guide, with_innermost
from pyrobnn.likelihoods.base import as_likelihood, open_numbers
from pyrobnn.priors.base import as_prior
from pyrobnn.tables.reading import LEAST_AMOUNT, Task

PARTS: dict[str, ModuleType] = {
    "net": nets,
    "prior": priors,
    "likelihood": likelihoods,
    "guide": guides,
    "method": tables,
}
"""Where each part is declared: `registry` knows the names, and `resolve` turns a name or a table into a setting."""
Parts = dict[str, Any]
"""The parts net, prior, likelihood and method, by name."""
_NET = nets.MLP(hidden=(50,), activation="silu", dtype="float64")
_NET_OF_WIDE = nets.MLP(hidden=(50,), activation="relu", dtype="float64")
"""For real targets: a smooth network bends every line a little."""
_LIKELIHOODS: dict[Task, Any] = {"regression": likelihoods.Gaussian(), "classification": likelihoods.Categorical()}
_OF_SKEWED = likelihoods.LogNormal()
_BEYOND_EVIDENCE = ("inferred", "heteroscedastic")
"""Noise that the evidence framework does not take, or, unless it is normal, makes far too small."""
_MOST_SKEW, _FEWEST_SKEWED = 2, 20
"""Skewness from which positive targets count as skewed, that of an exponential distribution, and the fewest rows."""
_GUIDES: dict[Task, Any] = {
    "regression": guides.Laplace(structure="full"),
    "classification": guides.MeanField(init_rho=-3.0),
}
"""Where classes can be told apart a Laplace approximation is too wide: it has the curvature of a plateau."""
_OF_ANY_PRIOR = guides.MeanField(init_rho=-3.0)
"""For priors that are not normal, and noise that is an output."""
_STEPS_OF_LABELS = 1000
_OF_FEW_LABELS = priors.Hierarchical("log_normal")
"""Chains infer the scales of weights: a fixed or measured scale suits one kind of problem and fits noise in others."""
_CHAINS = NUTS(num_draws=150, warmup=100, num_chains=2, max_tree_depth=8, target_accept=0.9)
"""Few labels leave many functions possible, more than a Gaussian at one mode covers. These lengths take 3 to 9 s."""
_TOLERANCE = 2.0
"""Nats that a fit of few rows of classes may still gain: it ends sooner with the same log score."""


def parts_for(
    task: Task,
    *,
    net: Any = None,
    prior: Any = None,
    guide: Any = None,
    likelihood: Any = None,
    method: Any = None,
    num_data: int | None = None,
    num_inputs: int | None = None,
    num_classes: int = 2,
    settings: Collection[str] = (),
    standardize: bool = True,
    skewed: bool = False,
    learns_on: bool = False,
) -> Parts:
    """Return the parts for a task, given the parts that were chosen; docs/explanations/defaults.md has the rules.

    Up to 100 rows of classes, 3,000 numbers in all, NUTS draws the weights and their scales; under a prior that is not
    normal up to 200. Otherwise, and for wide tables, the evidence framework tunes a normal prior and Gaussian noise: up
    to 500 rows, for labels up to 1,000 times classes less one, and with a single start up to 2,000 under other noise.
    Up to as many rows, a mean-field guide, or the guide that was named, is trained under other priors. For more rows,
    Laplace of another curvature, or settings of stochastic training, the parts come from `_trained_regression` and
    `_trained_classification`.

    A part or a size that is None was not chosen, or is not known yet. A method that was chosen gets a prior that all
    methods take. `settings` names what was chosen for the method; those that `only_bounds` change no part. Targets that
    are `skewed` (`is_skewed`) are log-normal. `learns_on` says that the posterior becomes the prior of later rows, as
    independent normals, which draws of chains are far from.
    """
    settings = () if only_bounds(settings, guide) else settings
    if likelihood is None:
        likelihood = _OF_SKEWED if skewed and standardize and not learns_on else _LIKELIHOODS[task]
    rows, numbers = num_data or 0, (num_data or 0) * (num_inputs or 0)
    takes_any = _is_drawn(net, prior, likelihood, num_inputs, num_classes)
    most_sampled = defaults.MOST_SAMPLED_ROWS_OF_ANY_PRIOR if takes_any else defaults.MOST_SAMPLED_ROWS
    is_few = rows <= most_sampled and numbers <= defaults.MOST_SAMPLED_NUMBERS
    is_wide = num_data is not None and num_data <= defaults.ROWS_OF_WIDE * (num_inputs or 0)
    is_sampled = task == "classification" and is_few and not is_wide and not learns_on
    if is_sampled and guide is None and not settings and (takes_any or _suits_chains(net, prior, likelihood)):
        drawn = _OF_FEW_LABELS if standardize and method is None else priors.Normal()
        return {"net": _NET, "prior": drawn if prior is None else prior, "likelihood": likelihood, "method": _CHAINS}
    small_prior = priors.Normal(scale="fan_in") if prior is None else prior
    fewest = max(defaults.FEWEST_ROWS_OF_CLASSES, defaults.FEWEST_FOR_AN_INPUT * (num_inputs or 0))
    has_many_labels = task == "classification" and (num_classes == 2 or rows > fewest)
    most = defaults.MOST_EVIDENCE_LABELS // (num_classes - 1) if has_many_labels else defaults.MOST_EVIDENCE_ROWS[task]
    is_small = num_data is None or num_data <= most
    suits = suits_evidence(small_prior, guide, likelihood, settings)
    if is_small and (suits or not as_prior(small_prior).is_normal):
        method = evidence_for(task, guide) if suits else until_converged(_OF_ANY_PRIOR if guide is None else guide)
        small_net = _NET_OF_WIDE if is_wide and task == "regression" else _NET
        return {"net": small_net, "prior": small_prior, "likelihood": likelihood, "method": method}
    has_noise_of_outputs = as_likelihood(likelihood).noise == "heteroscedastic"
    is_open = bool(open_numbers(likelihood)) and not as_likelihood(likelihood).is_normal
    if task == "regression" and (is_open or has_noise_of_outputs):
        takes_guide = guide is None or EvidenceFramework.takes(guide)
        is_short = rows <= defaults.MOST_ROWS_OF_SHORT_EVIDENCE and takes_guide
        if is_short and suits_evidence(small_prior, guide, likelihood, settings):
            return short_evidence(likelihood, small_prior, guide)
        guide = _OF_ANY_PRIOR if guide is None else guide
    is_regression = task == "regression"
    trained = _trained_regression(prior, guide) if is_regression else _trained_classification(prior, guide, rows)
    return trained | {"likelihood": likelihood}


def short_evidence(likelihood: Any, prior: Any = None, guide: Any = None) -> Parts:
    """Return a layer of 50 units with one short start of the evidence framework, for real targets."""
    method = shortened(EvidenceFramework(guide=_GUIDES["regression"] if guide is None else guide, starts=1))
    prior = priors.Normal(scale="fan_in") if prior is None else prior
    return {"net": _NET, "prior": prior, "likelihood": likelihood, "method": method}


def shortened(method: Any) -> Any:
    """Return a default method for less than half the time; an ensemble as it is."""
    if isinstance(method, Ensemble):
        return method
    shorter = {"rounds": 3, "iterations": 75} if isinstance(method, EvidenceFramework) else {"rounds": 1}
    return dataclasses.replace(method, **shorter)


def only_bounds(settings: Collection[str], guide: Any) -> bool:
    """Return whether `steps` is the only choice for the method: it then bounds the fit that is the default."""
    return set(settings) == {"steps"} and guide is None


def bounded(method: Any, steps: int) -> Any:
    """Return a default method that trains for a number of steps; priors and noise are measured as without it.

    Starts of the evidence framework share the steps among their rounds, of which the end counts as two. A chain takes
    at most half of them to warm up. A fit that ends by itself, and members of an ensemble, take at most as many; the
    guide of the former starts wide. In other methods each round has as many.
    """
    check_count(steps, "steps")
    if isinstance(method, EvidenceFramework):
        iterations, guide_steps = math.ceil(steps / (method.rounds + 2)), min(steps, method.guide_steps or steps)
        return dataclasses.replace(method, iterations=iterations, guide_steps=guide_steps)
    if isinstance(method, NUTS):
        half = math.ceil(steps / 2)
        warmup, num_draws = min(half, method.warmup), min(half, method.num_draws)
        return dataclasses.replace(method, warmup=warmup, num_draws=num_draws)

    def shorter(training: SVI) -> SVI:
        if training.steps is None:
            is_narrow = training.guide == guides.MeanField()
            guide = _GUIDES["classification"] if is_narrow else training.guide
            return dataclasses.replace(training, guide=guide, max_steps=steps)
        most = steps if isinstance(method, MarginalLikelihood) else min(steps, training.steps)
        return dataclasses.replace(training, steps=most)

    return with_innermost(method, shorter)


def make_model(net: Any, prior: Any, likelihood: Any, data: Data, num_outputs: int | None = None) -> BNN:
    """Return the model, with the widths of a declared network filled in: of the output, what the likelihood needs."""
    outputs = likelihood.num_outputs(data.y) if num_outputs is None else num_outputs
    widths = {"in_features": data.x[0].numel(), "out_features": outputs}
    open_widths = {name: width for name, width in widths.items() if getattr(net, name, 0) is None}
    net = dataclasses.replace(net, **open_widths) if open_widths else net
    with seeded(0, "model"):  # a fit draws the first weights of a declared network anew
        return BNN(net, prior=prior, likelihood=likelihood)


def is_skewed(y: Tensor, most: float = _MOST_SKEW) -> bool:
    """Return whether targets are a column of positive amounts with a long tail that their logarithm lacks."""
    y = y.double()
    if y.ndim > 1 or len(y) < _FEWEST_SKEWED or bool((y <= 0).any()):
        return False
    if torch.equal(y, y.round()) and y.median() < LEAST_AMOUNT:
        return False
    skew, of_logs = (float(((each - each.mean()) / each.std()).pow(3).mean()) for each in (y, y.log()))
    return skew > most and abs(of_logs) < skew / 2


def _suits_chains(net: Any, prior: Any, likelihood: Any) -> bool:
    """Return whether chains take these parts, which must have no numbers to optimise, and are short."""
    is_small = net is None or (isinstance(net, nets.MLP) and sum(net.hidden) <= defaults.MOST_SAMPLED_UNITS)
    takes_prior = prior is None or as_prior(prior).is_normal
    if not (is_small and takes_prior and as_likelihood(likelihood).has_labels):
        return False
    return not [*likelihood.build(torch.zeros(()), torch.ones(())).parameters()]


def _is_drawn(net: Any, prior: Any, likelihood: Any, num_inputs: int | None, num_classes: int) -> bool:
    """Return whether a prior that is not normal leaves no numbers to optimise in the network of few labels."""
    is_default = net is None and num_inputs is not None and likelihood == _LIKELIHOODS["classification"]
    if not is_default or prior is None or as_prior(prior).is_normal:
        return False
    with seeded(0, "model"):
        net = dataclasses.replace(_NET, in_features=num_inputs, out_features=num_classes)
        return not any(one.requires_grad for one in BNN(net, prior=prior, likelihood=likelihood).parameters())


def evidence_for(task: Task, guide: Any = None) -> EvidenceFramework:
    """Return the evidence framework with the guide of a task, or with a guide that was named until it has converged."""
    if guide is None and task == "classification":
        return EvidenceFramework(guide=_GUIDES[task], guide_steps=_STEPS_OF_LABELS)
    return EvidenceFramework(guide=_GUIDES[task] if guide is None else guide)


def suits_evidence(prior: Any, guide: Any, likelihood: Any, settings: Collection[str] = ()) -> bool:
    """Return whether the evidence framework takes these parts and settings.

    Guides other than Laplace suit real targets alone: the evidence of labels prefers a prior that is too wide.
    """
    is_real = as_likelihood(likelihood).noise is not None
    takes_guide = guide is None or EvidenceFramework.takes(guide) or (is_real and as_guide(guide).curvature is None)
    takes_settings = set(settings) <= set(fields_of(EvidenceFramework))
    told = as_likelihood(likelihood)
    takes_noise = told.varies_normally or told.noise not in _BEYOND_EVIDENCE
    return as_prior(prior).is_normal and takes_guide and takes_noise and takes_settings


def _trained_regression(prior: Any, guide: Any) -> Parts:
    """Return two layers of 50 units, their prior and noise tuned by the marginal likelihood if it is Laplace's."""
    prior = priors.Normal(scale="fan_in") if prior is None else prior
    training = SVI(guide="laplace", steps=4000, batch_size=128, schedule="cosine_annealing_lr")
    method: Any = training if guide is None else with_guide(training, guide)
    if as_prior(prior).is_normal and as_guide(method.guide).curvature is not None:
        method = MarginalLikelihood(method, rounds=3)
    else:
        method = SVI(guide=method.guide)
    return {"net": nets.MLP(hidden=(50, 50), dtype="float64"), "prior": prior, "method": method}


def _trained_classification(prior: Any, guide: Any, rows: int) -> Parts:
    """Return a layer of 50 units with a tuned prior and a mean-field guide, which ends early on few rows."""
    prior = priors.Normal() if prior is None else prior
    tolerance = _TOLERANCE if rows < _TOLERANCE / defaults.TOLERANCE else None
    method = SVI(guide=guides.MeanField() if guide is None else guide, tolerance=tolerance)
    return {"net": nets.MLP(hidden=(50,), dtype="float64"), "prior": prior, "method": method}
