"""The folder of a run: its files, its mark while it is unfinished, and the check of a new one; without torch."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic_core import to_json

from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import check_free, check_writable, new_file, next_name
from pyrobnn._core.remedies import reader
from pyrobnn.tables.files import ending

UNFINISHED = "unfinished.toml"
"""The spec as it was asked for; the file is there from the start of a run to its end."""
CHECKPOINT, ALL_ROWS, ROWS = "checkpoint", "all_rows", "rows.safetensors"
"""Checkpoints of a fit, the fit to all rows, and the rows from which missing values are drawn."""


def has_fit(path: Path) -> bool:
    """Whether a fit was written there; the manifest comes last."""
    return all((path / name).is_file() for name in ("spec.toml", "manifest.json"))


def run_folder(run_dir: str | Path, needed: str = "manifest.json") -> Path:
    """Return the path of a run folder that has a file; refuse others."""
    folder = Path(run_dir)
    if has_fit(folder) and (folder / needed).is_file():
        return folder
    if (folder / UNFINISHED).is_file():
        raise InputError(f"{folder} has no {needed}, the run was interrupted: {go_on(folder)} goes on with it.")
    raise InputError(f"{folder} is not a run folder, it has no {needed}: pass one from `fit`.")


def new_run_folder(source: Path, *, overwrite: bool) -> Path:
    """Return the folder for a table or spec; for the spec of a run a new one beside it, or its own to be replaced."""
    run_dir = source.parent if source.parent.name else source.absolute().parent
    if source.name == UNFINISHED or (source.name == "spec.toml" and has_fit(run_dir)):
        return run_dir if overwrite or source.name == UNFINISHED else Path(next_name(str(run_dir)))
    return Path("runs") / (source.name.removesuffix(ending(source)) if ending(source) else source.stem)


def go_on(path: Path) -> str:
    """Return the command that goes on with an unfinished run."""
    return f"`pyrobnn fit {quote(str(path / UNFINISHED))}`"


def check_new_run(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder that has something else, or another run that is complete, or that cannot be made."""
    if (path / UNFINISHED).is_file():
        return
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{path} exists already: choose another name, or replace it with {_overwrite()}.")
    check_free(path, has_fit)
    check_writable(path)


def begin(path: Path, asked: str, *, overwrite: bool) -> None:
    """Make the folder of a run with its mark, or find that of the same run; `asked` is its spec in TOML."""
    mark = path / UNFINISHED
    text = f"# This run is not finished: the command that began it, or {go_on(path)}, goes on with it.\n{asked}"
    if mark.is_file() and not overwrite:
        if mark.read_text(encoding="utf-8").partition("\n")[2] == asked:
            return
        if _has_work(path):
            raise InputError(
                f"{path} has a run with other settings, which was interrupted: {go_on(path)} goes on with it. Choose "
                f"another folder, or replace it with {_overwrite()}."
            )
    shutil.rmtree(path, ignore_errors=True)
    with new_file(mark) as file:
        file.write_text(text, encoding="utf-8")


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """Take the mark away at the end. After an interruption the folder stays; an error leaves none without a fit."""
    try:
        yield
    except BaseException as error:
        is_lost = isinstance(error, FloatingPointError) or not _has_work(path)
        if isinstance(error, Exception) and is_lost and not has_fit(path):
            shutil.rmtree(path)
        else:
            error.add_note(f"{path} keeps what was done: the same command goes on, or {go_on(path)}.")
        raise
    shutil.rmtree(path / CHECKPOINT, ignore_errors=True)
    (path / UNFINISHED).unlink()


def _has_work(path: Path) -> bool:
    return has_fit(path) or any((path / CHECKPOINT).glob("*.safetensors"))


def _overwrite() -> str:
    return "--overwrite" if reader.get() == "command" else "`overwrite=True`"


def read_json(path: Path) -> Any:
    """Return what a file of a run folder holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, values: Any) -> None:
    """Write a file, whole or not at all; null stands for numbers that are not finite, tables for dataclasses."""
    with new_file(path) as file:
        file.write_bytes(to_json(values, indent=2, inf_nan_mode="null") + b"\n")


def columns_of_run(folder: Path) -> list[str]:
    """Return the names of the columns that a table needs for predictions of a run."""
    data = read_json(folder / "manifest.json")["data"]
    return list((data.get("encoder") or {}).get("columns") or data["feature_names"])
