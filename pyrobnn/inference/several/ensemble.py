"""Ensembles: several independent fits of a method, as an equal-weight mixture."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field

from pyrobnn import priors
from pyrobnn._core.errors import InputError, warn_user
from pyrobnn._core.settings import described, setting
from pyrobnn.bnn import BNN
from pyrobnn.inference.method import BaseMethod, Offer, Run, SideBySide, registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior


def _side_by_side(method: Any) -> Any:
    method = registry.resolve(method)
    if not isinstance(method, SideBySide):
        raise InputError(f"`method` must fit several posteriors at once, as SVI, IVON and SWAG do, got {method!r}.")
    return method


@registry.register
@setting
class Ensemble(BaseMethod[Mixture]):
    """K independent fits from random starts, side by side in one graph, and their equal-weight mixture.

    With `SVI(guide="map")` it is a deep ensemble (Lakshminarayanan et al. 2017), with other guides a mixture of
    variational posteriors that may cover several modes, with `SWAG()` multi-SWAG (Wilson & Izmailov 2020). Starting
    weights differ between members if the network is declared (`MLP(...)`). Members of a `torch.nn.Module` all start
    from its weights: only the guide, the noise and the mini-batches differ, and a warning tells if nothing does.

    See docs/how-to/ensembles.md.

    Attributes:
        method: the method of each member.
        members: K.
        bootstrap: train each member on N examples drawn with replacement (Breiman 1996).
        anchored: centre each member's prior at a draw from the prior (Pearce et al. 2020), which keeps members apart
            where there are no data. The posterior is not exact: in a linear model with Gaussian noise, MAP members have
            the exact mean, but the covariance C P^-1 C in place of C, with P of the prior and C of the posterior. So
            the variance is exact in directions that the data leave open, and near zero in those that the data settle.

    Examples:
        >>> method = bnn.Ensemble(bnn.SVI(guide="map", steps=20), members=3)
        >>> deep = bnn.fit(bnn.BNN(bnn.MLP(1, [10], 1)), bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> len(deep), deep.predict([[0.0], [2.0]], num_draws=3).epistemic_std.shape
        (3, torch.Size([2]))
    """

    method: Annotated[SideBySide, BeforeValidator(_side_by_side)] = SVI(guide="map")
    members: Annotated[int, Field(gt=0)] = 5
    bootstrap: bool = False
    anchored: bool = False

    def __post_init__(self) -> None:
        """Refuse an inner method that cannot run side by side."""
        inner = self.method.offer().inner or self.method
        if isinstance(inner, SVI) and inner.patience is not None:
            raise InputError("Ensemble: members run the same number of steps: leave `patience` out of the method.")

    def offer(self) -> Offer:
        """Return the features of the method beside `infer`."""
        member = self.method.offer()
        return Offer(
            inner=self.method,
            resumable=member.resumable,
            copies=self.members,
            wants_measured_scales=member.wants_measured_scales,
        )

    def infer(self, bnn: BNN, data: Any, run: Run) -> Mixture:
        """Fit the members and return their mixture."""
        model = bnn.with_parts(prior=priors.Anchored(bnn.settings["prior"])) if self.anchored else bnn
        posteriors = self.method.side_by_side(model, data, run, replicates=self.members, bootstrap=self.bootstrap)
        _tell_if_alike(posteriors)
        shared = dataclasses.replace(
            posteriors[0].record, method=described(self), rewinds=None, replicate=None, replicates=None
        )
        return Mixture(posteriors, seed=run.seed, info=shared)


def _tell_if_alike(posteriors: Sequence[Posterior]) -> None:
    """Warn of members that are all equal: the same start, the same order of batches, and no noise."""
    first, *others = [member.guide.state_dict() for member in posteriors]
    if others and all(torch.equal(first[name], state[name]) for state in others for name in first):
        warn_user(
            f"The {len(posteriors)} members of the ensemble are identical: they started from the network's "
            "weights, and saw the same batches without noise. Pass a function that makes the network, as "
            "BNN(lambda: Net()), which starts each member anew, or use bootstrap=True, anchored=True, or a "
            "`batch_size`."
        )
