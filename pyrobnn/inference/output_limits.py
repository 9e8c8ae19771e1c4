"""Limits of the outputs of a network, compared before a fit with what the likelihood expects."""

import random
from typing import Any

import torch
from torch import Tensor, nn

from pyrobnn._core.errors import PoorFitWarning, warn_user
from pyrobnn._torch.inputs import X
from pyrobnn.bnn import BNN
from pyrobnn.likelihoods.base import limits

_MOST_DRAWS, _FEWEST_DRAWS = 16, 6
"""Number of weights to try before the outputs count as limited: about half of them flip the sign of an output."""
_WIDE, _WIDEST = 3.0, 30.0
"""Standard deviations of factors on weights and of biases: in the first layers, and in the last, in units of y."""


def warn_of_limits(bnn: BNN, x: X, f: Tensor, y: Tensor) -> None:
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


def _outputs_elsewhere(bnn: BNN, x: X, chance: random.Random, size: float) -> Tensor | None:
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


def _ending(bnn: BNN, x: X) -> str | None:
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
