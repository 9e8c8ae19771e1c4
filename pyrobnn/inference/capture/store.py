"""The compiled library on disk: a later process loads it at once, without asking the compiler again.

A library is code: whoever can write one is obeyed by the process that loads it. So it lies in the user's cache folder,
or else the temporary folder, in a folder private to the user (0700). Nothing is loaded from a folder or a file of
another owner, or one that others may write: the library is compiled anew.
"""

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

_log = logging.getLogger("pyrobnn")


def find(name: str) -> Path | None:
    """Return the library kept under a name, or None if there is none that only this user can have put there."""
    for folder in _folders():
        library = folder / name
        with contextlib.suppress(OSError):
            if _is_private(folder) and _is_ours(library, stat.S_IWGRP | stat.S_IWOTH):
                return library
            if library.exists():
                _log.warning(
                    "%s is not loaded: it or a folder above it belongs to others, or is open to them.", library
                )
    return None


def keep(name: str, library: Path) -> Path:
    """Keep a copy of a library under a name, and return it; without a private folder for it, the library itself."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True, parents=True, mode=stat.S_IRWXU)
            folder.chmod(stat.S_IRWXU)
            if _is_private(folder):
                handle, temporary = tempfile.mkstemp(dir=folder)
                with os.fdopen(handle, "wb") as copy:
                    copy.write(library.read_bytes())
                    copy.flush()
                    os.fsync(handle)  # half a library after a power cut would end each process that loads it
                return Path(temporary).replace(folder / name)
    return library


def _folders() -> Iterator[Path]:
    yield platformdirs.user_cache_path("pyrobnn") / "compiled"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"pyrobnn-{user}" / "compiled"


def _is_private(folder: Path) -> bool:
    """Whether nobody but this user and the system can have put a file into a folder, or another in its place."""
    return _is_ours(folder, stat.S_IWGRP | stat.S_IWOTH) and _is_ours(folder.parent, stat.S_IWOTH)


def _is_ours(path: Path, writable: int) -> bool:
    """Whether a place, not a link, belongs to this user or to the system, without the permissions given."""
    if not hasattr(os, "geteuid"):  # Windows keeps temporary files in the folder of the user
        return path.exists()
    status = path.lstat()
    is_of_user = status.st_uid in (os.geteuid(), 0) and not stat.S_ISLNK(status.st_mode)
    return is_of_user and not status.st_mode & writable
