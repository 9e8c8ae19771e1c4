"""Have the chains converged? Asked of the function that the network computes, not of its weights."""

import dataclasses
from typing import Any

import numpy as np
import torch

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data
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

    Comparing weights would mislead: permuting hidden units, or flipping their signs, keeps the function and the
    posterior density, so chains may sit in mirror images of a mode. A chain that is stuck at another function shows.

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
        raise InputError(f"R-hat compares the Markov chains of one fit, got a mixture of {len(posterior)}.")
    chains = built(posterior.guide).chains()
    if chains is None:
        raise InputError(f"R-hat compares Markov chains, and the guide {type(posterior.guide).__name__} has none.")
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


_MOST_PROBES = 20
_RHAT = "Rank-normalised split R-hat of the predicted means: 1 where chains agree; above 1.01 they do not yet."
_ESS = "Effective number of independent draws; 400 or more are enough."


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """The chains of a posterior.

    Attributes:
        num_chains: number of chains.
        num_draws: draws of each chain.
        num_probes: number of training inputs at which the chains are compared.
        convergence: R-hat and effective sample sizes at the probes, or None if chains are too few or too short.
        num_diverging: number of draws that diverged, or None if the method does not report it.
        acceptance_rate: mean acceptance probability, likewise.
    """

    num_chains: int
    num_draws: int
    num_probes: int
    convergence: FunctionConvergence | None
    num_diverging: int | None
    acceptance_rate: float | None

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the facts as rows of name, value and meaning."""
        rows = [("chains", str(self.num_chains), f"Markov chains, each of {self.num_draws} draws.")]
        if self.convergence is not None:
            rhat, bulk, tail = self.convergence.rhat, self.convergence.ess_bulk, self.convergence.ess_tail
            rows += [
                ("largest R-hat", f"{np.max(rhat):.3f}", _RHAT),
                ("smallest ESS, bulk", f"{np.min(bulk):.0f}", f"{_ESS} For means."),
                ("smallest ESS, tail", f"{np.min(tail):.0f}", f"{_ESS} For 5 % and 95 % quantiles."),
            ]
        if self.num_diverging is not None:
            meaning = "Draws whose trajectory met a region too narrow for the step size; should be 0."
            rows.append(("divergent draws", f"{self.num_diverging} of {self.num_chains * self.num_draws}", meaning))
        if self.acceptance_rate is not None:
            rows.append(("acceptance rate", f"{self.acceptance_rate:.2f}", "Mean acceptance probability."))
        return rows


def chains_of(posterior: Posterior | Mixture, train: Data) -> Chains | None:
    """Compare the chains of a posterior at up to 20 training inputs; None if it holds no chains."""
    if isinstance(posterior, Mixture):
        return None
    guide = built(posterior.guide)
    if (chains := guide.chains()) is None:
        return None
    num_chains, num_draws = next(iter(chains.values())).shape[:2]
    rows = torch.linspace(0, len(train) - 1, min(_MOST_PROBES, len(train))).round().long()
    enough = num_chains > 1 and num_draws >= FEWEST_DRAWS
    statistics = guide.sample_stats()
    return Chains(
        num_chains,
        num_draws,
        len(rows),
        function_rhat(posterior, train.x[rows]) if enough else None,
        int(statistics["diverging"].sum()) if "diverging" in statistics else None,
        float(statistics["acceptance_rate"].mean()) if "acceptance_rate" in statistics else None,
    )
