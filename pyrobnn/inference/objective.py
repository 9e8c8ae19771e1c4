"""The objective of SVI: Pyro's ELBO, with a weight on the KL part and its two terms noted on the way."""

from typing import Any, Literal

import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import kl_divergence

from pyrobnn._errors import InputError

KL = Literal["mc", "analytic"]


class WeightLatents(Messenger):
    """Multiplies the log density of every latent site, in model and guide, by a weight.

    With it the ELBO becomes E_q[log p(D|w)] - weight * KL(q || p): 1 for Bayes, a temperature otherwise, and a ramp
    for KL warm-up.
    """

    def __init__(self, weight: float | Tensor) -> None:
        super().__init__()
        self.weight = weight

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.weight


class _NotesTerms:
    """Keeps log-likelihood and KL of the latest evaluation in float64, averaged over particles.

    The two are summed apart: their difference would lose the smaller one to rounding.
    """

    log_likelihood: Tensor
    kl: Tensor

    def _get_traces(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        noted = []
        for model_trace, guide_trace in super()._get_traces(model, guide, args, kwargs):  # type: ignore[misc]
            with torch.no_grad():
                noted.append((_log_likelihood(model_trace), self._kl(model_trace, guide_trace)))
            yield model_trace, guide_trace
        self.log_likelihood, self.kl = (torch.stack(terms).mean(0) for terms in zip(*noted, strict=True))

    def _kl(self, model_trace: Any, guide_trace: Any) -> Tensor:
        raise NotImplementedError


class NotedTraceELBO(_NotesTerms, Trace_ELBO):
    """`Trace_ELBO` that keeps the terms of its latest evaluation."""

    def _kl(self, model_trace: Any, guide_trace: Any) -> Tensor:
        log_q = [_unweighted(node) for node in guide_trace.nodes.values() if node["type"] == "sample"]
        log_p = [_unweighted(node) for node in _latents(model_trace)]
        return torch.stack(log_q).sum() - torch.stack(log_p).sum()


class NotedTraceMeanFieldELBO(_NotesTerms, TraceMeanField_ELBO):
    """`TraceMeanField_ELBO` that keeps the terms of its latest evaluation."""

    def _kl(self, model_trace: Any, guide_trace: Any) -> Tensor:
        pairs = ((guide_trace.nodes[node["name"]]["fn"], node["fn"]) for node in _latents(model_trace))
        return torch.stack([kl_divergence(q, p).sum().double() for q, p in pairs]).sum()


def _log_likelihood(model_trace: Any) -> Tensor:
    observed = [node["log_prob_sum"] for node in model_trace.nodes.values() if node.get("is_observed")]
    return torch.stack([term.double() for term in observed]).sum()


def _latents(model_trace: Any) -> list[Any]:
    nodes = model_trace.nodes.values()
    return [n for n in nodes if n["type"] == "sample" and not n["is_observed"] and not site_is_subsample(n)]


def _unweighted(node: Any) -> Tensor:
    return node["log_prob_sum"].detach().double() / node["scale"]


def make_elbo(kl: KL, num_particles: int) -> NotedTraceELBO | NotedTraceMeanFieldELBO:
    """Return Pyro's ELBO: the KL estimated from the draws ("mc") or in closed form ("analytic")."""
    cls = NotedTraceMeanFieldELBO if kl == "analytic" else NotedTraceELBO
    return cls(num_particles=num_particles)


def check_analytic(model: Any, guide: Any, args: Any, *, guide_name: str, prior_name: str) -> None:
    """Refuse a closed-form KL where guide and prior of a site have none; the names are for the message.

    A guide that draws through auxiliary sites has none either, though the point masses it ends in seem to.
    """
    with torch.no_grad(), poutine.block():
        guide_trace = poutine.trace(guide).get_trace(*args)
        model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args)
    for name, node in guide_trace.nodes.items():
        if node["type"] != "sample":
            continue
        try:
            if node["infer"].get("is_auxiliary"):
                raise NotImplementedError
            kl_divergence(node["fn"], model_trace.nodes[name]["fn"])
        except NotImplementedError:
            raise InputError(
                f"kl='analytic' needs a closed form at every site, and there is none at {name!r} for the guide "
                f"{guide_name} with the prior {prior_name}: use kl='mc'."
            ) from None
