"""Says what did a job: code, versions and machine."""

import ast
import datetime
import hashlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import pyrobnn as bnn

_HERE = Path(__file__).resolve().parent
_TASK_IMPORT = re.compile(r"^from benchmarks\.tasks(?:\.(\w+) import| import (\w+))", re.MULTILINE)
_PACKAGES = ("torch", "pyro-ppl", "numpy", "scikit-learn", "scipy")
_CODE = ("../pyrobnn", ":(glob)*.py", "executors", "suites", "tasks")
SAME_KIND = ("machine", "cpu", "gpu", "torch", "pyro-ppl", "numpy", "threads")
"""What must be equal for the same bits."""


@cache
def code_digest(task: str) -> str:
    """Return a digest of the code of the library and a task, without comments, docstrings and layout.

    Args:
        task: name of a module of `benchmarks.tasks`, or the dotted path of another module.
    """
    library = Path(bnn.__file__).parent
    files = {file.relative_to(library.parent): file for file in library.rglob("*.py")}
    content = hashlib.sha256()
    for name, file in sorted((files | _of_task(task)).items()):
        content.update(f"{name}\n{_executed(file.read_text(encoding='utf-8'))}".encode())
    return content.hexdigest()[:16]


def _of_task(task: str) -> dict[Path, Path]:
    """Return the modules of a task, of its folder if it has a dotted path, and of the tasks that it imports."""
    if "." not in task:
        return _imported([task])
    spec = importlib.util.find_spec(task)
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent
    own = {Path(task) / file.relative_to(folder): file for file in folder.rglob("*.py")}
    return own | _imported([name for file in own.values() for name in _imports(file)])


def _imports(file: Path) -> list[str]:
    return ["".join(names) for names in _TASK_IMPORT.findall(file.read_text(encoding="utf-8"))]


def _imported(tasks: list[str]) -> dict[Path, Path]:
    """Return modules of `benchmarks.tasks`, and the modules of that folder that they import."""
    modules: dict[Path, Path] = {}
    waiting = list(tasks)
    while waiting:
        file = _HERE / "tasks" / f"{waiting.pop()}.py"
        if file.exists() and file not in modules.values():
            modules[Path("tasks") / file.name] = file
            waiting += _imports(file)
    return modules


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
    model = processor()["model name"]
    return {"cpu": model, "cores": os.cpu_count(), "platform": f"{platform.system()} {platform.machine()}"}


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
