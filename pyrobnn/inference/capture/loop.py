"""Running a compiled graph many times in a row without a step through Python."""

import ctypes
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._torch.private import private
from pyrobnn.inference.capture import store
from pyrobnn.inference.capture.compiler import Program, entry

_SOURCE = """
#include <exception>
#include <cstdio>

typedef void* Handle;

// The entry takes ownership of the handles that it gets, so each step passes new ones to the same tensors.
extern "C" int repeat(void (*entry)(Handle*, Handle*), int (*copy)(Handle, Handle*), Handle* inputs, Handle* scratch,
                      long num_inputs, long num_steps, char* message, long size) {
    std::snprintf(message, size, "a tensor could not be passed");
    try {
        for (long step = 0; step < num_steps; ++step) {
            for (long i = 0; i < num_inputs; ++i) {
                if (copy(inputs[i], &scratch[i])) return 1;
            }
            entry(scratch, nullptr);
        }
        return 0;
    } catch (const std::exception& error) {
        std::snprintf(message, size, "%s", error.what());
        return 1;
    } catch (...) {
        std::snprintf(message, size, "unknown error");
        return 1;
    }
}
"""

_REPEAT = ctypes.PYFUNCTYPE(
    ctypes.c_int, *[ctypes.c_void_p] * 4, ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long
)
_GET_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_WARM_UP = 3
"""Runs before a CUDA graph is recorded, in which libraries set themselves up."""
Loop = Callable[[int], None]


def make_loop(program: Program, inputs: list[Tensor]) -> Loop:
    """Return a function that runs a program on the same inputs a number of times.

    A compiled library runs in a loop in C++. On a GPU the kernels of a step are recorded once and replayed. Anything
    else is called by a loop in Python.

    Raises:
        NotCapturable: this machine or this torch cannot call the library.
    """
    if isinstance(program, Path):
        try:
            return _native_loop(program, inputs)
        except (AttributeError, ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise NotCapturable(f"the compiled library cannot be called ({type(error).__name__}: {error})") from error
    if inputs[0].device.type == "cuda":
        return _replaying_loop(program, inputs)

    def loop(num_steps: int) -> None:
        for _ in range(num_steps):
            program(list(inputs))

    return loop


def _replaying_loop(run: Callable[[list[Tensor]], Any], inputs: list[Tensor]) -> Loop:
    """Return a loop over a CUDA graph of one step: one call for all of its kernels, and no wait for their end."""
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.device(inputs[0].device):
        before = [tensor.clone() for tensor in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                run(list(inputs))
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(inputs, before, strict=True):
            tensor.copy_(value)
        with torch.cuda.graph(recorded):
            run(list(inputs))
    return partial(_replay, recorded, (run, inputs))


def _replay(recorded: Any, kept: Any, num_steps: int) -> None:
    """Replay a graph, which knows its inputs and the program's constants by address alone: they are kept alive."""
    for _ in range(num_steps):
        recorded.replay()


def _native_loop(library: Path, inputs: list[Tensor]) -> Loop:
    start = _address(entry(library))
    torch_library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    copy, delete = _address(torch_library.aoti_torch_new_tensor_handle), torch_library.aoti_torch_delete_tensor_object
    delete.argtypes = [ctypes.c_void_p]
    repeat = _REPEAT(_address(_repeat()).value or 0)
    handles = (ctypes.c_void_p * len(inputs))(*map(_pointer, private("unsafe_alloc_void_ptrs_from_tensors")(inputs)))
    scratch = (ctypes.c_void_p * len(inputs))()
    message = ctypes.create_string_buffer(1000)

    def loop(num_steps: int) -> None:
        if repeat(start, copy, handles, scratch, len(inputs), num_steps, message, len(message)):
            raise RuntimeError(f"The compiled step failed: {message.value.decode()}")

    weakref.finalize(loop, lambda: [delete(handle) for handle in handles]).atexit = False
    return loop


def _repeat() -> Any:
    """Return the loop in C++, compiled or found again."""
    name = store.fingerprint(_SOURCE)
    library = store.find(name)
    if library is None:
        with ONE_THREAD.others_let_in():
            library = Path(private("CppCodeCache").load(_SOURCE)._name)
        store.keep(name, library)
    return ctypes.PyDLL(str(library)).repeat


def _address(function: Any) -> ctypes.c_void_p:
    return ctypes.cast(function, ctypes.c_void_p)


def _pointer(capsule: Any) -> int:
    return int(_GET_POINTER(capsule, None))
