"""Ensembles: several independent fits of a method, as an equal-weight mixture."""

import dataclasses
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator

from pyrobnn import priors
from pyrobnn._core.errors import InputError, warn_user
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import Count, described, setting
from pyrobnn.bnn import BNN
from pyrobnn.inference.mcmc.chains import Starts
from pyrobnn.inference.mcmc.mclmc import Microcanonical
from pyrobnn.inference.method import BaseMethod, Offer, Run, SideBySide, registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.posterior.mixture import Mixture


def _side_by_side(method: Any) -> Any:
    method = registry.resolve(method)
    if not isinstance(method, SideBySide):
        raise InputError(f"`method` must fit several posteriors at once, as SVI, IVON and SWAG do, got {method!r}.")
    return method


Members = Annotated[SideBySide, BeforeValidator(_side_by_side)]  # the method of the members of an ensemble
_OF_MEMBER = ("resumable", "wants_measured_scales", "spreads")


@registry.register
@setting
class Ensemble(BaseMethod[Mixture]):
    """K independent fits from random starts, side by side in one graph, and their equal-weight mixture.

    With `SVI(guide="map")` it is a deep ensemble (Lakshminarayanan et al. 2017), with other guides a mixture of
    variational posteriors, with `SWAG()` multi-SWAG (Wilson & Izmailov 2020). Members of a declared network
    (`MLP(...)`) have starting weights of their own, those of a `torch.nn.Module` all start from its weights.

    Attributes:
        method: the method of each member.
        members: K.
        bootstrap: train each member on N examples drawn with replacement (Breiman 1996).
        anchored: centre each member's prior at a draw from the prior (Pearce et al. 2020), which keeps members apart
            where there are no data.

    Examples:
        >>> method = bnn.Ensemble(bnn.SVI(guide="map", steps=20), members=3)
        >>> deep = bnn.fit(bnn.BNN(bnn.MLP(1, [10], 1)), bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> between, beyond = deep.predict([[0.0], [2.0]], num_draws=3).epistemic_std
    """

    method: Members = SVI(guide="map")
    members: Count = 5
    bootstrap: bool = False
    anchored: bool = False

    def __post_init__(self) -> None:
        inner = self.method.offer().inner or self.method
        if isinstance(inner, SVI) and inner.patience is not None:
            raise InputError("Ensemble: members run the same number of steps: leave `patience` out of the method.")

    def offer(self) -> Offer:
        of_member = {name: getattr(self.method.offer(), name) for name in _OF_MEMBER}
        return Offer(inner=self.method, copies=self.members, **of_member)

    def learning_on(self) -> Any:
        return self.method

    def infer(self, bnn: BNN, data: Any, run: Run) -> Mixture:
        model = bnn.with_parts(prior=priors.Anchored(bnn.settings["prior"])) if self.anchored else bnn
        posteriors = self.method.side_by_side(model, data, run, replicates=self.members, bootstrap=self.bootstrap)
        first, *others = [member.guide.state_dict() for member in posteriors]
        if others and all(torch.equal(first[name], state[name]) for state in others for name in first):
            text = f"The {len(posteriors)} members of the ensemble are identical: they started from the same weights."
            warn_user(text, remedy=_UNLIKE)
        shared = dataclasses.replace(posteriors[0].record, method=described(self), replicate=None, replicates=None)
        return Mixture(posteriors, seed=run.seed, record=shared)


_UNLIKE = Remedy(
    "let them see other rows",
    ("fit.bootstrap=true",),
    "`bootstrap=True`, or pass a function that makes the network, as BNN(lambda: Net()), which starts each member anew",
)


@registry.register
@setting
class MILE(Microcanonical):
    """Microcanonical Langevin ensemble (Sommer et al. 2025): a deep ensemble, and a chain of `MCLMC` from each member.

    A chain that cannot leave the mode of its member keeps its share, whatever the mass of this mode: only chains that
    agree, by `function_rhat`, come from the posterior.

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
