"""The eager engine: optimiser steps of SVI through Pyro's own ELBO."""

import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from pyrobnn._errors import InputError
from pyrobnn.bnn import BNN
from pyrobnn.inference.batches import Batch, LoaderBatches, TensorBatches
from pyrobnn.inference.objective import DIVERGENCES, WeightLatents, check_divergence, make_elbo
from pyrobnn.inference.svi import SVI


class Eager:
    """A fit in progress that runs Pyro at each step.

    Args:
        bnn: the model, whose parameters are optimised.
        guide: its guide, likewise.
        method: the settings.
        batches: where batches come from.
        example: a row of data, to check the model with.
        num_data: N.
        num_steps: the length of the fit, for the schedule.

    Raises:
        InputError: a KL without draws where guide and prior have none, or nothing to optimise.
    """

    def __init__(
        self,
        bnn: BNN,
        guide: PyroModule,
        method: SVI,
        batches: TensorBatches | LoaderBatches,
        *,
        example: Batch,
        num_data: int,
        num_steps: int,
    ) -> None:
        self._parameters = [p for p in (*bnn.parameters(), *guide.parameters()) if p.requires_grad]
        if not self._parameters:
            raise InputError("There is nothing to optimise: model and guide have no parameters.")
        if method.kl in DIVERGENCES:
            names = {"guide_name": repr(method.guide), "prior_name": repr(bnn.settings["prior"])}
            check_divergence(bnn, guide, example, kl=method.kl, **names)
        self.bnn, self.guide, self.method, self.batches, self.num_data = bnn, guide, method, batches, num_data
        self.example = example
        self.optimizer = method.optimizer.build(self._parameters, lr=method.lr)
        self.first_settings = {
            k: v for k, v in self.optimizer.param_groups[0].items() if k not in ("params", "initial_lr")
        }
        self._elbo = make_elbo(method.kl, method.num_particles, antithetic=method.antithetic)
        self._schedule = method.schedule.build(self.optimizer, num_steps) if method.schedule else None
        self.done = 0

    def advance(self, num_steps: int) -> Tensor:
        """Do some steps and return the log-likelihood and KL of each, (steps, 2)."""
        return torch.stack([self.step(next(self.batches)) for _ in range(num_steps)])

    def step(self, batch: Batch) -> Tensor:
        """Do a step on a batch and return its log-likelihood and KL, (2,)."""
        self.optimizer.zero_grad(set_to_none=True)
        with WeightLatents(self.method.kl_weight(self.done)):
            loss = self._elbo.differentiable_loss(self.bnn, self.guide, *batch, num_data=self.num_data)
        loss.backward()
        if self.method.clip_norm is not None:
            clip_grad_norm_(self._parameters, self.method.clip_norm)
        self.optimizer.step()
        self._next_rate()
        return torch.stack([self._elbo.log_likelihood, self._elbo.kl])

    def rates(self, num_steps: int) -> list[tuple[float, float]]:
        """Count the next steps as done elsewhere, and return learning rate and factor on the KL of each."""
        return [(self._next_rate(), self.method.kl_weight(self.done - 1)) for _ in range(num_steps)]

    def _next_rate(self) -> float:
        """Return the learning rate of this step, and move on to the next."""
        rate = float(self.optimizer.param_groups[0]["lr"])
        if self._schedule is not None:
            self._schedule.step()
        self.done += 1
        return rate
