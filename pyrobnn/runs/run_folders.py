"""Run folders: their marks, the place of an unfinished run, and the check of a new run."""

import json
import os
from pathlib import Path
from shlex import quote

from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import check_free, check_writable, next_name
from pyrobnn._core.remedies import reader
from pyrobnn.tables.files import ending


def is_run_folder(path: Path) -> bool:
    """Whether a run was written there."""
    return all((path / name).is_file() for name in ("spec.toml", "manifest.json"))


def is_complete(path: Path) -> bool:
    """Whether a run was also scored and judged."""
    return all((path / name).exists() for name in ("metrics.json", "diagnosis.json", "posterior.nc", "report.html"))


def run_folder(run_dir: str | Path) -> Path:
    """Return the path of a run folder; refuse other folders."""
    folder = Path(run_dir)
    if not is_run_folder(folder):
        raise InputError(f"{folder} is not a run folder, it has no spec.toml and manifest.json: pass one from `fit`.")
    return folder


def columns_of_run(folder: Path) -> list[str]:
    """Return the names of the columns that a table needs for predictions of a run."""
    data = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]
    encoder = data.get("encoder") or {}
    return list(encoder.get("read") or encoder.get("columns") or data["feature_names"])


def unfinished_folder(run_dir: str | Path) -> Path:
    """Return the folder beside a run folder that has spec and checkpoint while the fit is not done."""
    path = Path(run_dir).absolute()
    return path.with_name(f"{path.name}.unfinished")


def go_on(path: Path) -> str:
    """Return the command that goes on with a run."""
    return f"pyrobnn fit --resume {quote(str(path))}"


def new_run_folder(source: Path, *, overwrite: bool) -> Path:
    """Return the run folder for a table or a spec file; for the spec of a run a new one beside it, or its own."""
    run_dir = source.parent if source.parent.name else source.absolute().parent
    if source.name == "spec.toml" and is_run_folder(run_dir):
        return run_dir if overwrite else Path(next_name(str(run_dir)))
    return Path("runs") / (source.name.removesuffix(ending(source)) if ending(source) else source.stem)


def check_new_run(path: Path, *, overwrite: bool) -> None:
    """Refuse a run folder that exists, or whose run was interrupted, unless it will be replaced, or cannot be made."""
    if is_run_folder(path) and not is_complete(path) and not overwrite:
        raise InputError(_interrupted(path, path))
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{path} exists already: choose another name, or replace it with {_overwrite()}.")
    check_free(path, is_run_folder)
    check_writable(path)
    unfinished = unfinished_folder(path)
    if unfinished.exists() and not overwrite:
        raise InputError(_interrupted(unfinished, path))


def _interrupted(folder: Path, path: Path) -> str:
    return f"{folder} is a run that was interrupted: go on with `{go_on(path)}`, or start anew with {_overwrite()}."


def _overwrite() -> str:
    return "--overwrite" if reader.get() == "command" else "`overwrite=True`"
