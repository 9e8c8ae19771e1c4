"""Ensembles: several independent fits of a method, as an equal-weight mixture."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator
from torch import nn

from pyrobnn import priors
from pyrobnn._core.errors import InputError, shown, warn_user
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import Remedy
from pyrobnn._core.settings import Count, described, setting
from pyrobnn.bnn import BNN
from pyrobnn.data.given import as_data
from pyrobnn.inference.around import around
from pyrobnn.inference.method import BaseMethod, Offer, Run, SideBySide, registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior


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
                remedies=_UNLIKE,
            )
        return self._mixture(posteriors, run.seed)

    def around(self, models: Any, data: Any, *, seed: int = 0, device: str = "auto", progress: bool = True) -> Mixture:
        """Return the mixture of points at, or Gaussians around, networks that were trained elsewhere.

        Args:
            models: the trained networks, or a `BNN` around each, of the same parameters by name and shape.
            data: the training data, as for `guides.Laplace.around`.
            seed: as for `guides.Laplace.around`.
            device: as in `fit`.
            progress: show a progress bar.

        Raises:
            InputError: networks of different shapes, a guide that seeks no mode, or as `guides.Laplace.around` does.
        """
        if self.bootstrap or self.anchored:
            raise InputError("Ensemble.around trains nothing: leave out `bootstrap` and `anchored`.")
        guide = self.method.offer().guide
        if guide is None:
            raise InputError(
                f"Ensemble.around takes the guide of the method, and {type(self.method).__name__} has none: use "
                'SVI(guide="map") or SVI(guide="laplace").'
            )
        _check_alike(models)
        data = as_data(data)
        seeds = [derive(seed, f"replicate {index}") for index in range(len(models))]
        settings: dict[str, Any] = {"device": device, "progress": progress}
        posteriors = [
            around(model, data, guide, seed=own, **settings) for model, own in zip(models, seeds, strict=True)
        ]
        return dataclasses.replace(self, members=len(posteriors))._mixture(posteriors, seed)

    def _mixture(self, posteriors: Sequence[Posterior], seed: int) -> Mixture:
        shared = dataclasses.replace(posteriors[0].record, method=described(self), replicate=None, replicates=None)
        return Mixture(posteriors, seed=seed, record=shared)


def _check_alike(models: Any) -> None:
    """Refuse trained networks that cannot be members of one mixture."""
    is_list = isinstance(models, Sequence) and not isinstance(models, nn.Module)
    nets = [model.net if isinstance(model, BNN) else model for model in models] if is_list else []
    if not nets or not all(isinstance(net, nn.Module) for net in nets):
        raise InputError(f"Ensemble.around takes a list of trained networks, got {shown(models)}.")
    first, *others = ({name: value.shape for name, value in net.state_dict().items()} for net in nets)
    for index, shapes in enumerate(others, 1):
        name = next((name for name in [*first, *shapes] if first.get(name) != shapes.get(name)), None)
        if name is not None:
            raise InputError(
                f"Ensemble.around: members of a mixture have the same parameters, and {name!r} of network {index} is "
                "not that of network 0. Predict with each network apart, by guides.Laplace().around, and average."
            )


_UNLIKE = (
    Remedy("pass a function that makes the network, as BNN(lambda: Net()), which starts each member anew"),
    Remedy("use bootstrap=True, anchored=True, or a `batch_size`", "let them see other rows", ("fit.bootstrap=true",)),
)
