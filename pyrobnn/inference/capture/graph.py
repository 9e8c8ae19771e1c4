"""The flat graph of a step: recorded, and run many times in a row, without Python in between where that is possible."""

import logging
import time
import warnings
from collections.abc import Callable
from itertools import count
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.kernels import plain_operations
from pyrobnn._torch.private import (
    MissingFromTorch,
    OperationMode,
    private,
    sources_forgotten,
    tree_leaves,
    tree_map,
    written,
)
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.bnn import BNN
from pyrobnn.inference.capture.objective import FreshNoise
from pyrobnn.inference.method import Engine
from pyrobnn.posterior.record import EngineRecord
from pyrobnn.tape.plan import Tape
from pyrobnn.tape.values import View

Loop = Callable[[int], None]
_LONG = 100  # steps from which on a step is captured; 50 would take as long
_WARM_UP = 3  # runs before a CUDA graph is recorded, in which libraries set themselves up
_log = logging.getLogger("pyrobnn")
_MASKS = (torch.bool, torch.uint8)
_aten = torch.ops.aten
_BATCH_NORM = torch.ops.aten.native_batch_norm.default
_INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default)


def record(function: Callable[..., tuple[()]], inputs: list[Tensor]) -> fx.GraphModule:
    """Return the graph of the operations that a function does, in place or not, on inputs, which are then put back."""
    recorder = _Recorder(inputs)
    try:
        with torch.no_grad(), fast_pyro(), FreshNoise(), plain_operations(), recorder:
            function(*inputs)
        recorder.graph.output(())
        graph = fx.GraphModule(recorder.constants, recorder.graph)
        graph.graph.eliminate_dead_code()
    except NotCapturable:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise NotCapturable(f"the model cannot be recorded ({type(error).__name__}: {reason})") from error
    finally:
        for place, before in recorder.before.items():
            recorder.inputs[place].copy_(before)
    return graph


def slope[T](
    function: Callable[[dict[str, Tensor]], tuple[Tensor, T]], values: dict[str, Tensor]
) -> tuple[dict[str, Tensor], T]:
    """Return the gradient, in some values, of the sum of a function's numbers, and what else it returns."""
    with torch.enable_grad():
        leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
        numbers, more = function(leaves)
        gradients = torch.autograd.grad(numbers.sum(), list(leaves.values()), materialize_grads=True)
    detached = tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, more)
    return dict(zip(leaves, gradients, strict=True)), detached


def refuse_moving(bnn: BNN) -> None:
    """Refuse a network that a record would stop, since calls change it in Python."""
    if bnn.moving:
        raise NotCapturable(f"each call of the network changes {bnn.moving}, which a recorded step would not")


def recorded(function: Callable[..., tuple[()]], inputs: list[Tensor]) -> Loop:
    """Return a function that does a number of times what a function does to its inputs, without Python in between."""
    graph = record(function, inputs)
    return make_loop(graph, inputs + lift_constants(graph))


class _Recorder(OperationMode):
    """Writes operations in its block into a graph; of views (`meta["view"]`) of the same numbers, the first alone."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.graph, self.constants = fx.Graph(), dict[str, Tensor]()
        self._nodes = private("WeakTensorKeyDictionary")()
        self.inputs = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in inputs}
        self.before: dict[int, torch.UntypedStorage] = {}  # what inputs held that were changed
        self._storages: dict[int, int] = {}
        self._new_storage = count(1).__next__
        self._shown: dict[View, fx.Node] = {}
        for index, value in enumerate(inputs):
            self._enter(value, self.graph.placeholder(f"input_{index}"))
            self._nodes[value].meta["val"] = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _aten.bernoulli_.float:  # the mask of dropout in attention: as new numbers, which come from outside
            drawn = self.__torch_dispatch__(_aten.bernoulli.p, types, args, kwargs)
            return self.__torch_dispatch__(_aten.copy_.default, types, (args[0], drawn))
        is_mask = any(index is not None and index.dtype in _MASKS for index in (args[1] if func in _INDEXING else ()))
        is_dynamic = torch.Tag.dynamic_output_shape in func.tags and func not in _INDEXING
        if is_mask or is_dynamic or torch.Tag.data_dependent_output in func.tags:
            raise NotCapturable("the model branches on values of tensors")
        node = self.graph.call_function(func, *tree_map(self._node_of, (args, kwargs)))
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if func._schema.is_mutable or func is _BATCH_NORM:  # which changes statistics, and does not say so
            changed = {value.untyped_storage().data_ptr() for value in given} & self.inputs.keys() - self.before.keys()
            self.before |= {place: self.inputs[place].clone() for place in changed}
        storages = {value.untyped_storage().data_ptr(): self._nodes[value].meta["view"].storage for value in given}
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            node.meta["val"] = result if torch.Tag.nondeterministic_seeded in func.tags else None
            self._put(result, node, storages)
        elif isinstance(result, (tuple, list)):
            for index, part in enumerate(result):
                if isinstance(part, Tensor):
                    self._put(part, self.graph.call_function(getitem, (node, index)), storages)
        return result

    def _node_of(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = value
            self._enter(value, self.graph.get_attr(name))
        return self._nodes[value]

    def _enter(self, value: Tensor, node: fx.Node) -> None:
        """Note the node of a tensor that was there before, and may share its storage with others."""
        place = value.untyped_storage().data_ptr()
        self._storages.setdefault(place, self._new_storage())
        self._put(value, node, self._storages)

    def _put(self, value: Tensor, node: fx.Node, storages: dict[int, int]) -> None:
        """Note the node of a result, or the earlier one that shows the same; storages are those of the arguments."""
        storage = storages.get(value.untyped_storage().data_ptr())
        node.meta["view"] = View.of(value, self._new_storage() if storage is None else storage)
        self._nodes[value] = self._shown.setdefault(node.meta["view"], node)


def lift_constants(graph: fx.GraphModule) -> list[Tensor]:
    """Make inputs of the constants that the model holds outside its buffers, and return them in order."""
    constants: list[Tensor] = []
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, node.target)
        with graph.graph.inserting_after(graph.graph.find_nodes(op="placeholder")[-1]):
            new = graph.graph.placeholder(f"constant_{len(constants)}")
        new.meta["val"] = value
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
        constants.append(value)
    return constants


def drop_unused(graph: fx.GraphModule, leaves: list[Tensor]) -> list[Tensor]:
    """Take inputs that nothing reads out of the graph, and return the others."""
    used = []
    for node, leaf in zip(graph.graph.find_nodes(op="placeholder"), leaves, strict=True):
        if node.users:
            used.append(leaf)
        else:
            graph.graph.erase_node(node)
    return used


def call(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    """Add an operation to a graph, with the value that later passes read its shape from."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*fx.map_arg(args, lambda argument: argument.meta["val"]))
    return node


def make_loop(graph: fx.GraphModule, leaves: list[Tensor]) -> Loop:
    """Return what runs a graph a number of times on leaves: a tape, a CUDA graph, or from Python one by one."""
    inputs = drop_unused(graph, leaves)
    if inputs[0].is_cuda:
        return _cuda_loop(graph, inputs)
    if inputs[0].is_cpu:
        try:
            return Tape(graph, inputs).run
        except NotCapturable as error:
            _log.warning("Steps run operation by operation, many times slower: %s.", error)
    return interpreted(graph, inputs)


def interpreted(graph: fx.GraphModule, inputs: list[Tensor]) -> Loop:
    """Return a function that runs the operations of a graph one by one, from Python."""
    graph.recompile()

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
    kept = run, inputs  # the graph knows its inputs and constants by address alone

    def launch(num_steps: int, _: Any = kept) -> None:
        for _ in range(num_steps):
            recorded.replay()

    return launch


def recorded_slope(
    function: Callable[[dict[str, Tensor]], Tensor], tensors: dict[str, Tensor]
) -> Callable[[], Tensor] | None:
    """Return what gives T terms and the gradient of their sum, (T + P,) in float64 on the CPU; None if not recorded."""
    device = next(iter(tensors.values())).device
    if device.type not in {"cpu", "cuda"}:
        return None
    with torch.no_grad():
        size = function(tensors).numel() + sum(value.numel() for value in tensors.values())
    result = torch.zeros(size, dtype=torch.float64, device=device)

    def step(*inputs: Tensor) -> tuple[()]:
        *values, out = inputs
        gradients, terms = slope(lambda at: (function(at),) * 2, dict(zip(tensors, values, strict=True)))
        out.copy_(torch.cat([terms.reshape(-1), *(gradients[name].reshape(-1) for name in tensors)]))
        return ()

    inputs = [*(value.detach() for value in tensors.values()), result]
    try:
        with sources_forgotten():
            loop = recorded(step, inputs)
    except (NotCapturable, MissingFromTorch):
        return None

    def run() -> Tensor:
        loop(1)
        return result.cpu()

    return run


def choose_engine(engine: Engine, num_steps: int) -> EngineRecord:
    """Return the engine for a number of steps."""
    if engine != "auto":
        return EngineRecord(engine, engine, "asked for")
    used = ("eager", f"fewer than {_LONG} steps") if num_steps < _LONG else ("captured", f"{_LONG} steps or more")
    return EngineRecord(engine, *used)


def capture[T](
    choice: EngineRecord, make: Callable[[], T], *, what: str, from_step: int
) -> tuple[T | None, EngineRecord]:
    """Return what `make` captures, or None, and the record; `what` is for messages."""
    if choice.used == "eager":
        return None, choice
    started = time.perf_counter()
    try:
        with sources_forgotten():
            made = make()
    except (NotCapturable, MissingFromTorch) as error:
        if choice.asked == "captured":
            warnings.warn(f"The {what} eagerly, since {error}.", stacklevel=2)
        return None, EngineRecord(choice.asked, "eager", f"not capturable: {error}")
    seconds = time.perf_counter() - started
    _log.info("%s from step %d: %s; ready in %.1f s", choice.used, from_step, choice.reason, seconds)
    return made, EngineRecord(choice.asked, choice.used, choice.reason, from_step, seconds)
