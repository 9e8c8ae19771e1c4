"""Running a recorded graph many times in a row: without Python between steps where that is possible."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.private import MissingFromTorch, sources_forgotten, written
from pyrobnn.inference.capture.record import drop_unused, lift_constants, record, slope
from pyrobnn.tape.plan import Tape

Loop = Callable[[int], None]
MakeLoop = Callable[[fx.GraphModule, list[Tensor]], Loop]
_WARM_UP = 3
"""Runs before a CUDA graph is recorded, in which libraries set themselves up."""
_log = logging.getLogger("pyrobnn")


def make_loop(graph: fx.GraphModule, inputs: list[Tensor]) -> Loop:
    """Return a function that runs a graph on the same inputs a number of times.

    On a CPU it is a tape of instructions that a C++ library runs. On a GPU the kernels of a step are recorded once and
    launched together. Without a C++ compiler, or where a tape cannot tell what a tensor shows, the operations run one
    by one, from Python.

    Args:
        graph: as `record` makes it.
        inputs: the tensors that it reads and changes; they stay where they are.
    """
    device = inputs[0].device.type
    if device == "cuda":
        return _cuda_loop(graph, inputs)
    if device == "cpu":
        try:
            return Tape(graph, inputs).run
        except NotCapturable as error:
            _log.warning("Steps run operation by operation, many times slower: %s.", error)
    return interpreted(graph, inputs)


def interpreted(graph: fx.GraphModule, inputs: list[Tensor]) -> Loop:
    """Return a function that runs the operations of a graph one by one, from Python."""

    def loop(num_steps: int) -> None:
        with torch.no_grad():
            for _ in range(num_steps):
                graph(*inputs)

    return loop


def _cuda_loop(graph: fx.GraphModule, inputs: list[Tensor]) -> Loop:
    """Return a loop over a CUDA graph of one step: one call for all of its kernels, and no wait for their end."""
    recorded, run = torch.cuda.CUDAGraph(), interpreted(graph, inputs)
    with torch.cuda.device(inputs[0].device):
        before = [(written(tensor), tensor.clone()) for tensor in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                run(1)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.no_grad():
            for tensor, (mark, value) in zip(inputs, before, strict=True):
                if written(tensor) != mark:
                    tensor.copy_(value)
        try:
            with torch.cuda.graph(recorded):
                run(1)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # an operation that waits for the GPU, such as one that reads a number
            raise NotCapturable(f"a CUDA graph cannot hold the step: {str(error).splitlines()[0]}") from None
    return partial(_launch, recorded, (run, inputs))


def _launch(recorded: Any, kept: Any, num_steps: int) -> None:
    """Launch a graph, which knows its inputs and constants by address alone: they are kept alive."""
    for _ in range(num_steps):
        recorded.replay()


def recorded_slope(
    function: Callable[[dict[str, Tensor]], Tensor], tensors: dict[str, Tensor]
) -> Callable[[], Tensor] | None:
    """Return a function that gives terms, and the gradient of their sum, at the tensors as they are.

    Other tensors that the function reads may be changed in place later on. None where the function cannot be recorded,
    and on devices other than CPUs and CUDA's.

    Args:
        function: returns T terms, of any shape.
        tensors: what it takes, of P entries together.

    Returns:
        A function that returns the terms and the gradient, (T + P,) in float64 on the CPU.
    """
    device = next(iter(tensors.values())).device
    if device.type not in {"cpu", "cuda"}:
        return None
    with torch.no_grad():
        count = function(tensors).numel()
    size = count + sum(value.numel() for value in tensors.values())
    result = torch.zeros(size, dtype=torch.float64, device=device)

    def with_terms(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        terms = function(values)
        return terms.sum(), terms

    def step(*inputs: Tensor) -> tuple[()]:
        *values, out = inputs
        gradients, terms = slope(with_terms, dict(zip(tensors, values, strict=True)))
        out.copy_(torch.cat([terms.reshape(-1), *(gradients[name].reshape(-1) for name in tensors)]))
        return ()

    inputs = [*(value.detach() for value in tensors.values()), result]
    try:
        with sources_forgotten():
            graph = record(step, inputs)
            constants = lift_constants(graph)
            loop = make_loop(graph, drop_unused(graph, inputs + constants))
    except (NotCapturable, MissingFromTorch):
        return None

    def run() -> Tensor:
        loop(1)
        return result.cpu()

    return run
