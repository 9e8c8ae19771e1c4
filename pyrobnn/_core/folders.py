"""Folders and files that appear whole or not at all, and are on the disk when they have appeared."""

import errno
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyrobnn._core.errors import InputError

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextmanager
def new_file(path: Path, *, replaces: bool = True) -> Iterator[Path]:
    """Yield a temporary name beside `path`; at the end what has it, on the disk, replaces `path`; or leave nothing."""
    if not replaces:
        check_free(path)
    with _beside(path) as folder:
        work = folder / path.name
        yield work
        for inner in (*work.rglob("*"), work):
            if not inner.is_symlink():
                _sync(inner)
        if work.is_dir():
            take_name(work, path)
        else:
            work.replace(path)
            _sync(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, as `new_file` does."""
    with new_file(path) as work:
        work.mkdir()
        yield work


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; at its end it is removed, and those above that are empty and new."""
    missing = [folder for folder in path.parents if not os.path.exists(folder)]  # False where it may not look
    work = None
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        except (OSError, ValueError) as error:
            there = next(folder for folder in path.absolute().parents if os.path.exists(folder))
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            if not there.is_dir() or isinstance(error, FileNotFoundError):  # of a file system such as /proc
                reason = f"{there} {'takes no files' if there.is_dir() else 'is a file'}"
            raise InputError(f"{path} cannot be made ({reason}): choose another place.") from None
        yield work
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        said = f"{path} could not be written ({error.strerror}): make room on the disk. Nothing is left of it."
        raise OSError(error.errno, said) from error
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        for folder in missing:
            with suppress(OSError):  # it was not made, or is not empty: the new folder is in it
                folder.rmdir()


def check_writable(path: Path, what: str = "folder") -> None:
    """Refuse a path of a folder, or of a file, that cannot be made or replaced; nothing is left there."""
    if what == "file" and os.path.isdir(path):
        raise InputError(f"{path} is a folder: give the name of a file, such as {path / 'predictions.csv'}.")
    if what == "file" and os.path.exists(path):
        if not os.access(path, os.W_OK):
            raise InputError(f"The file {path} cannot be written: choose another name, or allow it.")
    else:
        with _beside(path):
            pass


def take_name(made: Path, path: Path) -> None:
    """Give a folder the name of another, which it replaces; both stay where that fails."""
    with _beside(path) as work:
        aside = work / "replaced"
        try:
            if path.exists():
                path.rename(aside)
            made.rename(path)
        except BaseException:
            if aside.exists() and not path.exists():
                aside.rename(path)
            raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt":  # it has no such call for folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of a file system that cannot sync a folder
            raise
    finally:
        os.close(handle)


def next_name(folder: str) -> str:
    """Return the name of a folder that does not exist, with the next number after the name of another."""
    stem, _, number = folder.rpartition("-") if re.search(r"-\d+$", folder) else (folder, "", "1")
    return next(name for k in itertools.count(int(number) + 1) if not Path(name := f"{stem}-{k}").exists())


def check_free(path: Path) -> None:
    """Refuse a path that is taken."""
    if os.path.lexists(path):
        raise InputError(f"{path} exists already: choose another name, or remove it first.")
