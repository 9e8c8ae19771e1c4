"""The library that runs tables of instructions: installed with the package, or compiled once and kept on disk.

A library is code: it lies in a folder private to the user (0700), and nothing is loaded from a folder or a file of
another owner, or one that others may write.
"""

import contextlib
import ctypes
import functools
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor

from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn.tape import build

_log = logging.getLogger("pyrobnn")


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
        ("sgemm", ctypes.c_void_p),
        ("dgemm", ctypes.c_void_p),
        ("step", ctypes.c_int64),
        ("next", ctypes.c_int64),
    )


@functools.cache
def library() -> Any:
    """Return the library: of the installation, of an earlier process, or compiled now; raise `NoCompiler`."""
    name = build.file_name()
    loaded = _loaded(build.INSTALLED / name) or _loaded(find(name))
    if loaded is None:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / name
            try:
                with ONE_THREAD.others_let_in():
                    build.compile_library(made)
            except build.BuildError as error:
                raise NoCompiler(str(error)) from None
            loaded = ctypes.CDLL(str(keep(name, made)))
    loaded.tape_kernel.argtypes, loaded.tape_kernel.restype = [ctypes.c_char_p], ctypes.c_void_p
    loaded.tape_run.argtypes, loaded.tape_run.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int64
    loaded.tape_normals.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    return loaded


def _loaded(path: Path | None) -> Any:
    """Return a library; None where there is none, or where it is damaged or needs what this system lacks."""
    if path is None or not path.exists():
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        _log.warning("%s cannot be loaded and is compiled anew: %s", path, error)
        return None


def find(name: str) -> Path | None:
    """Return the library kept under a name, or None if there is none that only this user can have put there."""
    for folder in _folders():
        library = folder / name
        with contextlib.suppress(OSError):
            if _is_private(folder) and _is_ours(library, stat.S_IWGRP | stat.S_IWOTH):
                return library
            if library.exists():
                why = "it or a folder above it belongs to others, or is open to them"
                _log.warning("%s is not loaded: %s.", library, why)
    return None


def keep(name: str, library: Path) -> Path:
    """Keep a copy of a library under a name, and return it; without a private folder for it, the library itself."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True, parents=True, mode=stat.S_IRWXU)
            folder.chmod(stat.S_IRWXU)
            if _is_private(folder):
                handle, temporary = tempfile.mkstemp(dir=folder)
                with os.fdopen(handle, "wb") as copy:
                    copy.write(library.read_bytes())
                    copy.flush()
                    os.fsync(handle)  # half a library after a power cut would end each process that loads it
                return Path(temporary).replace(folder / name)
    return library


def _folders() -> Iterator[Path]:
    yield platformdirs.user_cache_path("pyrobnn") / "compiled"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"pyrobnn-{user}" / "compiled"


def _is_private(folder: Path) -> bool:
    """Whether nobody but this user and the system can have put a file into a folder, or another in its place."""
    return _is_ours(folder, stat.S_IWGRP | stat.S_IWOTH) and _is_ours(folder.parent, stat.S_IWOTH)


def _is_ours(path: Path, writable: int) -> bool:
    """Whether a place, not a link, belongs to this user or to the system, without the permissions given."""
    if not hasattr(os, "geteuid"):  # Windows keeps temporary files in the folder of the user
        return path.exists()
    status = path.lstat()
    is_of_user = status.st_uid in (os.geteuid(), 0) and not stat.S_ISLNK(status.st_mode)
    return is_of_user and not status.st_mode & writable


@functools.cache
def kernel(name: str) -> int:
    """Return the address of the kernel of a lane, or raise `NotCapturable`."""
    result = library().tape_kernel(name.encode())
    if result is None:
        raise NotCapturable(f"the tape has no kernel {name}")
    return int(result)


def draw_normals(out: Tensor) -> None:
    """Fill a tensor, 16 numbers of float32 side by side or more, as `Tensor.normal_` does, on all threads.

    The numbers are those of torch's generator up to rounding, and it moves on as it would.
    """
    state = torch.get_rng_state()
    library().tape_normals(state.data_ptr(), out.data_ptr(), out.numel(), torch.get_num_threads())
    torch.set_rng_state(state)


@functools.cache
def draws_as_torch() -> bool:
    """Return whether there is a library, and torch's generator and normal numbers are those that it knows."""
    before, numbers = torch.get_rng_state(), torch.empty(1003)
    try:
        draw_normals(numbers)
        state = torch.get_rng_state()
        torch.set_rng_state(before)
        expected = torch.empty(1003).normal_()
        return torch.allclose(numbers, expected, rtol=1e-5, atol=1e-5) and torch.equal(state, torch.get_rng_state())
    except NoCompiler:
        return False
    finally:
        torch.set_rng_state(before)


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
