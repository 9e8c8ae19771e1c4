"""The positive number of a likelihood beside its locations: known, learned, inferred, or an output of the network."""

import dataclasses
import math
from collections.abc import Mapping
from numbers import Real
from typing import Annotated, Any, ClassVar, Literal

import pyro.distributions as dist
import torch
from pydantic import PlainValidator
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import softplus

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.settings import Positive, Registry, setting
from pyrobnn.likelihoods.base import OPEN, PAGE, BaseLikelihood, NoiseKind, check_width, num_columns, squeeze_single

SMALLEST_SCALE = 1e-3
Estimated = Literal["tuned", "learned", "heteroscedastic"]
"""A number that is learned before or in a fit, or depends on the input; see `Scale`."""
_EXPECTED_SCALE = (
    'a positive number, a tuple with one per target column, "tuned", "learned", "heteroscedastic", or a prior such '
    'as {"type": "half_normal", "scale": 1.0}'
)


class NoisePrior:
    """Base of the priors of a noise scale of a `family`, built from numbers in the units of y."""

    scale: float
    family: ClassVar[type[TorchDistributionMixin]]

    def numbers(self, unit: Tensor) -> dict[str, Tensor]:
        """Return the numbers of the prior of scale / unit, each of the shape of `unit`."""
        return {"scale": self.scale / unit}


registry = Registry("noise_prior", accepts=lambda value: isinstance(value, NoisePrior), page=PAGE)


@registry.register
@setting
class HalfNormal(NoisePrior):
    """scale = |z|, z ~ N(0, scale^2), with `scale` the deviation of z: no noise is plausible, much more is not."""

    scale: Positive
    family: ClassVar[type[TorchDistributionMixin]] = dist.HalfNormal


@registry.register
@setting
class HalfCauchy(NoisePrior):
    """scale = |z|, z ~ Cauchy(0, scale), of median `scale`: for noise of unknown order of magnitude (Gelman 2006)."""

    scale: Positive
    family: ClassVar[type[TorchDistributionMixin]] = dist.HalfCauchy


@registry.register
@setting
class Gamma(NoisePrior):
    """scale ~ Gamma(concentration, rate), of mean concentration / rate; a concentration above 1 rules out no noise."""

    concentration: Positive
    rate: Positive
    family: ClassVar[type[TorchDistributionMixin]] = dist.Gamma

    def numbers(self, unit: Tensor) -> dict[str, Tensor]:
        return {"concentration": torch.full_like(unit, self.concentration), "rate": self.rate * unit}


def _as_scale(value: Any) -> Any:
    """Return a scale as it is kept in a setting; refuse other values."""
    if isinstance(value, str) and value in (*OPEN, "heteroscedastic"):
        return value
    if isinstance(value, (Mapping, NoisePrior)):
        return registry.resolve(value)
    numbers = value if isinstance(value, (tuple, list)) else [value]
    are_real = numbers and all(isinstance(number, Real) and not isinstance(number, bool) for number in numbers)
    if not are_real or not all(0 < float(number) < float("inf") for number in numbers):
        raise InputError(f"`scale` must be {_EXPECTED_SCALE}; got {value!r}.")
    return tuple(map(float, numbers)) if isinstance(value, (tuple, list)) else float(value)


Scale = Annotated[float | tuple[float, ...] | Estimated | NoisePrior, PlainValidator(_as_scale)]
"""The values that a noise scale takes.

A number, in the units of y, or a tuple with a number per target column. "learned" for a value per target column,
optimised with the guide (it starts at 1 in the model's units). "tuned" for a value that the evidence of a Laplace
approximation chooses before a fit of automatic length (`pyrobnn.fit`); it is "learned" in other fits. A prior
(`HalfNormal`, `HalfCauchy`, `Gamma`, or a table with their `type`) for a value per target column that any guide infers,
as the site "likelihood.scale" in the model's units. "heteroscedastic" for noise that depends on the input. The network
then has 2 K outputs for K targets, the locations first. The scale is softplus(second half) + 0.001 in the model's
units, so that densities and gradients stay finite for extreme outputs.
"""


class WithNumber(BaseLikelihood):
    """Base of settings with a location and a positive number for each target column, in the field `number`.

    A learned number starts at `first`, and stays above `least`; None for a scale in the units of y, as in `Scale`.
    """

    number: ClassVar[str]
    first: ClassVar[float] = 1.0
    least: ClassVar[float | None] = None

    @staticmethod
    def family(loc: Tensor, number: Tensor) -> TorchDistributionMixin:
        """Return the distribution of single targets by location and number."""
        raise NotImplementedError

    def build(self, like: Tensor, target_scale: Tensor) -> PyroModule:
        return Spread(self, like, target_scale)

    def opened(self) -> "WithNumber":
        return self if self.is_heteroscedastic else dataclasses.replace(self, **{self.number: "learned"})  # type: ignore[type-var]

    @property
    def is_heteroscedastic(self) -> bool:
        """Whether the number is an output of the network."""
        return bool(getattr(self, self.number) == "heteroscedastic")

    def num_outputs(self, y: Tensor) -> int:
        return num_columns(y) * (2 if self.is_heteroscedastic else 1)


class NoisyLikelihood(WithNumber):
    """Base of likelihoods of real targets that stand around the network's outputs with noise of some scale."""

    scale: Any
    number: ClassVar[str] = "scale"
    standardizes_targets: ClassVar[bool] = True
    integer_targets: ClassVar[bool] = False

    @property
    def noise(self) -> NoiseKind:
        """How the scale is given: "known" is a number or several, "inferred" a prior."""
        given: Any = "known" if isinstance(self.scale, (float, tuple)) else self.scale
        return "inferred" if isinstance(given, NoisePrior) else given

    def check_targets(self, y: Tensor, outputs: int) -> None:
        if isinstance(self.scale, tuple) and len(self.scale) != num_columns(y):
            scales, columns = counted(len(self.scale), "noise scale"), counted(num_columns(y), "column")
            fault = f"{self!r} has {scales}, and targets of shape {tuple(y.shape)} have {columns}"
            raise InputError(f"{fault}: give one scale per column, or a single number for all.", page=PAGE)
        check_width(self, y, outputs)


class Spread(PyroModule):
    """The module of a likelihood with a location and a positive number for each target column.

    The number is a buffer if known, a parameter if learned, and a latent site if it has a prior. It is kept in the
    units of the model; `target_scale` () or (K,) has the original units per unit of the model.
    """

    num_others = 0
    """Outputs for a target column beside its location and the number."""

    def __init__(self, setting: WithNumber, like: Tensor, target_scale: Tensor) -> None:
        super().__init__()
        name, start, least = setting.number, setting.first, setting.least
        value: Any = getattr(setting, name)
        self._family, self._name, self._least = setting.family, name, least
        self._shift = 0.0 if least is None else math.log(math.expm1(start - least))
        self.is_heteroscedastic = value == "heteroscedastic"
        number: Any = None
        if isinstance(value, NoisePrior):
            numbers = value.numbers(target_scale.double())
            for key, entry in numbers.items():
                self.register_buffer(f"prior_{key}", entry.to(like.device, like.dtype), persistent=False)
            number = PyroSample(_Prior(value, tuple(numbers), target_scale.ndim))
        elif isinstance(value, str) and value in OPEN:
            kept = constraints.positive if least is None else constraints.greater_than(least)
            number = PyroParam(like.new_full(target_scale.shape, start), kept)
        elif not self.is_heteroscedastic:
            known = torch.tensor(value, dtype=torch.float64, device=target_scale.device)
            known = known / target_scale.double() if least is None else known
            self.register_buffer(name, known.to(like.device, like.dtype))
        if number is not None:
            setattr(self, name, number)

    def forward(self, f: Tensor) -> TorchDistributionMixin:
        """Map outputs (..., N, kinds x K), the locations of all columns first, to targets of batch shape (..., N)."""
        kinds = 1 + self.num_others + self.is_heteroscedastic
        loc, *others = (squeeze_single(part)[0] for part in (f.chunk(kinds, -1) if kinds > 1 else [f]))
        number = self._of_output(others.pop()) if self.is_heteroscedastic else getattr(self, self._name)
        return self.entries(loc, number, *others).to_event(loc.ndim - f.ndim + 1)

    def entries(self, loc: Tensor, number: Tensor, *others: Tensor) -> TorchDistributionMixin:
        """Return the distribution of single targets."""
        return self._family(loc, number)

    def _of_output(self, output: Tensor) -> Tensor:
        if self._least is None:
            return softplus(output) + SMALLEST_SCALE
        return (self._least + softplus(output.double() + self._shift)).to(output.dtype)


class _Prior:
    """The prior of a module's number, made from its buffers when the number is drawn."""

    def __init__(self, prior: NoisePrior, names: tuple[str, ...], event_dim: int) -> None:
        self.prior, self.names, self.event_dim = prior, names, event_dim

    def __call__(self, module: PyroModule) -> Any:
        numbers = {name: getattr(module, f"prior_{name}") for name in self.names}
        return self.prior.family(**numbers).to_event(self.event_dim)
