"""Convergence checks of Markov chains."""

import dataclasses

import numpy as np
import torch

from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.convergence import FEWEST_DRAWS, FunctionConvergence, function_rhat
from pyrobnn.guides.built import built
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior

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
