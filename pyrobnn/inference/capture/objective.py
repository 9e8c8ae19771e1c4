"""The ELBO as a function of tensors alone: what the captured step records."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Normal
from torch.overrides import TorchFunctionMode

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.private import tree_leaves
from pyrobnn.bnn import BNN
from pyrobnn.distributions.latents import ScaleMixtureNormal
from pyrobnn.distributions.support import base_of
from pyrobnn.guides.divergence import DIVERGENCES, KL, quadrature_kl


class Objective(nn.Module):
    """The two terms of the ELBO for one draw of the guide, equal to Pyro's `Trace_ELBO` for the same noise.

    Densities of sites of one family are computed together on the concatenated values, which leaves one operation
    where Pyro has one for each site. The model's plate scales the log-likelihood of a batch by N / B.
    """

    def __init__(self, bnn: BNN, guide: PyroModule, *, num_data: int, kl: KL) -> None:
        super().__init__()
        self.bnn, self.guide, self.num_data, self._divergence = bnn, guide, num_data, DIVERGENCES.get(kl)

    def forward(self, *batch: Any) -> tuple[Tensor, Tensor]:
        """Draw once and return estimates of the expected log-likelihood and of KL(q || prior), both scalars."""
        with poutine.block():
            guide_trace = poutine.trace(self.guide).get_trace(*batch, num_data=self.num_data)
            model = poutine.replay(self.bnn, trace=guide_trace)
            model_trace = poutine.trace(model).get_trace(*batch, num_data=self.num_data)
        drawn, latent = list(_samples(guide_trace, observed=False)), list(_samples(model_trace, observed=False))
        log_likelihood = _sum(_log_density(node).double() for node in _samples(model_trace, observed=True))
        if self._divergence is not None:
            by_name = {node["name"]: node for node in drawn}
            pairs = [(by_name[node["name"]], node) for node in latent]
            return log_likelihood, _joint_divergence(self._divergence, pairs)
        return log_likelihood, _joint_log_density(drawn).double() - _joint_log_density(latent).double()


def check_reparameterized(guide: PyroModule, *batch: Any) -> None:
    """Refuse guides, as `NotCapturable`, whose gradient needs more than the derivative of the ELBO along a draw."""
    with poutine.block():
        trace = poutine.trace(guide).get_trace(*batch, num_data=len(batch[0]))
    factor = next(_samples(trace, observed=True), None)
    if factor is not None:
        raise NotCapturable(f"the guide has the factor {factor['name']!r}")
    drawn = (node for node in _samples(trace, observed=False) if not node["fn"].has_rsample)
    scored = next((node for node in drawn if node["fn"].log_prob(node["value"]).requires_grad), None)
    if scored is not None:
        raise NotCapturable(f"the guide's site {scored['name']!r} is not reparameterised")


def _samples(trace: Any, *, observed: bool) -> Iterator[Any]:
    return (
        node
        for node in trace.nodes.values()
        if node["type"] == "sample" and bool(node["is_observed"]) == observed and not site_is_subsample(node)
    )


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()


def _joint_log_density(nodes: list[Any]) -> Tensor:
    """Return the log density of all sites; sites of one elementwise family are computed together."""
    families: dict[Any, list[tuple[Tensor, dict[str, Tensor]]]] = {}
    others = []
    for node in nodes:
        member = _elementwise(node)
        if member is None:
            others.append(_log_density(node))
        else:
            key, parameters = member
            families.setdefault(key, []).append((node["value"], parameters))
    return _sum([*others, *(_family_log_density(key[0], members) for key, members in families.items())])


def _joint_divergence(divergence: Callable[[Any, Any], Tensor], pairs: list[tuple[Any, Any]]) -> Tensor:
    """Return the KL of all sites, nodes of guide and model, those under one scale mixture at once."""
    mixtures: dict[Any, list[tuple[Any, Any]]] = {}
    terms = []
    for q, p in pairs:
        law, prior = _elementwise(q), _elementwise(p)
        if divergence is quadrature_kl and law and prior and law[0] == (Normal,) and prior[0] != (Normal,):
            mixtures.setdefault(prior[0], []).append((law[1], p["fn"]))
        else:
            terms.append(_scaled(divergence(q["fn"], p["fn"]), q).double())
    for members in mixtures.values():
        loc, scale = (torch.cat([settings[key].reshape(-1) for settings, _ in members]) for key in ("loc", "scale"))
        prior = base_of(members[0][1])
        terms.append(divergence(dist.Normal(loc, scale, validate_args=False), prior.expand(loc.shape)).sum().double())
    return _sum(terms)


def _elementwise(node: Any) -> tuple[Any, dict[str, Tensor]] | None:
    """Return the family of a site whose entries are independent, with its parameters; None for any other site."""
    base = base_of(node["fn"])
    if node["mask"] is not None or not isinstance(node["scale"], (int, float)) or node["scale"] != 1:
        return None
    if type(base) is ScaleMixtureNormal:
        names = ("pi", "sigma1", "sigma2")
        parameters = {name: getattr(base, name) for name in names}
        if all(value.ndim == 0 for value in parameters.values()):
            return (ScaleMixtureNormal, *map(id, parameters.values())), parameters
    elif isinstance(base, Normal) and type(base).log_prob is Normal.log_prob:
        return (Normal,), {"loc": base.loc, "scale": base.scale}
    return None


def _family_log_density(family: Any, members: list[tuple[Tensor, dict[str, Tensor]]]) -> Tensor:
    value = torch.cat([value.reshape(-1) for value, _ in members])
    parameters = {
        name: first
        if first.ndim == 0 and family is ScaleMixtureNormal
        else torch.cat([each[name].expand(value.shape).reshape(-1) for value, each in members])
        for name, first in members[0][1].items()
    }
    return family(**parameters, validate_args=False).log_prob(value).sum()


def _log_density(node: Any) -> Tensor:
    return _scaled(node["fn"].log_prob(node["value"]), node)


def _scaled(terms: Tensor, node: Any) -> Tensor:
    if node["mask"] is not None:
        terms = torch.where(torch.as_tensor(node["mask"], device=terms.device), terms, torch.zeros_like(terms))
    scale = node["scale"]
    return (terms * scale).sum() if isinstance(scale, Tensor) and scale.ndim else terms.sum() * scale


class FreshNoise(TorchFunctionMode):
    """Draws `tensor.normal_()` and `tensor.uniform_()` as new tensors, since vmap takes no in-place random operation.

    Masks of dropout keep their layout. Code that uses the tensor drawn into, not the value returned, is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn_into: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.numpy, Tensor.__array__, Tensor.tolist):
            raise NotCapturable("the model turns a tensor into an array or a list")
        if any(argument is tensor for argument in tree_leaves((args, kwargs)) for tensor in self._drawn_into):
            raise NotCapturable("the model uses a tensor after drawing into it: use the value that the call returns")
        if func is nn.functional.dropout:
            return _dropout(*args, **kwargs)
        if func in (Tensor.normal_, Tensor.uniform_):
            if kwargs.pop("generator", None) is not None:
                raise NotCapturable("the model draws from another generator than that of torch")
            self._drawn_into.append(args[0])
            return (_normal if func is Tensor.normal_ else _uniform)(*args, **kwargs)
        return func(*args, **kwargs)


def _normal(like: Tensor, mean: Any = 0.0, std: Any = 1.0) -> Tensor:
    return torch.randn_like(like) * std + mean


def _uniform(like: Tensor, low: Any = 0.0, high: Any = 1.0, **bounds: Any) -> Tensor:
    low, high = bounds.get("from", low), bounds.get("to", high)
    return torch.rand_like(like) * (high - low) + low


def _dropout(input: Tensor, p: float = 0.5, training: Any = True, inplace: Any = False) -> Tensor:  # noqa: FBT002
    if inplace or not training or not 0 < p < 1:
        return nn.functional.dropout(input, p, training=training, inplace=inplace)
    order, back = memory_order(torch.empty_like(input))
    mask = torch.bernoulli(input.new_empty([input.shape[d] for d in order]), 1 - p).permute(back)
    return input * (mask / (1 - p))


def memory_order(value: Tensor) -> tuple[list[int], list[int]]:
    """Return the dimensions of a tensor from the outermost in memory to the innermost, and how to permute them back."""
    order = sorted(range(value.ndim), key=value.stride, reverse=True)
    return order, [order.index(dimension) for dimension in range(value.ndim)]
