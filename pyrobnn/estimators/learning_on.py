"""`partial_fit`: the posterior so far is the prior of the next fit."""

import dataclasses
from typing import Any

import torch

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn._torch.inputs import single
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import as_guide, built
from pyrobnn.inference.fit import fit_in_silence
from pyrobnn.inference.method import Run, guide_of
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.weights import update_prior


def fit_on(fitted: Posterior | Mixture, method: Any, examples: Data, run: Run) -> Any:
    """Return the posterior that has the posterior so far, as independent normals, for its prior.

    Scaling stays as on the first examples. Each member of a mixture learns on by itself; a method that tunes its
    prior trains without tuning.
    """
    alone = method.learning_on()
    later: dict[Posterior, Any] = {}
    for index, member in enumerate(dict.fromkeys(fitted.members)):
        of_member = dataclasses.replace(run, seed=derive(run.seed, f"member {index}"))
        later[member] = fit_in_silence(_updated(member), examples, alone, of_member)
    first = later[fitted.members[0]]
    first.note(measured=fitted.record.measured)
    if not isinstance(fitted, Mixture):
        return first
    return Mixture([later[member] for member in fitted.members], seed=run.seed, record=first.record)


def holds_chains(fitted: Posterior | Mixture) -> bool:
    """Return whether a posterior consists of draws of chains.

    Chains visit mirror images of the same function, so their mean and standard deviation resemble the prior's.
    """
    return any(built(member.guide).chains() is not None for member in fitted.members)


def joined(first: Data, second: Data) -> Data:
    """Return the rows of two data sets, encoded alike."""
    pair = (first, second)
    weights = [torch.ones(len(p), dtype=torch.float64) if p.weights is None else p.weights for p in pair]
    are_weighted = any(part.weights is not None for part in pair)
    return Data(
        torch.cat([single(part.x, "An estimator") for part in pair]),
        torch.cat([first.y, second.y]),
        weights=torch.cat(weights) if are_weighted else None,
        standardize=second.standardize,
        inputs=second.inputs,
        feature_names=second.feature_names,
    )


def require_learning_on(method: Any) -> None:
    """Refuse, before the first fit, a method whose posterior is points, which cannot learn on."""
    guide = guide_of(method)
    leaves_point = as_guide(guide).seeks_mode and as_guide(guide).curvature is None
    if leaves_point and not method.offer().spreads:
        raise InputError(
            f"partial_fit makes the posterior so far the prior of the next batch, and {guide!r} leaves points without "
            "a spread: use another guide, such as 'mean_field' or 'laplace'."
        )


def _updated(posterior: Posterior) -> BNN:
    """Return the model with a posterior for its prior; refuse weights without a prior, which would forget data."""
    fixed = [name for name, value in posterior.bnn.net.named_parameters() if value.requires_grad]
    if fixed:
        so = "partial_fit makes the posterior so far the prior of the next batch"
        raise InputError(f"{so}, and {fixed[0]!r} has no prior: give all weights a prior.")
    return update_prior(posterior)
