"""Run folders: their marks, the place of an unfinished run, and the check of a new run."""

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import check_free, check_writable, next_name
from pyrobnn._core.remedies import reader
from pyrobnn._core.table_files import ending


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
    """Return the run folder for a table or a spec file; for the spec of a run a new one beside it, or that of the run.

    Args:
        source: the table, or the spec file.
        overwrite: whether an earlier run is replaced.
    """
    run_dir = source.parent if source.parent.name else source.absolute().parent
    if source.name == "spec.toml" and is_run_folder(run_dir):
        return run_dir if overwrite else Path(next_name(str(run_dir)))
    return Path("runs") / (source.name.removesuffix(ending(source)) if ending(source) else source.stem)


def check_new_run(path: Path, *, overwrite: bool) -> None:
    """Refuse a run folder that exists, or whose run was interrupted, unless it will be replaced, or cannot be made.

    Raises:
        InputError: the folder exists, is taken, or cannot be made.
    """
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


def check_same_size(folders: Sequence[Path]) -> None:
    """Refuse runs with different targets, or scored on different numbers of examples, before they are loaded.

    Raises:
        InputError: the targets or the numbers differ.
    """
    targets = {folder: _target_of(folder) for folder in folders}
    for folder, target in targets.items():
        if target != targets[folders[0]]:
            raise InputError(
                f"{folder} predicts {target!r} and {folders[0]} {targets[folders[0]]!r}: only runs with the same "
                "target can be compared."
            )
    files = {folder: folder / "metrics.json" for folder in folders}
    sizes = {f: json.loads(file.read_text(encoding="utf-8"))["num_test"] for f, file in files.items() if file.is_file()}
    first = next(iter(sizes), None)
    for folder, size in sizes.items():
        if first is not None and size != sizes[first]:
            share = tomllib.loads((folder / "spec.toml").read_text(encoding="utf-8"))["data"].get("test")
            again = "fit one of them again with the `data.test` of the other"
            if share is not None:
                again = f"fit again with `pyrobnn fit {quote(f'{first}/spec.toml')} --set data.test={share}`"
            raise InputError(
                f"{folder} was scored on {size} examples and {first} on {sizes[first]}, and only scores on the same "
                f"examples can be compared: {again}."
            )


def _target_of(folder: Path) -> str:
    data = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]
    return str(data["target_name"])


def time_of(file: Path) -> int | None:
    """Return when a file was changed last, in nanoseconds; None if there is none."""
    return file.stat().st_mtime_ns if file.exists() else None
