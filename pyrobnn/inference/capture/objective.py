"""The objective of SVI: Pyro's ELBO, with a weight on the KL, and its two terms noted."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer import Trace_ELBO
from pyro.infer.trace_elbo import _compute_log_r
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.overrides import TorchFunctionMode

from pyrobnn._core.errors import InputError, NotCapturable
from pyrobnn._torch.private import tree_leaves
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.distributions.latents import ScaleMixtureNormal
from pyrobnn.distributions.support import base_of
from pyrobnn.guides.base import built
from pyrobnn.guides.divergence import DIVERGENCES, KL, quadrature_kl
from pyrobnn.guides.joint import RealPart
from pyrobnn.priors.scale_mixture import tabulate

_NEEDS = {
    "analytic": "a closed form at every site, and there is none",
    "quadrature": "a closed form, or a normal guide and a prior of independent entries on all reals, and has neither",
}


class WeightLatents(Messenger):
    """Multiplies the log densities of latent sites by a weight: the ELBO is E_q[log p(D|w)] - weight * KL(q || p)."""

    def __init__(self, weight: float | Tensor) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.weight


class ELBO(Trace_ELBO):
    """Pyro's ELBO, with its KL from draws or, for another `kl`, in closed form or by quadrature, never from draws.

    It keeps log-likelihood and KL of the latest evaluation, (), in float64, averaged over particles.
    """

    log_likelihood: Tensor
    kl: Tensor

    def __init__(self, kl: KL, num_particles: int) -> None:
        super().__init__(num_particles=num_particles)
        self._divergence = DIVERGENCES.get(kl)  # KL(q || p) of a site without its draw

    def _get_traces(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        noted = []
        for model_trace, guide_trace in super()._get_traces(model, guide, args, kwargs):
            if self._divergence is not None:
                for node in _samples(model_trace, observed=False):
                    drawn = guide_trace.nodes[node["name"]]
                    drawn["divergence"] = self._divergence(drawn["fn"], node["fn"])
            with torch.no_grad():
                log_likelihood = _sum(node["log_prob_sum"].double() for node in _samples(model_trace, observed=True))
                noted.append((log_likelihood, self._kl(model_trace, guide_trace)))
            yield model_trace, guide_trace
        self.log_likelihood, self.kl = (torch.stack(terms).mean(0) for terms in zip(*noted, strict=True))

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return minus the ELBO, (), with the gradient of Pyro's surrogate; nothing is read back from the device."""
        loss, surrogate = torch.zeros(()), torch.zeros(())
        particles = _of_draws if self._divergence is None else _of_divergences
        for traces in self._get_traces(model, guide, args, kwargs):
            value, particle = particles(*traces)
            loss = loss + value / self.num_particles
            surrogate = surrogate + particle / self.num_particles
        return loss + (surrogate - surrogate.detach())

    def _kl(self, model_trace: Any, guide_trace: Any) -> Tensor:
        latent = list(_samples(model_trace, observed=False))
        if self._divergence is not None:
            return _sum(guide_trace.nodes[node["name"]]["divergence"].sum().double() for node in latent)
        log_q = (_unweighted(node) for node in guide_trace.nodes.values() if node["type"] == "sample")
        return _sum(log_q) - _sum(map(_unweighted, latent))


def _of_draws(model_trace: Any, guide_trace: Any) -> tuple[Tensor, Tensor]:
    """Return minus the ELBO of a particle without a gradient, and what has its gradient, both scalars."""
    log_p = [node["log_prob_sum"] for node in model_trace.nodes.values() if node["type"] == "sample"]
    drawn = [node for node in guide_trace.nodes.values() if node["type"] == "sample"]
    surrogate, log_r = sum(log_p), None
    for node in drawn:
        _, score_function, entropy = node["score_parts"]
        if not is_identically_zero(entropy):
            surrogate = surrogate - entropy.sum()
        if not is_identically_zero(score_function):
            log_r = _compute_log_r(model_trace, guide_trace) if log_r is None else log_r
            surrogate = surrogate + (log_r.sum_to(node["cond_indep_stack"]) * score_function).sum()
    with torch.no_grad():
        loss = sum(node["log_prob_sum"] for node in drawn) - sum(log_p)
    return loss, -surrogate


def _of_divergences(model_trace: Any, guide_trace: Any) -> tuple[Tensor, Tensor]:
    """Return the same where each site has its divergence."""
    loss = -sum(node["log_prob_sum"] for node in model_trace.nodes.values() if node.get("is_observed"))
    for node in _samples(model_trace, observed=False):
        drawn = guide_trace.nodes[node["name"]]
        loss = loss + scale_and_mask(drawn["divergence"], scale=drawn["scale"], mask=drawn["mask"]).sum()
    return loss.detach(), loss


def _unweighted(node: Any) -> Tensor:
    return node["log_prob_sum"].detach().double() / node["scale"]


def check_divergence(bnn: BNN, guide: PyroModule, setting: Any, kl: KL, example: Batch) -> None:
    """Refuse a KL without draws where guide and prior of a site have none, as through auxiliary sites."""
    if follows_draws(guide):
        raise InputError(f"{setting!r} follows log q along its draws, which kl={kl!r} has none of: use kl='mc'.")
    name = site_without(bnn, guide, example, kl=kl)
    if name is not None:
        parts = f"the guide {setting!r} with the prior {bnn.settings['prior']!r}"
        raise InputError(f"kl={kl!r} needs {_NEEDS[kl]} at {name!r} for {parts}: use kl='mc'.")


def choose_kl(bnn: BNN, guide: PyroModule, example: Batch) -> KL:
    """Return "analytic" where every site has a closed form; "quadrature" where the others have a table; else "mc"."""
    try:
        check_reparameterized(guide, *example)
    except NotCapturable:
        return "mc"
    if follows_draws(guide):
        return "mc"
    if site_without(bnn, guide, example, kl="analytic") is None:
        return "analytic"
    tabulate(bnn)
    return "mc" if site_without(bnn, guide, example, kl="quadrature", tabled=True) else "quadrature"


def follows_draws(guide: Any) -> bool:
    """Return whether a part of the guide has the gradient of log q along its draws alone."""
    parts = (module for module in guide.modules() if isinstance(module, PyroModule))
    return any(built(part).path_derivative for part in parts)


def site_without(model: Any, guide: Any, args: Any, *, kl: KL, tabled: bool = False) -> str | None:
    """Return the first site whose guide and prior have no such KL, or with `tabled` no closed form and no table."""
    guide_trace, model_trace = _run(model, guide, args)
    for name, node in guide_trace.nodes.items():
        if node["type"] != "sample":
            continue
        try:
            if node["infer"].get("is_auxiliary"):
                raise NotImplementedError
            prior = model_trace.nodes[name]["fn"]
            divergence, law = DIVERGENCES[kl](node["fn"], prior), base_of(prior)
            if tabled and not (isinstance(law, ScaleMixtureNormal) and law.table is not None):
                kl_divergence(node["fn"], prior)
            if isinstance(node["fn"], RealPart):
                guide_trace, model_trace = _run(model, guide, args)  # a joint guide may tie the prior to another site
                again = DIVERGENCES[kl](guide_trace.nodes[name]["fn"], model_trace.nodes[name]["fn"])
                if not torch.equal(divergence, again):
                    raise NotImplementedError
        except NotImplementedError:
            return str(name)
    return None


def _run(model: Any, guide: Any, args: Any) -> tuple[Any, Any]:
    with torch.no_grad(), poutine.block():
        guide_trace = poutine.trace(guide).get_trace(*args)
        return guide_trace, poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args)


class Objective(nn.Module):
    """The two terms of the ELBO for one draw of the guide, equal to Pyro's `Trace_ELBO` for the same noise.

    Densities of sites of one family are computed together on the concatenated values.
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
        parameters = {name: getattr(base, name) for name in ("pi", "sigma1", "sigma2")}
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
    """Draws `normal_()` and `uniform_()` as new tensors, as vmap needs; use of the one drawn into is refused."""

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
