"""Microcanonical Langevin ensembles: chains that start at the members of a deep ensemble."""

import dataclasses
from typing import Any

from pyrobnn._core.settings import Count, setting
from pyrobnn.bnn import BNN
from pyrobnn.inference.mcmc.chains import Starts
from pyrobnn.inference.mcmc.mclmc import Microcanonical
from pyrobnn.inference.method import Offer, Run, registry
from pyrobnn.inference.several.ensemble import Ensemble, Members
from pyrobnn.inference.svi.svi import SVI


@registry.register
@setting
class MILE(Microcanonical):
    """Microcanonical Langevin ensemble (Sommer et al. 2025): a deep ensemble, and a chain of `MCLMC` from each member.

    The draws of all chains count equally. A chain that cannot leave the mode of its member keeps its share, whatever
    the mass of this mode: only chains that agree, by `function_rhat`, come from the posterior.

    Attributes:
        num_chains: number of members, and of chains.
        num_draws: draws kept of each chain.
        warmup: steps before them, as in `MCLMC`.
        thinning: from one draw kept to the next, as in `MCLMC`.
        method: the method of each member, as in `Ensemble`. A chain starts at a draw of it: of `Map`, the point.

    Examples:
        >>> likelihood = bnn.likelihoods.Gaussian(scale=1.0)
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(1.0), likelihood=likelihood)
        >>> method = bnn.MILE(num_chains=3, num_draws=10, warmup=40, method=bnn.SVI(guide="map", steps=20))
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, engine="eager", progress=False)
        >>> posterior.guide.chains()["0.weight"].shape  # chain, draw, and the shape of the weight
        torch.Size([3, 10, 5, 1])
    """

    num_chains: Count = 10
    num_draws: Count = 100
    warmup: Count = 10_000
    thinning: Count | None = None
    method: Members = SVI(guide="map")

    def __post_init__(self) -> None:
        self._ensemble()

    def offer(self) -> Offer:
        return dataclasses.replace(super().offer(), inner=self.method)

    def check(self, bnn: BNN, data: Any, run: Run) -> None:
        super().check(bnn, data, run)
        self.method.check(bnn, data, run)

    def starts(self, bnn: BNN, data: Any, run: Run) -> Starts:
        return self._ensemble().infer(bnn, data, run).members

    def _ensemble(self) -> Ensemble:
        return Ensemble(self.method, members=self.num_chains)
