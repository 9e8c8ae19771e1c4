"""Calls of a network on two examples before a fit: its use of the weights, and the outputs it can reach."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pyrobnn._core.errors import InputError, PoorFitWarning, warn_user
from pyrobnn._core.random import mark, seeded
from pyrobnn._torch.private import written
from pyrobnn.bnn import BNN
from pyrobnn.likelihoods.base import limits

_PAGE = "how-to/own-network"
_ROUNDING = 1e-3
"""Difference of two calls, as a share of the largest output, that the order of sums on a GPU may make."""
_MOST_DRAWS, _FEWEST_DRAWS = 16, 6
"""Number of weights to try before the outputs count as limited: about half of them flip the sign of an output."""
_WIDE, _WIDEST = 3.0, 30.0
"""Standard deviations of factors on weights and of biases: in the first layers, and in the last, in units of y."""


@contextmanager
def trial(bnn: BNN) -> Iterator[None]:
    """Have the network in evaluation mode and without gradients in the block, after which random states are put back.

    So are attributes that are no parameters or buffers, such as an activation that a call leaves behind.
    """
    before = [(module, dict(vars(module))) for module in bnn.modules()]
    with torch.no_grad(), seeded(0, "trial"):
        try:
            bnn.eval()
            yield
        finally:
            for module, attributes in before:
                for name in vars(module).keys() - attributes.keys():
                    del vars(module)[name]
                vars(module).update(attributes)


def tried(bnn: BNN, x: Tensor) -> Tensor:
    """Return the outputs of a network in evaluation mode for copies of its starting weights, after two calls.

    Raises:
        InputError: a call changes the weights, draws random numbers, or does not use the weights.
    """
    leaves = {name: bnn.initial_values[name].detach().clone().requires_grad_() for name in bnn.site_names}
    with torch.enable_grad():
        weights = {name: value.clone() for name, value in leaves.items()}
        before, has_drawn = {name: written(value) for name, value in weights.items()}, mark()
        f = bnn.outputs(weights, x)
        changed = next((name for name, value in weights.items() if written(value) != before[name]), None)
        if changed is not None:
            raise InputError(
                f"The network changes its parameter {changed!r} when it is called, so that it is no longer the "
                "guide's draw: take that out of `forward` and hooks. torch.nn.utils.parametrize computes weights from "
                "other parameters, and a prior bounds them.",
                page=_PAGE,
            )
        if has_drawn() or not _agree(f.detach(), bnn.outputs(weights, x).detach()):
            raise InputError(
                "The network draws random numbers in evaluation mode, or gives other outputs at each call: all draws "
                "of the weights would share them, and predictions would not settle. Have it draw in training only, as "
                "F.dropout(x, training=self.training) does, or not at all.",
                page=_PAGE,
            )
        if leaves and not _is_used(leaves, f):
            raise InputError(
                "The outputs of the network do not follow from its parameters: `forward` uses others, such as those of "
                "the network it was copied from, by a closure or a compiled function that is an attribute, "
                "or it cuts gradients off, by torch.no_grad or detach. Take that out.",
                page=_PAGE,
            )
    return f.detach()


def _agree(f: Tensor, again: Tensor) -> bool:
    tolerance = _ROUNDING * float(f.nan_to_num(posinf=0, neginf=0).abs().max()) if f.numel() else 0.0
    return f.shape == again.shape and torch.allclose(f, again, rtol=0, atol=tolerance, equal_nan=True)


def _is_used(weights: dict[str, Tensor], f: Tensor) -> bool:
    if not f.requires_grad:
        return False
    try:
        gradients = torch.autograd.grad(f.sum(), list(weights.values()), allow_unused=True)
    except RuntimeError:  # of checkpoints, say, which the fit refuses
        return True
    return any(value is not None for value in gradients)


def warn_of_limits(bnn: BNN, x: Tensor, f: Tensor, y: Tensor) -> None:
    """Warn of a network whose outputs cannot reach, at any weights, the values that the likelihood expects.

    Up to sixteen weights, wide and of both signs, are tried. The trial ends once the outputs pass the limit, usually at
    the first weights.

    Args:
        bnn: the model, in evaluation mode.
        x: inputs.
        f: outputs (N, outputs) at the inputs.
        y: targets in the units of the model.
    """
    likelihood = bnn.settings["likelihood"]
    if not f.is_floating_point():
        return
    low, high = f.aminmax(dim=0)
    complaint = limits(likelihood, low, high, y)
    growth = _WIDEST / _WIDE * max(1.0, float(y.abs().max()))
    chance = random.Random(0)
    for draw in range(_MOST_DRAWS):
        if complaint is None:
            return
        moved = _outputs_elsewhere(bnn, x, chance, _WIDE * growth ** (draw / (_MOST_DRAWS - 1)))
        if moved is None:
            if draw < _FEWEST_DRAWS:
                return
            break
        low, high = torch.minimum(low, moved.amin(0)), torch.maximum(high, moved.amax(0))
        complaint = limits(likelihood, low, high, y)
    ending = None if complaint is None else _ending(bnn, x)
    if ending is not None:
        warn_user(
            f"The network ends in {ending}, and its outputs {complaint} See docs/how-to/likelihoods.md.", PoorFitWarning
        )


def _outputs_elsewhere(bnn: BNN, x: Tensor, chance: random.Random, size: float) -> Tensor | None:
    """Return the outputs at other weights, None if they have NaN."""

    def moved(value: Tensor) -> Tensor:
        inputs = value[0].numel() if value.ndim > 1 else 1
        return value.detach() * chance.gauss(0, size) + chance.gauss(0, size) / inputs

    weights = {name: moved(bnn.initial_values[name]) for name in bnn.site_names}
    others = [value for value in bnn.net.parameters() if value.requires_grad]
    starts = [value.data for value in others]
    try:
        for value in others:
            value.data = moved(value)
        f = bnn.outputs(weights, x)
    except (RuntimeError, ValueError):  # of a network that does not take any weights
        return None
    finally:
        for value, start in zip(others, starts, strict=True):
            value.data = start
    return None if bool(f.isnan().any()) else f


def _ending(bnn: BNN, x: Tensor) -> str | None:
    """Name the limit of the outputs, in words; None if they come straight from a linear layer, without a limit."""
    called: list[tuple[str, nn.Module, object]] = []

    def note(name: str) -> Any:
        return lambda module, inputs, output: called.append((name, module, output))

    layers = [(name, module) for name, module in bnn.net.named_modules() if not list(module.children())]
    handles = [module.register_forward_hook(note(name)) for name, module in layers]
    try:
        f = bnn.outputs(bnn.initial_values, x).flatten()
    finally:
        for handle in handles:
            handle.remove()
    ending = "a function in `forward`"
    for name, module, output in reversed(called):
        if not (isinstance(output, Tensor) and torch.equal(output.flatten(), f)):
            break
        if isinstance(module, nn.Linear):
            return None
        if name:
            ending = f"the layer {name!r}, {type(module).__name__}"
    return ending
