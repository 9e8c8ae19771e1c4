"""Running a compiled graph many times in a row without a step through Python."""

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor.codecache import CppCodeCache

_ENTRY = "_Z19inductor_entry_implPP16AtenTensorOpaqueS1_"
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
Loop = Callable[[int], None]


def make_loop(run: Any, inputs: list[Tensor]) -> Loop:
    """Return a function that runs a compiled graph on the same inputs a number of times.

    On a CPU it is a loop in C++ around the compiled entry; where that cannot be had, a loop in Python.
    """
    if inputs[0].device.type == "cpu":
        try:
            return _native_loop(run, inputs)
        except (AttributeError, IndexError, OSError, RuntimeError, TypeError, ValueError):
            pass

    def loop(num_steps: int) -> None:
        for _ in range(num_steps):
            run(list(inputs))

    return loop


def _native_loop(run: Any, inputs: list[Tensor]) -> Loop:
    module = run.current_callable.__closure__[0].cell_contents.__self__
    entry = _address(getattr(ctypes.PyDLL(module.__file__), _ENTRY))
    torch_library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    copy, delete = _address(torch_library.aoti_torch_new_tensor_handle), torch_library.aoti_torch_delete_tensor_object
    delete.argtypes = [ctypes.c_void_p]
    repeat = _REPEAT(_address(CppCodeCache.load(_SOURCE).repeat).value or 0)
    handles = (ctypes.c_void_p * len(inputs))(
        *map(_pointer, torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(inputs))
    )
    scratch = (ctypes.c_void_p * len(inputs))()
    message = ctypes.create_string_buffer(1000)

    def loop(num_steps: int) -> None:
        if repeat(entry, copy, handles, scratch, len(inputs), num_steps, message, len(message)):
            raise RuntimeError(f"The compiled step failed: {message.value.decode()}")

    weakref.finalize(loop, lambda: [delete(handle) for handle in handles]).atexit = False
    return loop


def _address(function: Any) -> ctypes.c_void_p:
    return ctypes.cast(function, ctypes.c_void_p)


def _pointer(capsule: Any) -> int:
    return int(_GET_POINTER(capsule, None))
