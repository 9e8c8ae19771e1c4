"""Compiled steps on disk: a later process loads the library at once, without asking the compiler again.

A library is code: whoever can write one is obeyed by the process that loads it. So libraries lie in a folder of their
own beside the compiler's cache (`TORCHINDUCTOR_CACHE_DIR`, else in the temporary folder), private to the user (0700),
and nothing is loaded from a folder or a file of another owner, or one that others may write. It is compiled anew.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import fx

from pyrobnn._torch.private import private


def fingerprint(*parts: Any) -> str:
    """Return a name for something compiled, from all that it depends on beside this machine and this torch."""
    machine = (platform.machine(), torch.cpu.get_capabilities(), torch.get_num_threads())
    return hashlib.sha256(repr((torch.__version__, machine, parts)).encode()).hexdigest()[:32]


def describe(graph: fx.GraphModule) -> list[Any]:
    """Return what a graph computes, in words: its operations in order and the layout of its inputs."""
    layouts = [(v.shape, v.stride(), v.dtype, v.device) for v in map(_value, graph.graph.find_nodes(op="placeholder"))]
    return [str(graph.graph), *layouts]


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


def find(name: str) -> Path | None:
    """Return the library kept under a name, or None if there is none that only this user can have put there."""
    library = _library(name)
    with contextlib.suppress(OSError):
        if _is_private(library.parent) and _is_ours(library, stat.S_IWGRP | stat.S_IWOTH):
            return library
    return None


def keep(name: str, library: Path) -> Path:
    """Keep a copy of a library under a name, and return it; without a private folder for it, the library itself."""
    kept = _library(name)
    with contextlib.suppress(OSError):
        kept.parent.mkdir(exist_ok=True)
        kept.parent.chmod(stat.S_IRWXU)
        if _is_private(kept.parent):
            handle, temporary = tempfile.mkstemp(dir=kept.parent)
            os.close(handle)
            shutil.copyfile(library, temporary)
            return Path(temporary).replace(kept)
    return library


def _library(name: str) -> Path:
    return Path(private("cache_dir")()) / "pyrobnn" / f"{name}.so"


def _is_private(folder: Path) -> bool:
    """Whether nobody but this user and the system can have put a file into a folder, or another in its place."""
    return _is_ours(folder, stat.S_IWGRP | stat.S_IWOTH) and _is_ours(folder.parent, stat.S_IWOTH)


def _is_ours(path: Path, writable: int) -> bool:
    """Whether a place, not a link, belongs to this user or to the system, without the permissions given."""
    if not hasattr(os, "geteuid"):  # Windows keeps temporary files in the user's own folder
        return path.exists()
    found = path.lstat()
    is_own = found.st_uid in (os.geteuid(), 0) and not stat.S_ISLNK(found.st_mode)
    return is_own and not found.st_mode & writable
