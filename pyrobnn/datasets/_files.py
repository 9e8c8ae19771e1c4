"""Find the files of a set: the user's folder, a shared/data folder beside the project, or a download."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from pyrobnn._core.errors import InputError

FOLDER_VARIABLE = "PYROBNN_DATA"


def find(places: Sequence[str]) -> Path | None:
    """Return the first of these relative paths that is a file in the user's or a shared/data folder, or None."""
    here = Path.cwd()
    folders = [*_user_folders(), *(folder / "shared" / "data" for folder in (here, *here.parents))]
    candidates = (folder / place for folder in folders for place in places)
    return next((path for path in candidates if path.is_file()), None)


def cache_file(place: str) -> Path:
    """Return where a downloaded file is kept."""
    import pooch

    return Path(pooch.os_cache("pyrobnn")) / place


def download(name: str, place: str, url: str, checksum: str) -> Path:
    """Download a file of the set `name` to its place in the cache, unless it is there already, and return its path."""
    import pooch

    target = cache_file(place)
    try:
        path = pooch.retrieve(url, known_hash=f"sha256:{checksum}", fname=target.name, path=target.parent)
    except (OSError, ValueError) as error:
        # pooch reports a wrong checksum as a plain ValueError; the errors of requests are OSErrors
        reason = "could not be downloaded" if isinstance(error, OSError) else "came with a wrong checksum"
        folder = os.environ.get(FOLDER_VARIABLE) or cache_file("")
        raise InputError(
            f"The data set {name!r} is not on this machine and {reason}: put {url} as {place} into the folder "
            f"{folder}, or set {FOLDER_VARIABLE} to a folder that has it."
        ) from None
    return Path(path)


def sha256(*paths: Path) -> str:
    """Return the SHA-256 of a file, or of several files in order, hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _user_folders() -> list[Path]:
    value = os.environ.get(FOLDER_VARIABLE)
    if not value:
        return []
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise InputError(f"{FOLDER_VARIABLE} must name a folder, got {value!r}: create it, or unset {FOLDER_VARIABLE}.")
    return [folder]
