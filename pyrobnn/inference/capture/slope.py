"""Values and gradients of a function without noise, recorded once and replayed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from pyrobnn._torch.private import MissingFromTorch, sources_forgotten
from pyrobnn.inference.capture.errors import NotCapturable
from pyrobnn.inference.capture.record import lift_constants
from pyrobnn.inference.capture.replay import record_as_run, replay
from pyrobnn.inference.capture.step import drop_unused


def recorded_slope(
    function: Callable[[dict[str, Tensor]], Tensor], tensors: dict[str, Tensor]
) -> Callable[[], Tensor] | None:
    """Return a function that gives terms, and the gradient of their sum, at the tensors as they are.

    Other tensors that the function reads may be changed in place later on. Only a CPU replays without Python: None on
    other devices, and where the function cannot be recorded.

    Args:
        function: returns T terms, of any shape.
        tensors: what it takes, of P entries together.

    Returns:
        A function that returns the terms and the gradient, (T + P,) in float64.
    """
    if any(value.device.type != "cpu" for value in tensors.values()):
        return None
    with torch.no_grad():
        count = function(tensors).numel()
    found = torch.zeros(count + sum(value.numel() for value in tensors.values()), dtype=torch.float64)

    def with_terms(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        terms = function(values)
        return terms.sum(), terms

    def step(*inputs: Tensor) -> tuple[()]:
        *values, out = inputs
        gradients, (_, terms) = grad_and_value(with_terms, has_aux=True)(dict(zip(tensors, values, strict=True)))
        out.copy_(torch.cat([terms.reshape(-1), *(gradients[name].reshape(-1) for name in tensors)]))
        return ()

    inputs = [*(value.detach() for value in tensors.values()), found]
    try:
        with sources_forgotten():
            graph = record_as_run(step, inputs)
            constants = lift_constants(graph)
            inputs = drop_unused(graph, inputs + constants)
            program: Any = replay(graph, found.device)
    except (NotCapturable, MissingFromTorch):
        return None

    def slope() -> Tensor:
        program(inputs)
        return found

    return slope
