"""Priors centred at a draw from themselves, for ensembles whose members must disagree where there are no data."""

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any

import pyro.distributions as dist
import torch
from pydantic import BeforeValidator
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.distributions.transforms import AffineTransform
from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn._torch.pyro import allow_new_home
from pyrobnn.priors.base import BasePrior, as_prior, covered, registry, starts_of
from pyrobnn.priors.given import resolve


@registry.register
@setting
class Anchored(BasePrior):
    """A prior of the same shape around a draw from it: w ~ p(w - a + E[w]), with the anchor a ~ p (Pearce et al. 2020).

    The anchor is drawn when the model is built, from the fit's seed. For a linear model with Gaussian noise, MAP fits
    with anchored priors and resampled noise are exact posterior draws; without the noise they are too narrow, with the
    covariance C P^-1 C in place of C, for P of the prior and C of the posterior.

    Attributes:
        prior: the prior to centre anew. A scale that is "tuned" is measured, unless in a mapping: anchor each prior of
            it. Latent scales are inferred and never measured, as the anchor comes from a draw of them.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Anchored(bnn.priors.Normal(1.0)))
        >>> a, b = model.fit(bnn.datasets.sinusoid(), guide="map", steps=20, replicates=2, seed=0, progress=False)
        >>> torch.equal(a.bnn.prior.shift_0, b.bnn.prior.shift_0)  # the anchors differ
        False
    """

    prior: Annotated[Any, BeforeValidator(resolve)]

    @property
    def has_open_scale(self) -> bool:
        return as_prior(self.prior).has_open_scale

    def with_scale(self, scale: float | tuple[float, ...]) -> "Anchored":
        return Anchored(as_prior(self.prior).with_scale(scale))

    def covers(self, names: list[str]) -> list[str]:
        return covered(self.prior, names)

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        return AnchoredPrior(self.prior.build(values), values)


class AnchoredPrior(PyroModule):
    """The module of `Anchored`: the prior it shifts, and by how much, as buffers."""

    def __init__(self, prior: PyroModule, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._buffer_of = {name: f"shift_{index}" for index, name in enumerate(values)}
        for name, value in values.items():
            with torch.no_grad(), poutine.block():
                distribution = prior(name, value)
                self.register_buffer(self._buffer_of[name], distribution.sample() - _centre(distribution, name))
        allow_new_home(prior)
        self.prior = prior

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        shift = self.get_buffer(self._buffer_of[name])
        distribution = self.prior(name, value)
        base = distribution.base_dist if isinstance(distribution, dist.Independent) else distribution
        if isinstance(base, dist.Normal):
            return dist.Normal(base.loc + shift, base.scale).to_event(value.ndim)
        return dist.TransformedDistribution(distribution, [AffineTransform(shift, 1.0, event_dim=value.ndim)])

    def starts(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return starts_of(self.prior, values)


def _centre(distribution: TorchDistributionMixin, name: str) -> Tensor:
    """Return the mean, or the mode if there is no mean, as of Student's t with one degree of freedom."""
    for centre in ("mean", "mode"):
        with contextlib.suppress(NotImplementedError):
            value = getattr(distribution, centre)
            if bool(value.isfinite().all()):
                return value
    raise InputError(f"Anchored: the prior of {name!r} has neither a mean nor a mode to be moved from.")
