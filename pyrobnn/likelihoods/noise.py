"""The scale of the noise around real targets: known, learned, inferred under a prior, or an output of the network."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from pydantic import Field, PlainValidator
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import softplus

from pyrobnn._core.counts import counted
from pyrobnn._core.errors import InputError
from pyrobnn._core.registry import Registry
from pyrobnn._core.settings import setting
from pyrobnn.likelihoods.base import OPEN, PAGE, BaseLikelihood, Noise, check_width, num_columns, squeeze_single

SMALLEST_SCALE = 1e-3
_SCALE_AT_ZERO = math.log(2) + SMALLEST_SCALE
_MOST_BEYOND = 0.05
"""Share of the variance of targets that may lie beyond a network's range, as noise does."""
_MOST_OF_SPREAD = 0.2
"""Share of the standard deviation of targets that the least noise may be."""
_EXPECTED = (
    'a positive number, a tuple with one per target column, "tuned", "learned", "heteroscedastic", or a prior such '
    'as {"type": "half_normal", "scale": 1.0}'
)


class NoisePrior:
    """Base of the priors of a noise scale; their numbers are in the units of y.

    Attributes:
        family: the distribution, built from the numbers by name.
    """

    family: ClassVar[type[TorchDistributionMixin]]

    def numbers(self, unit: Tensor) -> dict[str, Tensor]:
        """Return the numbers of the prior of scale / unit, each of the shape of `unit`."""
        raise NotImplementedError


registry = Registry("noise_prior", accepts=lambda value: isinstance(value, NoisePrior), page=PAGE)


@registry.register
@setting
class HalfNormal(NoisePrior):
    """scale = |z|, z ~ N(0, scale^2): no noise is plausible, much more than `scale` is not.

    Attributes:
        scale: standard deviation of z.
    """

    scale: Annotated[float, Field(gt=0)]
    family: ClassVar[type[TorchDistributionMixin]] = dist.HalfNormal

    def numbers(self, unit: Tensor) -> dict[str, Tensor]:
        """Return the scale."""
        return {"scale": self.scale / unit}


@registry.register
@setting
class HalfCauchy(NoisePrior):
    """scale = |z|, z ~ Cauchy(0, scale): heavy-tailed, for noise of unknown order of magnitude (Gelman 2006).

    Attributes:
        scale: median of the noise scale.
    """

    scale: Annotated[float, Field(gt=0)]
    family: ClassVar[type[TorchDistributionMixin]] = dist.HalfCauchy

    def numbers(self, unit: Tensor) -> dict[str, Tensor]:
        """Return the scale."""
        return {"scale": self.scale / unit}


@registry.register
@setting
class Gamma(NoisePrior):
    """scale ~ Gamma(concentration, rate), of mean concentration / rate; a concentration above 1 rules out no noise.

    Attributes:
        concentration: shape, positive.
        rate: inverse scale, positive, in the inverse units of y.
    """

    concentration: Annotated[float, Field(gt=0)]
    rate: Annotated[float, Field(gt=0)]
    family: ClassVar[type[TorchDistributionMixin]] = dist.Gamma

    def numbers(self, unit: Tensor) -> dict[str, Tensor]:
        """Return concentration and rate."""
        return {"concentration": torch.full_like(unit, self.concentration), "rate": self.rate * unit}


def _as_scale(value: Any) -> Any:
    """Return a scale as it is kept in a setting; refuse other values."""
    if isinstance(value, str) and value in (*OPEN, "heteroscedastic"):
        return value
    if isinstance(value, (Mapping, NoisePrior)):
        return registry.resolve(value)
    numbers = value if isinstance(value, (tuple, list)) else [value]
    if not numbers or not all(_is_positive(number) for number in numbers):
        raise InputError(f"`scale` must be {_EXPECTED}; got {value!r}.")
    return tuple(map(float, numbers)) if isinstance(value, (tuple, list)) else float(value)


def _is_positive(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < float("inf")


Scale = Annotated[
    float | tuple[float, ...] | Literal["tuned", "learned", "heteroscedastic"] | NoisePrior, PlainValidator(_as_scale)
]
"""The values that a noise scale takes.

A number, in the units of y, or a tuple with a number per target column. "learned" for a value per target column,
optimised with the guide (it starts at 1 in the model's units). "tuned" for a value that the evidence of a Laplace
approximation chooses before a fit of automatic length (`pyrobnn.fit`); it is "learned" in other fits. A prior
(`HalfNormal`, `HalfCauchy`, `Gamma`, or a table with their `type`) for a value per target column that any guide infers,
as the site "likelihood.scale" in the model's units. "heteroscedastic" for noise that depends on the input. The network
then has 2 K outputs for K targets, the locations first. The scale is softplus(second half) + 0.001 in the model's
units, so that densities and gradients stay finite for extreme outputs.
"""


class NoisyLikelihood(BaseLikelihood):
    """Base for likelihoods of real targets that stand around the network's outputs with noise of some scale."""

    scale: Any
    standardizes_targets: ClassVar[bool] = True
    integer_targets: ClassVar[bool] = False

    @property
    def noise(self) -> Noise:
        """How the scale is given: "known" is a number or several, "inferred" a prior."""
        given: Any = "known" if isinstance(self.scale, (float, tuple)) else self.scale
        return "inferred" if isinstance(given, NoisePrior) else given

    def num_outputs(self, y: Tensor) -> int:
        """Return K, or 2 K for heteroscedastic noise."""
        return num_columns(y) * (2 if self.scale == "heteroscedastic" else 1)

    def check_targets(self, y: Tensor, outputs: int) -> None:
        """Refuse a network of the wrong width, and a number of scales other than one per target column."""
        if isinstance(self.scale, tuple) and len(self.scale) != num_columns(y):
            raise InputError(
                f"{self!r} has {counted(len(self.scale), 'noise scale')}, and targets of shape {tuple(y.shape)} have "
                f"{counted(num_columns(y), 'column')}: give one scale per column, or a single number for all.",
                page=PAGE,
            )
        check_width(self, y, outputs)  # type: ignore[arg-type]

    def limits(self, low: Tensor, high: Tensor, y: Tensor) -> str | None:
        """Say which targets lie beyond all locations, or that the scale of heteroscedastic noise has a lower bound."""
        columns = y.reshape(len(y), -1)
        count, spread = columns.shape[1], columns.var(0, correction=0)
        for k in range(count):
            least, largest = float(low[k].floor()), float(high[k].ceil())
            beyond = columns[:, k] - columns[:, k].clamp(least, largest)
            if beyond.square().mean() <= _MOST_BEYOND * spread[k]:
                continue
            reached = f"stay between {least:g} and {largest:g}"
            if not (beyond > 0).any():
                reached = f"are never below {least:g}"
            elif not (beyond < 0).any():
                reached = f"are never above {largest:g}"
            return (
                f"{reached} whatever its weights, where targets are {float(columns[:, k].min()):.3g} to "
                f"{float(columns[:, k].max()):.3g} in the units that it sees (standardised if the data are). Leave "
                "that out, or scale the targets into this range yourself."
            )
        if self.scale != "heteroscedastic":
            return None
        if bool(((low[count:] >= 0) & (_MOST_OF_SPREAD * spread.sqrt() < _SCALE_AT_ZERO)).any()):
            return (
                f"are never below 0 whatever its weights. {type(self).__name__} takes the softplus of the second half "
                f"as the scale of the noise, which is then {_SCALE_AT_ZERO:.2f} or more in the units that it sees. "
                "Leave that out."
            )
        return None


class NoisyOutputs(PyroModule):
    """The module of a likelihood with noise: it splits outputs into location and scale of a distribution.

    The scale is a buffer if known, a parameter if learned, and a latent site if it has a prior.

    Args:
        scale: the scale as set.
        like: a tensor with the dtype and device of the network.
        target_scale: original units per unit of the model, () or (K,).
        family: the distribution by location and scale; other modules write `entries`.
    """

    def __init__(self, scale: Any, like: Tensor, target_scale: Tensor, family: Any = None) -> None:
        super().__init__()
        self._family = family
        self.is_heteroscedastic = scale == "heteroscedastic"
        unit = target_scale.double()
        if isinstance(scale, NoisePrior):
            for name, number in scale.numbers(unit).items():
                self.register_buffer(f"prior_{name}", number.to(like.device, like.dtype), persistent=False)
            self.scale = PyroSample(_ScalePrior(scale, tuple(scale.numbers(unit)), unit.ndim))
        elif isinstance(scale, str) and scale in OPEN:
            self.scale = PyroParam(like.new_ones(unit.shape), constraints.positive)
        elif not self.is_heteroscedastic:
            known = torch.tensor(scale, dtype=torch.float64, device=unit.device) / unit
            self.register_buffer("scale", known.to(like.device, like.dtype))

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map outputs (..., N, K), or (..., N, 2 K) for heteroscedastic noise, to targets of batch shape (..., N)."""
        loc, scale, event_dim = self._split(f)
        return self.entries(loc, scale).to_event(event_dim)

    def entries(self, loc: Tensor, scale: Tensor) -> TorchDistributionMixin:
        """Return the distribution of single entries."""
        return self._family(loc, scale)

    def _split(self, f: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return location and scale, which broadcast to (..., N, K), and the number of event dimensions."""
        if not self.is_heteroscedastic:
            loc, event_dim = squeeze_single(f)
            return loc, self.scale, event_dim
        first, second = torch.chunk(f, 2, dim=-1)
        loc, event_dim = squeeze_single(first)
        return loc, softplus(squeeze_single(second)[0]) + SMALLEST_SCALE, event_dim


class _ScalePrior:
    """The prior of a module's scale, made from its buffers when the scale is drawn."""

    def __init__(self, prior: NoisePrior, names: tuple[str, ...], event_dim: int) -> None:
        self.prior, self.names, self.event_dim = prior, names, event_dim

    def __call__(self, module: PyroModule) -> Any:
        numbers = {name: getattr(module, f"prior_{name}") for name in self.names}
        return self.prior.family(**numbers).to_event(self.event_dim)
