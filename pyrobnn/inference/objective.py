"""The objective of SVI: Pyro's ELBO, with a weight on the KL part and the log-likelihood noted on the way."""

from typing import Any, Literal

import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.poutine.messenger import Messenger
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


class _NotesLogLikelihood:
    """Keeps the log-likelihood of the latest evaluation, averaged over particles."""

    log_likelihood: Tensor

    def _get_traces(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        total: Any = 0.0
        for model_trace, guide_trace in super()._get_traces(model, guide, args, kwargs):  # type: ignore[misc]
            observed = [node["log_prob_sum"] for node in model_trace.nodes.values() if node.get("is_observed")]
            total = total + sum(term.detach() for term in observed)
            yield model_trace, guide_trace
        self.log_likelihood = total / self.num_particles  # type: ignore[attr-defined]


class NotedTraceELBO(_NotesLogLikelihood, Trace_ELBO):
    """`Trace_ELBO` that keeps the log-likelihood of its latest evaluation."""


class NotedTraceMeanFieldELBO(_NotesLogLikelihood, TraceMeanField_ELBO):
    """`TraceMeanField_ELBO` that keeps the log-likelihood of its latest evaluation."""


def make_elbo(kl: KL, num_particles: int) -> NotedTraceELBO | NotedTraceMeanFieldELBO:
    """Return Pyro's ELBO: the KL estimated from the draws ("mc") or in closed form ("analytic")."""
    cls = NotedTraceMeanFieldELBO if kl == "analytic" else NotedTraceELBO
    return cls(num_particles=num_particles)


def check_analytic(model: Any, guide: Any, args: Any, *, guide_name: str, prior_name: str) -> None:
    """Refuse a closed-form KL where guide and prior of a site have none; the names are for the message."""
    with torch.no_grad(), poutine.block():
        guide_trace = poutine.trace(guide).get_trace(*args)
        model_trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(*args)
    for name, node in guide_trace.nodes.items():
        if node["type"] != "sample" or node["infer"].get("is_auxiliary") or name not in model_trace.nodes:
            continue
        try:
            kl_divergence(node["fn"], model_trace.nodes[name]["fn"])
        except NotImplementedError:
            raise InputError(
                f"kl='analytic' needs a closed form at every site, and there is none at {name!r} for the guide "
                f"{guide_name} with the prior {prior_name}: use kl='mc'."
            ) from None
