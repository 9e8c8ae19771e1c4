"""The eager engine: one optimiser step of SVI through Pyro's own ELBO."""

from collections.abc import Callable

from pyro.nn import PyroModule
from torch import Tensor

from pyrobnn._errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.inference.batches import Batch
from pyrobnn.inference.objective import WeightLatents, check_analytic, make_elbo
from pyrobnn.inference.svi import SVI

Step = Callable[[Batch, float], tuple[Tensor, Tensor]]
"""From a batch and the weight of the KL to the estimated log-likelihood and KL, after one update."""


def make_eager_step(bnn: BNN, guide: PyroModule, method: SVI, example: Batch, *, num_data: int, num_steps: int) -> Step:
    """Return the function that does one update of the parameters of model and guide.

    Raises:
        InputError: kl="analytic" without a closed form, or nothing to optimise.
    """
    parameters = [p for p in (*bnn.parameters(), *guide.parameters()) if p.requires_grad]
    if not parameters:
        raise InputError("There is nothing to optimise: model and guide have no parameters.")
    if method.kl == "analytic":
        names = {"guide_name": repr(method.guide), "prior_name": repr(bnn.settings["prior"])}
        check_analytic(bnn, guide, example, **names)
    elbo = make_elbo(method.kl, method.num_particles)
    optimizer = method.optimizer.build(parameters, lr=method.lr)
    schedule = method.schedule.build(optimizer, num_steps) if method.schedule else None

    def step(batch: Batch, kl_weight: float) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad(set_to_none=True)
        with WeightLatents(kl_weight):
            loss = elbo.differentiable_loss(bnn, guide, *batch, num_data=num_data)
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        return elbo.log_likelihood, elbo.kl

    return step
