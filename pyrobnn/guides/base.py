"""Guides: settings whose `build` gives a Pyro guide over the latent sites, and the features of any built guide."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from pyro.infer.autoguide import AutoContinuous, AutoGuide, AutoNormal
from pyro.nn import PyroModule
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal, biject_to

from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import Registry
from pyrobnn._torch.matrices import inverse_softplus
from pyrobnn.guides.sites import Site

Model = Callable[..., Any]
"""A Pyro model, such as a `BNN`: it takes inputs and targets, draws its latent sites and observes the targets.

Examples:
    >>> bnn.guides.Model
    collections.abc.Callable[..., typing.Any]
"""
NoiseSharing = Literal["auto", "shared", "local", "flipout"]
_START_RHO = -5.0
"""Initial rho where no fit has measured the scales; on six small fits, -3 and -10 were no better on the whole."""
_MOST_COVARIANCE_ENTRIES = 10_000
"""Entries of a dense covariance, which then takes 0.8 GB."""
Part = tuple[list[str], Callable[[Tensor], Tensor]]
"""Names of sites, and the log density (S,) of their entries (S, entries), flat and in float64, unconstrained."""


@runtime_checkable
class Guide(Protocol):
    """A guide setting: any object with this method. docs/how-to/own-part.md shows how to write a guide.

    Examples:
        >>> isinstance(bnn.guides.MeanField(), bnn.guides.Guide), isinstance("mean_field", bnn.guides.Guide)
        (True, False)
    """

    def build(self, model: Model, *args: Any) -> PyroModule:
        """Return a guide that draws every latent site when called, with or without the model's arguments.

        The model may have `initial_values`, starting values by site name, and `net`, its network. The other arguments
        are a batch of inputs and observed targets, to run it once: all parameters of the guide must exist afterwards.
        """
        ...


class BaseGuide:
    """The interface of a guide setting beside `build`; a setting that does not inherit has these defaults.

    Attributes:
        seeks_mode: whether a point is trained, the mode of the posterior.
        curvature: the curvature that turns this point into a Gaussian after training, for guides with the fields of
            `Laplace`; None for guides without this second phase.

    Examples:
        >>> bnn.guides.Laplace().seeks_mode, bnn.guides.Laplace().curvature
        (True, 'ggn')
    """

    seeks_mode: ClassVar[bool] = False
    curvature: str | None = None


def as_guide(guide: Any) -> BaseGuide:
    """Return the interface of a setting: itself, or the defaults if it does not inherit from the base."""
    return guide if isinstance(guide, BaseGuide) else BaseGuide()


class StartsNarrow:
    """Base of the settings of guides whose scales start at softplus of their field `init_rho`.

    With None they start at the deviations around the mode where a fit has measured them, else at softplus(-5).
    """

    init_rho: float | None

    def start_rho(self, sites: Sequence[Site]) -> Tensor:
        """Return the initial rho of each entry of the sites, flat; softplus(-5) is 0.0067."""
        rhos = []
        for site in sites:
            rho = torch.full_like(site.unconstrained, _START_RHO if self.init_rho is None else self.init_rho)
            if self.init_rho is None and site.scale is not None:
                rho.copy_(inverse_softplus(site.scale.double()))
            rhos.append(rho.reshape(-1))
        return torch.cat(rhos)


class NoisePerExample:
    """Base of the settings of guides with separate noise for the examples of a mini-batch, by a field `noise`.

    "shared": all examples see the same draw. "flipout": each sees it with random signs (Wen et al. 2018). "local": the
    outputs of linear layers are drawn for each example (Kingma, Salimans & Welling 2015), and it is flipout in
    convolutions and along sequences. Other layers, tied weights, and constrained sites see the shared draw. "auto":
    "shared" without `SVI`; else "local" for linear layers on rows, "flipout" if each step sees all data, and otherwise
    "shared".
    """

    noise: NoiseSharing


class BuiltGuide:
    """Optional features of a built guide beside its draws; the defaults fit a guide that can only draw.

    Attributes:
        vmappable: whether calls can be vmapped over independent draws.
        linearized: whether predictions take the network linearised around the mean.
        path_derivative: whether the gradient follows log q along the draws, without its score.
        trainable: whether steps of SVI may train it further, which its parameters are for.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [5], 1)).fit(bnn.datasets.sinusoid(), steps=20, seed=0, progress=False)
        >>> isinstance(posterior.guide, bnn.guides.BuiltGuide), posterior.guide.vmappable
        (True, True)
    """

    vmappable: bool = False
    linearized: bool = False
    path_derivative: bool = False
    trainable: bool = True

    def mean(self) -> dict[str, Tensor] | None:
        """Return the mean of each site by name; None where it takes draws."""
        return None

    def fixed_sites(self) -> frozenset[str]:
        """Return the names of the sites with the same value in every draw."""
        return frozenset()

    def pruned_sites(self) -> frozenset[str]:
        """Return the names of the sites with entries that are zero in every draw."""
        return frozenset()

    def gaussian_blocks(self) -> list[Any]:
        """Return the blocks of a Gaussian with a known covariance, as from `Laplace`; empty for other guides."""
        return []

    def gaussian_points(self) -> dict[str, Tensor]:
        """Return the value of each site at the point that the blocks are around, in the memory of the guide."""
        return {}

    def moments(self) -> dict[str, tuple[Tensor, Tensor]] | None:
        """Return mean and standard deviation of each site by name, on the unconstrained side for constrained sites.

        None where they take draws.
        """
        return None

    def log_density(self, draws: Mapping[str, Tensor]) -> Tensor | None:
        """Return log q of joint draws (S, *event) by site, from any source, in float64, (S,).

        None if it is known only at the guide's own draws, or if a site is at a point.
        """
        return None

    def rate_factors(self) -> dict[str, float]:
        """Return factors on the learning rate by the name of a parameter, 1 for other parameters.

        If many entries of a parameter move a draw together, their noise adds up, and each takes a smaller step.
        """
        return {}

    def chains(self) -> dict[str, Tensor] | None:
        """Return stored draws of Markov chains in their order, (chain, draw, *event) by site; None without any."""
        return None

    def picks(self, num_draws: int) -> Tensor | None:
        """Return the numbers (S,) of stored draws for `num_draws` draws; counts of stored draws differ by at most 1.

        A guide that returns numbers takes a number as `pick` when called. None if each draw is made anew.
        """
        return None

    def sample_stats(self) -> dict[str, Tensor]:
        """Return the numbers kept with stored draws, (chain, draw) by name."""
        return {}


registry = Registry("guide", accepts=lambda value: isinstance(value, Guide), page="how-to/guides")
"""Guides by name; `register` adds a guide.

Examples:
    >>> bnn.guides.registry.get("mean_field") is bnn.guides.MeanField
    True
"""


def built(guide: PyroModule) -> BuiltGuide:
    """Return the features of a built guide: the guide itself, or a view of a guide that is no `BuiltGuide`.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1))
        >>> posterior = model.fit(bnn.datasets.sinusoid(), guide="AutoNormal", steps=20, seed=0, progress=False)
        >>> bnn.guides.built(posterior.guide).log_density(posterior.draw(10)).shape
        torch.Size([10])
    """
    if isinstance(guide, BuiltGuide):
        return guide
    return _Autoguide(guide) if isinstance(guide, AutoGuide) else _Foreign(guide)


def rate_factors(guide: PyroModule) -> dict[str, float]:
    """Return the factors on the learning rate of a guide and the guides in it, by the names of its parameters."""
    parts = ((prefix, built(part)) for prefix, part in guide.named_modules() if isinstance(part, PyroModule))
    return {
        f"{prefix}.{name}".lstrip("."): factor for prefix, part in parts for name, factor in part.rate_factors().items()
    }


class _Foreign(BuiltGuide):
    """A view of a guide that has some of the attributes of `BuiltGuide` without inheriting from it."""

    def __init__(self, guide: Any) -> None:
        self._guide = guide
        names = [name for name in vars(BuiltGuide) if not name.startswith("_") and hasattr(guide, name)]
        vars(self).update({name: getattr(guide, name) for name in names})


class _Autoguide(_Foreign):
    """A view of a guide of Pyro, with a known density if it is one distribution or a normal per site."""

    def log_density(self, draws: Mapping[str, Tensor]) -> Tensor | None:
        guide = self._guide
        names = {name: biject_to(node["fn"].support) for name, node in guide.prototype_trace.iter_stochastic_nodes()}
        if isinstance(guide, AutoNormal):
            return log_density(draws, names, [independent([name], *guide._get_loc_and_scale(name)) for name in names])
        if isinstance(guide, AutoContinuous):
            dtype, posterior = next(guide.parameters()).dtype, guide.get_posterior()
            return log_density(draws, names, [(list(names), lambda values: posterior.log_prob(values.to(dtype)))])
        return None


def log_density(draws: Mapping[str, Tensor], transforms: Mapping[str, Any], parts: Iterable[Part]) -> Tensor | None:
    """Return log q of joint draws (S, *event) by site, the product of parts, (S,); None where a site is in no part."""
    total, flat = torch.zeros((), dtype=torch.float64), {}
    for name, transform in transforms.items():
        values = draws[name].double()
        if transform is not None:
            image, values = values, transform.inv(values)
            total = total - transform.log_abs_det_jacobian(values, image).reshape(len(image), -1).sum(1)
        flat[name] = values.reshape(len(values), -1)
    for names, log_prob in parts:
        total = total + log_prob(torch.cat([flat.pop(name) for name in names], 1)).double()
    return None if flat else total


def independent(names: list[str], loc: Tensor, scale: Tensor) -> Part:
    """Return a part of independent normals."""
    return names, Independent(Normal(loc.reshape(-1).double(), scale.reshape(-1).double()), 1).log_prob


def correlated(names: list[str], loc: Tensor, covariance: Callable[[], Tensor]) -> Part:
    """Return a part with any covariance, which is asked for unless there are too many entries."""
    if loc.numel() > _MOST_COVARIANCE_ENTRIES:
        said = f"The density of a mixture of such guides would need the covariance of {loc.numel()} weights"
        raise InputError(f"{said}, more than {_MOST_COVARIANCE_ENTRIES}: pass the members one by one.")
    return names, MultivariateNormal(loc.reshape(-1).double(), covariance().double()).log_prob


def affine(names: list[str], loc: Tensor, transform: Callable[[Tensor], Tensor]) -> Part:
    """Return the part loc + transform(noise), for a linear map of standard normal noise of the shape of loc."""

    def covariance() -> Tensor:
        unit = torch.eye(loc.numel(), dtype=loc.dtype, device=loc.device)
        images = torch.func.vmap(transform)(unit.view(-1, *loc.shape)).reshape(len(unit), -1).double()
        return images.T @ images

    return correlated(names, loc, covariance)
