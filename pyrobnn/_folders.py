"""Folders that appear whole or not at all."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyrobnn._errors import InputError


@contextmanager
def new_folder(path: Path, *, replaces: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that takes its name at the end; after an error nothing is left of it.

    Args:
        path: the folder to make; the folders above it are made if need be.
        replaces: says whether an existing folder may be replaced; without it none may.

    Raises:
        InputError: `path` exists and may not be replaced, or cannot be made.
    """
    check_free(path, replaces)
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise InputError(f"The folder {path} cannot be made ({error.strerror}): choose another place.") from None
    try:
        made = work / path.name
        made.mkdir()
        yield made
        _take_name(made, path, work / "replaced")
    finally:
        shutil.rmtree(work, ignore_errors=True)
        for folder in missing:
            with suppress(OSError):  # it is not empty: the run is in it
                folder.rmdir()


def _take_name(made: Path, path: Path, aside: Path) -> None:
    if path.exists():
        path.rename(aside)
    try:
        made.rename(path)
    except BaseException:
        if aside.exists():
            aside.rename(path)
        raise


def check_free(path: Path, replaces: Callable[[Path], bool] | None = None) -> None:
    """Refuse a path that is taken, unless what is there may be replaced."""
    if path.exists() and replaces is None:
        raise InputError(
            f"{path} exists already: choose another folder, or replace it with --overwrite (overwrite=True)."
        )
    if path.exists() and replaces is not None and not replaces(path):
        raise InputError(f"{path} exists and is not a run folder, so it is not overwritten: choose another folder.")
