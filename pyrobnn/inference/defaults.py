"""Parts in the place of those that nobody chose: the same for the estimators and for a spec."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn.inference.evidence_framework import EvidenceFramework
from pyrobnn.inference.marginal_likelihood import MarginalLikelihood
from pyrobnn.inference.method import fields_of, from_table, with_guide
from pyrobnn.inference.svi import SVI
from pyrobnn.likelihoods.noise import NoisePrior, NoisyLikelihood

Parts = dict[str, Any]
"""The parts net, prior, likelihood and method, by name."""
MOST_ROWS = 500
"""Rows up to which the evidence framework, whose cost grows with their square, is the default."""


def regression(
    prior: Any = None,
    guide: Any = None,
    likelihood: Any = None,
    *,
    num_data: int | None = None,
    settings: Collection[str] = (),
) -> Parts:
    """Return the parts for numbers as targets: a normal prior and Gaussian noise whose scales the evidence chooses.

    Up to 500 rows that is the evidence framework on one hidden layer of 50 units. Beyond, and where `settings` are of
    stochastic training, it is the marginal likelihood along that training, with two layers of 50; with another guide,
    or a prior that is not normal, training alone.

    Args:
        prior: the prior that was chosen, or None.
        guide: the guide that was chosen, or None.
        likelihood: the likelihood that was chosen, or None.
        num_data: number of rows, or None where it is not known yet.
        settings: names of settings that were chosen for the method.
    """
    prior = priors.Normal(scale="fan_in") if prior is None else prior
    likelihood = likelihoods.Gaussian() if likelihood is None else likelihood
    if _is_small(num_data) and _suits(prior, guide, likelihood, settings):
        framework = EvidenceFramework() if guide is None else EvidenceFramework(guide=guide)
        return {"net": _SMALL_NET, "prior": prior, "likelihood": likelihood, "method": framework}
    training = SVI(guide="laplace", steps=4000, batch_size=128, schedule="cosine_annealing_lr")
    method: Any = training if guide is None else with_guide(training, guide)
    if isinstance(prior, priors.Normal) and isinstance(method.guide, guides.Laplace):
        method = MarginalLikelihood(method, rounds=3, noise="auto")
    net = nets.MLP(hidden=(50, 50), dtype="float64")
    return {"net": net, "prior": prior, "likelihood": likelihood, "method": method}


def classification(
    prior: Any = None,
    guide: Any = None,
    likelihood: Any = None,
    *,
    num_data: int | None = None,
    settings: Collection[str] = (),
) -> Parts:
    """Return the parts for classes as targets: a hidden layer of 50 units.

    Up to 500 rows the evidence framework chooses the prior of a mean-field guide, under the conditions of `regression`;
    else the prior is N(0, 1).

    Args:
        prior: the prior that was chosen, or None.
        guide: the guide that was chosen, or None.
        likelihood: the likelihood that was chosen, or None.
        num_data: number of rows, or None where it is not known yet.
        settings: names of settings that were chosen for the method.
    """
    likelihood = likelihoods.Categorical() if likelihood is None else likelihood
    small_prior = priors.Normal(scale="fan_in") if prior is None else prior
    if _is_small(num_data) and _suits(small_prior, guide, likelihood, settings):
        framework = EvidenceFramework(guide=_CLASSES if guide is None else guide)
        return {"net": _SMALL_NET, "prior": small_prior, "likelihood": likelihood, "method": framework}
    prior = priors.Normal() if prior is None else prior
    guide = guides.MeanField(init_rho=-4.0) if guide is None else guide
    method = SVI(guide=guide, steps=2000, batch_size=128, schedule="cosine_annealing_lr")
    net = nets.MLP(hidden=(50,), dtype="float64")
    return {"net": net, "prior": prior, "likelihood": likelihood, "method": method}


BY_TASK: Mapping[str, Callable[..., Parts]] = {"regression": regression, "classification": classification}
_CLASSES = guides.MeanField(init_rho=-3.0)
"""Where classes can be told apart a Laplace approximation is too wide: it has the curvature of a plateau."""
_SMALL_NET = nets.MLP(hidden=(50,), activation="silu", dtype="float64")


def _is_small(num_data: int | None) -> bool:
    return num_data is None or num_data <= MOST_ROWS


def _suits(prior: Any, guide: Any, likelihood: Any, settings: Collection[str]) -> bool:
    """Return whether the evidence framework takes these parts and settings."""
    takes_guide = guide is None or EvidenceFramework.takes(guide)
    infers_noise = isinstance(likelihood, NoisyLikelihood) and isinstance(likelihood.scale, NoisePrior)
    takes_settings = set(settings) <= set(fields_of(EvidenceFramework))
    return isinstance(prior, priors.Normal) and takes_guide and not infers_noise and takes_settings


def with_settings(method: Any, table: Mapping[str, Any]) -> Any:
    """Return a method with other settings in the innermost one.

    Raises:
        InputError: an unknown setting, or a value that is refused.
    """
    if hasattr(method, "method"):
        return dataclasses.replace(method, method=with_settings(method.method, table))
    return from_table(table, start=method)
