"""The library that runs tables of instructions: compiled once for a machine, then found again."""

import ctypes
import functools
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn.inference.capture import store

_SOURCE = Path(__file__).with_name("tape.cpp")
_OPTIONS = ("-std=c++17", "-O2", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_ATTEMPTS = (("-ftree-vectorize", "-fvect-cost-model=dynamic", "-fopenmp"), ("-ftree-vectorize", "-fopenmp"), ())
"""More options: of GCC, of Clang with OpenMP, and of any compiler."""
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)


class NoCompiler(NotCapturable):
    """This machine has no C++ compiler that works."""


class Program(ctypes.Structure):
    """As in `tape.cpp`."""

    _fields_ = (
        ("once", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("num_once", ctypes.c_int64),
        ("num_steps", ctypes.c_int64),
        ("scratch", ctypes.c_void_p),
        ("scratch_size", ctypes.c_int64),
        ("call", CALLBACK),
        ("sgemm", ctypes.c_void_p),
        ("dgemm", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
    )


@functools.cache
def library() -> Any:
    """Return the library.

    Raises:
        NoCompiler: there is none that works.
    """
    source = _SOURCE.read_text(encoding="utf-8")
    name = store.fingerprint(_OPTIONS, _ATTEMPTS, source)
    path = store.find(name)
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            made = Path(folder) / "tape.so"
            with ONE_THREAD.others_let_in():
                _compile(made)
            path = store.keep(name, made)
        loaded = ctypes.CDLL(str(path))
    loaded.tape_kernel.argtypes, loaded.tape_kernel.restype = [ctypes.c_char_p], ctypes.c_void_p
    loaded.tape_run.argtypes, loaded.tape_run.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int64
    loaded.tape_repeat.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return loaded


@functools.cache
def kernel(name: str) -> int:
    """Return the address of the kernel of a lane.

    Raises:
        NotCapturable: there is none.
    """
    found = library().tape_kernel(name.encode())
    if found is None:
        raise NotCapturable(f"the tape has no kernel {name}")
    return int(found)


@functools.cache
def products() -> tuple[int, int]:
    """Return the addresses of `sgemm` and `dgemm`, of the BLAS in torch, or else of SciPy's."""
    try:
        blas = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        single, double = (ctypes.cast(getattr(blas, name), ctypes.c_void_p).value or 0 for name in ("sgemm_", "dgemm_"))
    except (OSError, AttributeError):
        single, double = map(_of_scipy, ("sgemm", "dgemm"))
    return single, double


def _of_scipy(name: str) -> int:
    from scipy.linalg import cython_blas  # half a second

    capsule = cython_blas.__pyx_capi__[name]
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer_of(capsule, name_of(capsule)))


def _compile(made: Path) -> None:
    compiler = [*shlex.split(os.environ.get("CXX", "c++")), *_OPTIONS]
    for more in _ATTEMPTS:
        try:
            command = [*compiler, *more, str(_SOURCE), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise NoCompiler(f"there is no C++ compiler {compiler[0]!r} ({error.strerror})") from None
        if done.returncode == 0:
            return
    raise NoCompiler(f"the C++ compiler {compiler[0]!r} failed ({(done.stderr.splitlines() or [''])[0]})")
