"""The folder of a run: its files, its mark while it is unfinished, and the check of a new one; without torch."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Self

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from pyrobnn._core.errors import InputError
from pyrobnn._core.folders import check_free, check_writable, new_file, next_name, take_name
from pyrobnn.tables.reading import ending

UNFINISHED = "unfinished.toml"  # the spec as it was asked for, in the folder of a run that is not finished
CHECKPOINT, ALL_ROWS = "checkpoint", "all_rows"
ROWS = "rows.safetensors"  # from which missing values are drawn


@dataclass(frozen=True)
class FittedData:
    """What later commands need of the data of a fit; `encoder` is for `Encoder.stored`, None without a table."""

    sha256: str
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    encoder: dict[str, Any] | None = None


@dataclass(frozen=True)
class Manifest:
    """What is read of manifest.json, which is the last file of a fit; its versions, device and time are for people."""

    data: FittedData

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the manifest of a folder with a fit."""
        return read_json(folder / "manifest.json", cls)


def unfinished_folder(run_dir: Path) -> Path:
    """Return the folder in which a run is made: beside its own, which an earlier run may have until then."""
    return Path(f"{run_dir}.unfinished")


def has_fit(folder: Path) -> bool:
    """Whether a fit was written there; the manifest comes last."""
    return all((folder / name).is_file() for name in ("spec.toml", "manifest.json"))


def run_folder(run_dir: str | Path, needed: str = "manifest.json") -> Path:
    """Return the path of a run folder that has a file; refuse others."""
    folder = Path(run_dir)
    if has_fit(folder) and (folder / needed).is_file():
        return folder
    for place in (folder, unfinished_folder(folder)):
        if (place / UNFINISHED).is_file():
            raise InputError(f"{folder} has no {needed}, the run was interrupted: {resume(place)} goes on with it.")
    raise InputError(f"{folder} is not a run folder, it has no {needed}: pass one from `fit`.")


def new_run_folder(source: Path, *, overwrite: bool) -> Path:
    """Return the folder for a table or spec; for the spec of a run a new one beside it, or its own to be replaced."""
    run_dir = source.parent if source.parent.name else source.absolute().parent
    if source.name == UNFINISHED:
        return Path(str(run_dir).removesuffix(".unfinished"))
    if source.name == "spec.toml" and has_fit(run_dir):
        return run_dir if overwrite else Path(next_name(str(run_dir)))
    return Path("runs") / (source.name.removesuffix(ending(source)) if ending(source) else source.stem)


def resume(unfinished: Path) -> str:
    """Return the command that goes on with an unfinished run."""
    return f"`pyrobnn fit {quote(str(unfinished / UNFINISHED))}`"


def check_new_run(run_dir: Path, *, overwrite: bool) -> None:
    """Refuse a folder that has something else, or another run that is complete, or that cannot be made."""
    unfinished = unfinished_folder(run_dir)
    if (unfinished / UNFINISHED).is_file():
        return
    if os.path.lexists(run_dir) and not overwrite:
        raise InputError(f"{run_dir} exists already: choose another name, or replace it with --overwrite.")
    if os.path.lexists(run_dir) and not has_fit(run_dir):
        raise InputError(f"{run_dir} exists and is not a run folder, so it is not overwritten: choose another folder.")
    check_free(unfinished)
    check_writable(run_dir)


@contextmanager
def new_run(run_dir: Path, spec_toml: str, checksum: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield the folder in which a run is made, with what the same run left there; at the end it is named `run_dir`.

    After an interruption it stays, after an error if it has a fit or a checkpoint.
    """
    folder = unfinished_folder(run_dir)
    mark = folder / UNFINISHED
    asked = f"# of data {checksum}\n{spec_toml}"
    if not (mark.is_file() and mark.read_text(encoding="utf-8").partition("\n")[2] == asked):
        if not overwrite and (_has_work(folder) or os.path.lexists(run_dir)):
            has = f"{folder} has a run of other settings or data, which was interrupted"
            remedy = f"{resume(folder)} goes on with it. Choose another folder, or replace it with --overwrite"
            raise InputError(f"{has}: {remedy}.")
        shutil.rmtree(folder, ignore_errors=True)
        with new_file(mark) as file:
            first = f"# Not finished: the same command, or {resume(folder)}, goes on."
            file.write_text(f"{first}\n{asked}", encoding="utf-8")
    try:
        yield folder
    except BaseException as error:
        is_useful = has_fit(folder) if isinstance(error, FloatingPointError) else _has_work(folder)
        if isinstance(error, Exception) and not is_useful:
            shutil.rmtree(folder)
        else:
            error.add_note(f"{folder} keeps what was done: the same command goes on, or {resume(folder)}.")
        raise
    shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)
    take_name(folder, run_dir)
    (run_dir / UNFINISHED).unlink()


def _has_work(folder: Path) -> bool:
    return has_fit(folder) or any((folder / CHECKPOINT).glob("*.safetensors"))


def read_json[T](path: Path, kind: type[T]) -> T:
    """Return what a file of a run folder holds; refuse one that was changed, or is of another version."""
    try:
        value = TypeAdapter(kind).validate_json(path.read_bytes())
        str(value)  # this version may have no words for it
    except (ValidationError, KeyError, TypeError):
        raise InputError(f"{path} was changed, or is of an earlier version of pyrobnn: fit its spec again.") from None
    return value


def write_json(path: Path, values: Any, *, not_finite: Literal["null", "constants"] = "null") -> None:
    """Write a file, whole or not at all; of numbers that are not finite null tells less, and constants read back."""
    with new_file(path) as file:
        file.write_bytes(to_json(values, indent=2, inf_nan_mode=not_finite) + b"\n")
