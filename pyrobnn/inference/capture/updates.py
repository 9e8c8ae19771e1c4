"""The updates of torch's optimisers as pure functions of tensors, with the names and the state that torch gives them.

Each follows the pseudocode in the documentation of its class in `torch.optim`. The learning rate is a tensor, so that a
schedule can change it between two runs of a recorded graph; the other settings are constants.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]
Update = Callable[[Tensor, Tensor, State, Tensor, Mapping[str, Any]], tuple[Tensor, State]]
"""From a parameter, its gradient, its state, the learning rate and the settings to the new parameter and state."""


def adam(value: Tensor, gradient: Tensor, state: State, lr: Tensor, group: Mapping[str, Any]) -> tuple[Tensor, State]:
    """Return Adam's update (Kingma and Ba 2015), or AdamW's (Loshchilov and Hutter 2019) if the group decouples."""
    beta1, beta2 = group["betas"]
    if group["decoupled_weight_decay"]:
        value = value * (1 - lr * group["weight_decay"])
    else:
        gradient = _decayed(value, gradient, group)
    step = state["step"] + 1
    first = torch.lerp(state["exp_avg"], gradient, 1 - beta1)
    second = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient.square()
    new = {"step": step, "exp_avg": first, "exp_avg_sq": second}
    if group["amsgrad"]:
        second = new["max_exp_avg_sq"] = torch.maximum(state["max_exp_avg_sq"], second)
    correction1, correction2 = (_bias_correction(beta, step).to(value.dtype) for beta in (beta1, beta2))
    denominator = second.sqrt() / correction2.sqrt() + group["eps"]
    return value - lr / correction1 * first / denominator, new


def sgd(value: Tensor, gradient: Tensor, state: State, lr: Tensor, group: Mapping[str, Any]) -> tuple[Tensor, State]:
    """Return the update of gradient descent with weight decay, momentum and Nesterov's momentum."""
    gradient = _decayed(value, gradient, group)
    new = {}
    if group["momentum"]:
        velocity = group["momentum"] * state["momentum_buffer"] + (1 - group["dampening"]) * gradient
        new["momentum_buffer"] = velocity
        gradient = gradient + group["momentum"] * velocity if group["nesterov"] else velocity
    return value - lr * gradient, new


def rmsprop(
    value: Tensor, gradient: Tensor, state: State, lr: Tensor, group: Mapping[str, Any]
) -> tuple[Tensor, State]:
    """Return the update of RMSProp (Tieleman and Hinton 2012), centred or with momentum if the group says so."""
    gradient = _decayed(value, gradient, group)
    square = group["alpha"] * state["square_avg"] + (1 - group["alpha"]) * gradient.square()
    new = {"step": state["step"] + 1, "square_avg": square}
    if group["centered"]:
        new["grad_avg"] = torch.lerp(state["grad_avg"], gradient, 1 - group["alpha"])
        square = square - new["grad_avg"].square()
    gradient = gradient / (square.sqrt() + group["eps"])
    if group["momentum"]:
        gradient = new["momentum_buffer"] = group["momentum"] * state["momentum_buffer"] + gradient
    return value - lr * gradient, new


UPDATES: dict[type, Update] = {
    torch.optim.Adam: adam,
    torch.optim.AdamW: adam,
    torch.optim.SGD: sgd,
    torch.optim.RMSprop: rmsprop,
}


def clip(gradients: dict[str, Tensor], max_norm: float) -> dict[str, Tensor]:
    """Return gradients scaled so that their joint norm is at most max_norm, as `torch.nn.utils.clip_grad_norm_` does."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return {name: gradient * factor for name, gradient in gradients.items()}


def _decayed(value: Tensor, gradient: Tensor, group: Mapping[str, Any]) -> Tensor:
    gradient = -gradient if group["maximize"] else gradient
    return gradient + group["weight_decay"] * value if group["weight_decay"] else gradient


def _bias_correction(beta: float, step: Tensor) -> Tensor:
    return 1 - torch.pow(beta, step.double())
