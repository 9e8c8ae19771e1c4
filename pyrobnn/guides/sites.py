"""The latent sites of a model, read from a single run."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.transforms import identity_transform

from pyrobnn._core.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """A latent site of a model.

    Attributes:
        name: the site's name; for a weight, the name of the parameter.
        start: a value to start from, inside the support, with the site's shape, dtype and device.
        mean: the prior mean of each entry, or None without a closed form.
        variance: the same for the prior variance.
        transform: bijection from unconstrained values to the support, or None for sites on the whole real line.
        scale: a standard deviation of each entry to start from, or None where no fit has measured it.
        is_kept: whether guides keep the start, which a fit has measured, as the centre of their draws.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(0.5))
        >>> site = bnn.guides.latent_sites(model, torch.zeros(3, 1), torch.zeros(3))[0]
        >>> site.name, site.start.shape, float(site.variance[0, 0]), site.transform
        ('0.weight', torch.Size([5, 1]), 0.25, None)
    """

    name: str
    start: Tensor
    mean: Tensor | None
    variance: Tensor | None
    transform: Any
    scale: Tensor | None = None
    is_kept: bool = False

    @property
    def unconstrained(self) -> Tensor:
        return self.start.clone() if self.transform is None else self.transform.inv(self.start)


def latent_sites(model: Callable[..., Any], *args: Any) -> list[Site]:
    """Return the latent sites of a model, in the order of its draws.

    A weight starts at the network's value, from `initial_values` of the model, and at a draw from the prior outside of
    its support, as all other sites. The other arguments are a batch of inputs and observed targets.

    Raises:
        InputError: a latent that is discrete, or inside a plate.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [5], 1), prior={"0.weight": "hierarchical", "*": "normal"})
        >>> [site.name for site in bnn.guides.latent_sites(model, torch.zeros(3, 1), torch.zeros(3))]
        ['prior.0.0.weight.scale', '0.weight', '0.bias', '2.weight', '2.bias']
    """
    with torch.no_grad(), poutine.block():
        trace = poutine.trace(model).get_trace(*args)
    starts, scales = (getattr(model, f"initial_{name}", {}) for name in ("values", "scales"))
    kept = getattr(model, "kept_sites", {})
    sites = [
        dataclasses.replace(_site(name, node, starts.get(name), scales.get(name)), is_kept=name in kept)
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)
    ]
    if not sites:
        raise InputError("The model has no latent site to infer: give at least one parameter a prior.")
    return sites


def _site(name: str, node: Any, start: Tensor | None, scale: Tensor | None) -> Site:
    support = node["fn"].support
    if node["cond_indep_stack"]:
        raise InputError(f"Site {name!r} stands inside a plate; this guide covers global latents only.")
    if support.is_discrete:
        raise InputError(f"Site {name!r} is discrete; this guide covers continuous latents only.")
    transform = innermost = biject_to(support)
    while hasattr(innermost, "base_transform"):
        innermost = innermost.base_transform
    draw = node["value"].detach().clone()
    value = draw if start is None else torch.where(_inside(support, start, transform), start.detach(), draw)
    mean, variance = (_moment(node["fn"], name) for name in ("mean", "variance"))
    return Site(name, value, mean, variance, None if innermost == identity_transform else transform, scale)


def _inside(support: Any, value: Tensor, transform: Any) -> Tensor:
    """Say of each entry whether it lies in the support, and not at an edge that the transform maps to infinity."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    inside = support.check(value)
    if support.event_dim:
        return inside.reshape(*inside.shape, *(1 for _ in range(support.event_dim)))
    return inside & transform.inv(value).isfinite()


def _moment(distribution: Any, name: str) -> Tensor | None:
    try:
        return getattr(distribution, name).detach()
    except NotImplementedError:
        return None
