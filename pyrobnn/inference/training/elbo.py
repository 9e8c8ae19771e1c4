"""The objective of SVI: Pyro's ELBO, with a weight on the KL, and its two terms noted."""

from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer import Trace_ELBO
from pyro.infer.trace_elbo import _compute_log_r
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import kl_divergence

from pyrobnn._core.errors import InputError, NotCapturable
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.distributions.latents import ScaleMixtureNormal
from pyrobnn.distributions.support import base_of
from pyrobnn.guides.base import built
from pyrobnn.guides.divergence import DIVERGENCES, KL
from pyrobnn.guides.joint import RealPart
from pyrobnn.inference.capture.objective import check_reparameterized
from pyrobnn.priors.scale_mixture import tabulate

_NEEDS = {
    "analytic": "a closed form at every site, and there is none",
    "quadrature": "a normal guide, with a prior of independent entries on all reals, or a closed form at every site, "
    "and has neither",
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

    It keeps log-likelihood and KL of the latest evaluation in float64, averaged over particles. The two are summed
    apart: their difference would lose the smaller one to rounding.
    """

    log_likelihood: Tensor  # E_q[log p(D | w)] as estimated, ()
    kl: Tensor  # KL(q || p) as estimated, ()

    def __init__(self, kl: KL, num_particles: int) -> None:
        super().__init__(num_particles=num_particles)
        self._divergence = DIVERGENCES.get(kl)  # KL(q || p) of a site without its draw

    def _get_traces(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        noted = []
        for model_trace, guide_trace in super()._get_traces(model, guide, args, kwargs):
            if self._divergence is not None:
                for node in _latents(model_trace):
                    drawn = guide_trace.nodes[node["name"]]
                    drawn["divergence"] = self._divergence(drawn["fn"], node["fn"])
            with torch.no_grad():
                noted.append((_log_likelihood(model_trace), self._kl(model_trace, guide_trace)))
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
        if self._divergence is not None:
            drawn = (guide_trace.nodes[node["name"]] for node in _latents(model_trace))
            return torch.stack([node["divergence"].sum().double() for node in drawn]).sum()
        log_q = [_unweighted(node) for node in guide_trace.nodes.values() if node["type"] == "sample"]
        log_p = [_unweighted(node) for node in _latents(model_trace)]
        return torch.stack(log_q).sum() - torch.stack(log_p).sum()


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
    for node in _latents(model_trace):
        drawn = guide_trace.nodes[node["name"]]
        loss = loss + scale_and_mask(drawn["divergence"], scale=drawn["scale"], mask=drawn["mask"]).sum()
    return loss.detach(), loss


def _log_likelihood(model_trace: Any) -> Tensor:
    observed = [node["log_prob_sum"] for node in model_trace.nodes.values() if node.get("is_observed")]
    return torch.stack([term.double() for term in observed]).sum()


def _latents(model_trace: Any) -> list[Any]:
    nodes = model_trace.nodes.values()
    return [n for n in nodes if n["type"] == "sample" and not n["is_observed"] and not site_is_subsample(n)]


def _unweighted(node: Any) -> Tensor:
    return node["log_prob_sum"].detach().double() / node["scale"]


def check_divergence(bnn: BNN, guide: PyroModule, setting: Any, kl: KL, example: Batch) -> None:
    """Refuse a KL without draws where guide and prior of a site have none, as through auxiliary sites."""
    if follows_draws(guide):
        raise InputError(f"{setting!r} follows log q along its draws, which kl={kl!r} has none of: use kl='mc'.")
    name = site_without(bnn, guide, example, kl=kl)
    if name is not None:
        raise InputError(
            f"kl={kl!r} needs {_NEEDS[kl]} at {name!r} for the guide {setting!r} with the prior "
            f"{bnn.settings['prior']!r}: use kl='mc'."
        )


def choose_kl(bnn: BNN, guide: PyroModule, example: Batch) -> KL:
    """Return how the KL of guide and prior is best estimated.

    "analytic" where every site has a closed form; "quadrature" where the others have a table, as a fixed `ScaleMixture`
    has. Nodes at each step, for learned mixtures and Student's t, cost more than they gain.
    """
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
