"""The updates of torch's optimisers as pure functions of tensors, with the names and the state that torch gives them.

The learning rate and Adam's bias corrections change from step to step and come in as tensors.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import sigmoid, softplus

from pyrobnn._torch.matrices import inverse_softplus
from pyrobnn.optimizers import unwatched

Tensors = dict[str, Tensor]
Moments = dict[str, Tensor]
Group = Mapping[str, Any]
_LOC, _RHO = "guide.loc", "guide.rho"


@dataclasses.dataclass(frozen=True)
class Update:
    """The update of one class of optimisers.

    `apply` takes a parameter, its gradient, its state, the rates (R + 1,), the first of them the learning rate, and the
    settings, and returns the new parameter and state. `rates` gives the others at a step, counted from 1.
    """

    apply: Callable[[Tensor, Tensor, Moments, Tensor, Group], tuple[Tensor, Moments]]
    rates: Callable[[Group, int], tuple[float, ...]] = lambda _group, _step: ()

    def of_all(
        self, values: Tensors, gradients: Tensors, states: dict[str, Moments], rates: Tensor, group: Group
    ) -> tuple[Tensors, dict[str, Moments]]:
        new = {name: self.apply(values[name], gradients[name], states[name], rates, group) for name in values}
        return {name: value for name, (value, _) in new.items()}, {name: state for name, (_, state) in new.items()}


def natural_step(
    pair: tuple[Tensor, Tensor],
    gradients: tuple[Tensor, Tensor],
    state: Mapping[str, Tensor],
    rates: tuple[Tensor, Tensor],
    group: Mapping[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return new means, new rho and new momentum of q = N(loc, softplus(rho)^2) after a step of IVON.

    Shen et al. (2024), algorithm 1, with its h written through the precision of q, H = 1 / sigma^2 = N (h + delta). For
    the loss L, minus the ELBO, line 5 reads H <- H (1 + r + r^2 / 2) with r = (1 - beta2) sigma (d L / d sigma),
    whatever the prior is. Where it is normal its pull P (loc - mean) stays out of the momentum, as in the paper.
    The pair is loc and rho, (D,) each; the rates are the learning rate, which fell from first_lr, and 1 - beta1^t.
    """
    (loc, rho), (lr, correction) = pair, rates
    scale = softplus(rho)
    shrink = (1 - group["beta2"]) * lr / group["first_lr"]
    change = shrink * scale * gradients[1] / (sigmoid(rho) * group["temperature"])
    scale = scale * torch.rsqrt(1 + change + 0.5 * change.square())
    pull = state["prior_precision"] * (loc - state["prior_mean"])
    momentum = torch.lerp(state["momentum"], gradients[0] / group["temperature"] - pull, 1 - group["beta1"])
    direction = scale.square() * (momentum / correction + pull)
    direction = direction.clamp(-group["clip_radius"], group["clip_radius"])
    return loc - lr * direction, inverse_softplus(scale), momentum


class VariationalNewton(torch.optim.Adam):
    """Adam, at the rate `adam_lr`, apart from the means and spreads of a mean-field guide, which take steps of IVON.

    `prior` has mean and precision of the prior of each weight, (D,) each; a precision of 0 where it is not normal.
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


class NewtonUpdate(Update):
    """The update of `VariationalNewton`: IVON for the guide, Adam for other parameters."""

    def of_all(
        self, values: Tensors, gradients: Tensors, states: dict[str, Moments], rates: Tensor, group: Group
    ) -> tuple[Tensors, dict[str, Moments]]:
        lr, correction, *adams = rates.unbind()
        pair, slopes = (values[_LOC], values[_RHO]), (gradients[_LOC], gradients[_RHO])
        loc, rho, momentum = natural_step(pair, slopes, states[_LOC], (lr, correction), group)
        others = {name: value for name, value in values.items() if name not in (_LOC, _RHO)}
        adam_rates = torch.stack([lr * group["adam_factor"], *adams])
        new, memories = super().of_all(others, gradients, states, adam_rates, group)
        return {_LOC: loc, _RHO: rho} | new, {_LOC: {"momentum": momentum}} | memories


def adam(value: Tensor, gradient: Tensor, state: Moments, rates: Tensor, group: Group) -> tuple[Tensor, Moments]:
    """Return Adam's update (Kingma and Ba 2015), or AdamW's (Loshchilov and Hutter 2019) if the group decouples."""
    beta1, beta2 = group["betas"]
    lr, correction, root_correction = rates.unbind()
    if group["decoupled_weight_decay"]:
        value = value * (1 - lr * group["weight_decay"])
        gradient = -gradient if group["maximize"] else gradient
    else:
        gradient = _decayed(value, gradient, group)
    first = torch.lerp(state["exp_avg"], gradient, 1 - beta1)
    second = torch.addcmul(beta2 * state["exp_avg_sq"], gradient, gradient, value=1 - beta2)
    root = second.sqrt() / root_correction + group["eps"]
    return torch.addcdiv(value, lr / correction * first, root, value=-1), {"exp_avg": first, "exp_avg_sq": second}


def bias_corrections(group: Group, step: int) -> tuple[float, float]:
    """Return 1 - beta1^t and the square root of 1 - beta2^t (Kingma and Ba 2015, algorithm 1)."""
    beta1, beta2 = group["betas"]
    return 1 - beta1**step, math.sqrt(1 - beta2**step)


def sgd(value: Tensor, gradient: Tensor, state: Moments, rates: Tensor, group: Group) -> tuple[Tensor, Moments]:
    """Return the update of gradient descent with weight decay, momentum and Nesterov's momentum."""
    gradient = _decayed(value, gradient, group)
    new = {}
    if group["momentum"]:
        velocity = group["momentum"] * state["momentum_buffer"] + (1 - group["dampening"]) * gradient
        new["momentum_buffer"] = velocity
        gradient = gradient + group["momentum"] * velocity if group["nesterov"] else velocity
    return value - rates[0] * gradient, new


UPDATES: dict[type, Update] = {
    torch.optim.Adam: Update(adam, bias_corrections),
    torch.optim.AdamW: Update(adam, bias_corrections),
    torch.optim.SGD: Update(sgd),
    VariationalNewton: NewtonUpdate(
        adam, lambda group, step: (1 - group["beta1"] ** step, *bias_corrections(group, step))
    ),
}


def clip(gradients: dict[str, Tensor], max_norm: float) -> dict[str, Tensor]:
    """Return gradients scaled to a joint norm of at most max_norm, as `torch.nn.utils.clip_grad_norm_` does."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return {name: gradient * factor for name, gradient in gradients.items()}


def _decayed(value: Tensor, gradient: Tensor, group: Group) -> Tensor:
    gradient = -gradient if group["maximize"] else gradient
    return gradient + group["weight_decay"] * value if group["weight_decay"] else gradient
