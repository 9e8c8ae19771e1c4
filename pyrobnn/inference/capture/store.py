"""Names of compiled steps on disk: a later process loads the library at once, without asking the compiler again."""

import contextlib
import hashlib
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._inductor.runtime.cache_dir_utils import cache_dir


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
    """Return the library kept under a name, or None if there is none any more."""
    try:
        library = Path(_entry(name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return library if library.is_file() else None


def keep(name: str, library: Path) -> None:
    """Remember a library under a name, beside the compiler's own cache. A cache that cannot be written is no error."""
    with contextlib.suppress(OSError):
        _entry(name).parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=_entry(name).parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(str(library))
        Path(temporary).replace(_entry(name))


def _entry(name: str) -> Path:
    return Path(cache_dir()) / "pyrobnn" / name
