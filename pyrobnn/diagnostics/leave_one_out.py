"""Leave-one-out cross-validation without refits, by importance sampling from the draws of a single posterior."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn.data.given import in_memory
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.comparison import mark
from pyrobnn.diagnostics.convert import to_datatree
from pyrobnn.diagnostics.importance import importance_weights
from pyrobnn.guides.built import built
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior

if TYPE_CHECKING:
    import arviz as az
    import xarray as xr

_DRAWS_FOR_LOO = 1000
_FEWEST_DRAWS = 100
_SHARE_OF_EQUAL = 0.9999
_EXACT = ("nuts", "hmc")
"""Methods whose draws come from the exact posterior, in the limit."""


def loo(
    posterior: Posterior | Mixture,
    data: Any,
    *,
    correct: bool = False,
    num_draws: int | None = None,
    seed: int | None = None,
) -> "az.ELPDDataLOO":
    """Return Pareto-smoothed importance sampling leave-one-out cross-validation (Vehtari et al. 2017).

    It reweights draws as if an example had been left out. For NUTS or HMC this estimates the exact score, of kind
    "loo". Draws of a guide are treated as draws from the posterior: the result, of kind "LOO under q", is too certain
    if q is too narrow. ArviZ warns if the k-hat of an example is too large: take `kfold`, or held-out data.

    `correct=True` corrects for the guide, with importance weights p(w, D) / q(w) (Magnusson et al. 2019). It is refused
    if the k-hat of these weights is above min(1 - 1 / log10 S, 0.7), as for nearly all networks.

    Args:
        posterior: the posterior.
        data: the training data, `Data` or a pair (x, y).
        correct: correct for the difference between guide and posterior.
        num_draws: number of draws S, at least 100; 1000 if not given, or all draws of Markov chains.
        seed: seed of the draws; the fit's if not given.

    Returns:
        ArviZ's `ELPDDataLOO`, pointwise. If corrected, `elpd_i.attrs["joint_khat"]` has the k-hat of the weights.

    Raises:
        InputError: a posterior of point masses, too few draws, data that do not fit the model, or a correction that
            does not exist or is too large.

    Examples:
        >>> data = bnn.datasets.sinusoid(100)
        >>> likelihood = bnn.likelihoods.Gaussian(scale=4.0)
        >>> model = bnn.BNN(bnn.MLP(1, [], 1), prior=bnn.priors.Normal(1.0), likelihood=likelihood)
        >>> posterior = model.fit(data, guide=bnn.guides.Laplace(structure="full"), steps=50, seed=0, progress=False)
        >>> found = bnn.loo(posterior, data)
        >>> found.kind, found.elpd_i.shape
        ('LOO under q', (100,))
    """
    import arviz as az

    from pyrobnn.diagnostics.arviz_classes import LooUnderQ

    data = in_memory(data)
    members = members_of(posterior)
    has_chains = all(built(member.guide).chains() is not None for member in members)
    asked = _DRAWS_FOR_LOO if num_draws is None else num_draws
    khat = _require_near(posterior, data, asked, seed) if correct else math.nan
    tree = to_datatree(posterior, data, num_draws=num_draws if has_chains else asked, prior=False, seed=seed)
    _require_spread(tree, is_stored=has_chains)
    if correct:
        stats = tree["sample_stats"]
        with seeded(0, "loo"):
            result = az.loo_approximate_posterior(
                tree, log_p=stats["lp"], log_q=stats["log_q"], var_name="y", pointwise=True
            )
        result.elpd_i.attrs["joint_khat"] = khat
        return mark(result, data)
    efficiency = _efficiency(tree["log_likelihood"]["y"]) if has_chains else 1.0
    with seeded(0, "loo"):  # ArviZ imports jax, whose import draws random numbers
        result = az.loo(tree, var_name="y", reff=efficiency, pointwise=True)
    if not all(map(_is_exact, members)):
        result.__class__ = LooUnderQ
    return mark(result, data)


def _require_spread(tree: "xr.DataTree", *, is_stored: bool) -> None:
    """Refuse point masses and a handful of draws."""
    stats = tree["sample_stats"]
    if not is_stored and ("log_q" not in stats or bool(stats["log_q"].isnull().any())):
        raise InputError(
            "Leaving one out reweights draws, and the draws of a point mass such as Map are all equal: use `kfold`."
        )
    if stats["lp"].size < _FEWEST_DRAWS:
        raise InputError(
            f"`num_draws` must be at least {_FEWEST_DRAWS} for importance sampling, got {stats['lp'].size}."
        )


def _require_near(posterior: Posterior | Mixture, data: Data, num_draws: int, seed: int | None) -> float:
    """Return k-hat of the joint weights of the draws; refuse a guide too far from the posterior to correct for."""
    if isinstance(posterior, Mixture):
        raise InputError(
            f"`correct=True` corrects for one guide, got a mixture of {len(posterior)}: pass its `members`."
        )
    weights = importance_weights(posterior, data, num_draws=num_draws, seed=seed)
    are_equal = weights.ess > _SHARE_OF_EQUAL * num_draws  # then the tail is rounding, and its k-hat may be NaN
    if not (weights.is_reliable or are_equal):
        raise InputError(
            f"The guide is too far from the posterior to correct for: k-hat of its {num_draws} joint weights is "
            f"{weights.khat:.2f}, and must be below {weights.good_khat:.2f}. Leave `correct` out, or use `kfold`."
        )
    return weights.khat


def _is_exact(posterior: Posterior) -> bool:
    return bool(posterior.record.methods) and posterior.record.methods[0]["type"] in _EXACT


def _efficiency(log_likelihood: "xr.DataArray") -> float:
    """Return effective over actual number of draws for the likelihood of an example, the mean over examples.

    The weights themselves would not do, since a network has many mirror images.
    """
    import arviz as az

    likelihood = np.exp(log_likelihood - log_likelihood.max(("chain", "draw"))).astype(float)
    return float(az.ess(likelihood, method="mean").mean()) / (likelihood.sizes["chain"] * likelihood.sizes["draw"])
