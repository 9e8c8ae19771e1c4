"""The site at fault when the ELBO of a fit ceases to be finite."""

import warnings
from collections.abc import Iterator
from typing import Any

from pyro import poutine
from torch import Tensor

from pyrobnn._core.random import random_state, set_random_state
from pyrobnn.data.batches import Batch
from pyrobnn.inference.training.state import TrainingState


def explain(fit: TrainingState, num_steps: int) -> str:
    """Do the steps again, eagerly, after which a fit had failed, and say in words what is not finite first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pyro warns of NaN, which is looked for here
        for _ in range(num_steps):
            noise, batch = random_state(), next(fit.batches)
            terms = fit.differentiate(batch)
            gradients = (p.grad for p in fit.parameters if p.grad is not None)
            if not all(bool(values.isfinite().all()) for values in (terms, *gradients)):
                set_random_state(noise)
                return next(_findings(fit, batch), "no single site is to blame")
            fit.update()
    if not fit.is_finite():
        return "the update of the optimiser is not finite, though the gradient is"
    return "with other rounding the same steps are finite: the fit is at the edge of what its precision can hold"


def _findings(fit: TrainingState, batch: Batch) -> Iterator[str]:
    """Yield what is not finite in a step: the guide's sites, the model's, and then gradients."""
    guide_trace = poutine.trace(fit.guide).get_trace(*batch, num_data=fit.num_data)
    for name, node in _sites(guide_trace):
        yield from _bad(f"the guide's draw at site {name!r}", node["value"])
        if node["value"].requires_grad:
            node["value"].retain_grad()
        yield from _bad(f"the guide's log density at site {name!r}", node["fn"].log_prob(node["value"]))
    model_trace = poutine.trace(poutine.replay(fit.bnn, trace=guide_trace)).get_trace(*batch, num_data=fit.num_data)
    for name, node in _sites(model_trace):
        density = node["fn"].log_prob(node["value"])
        count = f" for {int((~density.isfinite()).sum())} of {density.numel()} examples" if name == "y" else ""
        kind = "log-likelihood" if node["is_observed"] else "log prior density"
        yield from (f"{text}{count}" for text in _bad(f"the {kind} at site {name!r}", density))
    (model_trace.log_prob_sum() - guide_trace.log_prob_sum()).backward()
    for name, node in _sites(guide_trace):
        yield from _bad(f"the gradient at site {name!r}", node["value"].grad if node["value"].requires_grad else None)
    for name, parameter in fit.trained.named_parameters():
        yield from _bad(f"the gradient of the parameter {name.partition('.')[2]!r}", parameter.grad)


def _bad(name: str, values: Tensor | None) -> Iterator[str]:
    """Yield a clause with the first of some values that is not finite, if there is one."""
    if values is not None and not values.isfinite().all():
        yield f"{name} is {float(values.detach()[~values.detach().isfinite()].reshape(-1)[0])}"


def _sites(trace: Any) -> list[tuple[str, Any]]:
    return [
        (name, node)
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and isinstance(node["value"], Tensor) and name != "data"
    ]
