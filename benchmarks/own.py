"""Python modules beside a suite file, which register parts of its author: their files, their code, their import."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pyrobnn as bnn
from benchmarks.provenance import code_digest, digest_of, imported_by


def files_of(folder: Path, settings: dict[str, Any]) -> dict[str, list[Path]]:
    """Return the files, by their paths in a folder, of the modules of `imports` and of those there that they import."""
    found: dict[str, list[Path]] = {}
    waiting = [name.partition(".")[0] for name in settings.get("imports", [])]
    while waiting:
        name = waiting.pop()
        files = sorted([*folder.glob(f"{name}.py"), *folder.glob(f"{name}/**/*.py")])
        if files and name not in found:
            found[name] = [file.relative_to(folder) for file in files]
            waiting += [module.partition(".")[0] for file in files for module in imported_by(file)]
    return found


def digest_with(task: str, folder: Path, settings: dict[str, Any]) -> str:
    """Return the digest of the code of a task, and, each after its name, of the modules of `imports`."""
    own = sorted(files_of(folder, settings).items())
    named = [f"{name}:{digest_of({file: folder / file for file in files})}" for name, files in own]
    return " ".join([code_digest(task), *named])


def load(folder: Path, settings: dict[str, Any]) -> None:
    """Import the modules of `imports` from a folder; refuse one that is not there, or whose name another has."""
    names = settings.get("imports", [])
    if names and str(folder) not in sys.path:
        sys.path.append(str(folder))
    for name in names:
        if not files_of(folder, {"imports": [name]}):
            raise bnn.InputError(f"`imports` names {name!r}, and {folder} has no {name}.py: put it beside the suite.")
        found = importlib.import_module(name).__file__
        if found is None or folder not in Path(found).parents:
            raise bnn.InputError(f"`imports` names {name!r}, and Python found {found} before {folder}: rename it.")
