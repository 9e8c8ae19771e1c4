"""Have the chains converged? Asked of the function that the network computes, not of its weights."""

import dataclasses
from typing import Any

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn.guides.built import built
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

FEWEST_DRAWS = 4
"""Draws of a chain below which there is no R-hat."""
_TAILS = (0.05, 0.95)


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionConvergence:
    """R-hat and effective sample sizes of function values; str() shows the worst of each.

    Attributes:
        rhat: rank-normalised split R-hat (Vehtari et al. 2021), (N, K) or (N,): near 1 if the chains agree; above 1.01
            they do not yet.
        ess_bulk: effective number of independent draws for means, the same shape; 400 or more are enough.
        ess_tail: the same for 5 % and 95 % quantiles.
    """

    rhat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray

    def __str__(self) -> str:
        return (
            f"largest R-hat {np.max(self.rhat):.3f}, smallest effective sample size "
            f"{np.min(self.ess_bulk):.0f} (bulk) and {np.min(self.ess_tail):.0f} (tail), over "
            f"{self.rhat.size} function values"
        )


def function_rhat(posterior: Posterior | Mixture, x: Any) -> FunctionConvergence:
    """Compare chains by their predicted means of the targets at some inputs.

    Comparing weights would mislead. Permuting hidden units, or flipping the signs of units with an odd activation,
    keeps the function and the posterior density. So chains may sit in mirror images of a mode: their weights never
    agree, but their predictions do. A chain that is stuck at another function shows here.

    Args:
        posterior: the result of Markov chains, as of `NUTS` or `MCLMC`: two or more of at least 4 draws.
        x: probe inputs (N, *in) in original units; a dozen, inside and outside the data, are enough.

    Returns:
        R-hat and effective sample sizes of the mean of the target, or the class probabilities, at each input.

    Raises:
        InputError: a mixture, a posterior without chains, or with too few or too short chains.

    Examples:
        >>> likelihood = bnn.likelihoods.Gaussian(scale=1.0)
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(1.0), likelihood=likelihood)
        >>> method = bnn.HMC(step_size=0.01, trajectory_length=0.05, num_draws=10, warmup=5, num_chains=2)
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
        >>> bnn.function_rhat(posterior, [[0.0], [0.25], [1.0]]).rhat.shape
        (3,)
    """
    import arviz as az

    if isinstance(posterior, Mixture):
        raise InputError(
            f"R-hat compares the Markov chains of one fit, got a mixture of {len(posterior)}: pass its `members` one "
            "by one."
        )
    chains = built(posterior.guide).chains()
    if chains is None:
        raise InputError(
            f"R-hat compares Markov chains, and the guide {type(posterior.guide).__name__} has none: its draws are "
            "independent. Fit with NUTS, MCLMC, HMC, SGLD or SGHMC."
        )
    num_chains, num_draws = next(iter(chains.values())).shape[:2]
    if num_chains < 2 or num_draws < FEWEST_DRAWS:
        raise InputError(
            f"R-hat needs two or more chains of at least {FEWEST_DRAWS} draws, got {num_chains} of {num_draws}: set "
            "`num_chains` and `num_draws`."
        )
    prediction = posterior.predict(x, draws={name: values.flatten(0, 1) for name, values in chains.items()})
    means = prediction.draw_means.double().cpu().numpy()
    values = means.reshape(num_chains, num_draws, *means.shape[1:])
    return FunctionConvergence(
        np.asarray(az.rhat(values)),
        np.asarray(az.ess(values, method="bulk")),
        np.asarray(az.ess(values, method="tail", prob=_TAILS)),
    )
