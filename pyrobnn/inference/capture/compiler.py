"""Compiling a recorded graph with inductor, without Dynamo: to a C++ library on a CPU, to kernels on a GPU."""

import copy
import ctypes
import logging
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.lock import ONE_THREAD, ignored_warnings
from pyrobnn._torch.private import MissingFromTorch, in_turns, load, private, replaced
from pyrobnn.inference.capture import store
from pyrobnn.inference.capture.record import ATEN_RANDOM

Program = Callable[[list[Tensor]], Any] | Path
_ENTRY = "_Z19inductor_entry_implPP16AtenTensorOpaqueS1_"
_ON_CPU = {
    "compile_threads": 1,
    "cpp_wrapper": True,
    "cpp.enable_floating_point_contract_flag": "fast",
    "aot_inductor.allow_stack_allocation": True,
    "aot_inductor.enable_line_tables": False,
    "fx_graph_cache": False,
    "cpp_cache_precompile_headers": False,
}
"""Inductor's own caches hold what `store` holds; filling them takes longer than they could save."""
_HEADERS = """
#include <array>
#include <optional>
#include <Python.h>
#include <torch/csrc/inductor/aoti_runtime/arrayref_tensor.h>
#include <torch/csrc/inductor/aoti_runtime/thread_local.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
using namespace torch::aot_inductor;
namespace py {
struct gil_scoped_release_simple {
    PyThreadState* state = PyEval_SaveThread();
    ~gil_scoped_release_simple() { PyEval_RestoreThread(state); }
};
}
"""
"""All that a step without operations of Python needs, in half the time of the headers that inductor includes."""
_NEEDED = (
    "init_backend_registration",
    "LoopBody",
    "CppBuilder",
    "VecISA",
    "CppWrapper",
    "SizeVarAllocator",
    "FakeTensorMode",
    "joint_graph_passes",
    "compile_fx_inner",
)
_WITHOUT_STACK = {"aot_inductor.allow_stack_allocation": False}
"""What to compile with where an operation does not take tensors on the stack, as some that change theirs do not."""


def compile_graph(graph: fx.GraphModule, device: torch.device) -> Program:
    """Return a program for the graph.

    That is a shared library with the compiled entry, on a CPU; elsewhere a function of the list of its inputs, which
    it may empty. A library made before, by this process or another, is found again.

    Raises:
        NotCapturable: the compiler failed.
    """
    if device.type != "cpu":
        return _try_to_compile(graph, [({}, None)], on_cpu=False)
    name = store.fingerprint(_ON_CPU, store.describe(graph))
    library = store.find(name)
    if library is not None and _is_sound(library):
        return library
    attempts = [(_ON_CPU, _HEADERS), (_ON_CPU, None), (_ON_CPU | _WITHOUT_STACK, None)]
    run = _try_to_compile(graph, attempts, on_cpu=True)
    try:
        library = Path(run.current_callable.__closure__[0].cell_contents.__self__.__file__)
    except (AttributeError, IndexError, TypeError):
        return run
    if not _is_sound(library):
        return run
    return store.keep(name, library)


def interpret(graph: fx.GraphModule, device: torch.device) -> Program:
    """Return the graph itself as a program: its operations one by one, with nothing compiled."""

    def program(inputs: list[Tensor]) -> None:
        with torch.no_grad():
            graph(*inputs)

    return program


def entry(library: Path) -> Any:
    """Return the compiled entry of a library, which takes its tensors as handles of the AOT Inductor C interface.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it has no such entry.
    """
    return getattr(ctypes.PyDLL(str(library)), _ENTRY)


def _is_sound(library: Path) -> bool:
    try:
        return entry(library) is not None
    except (OSError, AttributeError):
        return False


def _try_to_compile(graph: fx.GraphModule, attempts: list[tuple[dict[str, Any], str | None]], *, on_cpu: bool) -> Any:
    """Compile by the first of the settings and headers, None for inductor's own, with which it works."""
    load(*_NEEDED)
    with ONE_THREAD.others_let_in():
        private("init_backend_registration")()
    for settings, headers in attempts:
        try:
            with (
                private("inductor_config").patch(ATEN_RANDOM | settings),
                _quiet(),
                in_turns("SizeVarAllocator.simplify", "FakeTensorMode.dispatch"),
                replaced("LoopBody.get_read_expr", _unread_stays_in_memory),
                replaced("CppBuilder.build", _elsewhere),
                replaced("VecISA.check_build", _taken_as_known),
                replaced("CppWrapper.get_device_include_path_jit", _including(headers)),
                _without_version_of_triton(),
            ):
                return _compile(copy.deepcopy(graph), on_cpu=on_cpu)
        except Exception as error:
            failure = error
    reason = (str(failure).splitlines() or [""])[0]
    folder = private("cache_dir")()
    hint = f"; it cannot work in {folder!r}, with a space: set TORCHINDUCTOR_CACHE_DIR" if " " in folder else ""
    raise NotCapturable(f"the compiler failed ({type(failure).__name__}: {reason}{hint})") from failure


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what inductor says about its own workings."""
    logger = logging.getLogger("torch._inductor")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with ignored_warnings():
            yield
    finally:
        logger.setLevel(level)


def _unread_stays_in_memory(ask: Any) -> Any:
    """Let a loop say where it reads a buffer that it only waits for: nowhere.

    Inductor asks every user of a buffer before it moves it into the loops around them, and fails with a KeyError where
    a user overwrites what the buffer was made of, as a step of Adam does (pytorch/pytorch issue 188228).
    """

    def read_expr(self: Any, buffer_name: str) -> Any:
        try:
            return ask(self, buffer_name)
        except KeyError:
            return None

    return read_expr


def _taken_as_known(ask: Any) -> Any:
    """Take it that the compiler knows the vector instructions which torch says that the processor has.

    Inductor compiles a program with each set of them to find out, which is a third of a cold start. Every compiler of
    C++20, which torch's headers need, knows the instructions of x86.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return ask
    return lambda self, code: True


@contextmanager
def _without_version_of_triton() -> Iterator[None]:
    """Spare inductor half a second of reading Triton for a hash, where no GPU needs it and the name is still there."""
    with ExitStack() as stack:
        if not torch.cuda.is_available():
            with suppress(MissingFromTorch, AttributeError):
                stack.enter_context(replaced("codecache.triton_key", lambda ask: lambda: None))
        yield


def _including(headers: str | None) -> Callable[[Any], Any]:
    """Let the code of a step begin with these headers."""
    return lambda ask: staticmethod(ask if headers is None else lambda device: headers)


def _elsewhere(work: Any) -> Any:
    """Let other threads in while another program works."""

    def wait(*args: Any, **kwargs: Any) -> Any:
        with ONE_THREAD.others_let_in():
            return work(*args, **kwargs)

    return wait


def _compile(graph: fx.GraphModule, *, on_cpu: bool) -> Callable[[list[Tensor]], Any]:
    examples = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    fake_mode = examples[0].fake_mode
    with (
        torch.no_grad(),
        private("functorch_config").patch(bundled_autograd_cache=False),
        private("tracing")(private("TracingContext")(fake_mode)),
        private("V").set_fake_mode(fake_mode),
    ):
        private("joint_graph_passes")(graph)
        compiled: Callable[[list[Tensor]], Any] = private("compile_fx_inner")(
            graph,
            examples,
            static_input_idxs=range(len(examples)),
            cudagraphs=private("BoxedBool")(value=False),
            cpp_wrapper=on_cpu,
        )
        return compiled
