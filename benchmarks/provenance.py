"""What did a job: code, versions and machine."""

import ast
import datetime
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import pyrobnn as bnn

_HERE = Path(__file__).resolve().parent
_TASKS, _REPORTS = "benchmarks.tasks.", ("benchmarks.report.", "benchmarks.measures.harness")
_PACKAGES = ("torch", "pyro-ppl", "numpy", "scikit-learn", "scipy")
_CODE = ("../pyrobnn", ":(glob)*.py", "executors", "suites", "tasks")
SAME_KIND = ("machine", "cpu", "gpu", "torch", "pyro-ppl", "numpy", "threads")
"""What must be equal for the same bits."""


@cache
def code_digest(name: str) -> str:
    """Return a digest of the code of the library and a task or measure, without comments, docstrings and layout.

    Args:
        name: a module of `benchmarks.tasks`, or the dotted path of a measure or of another task.
    """
    library = Path(bnn.__file__).parent
    files = {file.relative_to(library.parent): file for file in library.rglob("*") if file.suffix in (".py", ".cpp")}
    return digest_of(files | _files_of(name))


def digest_of(files: dict[Path, Path]) -> str:
    """Return a digest of what files execute, by the paths that they count under."""
    content = hashlib.sha256()
    for path, file in sorted(files.items()):
        text = file.read_text(encoding="utf-8")
        content.update(f"{path}\n{_executed(text) if file.suffix == '.py' else text}".encode())
    return content.hexdigest()[:16]


def _files_of(name: str) -> dict[Path, Path]:
    """Return the modules of a task or measure, those that it imports, and all of the folder of a task elsewhere."""
    if "." not in name:
        return _imported([f"{_TASKS}{name}"], only=_TASKS)
    if name.startswith("benchmarks."):
        return _imported([name])
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent
    files = {Path(name) / file.relative_to(folder): file for file in folder.rglob("*.py")}
    return files | _imported([module for file in files.values() for module in imported_by(file)], only=_TASKS)


def imported_by(file: Path) -> Iterator[str]:
    """Yield what a file may import: modules, and names in them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _imported(modules: list[str], only: str = "benchmarks.") -> dict[Path, Path]:
    """Return modules of benchmarks and those that they import, without what makes reports."""
    files: dict[Path, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = Path(*name.split(".")).with_suffix(".py")
        file = _HERE.parent / path
        if name.startswith(only) and not name.startswith(_REPORTS) and file.exists() and path not in files:
            files[path] = file
            waiting += imported_by(file)
            if path.parent.name == "peers":  # whose files are started by their names
                waiting += [f"benchmarks.peers.{other.stem}" for other in file.parent.glob("*.py")]
    return files


def _executed(source: str) -> str:
    """Return the executed part of a source as text that is the same for all versions of Python."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            node.body = node.body[1:]
        if isinstance(node, ast.JoinedStr):
            node.values = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
    whole = {"show_empty": True} if sys.version_info >= (3, 13) else {}
    return ast.dump(tree, **whole)


def machine(threads: int) -> dict[str, Any]:
    """Return the machine and the versions, on which the last digits of results may depend."""
    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "pyrobnn": bnn.__version__,
    } | {name: version(name) for name in _PACKAGES}


def describe_machine() -> dict[str, Any]:
    """Return the processor's model, the number of cores that may be used, and the platform."""
    model, platform_name = processor()["model name"], f"{platform.system()} {platform.machine()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": model, "cores": cores, "platform": platform_name}


def manifest(threads: int, seconds: float, commit: dict[str, Any] | None) -> dict[str, Any]:
    """Return the machine, the commit, the time a job took, and the date."""
    return machine(threads) | {
        "git": commit,
        "seconds": round(seconds, 2),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@cache
def processor() -> dict[str, str]:
    """Return the description of a processor in /proc/cpuinfo; its "model name" also where there is no such file."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if info.exists() else []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {"model name": platform.processor() or platform.machine()} | fields


def _cpu() -> str:
    """Return the processor's name, and the numbers that tell generations of the same name apart."""
    fields = processor()
    numbers = [f"{name} {fields[name]}" for name in ("cpu family", "model", "stepping") if name in fields]
    return f"{fields['model name']} ({', '.join(numbers)})"


def git_commit() -> dict[str, Any] | None:
    """Return the commit of this checkout and whether its code has changes; None outside a checkout."""
    try:
        commit, changes = (_git_output(*words) for words in (("rev-parse", "HEAD"), ("status", "-s", "--", *_CODE)))
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changes)}


def _git_output(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_HERE, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
