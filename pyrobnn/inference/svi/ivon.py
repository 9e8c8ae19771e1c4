"""IVON: mean-field variational inference by natural-gradient steps; the method."""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from pyro import poutine
from torch import Tensor
from torch.distributions import Normal

from pyrobnn import guides
from pyrobnn._core.errors import InputError
from pyrobnn._core.settings import Positive, setting
from pyrobnn.bnn import BNN
from pyrobnn.data.batches import Batch
from pyrobnn.distributions.support import base_of
from pyrobnn.guides.divergence import KL
from pyrobnn.guides.mean_field import MeanFieldGuide
from pyrobnn.inference.method import registry
from pyrobnn.inference.newton import VariationalNewton
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.optimizers import Optimizer, light, resolve_schedule


@registry.register
@setting
class IVON(SVI):
    """Improved variational online Newton (Shen et al. 2024): a mean-field Gaussian, trained by natural gradients.

    It maximises the ELBO as `SVI` does. The mean of each weight moves by its gradient times its variance, as in
    Newton's method, so one learning rate serves data of any size. Parameters without a distribution, such as a learned
    noise scale, are trained by Adam.

    Of the paper's settings, the effective sample size is N / temperature, delta follows from the prior, and h0 from the
    guide, since 1 / softplus(init_rho)^2 = N (h0 + delta). Normal priors enter exactly. Any other prior is a part of
    the loss, by quadrature; kl="mc" takes it at the draws, which is needed where the prior adds constrained sites.

    Attributes:
        guide: `MeanField`; `init_rho` is the start of all standard deviations, and so of the size of steps.
        lr: learning rate of the means: 1 is a whole Newton step. Lower it where the ELBO jumps about.
        optimizer: leave it out.
        schedule: as in `SVI`; by default the rate falls to 0 along half a cosine, and 1 - beta2 and the rate of Adam
            follow in proportion. None in a fit of a given length keeps them constant, as in the paper.
        patience: as in `SVI`, like steps, epochs, max_steps, tolerance, batch_size, num_particles, kl, temperature,
            clip_norm, kl_warmup and eval_every.
        adam_lr: learning rate of parameters without a distribution.
        beta1: share of the past in the mean of gradients.
        beta2: share of the past in the precisions, which settle after some 20 / (1 - beta2) steps. In a shorter fit
            standard deviations stay near their start where the data say little: start small then, `init_rho=-5`.
        clip_radius: bound on the Newton step of each mean: no weight moves by more than lr * clip_radius at once.

    Examples:
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1), prior=bnn.priors.Normal(1.0))
        >>> posterior = bnn.fit(model, bnn.datasets.sinusoid(), bnn.IVON(steps=30), seed=0, progress=False)
        >>> len(posterior.history.elbo)
        30
    """

    guide: Annotated[Any, BeforeValidator(guides.resolve)] = guides.MeanField(init_rho=-3.0)
    lr: Positive = 0.3
    schedule: Annotated[Any, BeforeValidator(resolve_schedule)] = resolve_schedule("cosine_annealing_lr")
    kl: KL = "quadrature"
    adam_lr: Positive = 0.01
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(gt=0, lt=1)] = 0.98
    clip_radius: Positive = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.guide, guides.MeanField):
            raise InputError(f"IVON: trains independent normals: use guide='mean_field', got {self.guide!r}.")
        if self.optimizer != Optimizer():
            raise InputError(f"IVON: is an optimiser itself: leave out `optimizer`, got {self.optimizer!r}.")

    def make_optimizer(
        self, bnn: BNN, guide: Any, parameters: Sequence[Tensor], example: Batch
    ) -> torch.optim.Optimizer:
        names = ("lr", "adam_lr", "beta1", "beta2", "clip_radius", "temperature")
        settings = {name: getattr(self, name) for name in names}
        prior = _normal_prior(bnn, guide, example)
        return light(lambda: VariationalNewton(parameters, guide.loc, guide.rho, prior, **settings))


def _normal_prior(bnn: BNN, guide: MeanFieldGuide, example: Batch) -> tuple[Tensor, Tensor]:
    """Return mean and precision of the prior of each entry of the guide, both 0 where it is no fixed normal."""
    with torch.no_grad(), poutine.block():
        nodes = poutine.trace(bnn).get_trace(*example).nodes
    is_fixed = not any(name.startswith("prior.") for name in nodes) and not [*bnn.prior.parameters()]
    means, precisions = [], []
    for name, (loc, _) in guide.moments().items():
        prior = base_of(nodes[name]["fn"])
        is_normal = is_fixed and name in bnn.site_names and isinstance(prior, Normal)
        means.append(prior.loc.expand(loc.shape) if is_normal else torch.zeros_like(loc))
        precisions.append(prior.scale.expand(loc.shape) ** -2 if is_normal else torch.zeros_like(loc))
    mean, precision = (torch.cat([part.detach().reshape(-1) for part in parts]) for parts in (means, precisions))
    return mean, precision
