"""Stochastic variational inference as a method for `fit`."""

import dataclasses
from typing import Any

from pyrobnn import guides
from pyrobnn._core.settings import setting
from pyrobnn.bnn import BNN
from pyrobnn.guides.base import WIDE
from pyrobnn.inference.method import BaseMethod, Offer, Run, registry
from pyrobnn.inference.training.fits import check_parts, fit_by_svi, fit_side_by_side
from pyrobnn.inference.training.state import StochasticMethod
from pyrobnn.posterior.posterior import Posterior


@registry.register
@setting
class SVI(BaseMethod[Posterior], StochasticMethod):
    """Maximise the ELBO, E_q[log p(D|w)] - KL(q || p), by stochastic gradients.

    See docs/how-to/convergence.md for how long a fit should go on.

    Attributes:
        guide: the family of q: a guide, its name, the name of a Pyro autoguide, or a mapping from site-name patterns.
        steps: number of optimiser steps. Without `steps` and `epochs` the fit ends by itself: it runs cycles of the
            schedule, with twice as many steps while that gains, then at lower rates, until neither gains `tolerance`.
        epochs: number of passes over the data, instead of steps.
        max_steps: steps after which a fit ends that has not converged by itself.
        tolerance: nats that more steps or a lower rate may still gain; None for 0.005 nats an example, less for each
            below 250 examples, and at least 0.05.
        lr: learning rate; for other rates of some parameters write a loop of your own, by `prepare`.
        batch_size: examples in a mini-batch, or "all" for all of them at every step. None: all up to 500, fewer where
            the network has more than 40,000 weights, and 128 of more.
        optimizer: an optimiser of `torch.optim` by name, or a table with `type` and its options.
        schedule: a schedule of `torch.optim.lr_scheduler`, likewise; None for a constant rate, or for a cosine from
            `lr` to 0 in each cycle of a fit that ends by itself.
        num_particles: draws of the weights for each estimate of the ELBO.
        kl: "mc" estimates the KL from the same draws (`Trace_ELBO`), "analytic" uses its closed form
            (`TraceMeanField_ELBO`) and refuses guides and priors that have none. "quadrature" uses the closed form or,
            for an independent normal guide with a prior that has none, one-dimensional quadrature for each weight: the
            KL of a mixture prior without the noise of "mc". "auto": "mc" where the length is given, `steps` or
            `epochs`; else "analytic" where guide and prior have it at every site, "quadrature" where a fixed
            `ScaleMixture` is in the place of a closed form, and "mc" otherwise.
        temperature: factor on the KL; 1 is Bayes, less than 1 a cold posterior.
        clip_norm: bound on the norm of the gradient of all parameters together, or None for none.
        kl_warmup: number of first steps over which the factor on the KL grows from 0 to the temperature.
        patience: stop after this many evaluations of the validation score without a new best, and go back to the best.
        eval_every: steps between evaluations of the validation score.

    Examples:
        >>> method = bnn.SVI(guide="low_rank", steps=30, lr=0.02, batch_size=16)
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1))
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), method, seed=0, progress=False)
        >>> posterior.record.num_steps, posterior.history.elbo.shape
        (30, (30,))
    """

    def offer(self) -> Offer:
        return Offer(
            guide=self.guide,
            follows_validation=True,
            resumable=True,
            goes_on=True,
            wants_measured_scales=self.ends_by_itself,
            starts_at_mode=True,
        )

    def check(self, bnn: BNN, data: Any, run: Run) -> None:
        """Refuse model and data that do not go with the method; a fit of given length does so when it begins."""
        if self.ends_by_itself:
            check_parts(bnn, self, data, run)

    def infer(self, bnn: BNN, data: Any, run: Run) -> Posterior:
        return fit_by_svi(bnn, self, data, run)

    def side_by_side(
        self, bnn: BNN | list[BNN], data: Any, run: Run, *, replicates: int, bootstrap: bool
    ) -> list[Posterior]:
        return fit_side_by_side(bnn, self, data, run, replicates=replicates, bootstrap=bootstrap)

    def bounded(self, steps: int) -> "SVI":
        """Return the method with at most so many steps; they do not widen a narrow start, so it begins wide."""
        if self.steps is not None:
            return dataclasses.replace(self, steps=min(steps, self.steps))
        guide = guides.MeanField(init_rho=WIDE) if self.guide == guides.MeanField() else self.guide
        return dataclasses.replace(self, guide=guide, max_steps=min(steps, self.max_steps))
