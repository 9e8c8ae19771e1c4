"""Mixtures of two normals, a spike for weights that are not needed, a slab for others: of a known or inferred share."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import Positive, setting
from pyrobnn.distributions.latents import LatentBeta, ScaleMixtureNormal
from pyrobnn.priors.base import Latent, LatentSitePrior, OpenScale, Scales, constant, over, registry, scale_of

_MARGIN = 1e-6
_SECOND = 0.1  # the second scale in units of the first
_RANGES = {
    "pi": constraints.interval(_MARGIN, 1 - _MARGIN),
    "sigma1": constraints.greater_than(_MARGIN),
    "sigma2": constraints.greater_than(_MARGIN),
}


@registry.register
@setting
class ScaleMixture(OpenScale):
    """Each weight is pi N(0, sigma1^2) + (1 - pi) N(0, sigma2^2) (Blundell et al. 2015, eq. 7).

    Blundell et al. keep pi, sigma1 and sigma2 fixed; Krasser (2019) learns them with the posterior. All parameters of
    the prior share learned numbers; use a mapping of name patterns to give layers different ones.

    Attributes:
        pi: weight of the first component, in (0, 1); while learned it stays 1e-6 away from 0 and 1.
        sigma1: standard deviation of the first component: a number, or "tuned", "fan_in" or "he" as in `Normal`.
            While learned, both scales stay above 1e-6.
        sigma2: standard deviation of the second component, beside a number for the first; None for a tenth of it.
        learnable: optimise the three numbers together with the guide, from the values given, or sigma1 = 1.

    Examples:
        >>> prior = bnn.priors.ScaleMixture(pi=0.2, sigma1=1.0, sigma2=0.1, learnable=True)
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=prior)
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> posterior.bnn.prior.sigma1.item() != 1.0  # the fit has moved it
        True
    """

    open_field: ClassVar[str] = "sigma1"
    pi: Annotated[float, Field(gt=0, lt=1)] = 0.5
    sigma1: Scales = "tuned"
    sigma2: Positive | None = None
    learnable: bool = False

    def __post_init__(self) -> None:
        """Refuse a second number without a first, and starting values that cannot be learned from."""
        if self.sigma2 is not None and not isinstance(self.sigma1, float):
            said = f"give `sigma1` as a number too, got {self.sigma1!r}, or leave out `sigma2`"
            raise InputError(f"ScaleMixture: {said}.")
        for name, start in self.numbers.items() if self.learnable else ():
            if not bool(_RANGES[name].check(torch.tensor(start, dtype=torch.float64))):
                raise InputError(
                    f"ScaleMixture: a learnable `{name}` must start further inside its range, got {start}."
                )

    @property
    def has_open_scale(self) -> bool:
        return super().has_open_scale and not self.learnable

    @property
    def is_relative(self) -> bool:
        """Whether its scales are multiples of a scale that depends on the parameter."""
        return not (isinstance(self.sigma1, float) or self.learnable)

    @property
    def numbers(self) -> dict[str, float]:
        """The three numbers, in units of sigma1 if that is no number."""
        first = self.sigma1 if isinstance(self.sigma1, float) else 1.0
        return {"pi": self.pi, "sigma1": first, "sigma2": first * _SECOND if self.sigma2 is None else self.sigma2}

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        return ScaleMixturePrior(self, next(iter(values.values())))


class ScaleMixturePrior(PyroModule):
    """The module of a `ScaleMixture`: parameters if it is learnable, buffers if it is fixed, a table of the spike."""

    table: Tensor | None
    units: Tensor | None

    def __init__(self, setting: ScaleMixture, like: Tensor) -> None:
        super().__init__()
        self.setting = setting
        for name, number in setting.numbers.items():
            if setting.learnable:
                setattr(self, name, PyroParam(constant(number, like), _RANGES[name]))
            else:
                self.register_buffer(name, constant(number, like))
        self.register_buffer("table", None, persistent=False)
        units = constant(setting.sigma1, like) if isinstance(setting.sigma1, tuple) else None
        self.register_buffer("units", units, persistent=False)

    def tabulate(self) -> None:
        """Prepare expectations under normals, E[log p(w)], from a table, if the numbers stay as they are."""
        if not self.setting.learnable:
            self.table = ScaleMixtureNormal(self.pi, self.sigma1, self.sigma2).tabulated()

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        mixture = self._mixture()
        if self.setting.is_relative:
            unit = scale_of(self.setting.sigma1 if self.units is None else self.units, value)
            scales = unit * mixture.sigma1, unit * mixture.sigma2
            mixture = ScaleMixtureNormal(mixture.pi, *scales, table=self.table)
        return over(mixture, value)

    def _mixture(self) -> ScaleMixtureNormal:
        """Return the mixture, made once a run of the model: Pyro empties the context as the outermost call returns."""
        key = f"{self._pyro_name}.mixture"
        mixture = self._pyro_context.get(key)
        if mixture is None:
            mixture = ScaleMixtureNormal(self.pi, self.sigma1, self.sigma2, table=self.table)
            self._pyro_context.set(key, mixture)
        return mixture


def tabulate(model: nn.Module) -> None:
    """Have the fixed scale mixtures of a model read their expectations from tables."""
    for module in model.modules():
        if isinstance(module, ScaleMixturePrior):
            module.tabulate()


@registry.register
@setting
class SpikeAndSlab(OpenScale, LatentSitePrior):
    """Each weight is N(0, slab_scale^2) if included, else N(0, spike_scale^2); the inclusion probability is inferred.

    The indicators of George & McCulloch 1993 are summed out, which leaves the density of a `ScaleMixture` given the
    probability: a latent of each parameter with a beta prior, the site "prior.<parameter>.inclusion".

    Attributes:
        inclusion: prior mean of the inclusion probability.
        concentration: weight of that mean: Beta(inclusion concentration, (1 - inclusion) concentration); 2 with the
            mean 0.5 is the uniform distribution.
        slab_scale: standard deviation of included weights: a number, or "tuned", "fan_in" or "he" as in `Normal`.
        spike_scale: standard deviation of the other weights; None for a tenth of it.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.SpikeAndSlab(inclusion=0.2))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> 0 < float(posterior.mean()["prior.0.weight.inclusion"]) < 1
        True
    """

    open_field: ClassVar[str] = "slab_scale"
    inclusion: Annotated[float, Field(gt=0, lt=1)] = 0.5
    concentration: Positive = 2.0
    slab_scale: Scales = "tuned"
    spike_scale: Positive | None = None

    def latents(self, name: str, value: Tensor) -> dict[str, Latent]:
        mean, weight = constant(self.inclusion, value), constant(self.concentration, value)
        return {"inclusion": Latent(LatentBeta(mean * weight, (1 - mean) * weight), mean)}

    def conditional(self, name: str, value: Tensor, latents: Mapping[str, Tensor]) -> ScaleMixtureNormal:
        slab = scale_of(self.slab_scale, value)
        spike = slab * _SECOND if self.spike_scale is None else constant(self.spike_scale, value)
        return ScaleMixtureNormal(latents["inclusion"], slab, spike)
