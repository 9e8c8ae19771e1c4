"""The folder of a run: its files, its mark while it is unfinished, and the check of a new one; without torch."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from pydantic_core import to_json

from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import check_free, check_writable, new_file, next_name, take_name
from pyrobnn.tables.files import ending

UNFINISHED = "unfinished.toml"  # the spec as it was asked for, in the folder of a run that is not finished
CHECKPOINT, ALL_ROWS, ROWS = "checkpoint", "all_rows", "rows.safetensors"  # the last to draw missing values from


def place_of(path: Path) -> Path:
    """Return the folder in which a run is made: beside its own, which an earlier run may have until then."""
    return Path(f"{path}.unfinished")


def has_fit(path: Path) -> bool:
    """Whether a fit was written there; the manifest comes last."""
    return all((path / name).is_file() for name in ("spec.toml", "manifest.json"))


def run_folder(run_dir: str | Path, needed: str = "manifest.json") -> Path:
    """Return the path of a run folder that has a file; refuse others."""
    folder = Path(run_dir)
    if has_fit(folder) and (folder / needed).is_file():
        return folder
    for place in (folder, place_of(folder)):
        if (place / UNFINISHED).is_file():
            raise InputError(f"{folder} has no {needed}, the run was interrupted: {go_on(place)} goes on with it.")
    raise InputError(f"{folder} is not a run folder, it has no {needed}: pass one from `fit`.")


def new_run_folder(source: Path, *, overwrite: bool) -> Path:
    """Return the folder for a table or spec; for the spec of a run a new one beside it, or its own to be replaced."""
    run_dir = source.parent if source.parent.name else source.absolute().parent
    if source.name == UNFINISHED:
        return Path(str(run_dir).removesuffix(".unfinished"))
    if source.name == "spec.toml" and has_fit(run_dir):
        return run_dir if overwrite else Path(next_name(str(run_dir)))
    return Path("runs") / (source.name.removesuffix(ending(source)) if ending(source) else source.stem)


def go_on(place: Path) -> str:
    """Return the command that goes on with an unfinished run."""
    return f"`pyrobnn fit {quote(str(place / UNFINISHED))}`"


def check_new_run(path: Path, *, overwrite: bool) -> None:
    """Refuse a folder that has something else, or another run that is complete, or that cannot be made."""
    place = place_of(path)
    if (place / UNFINISHED).is_file():
        return
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{path} exists already: choose another name, or replace it with --overwrite.")
    if os.path.lexists(path) and not has_fit(path):
        raise InputError(f"{path} exists and is not a run folder, so it is not overwritten: choose another folder.")
    check_free(place)
    check_writable(path)


@contextmanager
def new_run(path: Path, asked: str, data: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield the folder in which a run is made, with what the same run left there; at the end it takes the name `path`.

    `asked` is the spec in TOML, and `data` a checksum. After an interruption the folder stays, after an error if a fit
    or a checkpoint is in it.
    """
    place = place_of(path)
    mark, text = place / UNFINISHED, f"# of data {data}\n{asked}"
    if not (mark.is_file() and mark.read_text(encoding="utf-8").partition("\n")[2] == text):
        if not overwrite and (_has_work(place) or os.path.lexists(path)):
            has = f"{place} has a run of other settings or data, which was interrupted: {go_on(place)} goes on with it"
            raise InputError(f"{has}. Choose another folder, or replace it with --overwrite.")
        shutil.rmtree(place, ignore_errors=True)
        with new_file(mark) as file:
            file.write_text(f"# Not finished: the same command, or {go_on(place)}, goes on.\n{text}", encoding="utf-8")
    try:
        yield place
    except BaseException as error:
        keeps = has_fit(place) if isinstance(error, FloatingPointError) else _has_work(place)
        if isinstance(error, Exception) and not keeps:
            shutil.rmtree(place)
        else:
            error.add_note(f"{place} keeps what was done: the same command goes on, or {go_on(place)}.")
        raise
    shutil.rmtree(place / CHECKPOINT, ignore_errors=True)
    take_name(place, path)
    (path / UNFINISHED).unlink()


def _has_work(place: Path) -> bool:
    return has_fit(place) or any((place / CHECKPOINT).glob("*.safetensors"))


def read_json(path: Path) -> Any:
    """Return what a file of a run folder holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, values: Any, *, not_finite: Literal["null", "constants"] = "null") -> None:
    """Write a file, whole or not at all; of numbers that are not finite null tells less, and constants read back."""
    with new_file(path) as file:
        file.write_bytes(to_json(values, indent=2, inf_nan_mode=not_finite) + b"\n")
