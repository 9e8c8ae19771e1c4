"""Compiling a recorded graph with inductor, without Dynamo: to C++ on a CPU, to replayed kernels on a GPU."""

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch import config as functorch_config
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.utils import BoxedBool
from torch._inductor.virtualized import V

from pyrobnn.inference.capture.errors import NotCapturable
from pyrobnn.inference.capture.record import ATEN_RANDOM

_ON_CPU = {
    "compile_threads": 1,
    "cpp_wrapper": True,
    "cpp.enable_floating_point_contract_flag": "fast",
    "aot_inductor.allow_stack_allocation": True,
}
_WITHOUT_STACK = {"aot_inductor.allow_stack_allocation": False}
"""What to compile with where an operation does not take tensors on the stack, as some that change theirs do not."""


def compile_graph(graph: fx.GraphModule, device: torch.device) -> Callable[[list[Tensor]], Any]:
    """Return the compiled graph, a function of the list of its inputs, which it empties.

    Raises:
        NotCapturable: the compiler failed.
    """
    on_cpu = device.type == "cpu"
    attempts = [_ON_CPU, _ON_CPU | _WITHOUT_STACK] if on_cpu else [{}]
    for settings in attempts:
        try:
            with inductor_config.patch(ATEN_RANDOM | settings), _quiet():
                return _compile(copy.deepcopy(graph), on_cpu=on_cpu)
        except Exception as error:
            failure = error
    reason = (str(failure).splitlines() or [""])[0]
    raise NotCapturable(f"the compiler failed ({type(failure).__name__}: {reason})") from failure


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what inductor says about its own workings."""
    logger = logging.getLogger("torch._inductor")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _compile(graph: fx.GraphModule, *, on_cpu: bool) -> Callable[[list[Tensor]], Any]:
    examples = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    fake_mode = examples[0].fake_mode
    with (
        torch.no_grad(),
        functorch_config.patch(bundled_autograd_cache=False),
        tracing(TracingContext(fake_mode)),
        V.set_fake_mode(fake_mode),
    ):
        joint_graph_passes(graph)
        return compile_fx_inner(
            graph,
            examples,
            static_input_idxs=range(len(examples)),
            cudagraphs=BoxedBool(not on_cpu),
            cpp_wrapper=on_cpu,
        )
