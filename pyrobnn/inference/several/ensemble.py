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
from pyrobnn.inference.method import BaseMethod, Offer, Run, SideBySide, registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.posterior.mixture import Mixture


def _side_by_side(method: Any) -> Any:
    method = registry.resolve(method)
    if not isinstance(method, SideBySide):
        raise InputError(f"`method` must fit several posteriors at once, as SVI, IVON and SWAG do, got {method!r}.")
    return method


Members = Annotated[SideBySide, BeforeValidator(_side_by_side)]
"""The method of the members of an ensemble."""
_OF_MEMBER = ("resumable", "wants_measured_scales", "spreads")


@registry.register
@setting
class Ensemble(BaseMethod[Mixture]):
    """K independent fits from random starts, side by side in one graph, and their equal-weight mixture.

    With `SVI(guide="map")` it is a deep ensemble (Lakshminarayanan et al. 2017), with other guides a mixture of
    variational posteriors, with `SWAG()` multi-SWAG (Wilson & Izmailov 2020). Members of a declared network
    (`MLP(...)`) have starting weights of their own, those of a `torch.nn.Module` all start from its weights. See
    docs/how-to/ensembles.md.

    Attributes:
        method: the method of each member.
        members: K.
        bootstrap: train each member on N examples drawn with replacement (Breiman 1996).
        anchored: centre each member's prior at a draw from the prior (Pearce et al. 2020), which keeps members apart
            where there are no data. In a linear model MAP members have the exact mean, and the covariance C P^-1 C in
            place of C, with P of the prior and C of the posterior.

    Examples:
        >>> method = bnn.Ensemble(bnn.SVI(guide="map", steps=20), members=3)
        >>> deep = bnn.fit(bnn.BNN(bnn.MLP(1, [10], 1)), bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> len(deep), deep.predict([[0.0], [2.0]], num_draws=3).epistemic_std.shape
        (3, torch.Size([2]))
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
            warn_user(
                f"The {len(posteriors)} members of the ensemble are identical: they started from the network's "
                "weights, and saw the same batches without noise.",
                remedy=_UNLIKE,
            )
        shared = dataclasses.replace(posteriors[0].record, method=described(self), replicate=None, replicates=None)
        return Mixture(posteriors, seed=run.seed, record=shared)


_UNLIKE = Remedy(
    "let them see other rows",
    ("fit.bootstrap=true",),
    "`bootstrap=True`, or pass a function that makes the network, as BNN(lambda: Net()), which starts each member anew",
)
