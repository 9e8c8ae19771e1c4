"""Stochastic variational inference as a method for `fit`: the settings, and the loop that follows them."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from pyrobnn import guides
from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import setting
from pyrobnn._core.verbs import verb
from pyrobnn.bnn import BNN
from pyrobnn.inference.svi.objective import KL
from pyrobnn.optimizers import resolve_optimizer, resolve_schedule
from pyrobnn.posterior.posterior import Posterior

Count = Annotated[int, Field(gt=0)]


@setting
class SVI:
    """Maximise the ELBO, E_q[log p(D|w)] - KL(q || p), by stochastic gradients.

    Attributes:
        guide: the family of q: a guide, its name, the name of a Pyro autoguide, or a mapping from site-name patterns.
        steps: number of optimiser steps; 2000 if neither `steps` nor `epochs` is given.
        epochs: number of passes over the data, instead of steps.
        lr: learning rate.
        batch_size: examples in a mini-batch; None for all of them at every step.
        optimizer: an optimiser of `torch.optim` by name, or a table with `type` and its options.
        schedule: a schedule of `torch.optim.lr_scheduler`, likewise, or None.
        num_particles: draws of the weights for each estimate of the ELBO.
        antithetic: draw particles in pairs, the second from the mirror image of the first's noise (-eps for normal eps,
            1 - u for uniform u): what is odd in the noise then cancels. `num_particles` must be even.
        kl: "mc" estimates the KL from the same draws (`Trace_ELBO`), "analytic" uses its closed form
            (`TraceMeanField_ELBO`) and refuses guides and priors that have none. "quadrature" uses the closed form or,
            for an independent normal guide with a prior that has none, one-dimensional quadrature for each weight: the
            KL of a mixture prior without the noise of "mc".
        temperature: factor on the KL; 1 is Bayes, less than 1 a cold posterior.
        clip_norm: bound on the norm of the gradient of all parameters together, or None for none.
        kl_warmup: number of first steps over which the factor on the KL grows from 0 to the temperature.
        patience: stop after this many evaluations of the validation score without a new best, and go back to the best.
        eval_every: steps between evaluations of the validation score.
    """

    guide: Annotated[Any, BeforeValidator(guides.resolve)] = guides.MeanField()
    steps: Count | None = None
    epochs: Count | None = None
    lr: Annotated[float, Field(gt=0)] = 0.01
    batch_size: Count | None = None
    optimizer: Annotated[Any, BeforeValidator(resolve_optimizer)] = resolve_optimizer("adam")
    schedule: Annotated[Any, BeforeValidator(resolve_schedule)] = None
    num_particles: Count = 1
    antithetic: bool = False
    kl: KL = "mc"
    temperature: Annotated[float, Field(gt=0)] = 1.0
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    kl_warmup: Annotated[int, Field(ge=0)] = 0
    patience: Count | None = None
    eval_every: Count = 100
    resumable: ClassVar[bool] = True
    follows_validation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse two lengths at once, and a particle without a pair."""
        if self.steps is not None and self.epochs is not None:
            raise InputError("SVI: give `steps` or `epochs`, not both.")
        if self.antithetic and self.num_particles % 2:
            raise InputError(
                "SVI: `antithetic` draws particles in pairs, so `num_particles` must be even, got "
                f"{self.num_particles}."
            )

    def run(self, bnn: BNN, data: Any, **arguments: Any) -> Posterior:
        """Fit one posterior; the arguments are those of `pyrobnn.fit`."""
        posterior: Posterior = verb("inference.alone:fit_by_svi")(bnn, self, data, **arguments)
        return posterior

    def num_steps(self, batches_per_epoch: int) -> int:
        """Return the number of optimiser steps for an epoch of that many batches."""
        return self.epochs * batches_per_epoch if self.epochs is not None else self.steps or 2000

    def kl_weight(self, step: int) -> float:
        """Return the factor on the KL at a step, counted from 0."""
        ramp = min(1.0, (step + 1) / self.kl_warmup) if self.kl_warmup else 1.0
        return self.temperature * ramp
