"""Parts in the place of those that nobody chose: the same for the estimators and for a spec."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn.inference.marginal_likelihood import MarginalLikelihood
from pyrobnn.inference.method import from_table, with_guide
from pyrobnn.inference.svi import SVI

Parts = dict[str, Any]
"""The parts net, prior, likelihood and method, by name."""


def regression(prior: Any = None, guide: Any = None) -> Parts:
    """Return the parts for numbers as targets.

    Two hidden layers of 50 units, and a normal prior and Gaussian noise whose scales the marginal likelihood of a
    Laplace approximation chooses, where the prior is normal and the guide Laplace.

    Args:
        prior: the prior that was chosen, or None.
        guide: the guide that was chosen, or None.
    """
    prior = priors.Normal(scale="fan_in") if prior is None else prior
    training = SVI(guide="laplace", steps=4000, batch_size=128, schedule="cosine_annealing_lr")
    method: Any = training if guide is None else with_guide(training, guide)
    if isinstance(prior, priors.Normal) and isinstance(method.guide, guides.Laplace):
        method = MarginalLikelihood(method, rounds=3, noise="auto")
    net = nets.MLP(hidden=(50, 50), dtype="float64")
    return {"net": net, "prior": prior, "likelihood": likelihoods.Gaussian(), "method": method}


def classification(prior: Any = None, guide: Any = None) -> Parts:
    """Return the parts for classes as targets: a hidden layer of 50 units under a mean-field guide.

    Args:
        prior: the prior that was chosen, or None.
        guide: the guide that was chosen, or None.
    """
    prior = priors.Normal() if prior is None else prior
    guide = guides.MeanField(init_rho=-4.0) if guide is None else guide
    method = SVI(guide=guide, steps=2000, batch_size=128, schedule="cosine_annealing_lr")
    net = nets.MLP(hidden=(50,), dtype="float64")
    return {"net": net, "prior": prior, "likelihood": likelihoods.Categorical(), "method": method}


BY_TASK: Mapping[str, Callable[..., Parts]] = {"regression": regression, "classification": classification}


def with_settings(method: Any, table: Mapping[str, Any]) -> Any:
    """Return a method with other settings in the innermost one.

    Raises:
        InputError: an unknown setting, or a value that is refused.
    """
    if hasattr(method, "method"):
        return dataclasses.replace(method, method=with_settings(method.method, table))
    return from_table(table, start=method)
