"""The optimiser of IVON: natural-gradient steps for a mean-field guide, Adam for other parameters."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import sigmoid, softplus

from pyrobnn._torch.softplus import inverse_softplus
from pyrobnn.optimizers import unwatched


def natural_step(
    pair: tuple[Tensor, Tensor],
    gradients: tuple[Tensor, Tensor],
    state: Mapping[str, Tensor],
    rates: tuple[Tensor, Tensor],
    group: Mapping[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return new means, new rho and new momentum of q = N(loc, softplus(rho)^2) after a step of IVON.

    Shen et al. (2024), algorithm 1, with its h written through the precision of q, H = 1 / sigma^2 = N (h + delta). For
    the loss L, minus the ELBO, d L / d sigma = N g eps + P sigma - 1 / sigma with the prior's precision P = N delta, so
    that N (h_hat - h) = (d L / d sigma) / sigma, and line 5, the step of the Riemannian gradient, reads

        H <- H (1 + r + r^2 / 2),  r = (1 - beta2) sigma (d L / d sigma)

    whatever the prior is. Where it is normal its pull P (loc - mean) stays out of the momentum, as in the paper.
    The pair is loc and rho, (D,) each; the rates are the learning rate, which fell from first_lr, and 1 - beta1^t.
    """
    (loc, rho), (lr, correction) = pair, rates
    scale = softplus(rho)
    change = (
        (1 - group["beta2"]) * lr / group["first_lr"] * scale * gradients[1] / (sigmoid(rho) * group["temperature"])
    )
    scale = scale * torch.rsqrt(1 + change + 0.5 * change.square())
    pull = state["prior_precision"] * (loc - state["prior_mean"])
    momentum = torch.lerp(state["momentum"], gradients[0] / group["temperature"] - pull, 1 - group["beta1"])
    direction = scale.square() * (momentum / correction + pull)
    direction = direction.clamp(-group["clip_radius"], group["clip_radius"])
    return loc - lr * direction, inverse_softplus(scale), momentum


class VariationalNewton(torch.optim.Adam):
    """Adam, apart from the means and spreads of a mean-field guide, which take the steps of IVON.

    `prior` has mean and precision of the prior of each weight, (D,) each; a precision of 0 where it is not normal.
    `adam_lr` is the learning rate of the parameters without a distribution.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        loc: Tensor,
        rho: Tensor,
        prior: tuple[Tensor, Tensor],
        *,
        lr: float,
        adam_lr: float,
        **settings: float,
    ) -> None:
        super().__init__(parameters, lr=lr)
        self.param_groups[0].update(settings, first_lr=lr, adam_factor=adam_lr / lr)
        self._loc, self._rho = loc, rho
        step = torch.zeros(())
        self.state[loc] = {"momentum": torch.zeros_like(loc), "prior_mean": prior[0], "prior_precision": prior[1]}
        self.state[loc]["step"] = step

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group, state, pair = self.param_groups[0], self.state[self._loc], (self._loc, self._rho)
        lr = group["lr"]
        state["step"] += 1
        rates = (self._loc.new_tensor(lr), self._loc.new_tensor(1 - group["beta1"] ** float(state["step"])))
        gradients = tuple(parameter.grad for parameter in pair)
        moved = natural_step(pair, gradients, state, rates, group)  # type: ignore[arg-type]
        for old, new in zip((*pair, state["momentum"]), moved, strict=True):
            old.copy_(new)
        for parameter in pair:
            parameter.grad = None
        group["lr"] = lr * group["adam_factor"]
        unwatched(torch.optim.Adam, "step")(self)
        group["lr"] = lr
        for parameter, gradient in zip(pair, gradients, strict=True):
            parameter.grad = gradient
