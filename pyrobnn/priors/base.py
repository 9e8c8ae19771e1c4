"""Priors: settings whose `build` gives a module that knows the distribution of every weight site."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyro
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import biject_to

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import Positive, Registry
from pyrobnn._torch.lbfgs import descend_in_place, slope_of

Scale = Positive | Literal["tuned", "he", "fan_in"]
"""A scale: a number, or the name of a scale that follows the width of each layer, or the data (`scale_of`)."""
Scales = Scale | tuple[Positive, ...]
"""The same, or a number for each input of a layer."""
_NODES = 16  # of Gauss-Hermite quadrature


@runtime_checkable
class Prior(Protocol):
    """A prior setting: any object with this method. docs/how-to/own-part.md shows how to write a prior.

    Examples:
        >>> import pyro.distributions as dist
        >>> from pyro.nn import PyroModule
        >>> class Flat(PyroModule):
        ...     def forward(self, name, value):
        ...         return dist.Normal(torch.zeros_like(value), 10.0).to_event(value.ndim)
        >>> class Wide:
        ...     def build(self, values):
        ...         return Flat()
        >>> bnn.BNN(bnn.MLP(1, [5], 1), prior=Wide())(torch.zeros(3, 1)).shape
        torch.Size([3, 1])
    """

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        """Return a `PyroModule` that gives the prior distribution of each parameter.

        Args:
            values: initial value of each parameter that the prior covers, by name.

        Returns:
            A module whose `forward(name, value)` returns a distribution with the event shape, dtype and device of the
            value. Its `PyroParam`s are learned with the guide. Its `PyroSample`s and the sites that `forward` draws are
            inferred, starting from the values of `Starting` if it has them.
        """
        ...


@runtime_checkable
class Choosing(Protocol):
    """A prior setting that leaves some parameters deterministic."""

    def covers(self, names: list[str]) -> list[str]:
        """Return the names of the parameters that get a prior."""
        ...


@runtime_checkable
class Starting(Protocol):
    """A built prior that says where guides start the sites that it adds; others start at a draw from their prior."""

    def starts(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a value of each added site by site name, for the initial values of the parameters."""
        ...


@runtime_checkable
class Measurable(Protocol):
    """A built prior whose added sites are scales of weights, which a fit may measure."""

    def at_scales(self, values: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the most probable value of these sites by name, for weights of measured scales (of each entry)."""
        ...


def covered(prior: Prior, names: list[str]) -> list[str]:
    """Return the names of the parameters that get a prior from a setting."""
    return prior.covers(names) if isinstance(prior, Choosing) else names


def starts_of(module: PyroModule, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the starting values of the sites that a built prior adds, by site name."""
    return module.starts(values) if isinstance(module, Starting) else {}


def at_scales_of(module: PyroModule, values: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the scales that a built prior adds as sites, by name, where weights have measured scales."""
    return module.at_scales(values, scales) if isinstance(module, Measurable) else {}


class BasePrior:
    """The interface of a prior setting beside `build`; a setting that does not inherit has these defaults.

    Attributes:
        is_normal: whether the prior of all entries of a parameter is a single normal distribution.
        open_field: the field with the scale, if that may be open.
        infers_scale: whether its latents are the scales of the weights, which a fit may measure.

    Examples:
        >>> bnn.priors.Normal(1.0).is_normal, bnn.priors.Horseshoe().is_normal
        (True, False)
    """

    is_normal: ClassVar[bool] = False
    open_field: ClassVar[str] = "scale"
    infers_scale: ClassVar[bool] = False

    @property
    def has_open_scale(self) -> bool:
        """Whether its scale is "tuned", for a fit to measure."""
        return False

    def with_scale(self, scale: float | tuple[float, ...]) -> Any:
        """Return the setting with a measured scale in place of the open one."""
        fields: Any = {self.open_field: scale}
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]


def as_prior(prior: Any) -> BasePrior:
    """Return the interface of a setting: itself, or the defaults if it does not inherit from the base."""
    return prior if isinstance(prior, BasePrior) else BasePrior()


class SitePrior(BasePrior):
    """Base for priors without parameters or latents: write `site`, the rest is inherited.

    Examples:
        >>> import dataclasses
        >>> import pyro.distributions as dist
        >>> @dataclasses.dataclass(frozen=True)
        ... class Cauchy(bnn.priors.SitePrior):
        ...     scale: float = 1.0
        ...
        ...     def site(self, name, value):
        ...         return dist.Cauchy(value.new_tensor(0.0), torch.as_tensor(self.scale).to(value))
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=Cauchy(0.5))
        >>> model.prior("0.weight", model.initial_values["0.weight"]).event_shape
        torch.Size([5, 1])
    """

    def site(self, name: str, value: Tensor) -> TorchDistributionMixin:
        """Return the distribution of each entry, with a batch shape that expands to the shape of the value.

        Numbers of the setting may be scalar tensors here: pass them through `constant`.

        Args:
            name: the parameter's name.
            value: its initial value, which also gives shape, dtype and device.
        """
        raise NotImplementedError

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        """Return the module that a `BNN` asks for each site's distribution."""
        return FactorizedPrior(self, next(iter(values.values())))


class OpenScale(BasePrior):
    """Base for those whose field may be "tuned"."""

    @property
    def has_open_scale(self) -> bool:
        return bool(getattr(self, self.open_field) == "tuned")


class Latent(NamedTuple):
    """A site that a prior adds to the model.

    Attributes:
        distribution: its distribution, of batch shape ().
        start: a typical value to start from, of its event shape.

    Examples:
        >>> import pyro.distributions as dist
        >>> latent = bnn.priors.Latent(dist.HalfNormal(1.0), start=torch.tensor(0.5))
        >>> bool(latent.distribution.log_prob(latent.start).isfinite())
        True
    """

    distribution: TorchDistributionMixin
    start: Tensor


class LatentSitePrior(BasePrior):
    """Base for priors under which entries are independent given latents: write `latents` and `conditional`.

    Each latent is a site named after its parameter, such as "prior.0.weight.scale", that every guide infers with the
    weights. The weights are drawn given them (the centred form), under the names of the parameters.

    Examples:
        >>> import pyro.distributions as dist
        >>> class Shared(bnn.priors.LatentSitePrior):
        ...     def latents(self, name, value):
        ...         return {"scale": bnn.priors.Latent(dist.HalfNormal(value.new_tensor(1.0)), value.new_tensor(0.5))}
        ...
        ...     def conditional(self, name, value, latents):
        ...         return dist.Normal(value.new_tensor(0.0), latents["scale"])
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=Shared())
        >>> posterior = model.fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> bool(posterior.mean()["prior.0.weight.scale"] > 0)
        True
    """

    def latents(self, name: str, value: Tensor) -> dict[str, Latent]:
        """Return the latents of a parameter by short name, of arguments as for `SitePrior.site`; empty without any."""
        raise NotImplementedError

    def conditional(self, name: str, value: Tensor, latents: Mapping[str, Tensor]) -> TorchDistributionMixin:
        """Return the distribution of each entry given the latents, with a batch shape that expands to the value's."""
        raise NotImplementedError

    def build(self, values: Mapping[str, Tensor]) -> PyroModule:
        """Return the module that a `BNN` asks for each site's distribution."""
        return ConditionalPrior(self, next(iter(values.values())))


class _Numbered(PyroModule):
    """A module that holds the numbers of a setting as buffers, so that replicates in a graph can differ in them."""

    def __init__(self, setting: Any, like: Tensor) -> None:
        super().__init__()
        self._setting = setting
        self._numbers = [name for name, value in vars(setting).items() if isinstance(value, (float, tuple))]
        for name in self._numbers:
            self.register_buffer(name, constant(getattr(setting, name), like), persistent=False)

    def numbered(self) -> Any:
        """Return the setting with its numbers as tensors."""
        setting = copy.copy(self._setting)
        vars(setting).update({number: getattr(self, number) for number in self._numbers})
        return setting


class FactorizedPrior(_Numbered):
    """The module of a `SitePrior`: independent entries, each with the distribution that the setting names."""

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        return over(self.numbered().site(name, value), value)


class ConditionalPrior(_Numbered):
    """The module of a `LatentSitePrior`: draws the latents of a parameter when it is asked for its distribution."""

    def forward(self, name: str, value: Tensor) -> TorchDistributionMixin:
        setting = self.numbered()
        latents = setting.latents(name, value).items()
        drawn = {short: pyro.sample(self._site(name, short), latent.distribution) for short, latent in latents}
        return over(setting.conditional(name, value, drawn), value)

    def starts(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        setting = self.numbered()
        return {
            self._site(name, short): latent.start
            for name, value in values.items()
            for short, latent in setting.latents(name, value).items()
        }

    def at_scales(self, values: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> dict[str, Tensor]:
        setting = self._setting
        pairs = values.items() if as_prior(setting).infers_scale else ()
        return {
            self._site(name, short): latent
            for name, value in pairs
            for short, latent in _at_scale(setting, name, value, scales[name]).items()
        }

    def _site(self, name: str, short: str) -> str:
        return f"{self._pyro_name}.{name}.{short}"


def _at_scale(setting: Any, name: str, value: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """Return the latents at the mode of their logarithms, given weights N(0, scale^2): a mean over these."""
    value, scale = value.double(), scale.double()
    nodes, shares = (value.new_tensor(numbers) for numbers in np.polynomial.hermite_e.hermegauss(_NODES))
    weights = nodes.reshape(-1, *[1] * value.ndim) * scale
    latents = setting.latents(name, value)
    maps = {short: biject_to(latent.distribution.support) for short, latent in latents.items()}
    free = {short: maps[short].inv(latent.start).clone().requires_grad_() for short, latent in latents.items()}

    def loss() -> Tensor:
        given = {short: maps[short](place) for short, place in free.items()}
        of_weights = setting.conditional(name, value, given).expand(value.shape).log_prob(weights)
        total = (shares / shares.sum()) @ of_weights.reshape(_NODES, -1).sum(1)
        for short, place in free.items():
            jacobian = maps[short].log_abs_det_jacobian(place, given[short]).sum()
            total = total + latents[short].distribution.log_prob(given[short]).sum() + jacobian
        return -total

    if free:
        descend_in_place(slope_of(loss, [*free.values()]), [*free.values()])
    return {short: maps[short](place).detach() for short, place in free.items()}


def over(distribution: TorchDistributionMixin, value: Tensor) -> TorchDistributionMixin:
    """Return the distribution of a whole parameter from the distribution of its entries."""
    return distribution.expand(value.shape).to_event(value.ndim)


def constant(number: float | tuple[float, ...] | Tensor, like: Tensor) -> Tensor:
    """Return a number as a scalar tensor, several as a vector, with the dtype and device of another."""
    if isinstance(number, tuple):
        return like.new_tensor(number)
    return number if isinstance(number, Tensor) else like.new_full((), number)  # without a copy from the host


def scale_of(scale: float | str | tuple[float, ...] | Tensor, value: Tensor) -> Tensor:
    """Return a scale that expands to a parameter: numbers, or the meaning of a name there, as in `Normal`.

    "tuned" is "he" until a fit has measured the scale.
    """
    if isinstance(scale, str):
        gain = 1.0 if scale == "fan_in" or value.ndim < 2 else 2.0
        return constant(math.sqrt(gain / fan_in(value.shape)), value)
    numbers = constant(scale, value)
    if numbers.ndim and (value.ndim < 2 or len(numbers) != value.shape[1]):
        shape = tuple(value.shape)
        raise InputError(f"The prior has {len(numbers)} scales, one for each input, for a parameter of shape {shape}.")
    return per_input(numbers, value) if numbers.ndim else numbers


def per_input(scales: Tensor, value: Tensor) -> Tensor:
    """Return scales of input units (inputs,) in a shape that expands to the weight (outputs, inputs, ...)."""
    return scales.reshape(-1, *[1] * (value.ndim - 2))


def fan_in(shape: torch.Size) -> int:
    """Return the number of inputs that feed an output of a weight of this shape; 1 for biases and scalars."""
    return shape[1:].numel() if len(shape) > 1 else 1


registry = Registry("prior", accepts=lambda value: isinstance(value, Prior), page="how-to/priors")
"""Priors by name; `register` adds a prior.

Examples:
    >>> "horseshoe" in bnn.priors.registry.names
    True
    >>> bnn.priors.registry.get("horseshoe")()
    Horseshoe(global_scale=1.0, local='unit')
"""
