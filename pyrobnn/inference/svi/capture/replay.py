"""Steps that are recorded as they run and replayed one operation after the other, without the compiler.

Torch's interpreter of traces calls the same kernels as the eager step. It leaves out Python, autograd and Pyro, which
are nearly all of the eager step of a small network, and is ready in a fraction of a second.
"""

from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

from pyrobnn._core.lock import ignored_warnings
from pyrobnn._torch.private import OperationMode, gradients_without_compiler, private, tree_leaves, tree_map
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.svi.capture.compiler import Program, interpret
from pyrobnn.inference.svi.capture.errors import NotCapturable
from pyrobnn.inference.svi.capture.objective import FreshNoise

_MASKS = (torch.bool, torch.uint8)
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)


def record_as_run(function: Callable[..., tuple[()]], inputs: list[Tensor]) -> fx.GraphModule:
    """Return the graph of the operations that a function does, in place or not, when it is run on its inputs once.

    Inputs that it changes get their values back.

    Raises:
        NotCapturable: what the function does depends on the values of tensors, or cannot be written as a graph.
    """
    recorder = _Recorder(inputs)
    try:
        with torch.no_grad(), fast_pyro(), FreshNoise(), gradients_without_compiler(), recorder:
            function(*inputs)
        recorder.graph.output(())
        graph = fx.GraphModule(recorder.constants, recorder.graph)
        graph.graph.eliminate_dead_code()
        graph.recompile()
    except NotCapturable:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise NotCapturable(f"the model cannot be recorded ({type(error).__name__}: {reason})") from error
    finally:
        recorder.put_back()
    return graph


class _Recorder(OperationMode):
    """Writes the operations in its block into a graph.

    Attributes:
        graph: of all operations so far.
        constants: by name, tensors that were there before and are no inputs.
    """

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.graph, self.constants = fx.Graph(), dict[str, Tensor]()
        self._nodes = private("WeakTensorKeyDictionary")()
        self._inputs = {value.untyped_storage().data_ptr(): value for value in inputs}
        self._before: dict[int, Tensor] = {}
        for index, value in enumerate(inputs):
            self._nodes[value] = self.graph.placeholder(f"input_{index}")
            self._nodes[value].meta["val"] = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _refuse_values(func, args)
        node = self.graph.call_function(func, *tree_map(self._node_of, (args, kwargs)))
        if func._schema.is_mutable:
            self._keep(tree_leaves((args, kwargs)))
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            self._nodes[result] = node
            node.meta["val"] = result if torch.Tag.nondeterministic_seeded in func.tags else None
        elif isinstance(result, (tuple, list)):
            for index, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._nodes[part] = self.graph.call_function(getitem, (node, index))
        return result

    def put_back(self) -> None:
        """Give the inputs that were changed the values that they had."""
        with torch.no_grad():
            for place, value in self._before.items():
                self._inputs[place].copy_(value)

    def _keep(self, values: list[Any]) -> None:
        for value in values:
            place = value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None
            if place in self._inputs and place not in self._before:
                self._before[place] = self._inputs[place].clone()

    def _node_of(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self._nodes[value] = self.graph.get_attr(name)
        return self._nodes[value]


def _refuse_values(func: Any, args: Any) -> None:
    """Refuse operations of which the result, or its shape, is for Python and depends on the values of tensors."""
    indices = args[1] if func in _INDEXING else ()
    is_mask = any(index is not None and index.dtype in _MASKS for index in indices)
    dynamic = torch.Tag.dynamic_output_shape in func.tags and func not in _INDEXING
    if is_mask or dynamic or torch.Tag.data_dependent_output in func.tags:
        raise NotCapturable("the model branches on values of tensors")


def replay(graph: fx.GraphModule, device: torch.device) -> Program:
    """Return a program that runs the operations one by one, on a CPU without a step through Python between them.

    Raises:
        NotCapturable: torch's interpreter does not take an operation.
    """
    if device.type != "cpu":
        return interpret(graph, device)
    examples = tuple(_zeros(node.meta["val"]) for node in graph.graph.find_nodes(op="placeholder"))
    plainly = private("optimized_execution")
    try:
        with ignored_warnings(), torch.no_grad():
            run = private("trace")(lambda *inputs: (graph(*inputs), inputs[0])[1], examples, check_trace=False)
    except RuntimeError as error:
        raise NotCapturable(f"the operations cannot be replayed ({str(error).splitlines()[0]})") from error

    def program(inputs: list[Tensor]) -> None:
        with torch.no_grad(), plainly(should_optimize=False):
            run(*inputs)

    return program


def _zeros(value: Tensor) -> Tensor:
    """Return zeros in the layout of a tensor, in pages that are not touched until they are read."""
    last = sum((length - 1) * stride for length, stride in zip(value.shape, value.stride(), strict=True))
    return torch.zeros(max(0, last + 1), dtype=value.dtype).as_strided(value.shape, value.stride())
