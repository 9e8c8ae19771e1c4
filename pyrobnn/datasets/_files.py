"""Find the file of a UCI set: the user's folder, a shared/data folder beside the project, or a download."""

import hashlib
import os
from pathlib import Path

from pyrobnn._errors import InputError

FOLDER_VARIABLE = "PYROBNN_DATA"
COLLECTION = "uci_regression"


def local_file(name: str) -> Path | None:
    """Return the file of a set in the user's folder or in a shared/data folder, None if there is none."""
    folders = _user_folders()
    patterns = (f"{name}.npz", f"{name}.txt", f"{name}/data.txt", f"{name}/data/data.txt")
    candidates = [folder / pattern for folder in folders for pattern in patterns]
    here = Path.cwd()
    candidates += [folder / "shared" / "data" / COLLECTION / f"{name}.npz" for folder in (here, *here.parents)]
    return next((path for path in candidates if path.is_file()), None)


def cache_file(name: str) -> Path:
    """Return the place where a downloaded set is kept."""
    import pooch

    return Path(pooch.os_cache("pyrobnn")) / f"{name}.txt"


def download(name: str, url: str, checksum: str) -> Path:
    """Download a set into the cache, unless it is there already, and return its file.

    Raises:
        InputError: no connection, or what came has another checksum.
    """
    import pooch

    target = cache_file(name)
    try:
        found = pooch.retrieve(url, known_hash=f"sha256:{checksum}", fname=target.name, path=target.parent)
    except (OSError, ValueError) as error:
        # pooch reports a wrong checksum as a plain ValueError; the errors of requests are OSErrors
        reason = "could not be downloaded" if isinstance(error, OSError) else "came with a wrong checksum"
        folder = os.environ.get(FOLDER_VARIABLE) or target.parent
        raise InputError(
            f"The data set {name!r} is not on this machine and {reason}: put {url} as {name}.txt into the folder "
            f"{folder}, or set {FOLDER_VARIABLE} to a folder that has {name}.txt or {name}.npz."
        ) from None
    return Path(found)


def verify(path: Path, url: str, checksum: str) -> None:
    """Refuse a file whose SHA-256 is not the published one."""
    found = sha256(path)
    if found != checksum:
        raise InputError(
            f"{path} has the wrong checksum: expected SHA-256 {checksum[:12]}..., got {found[:12]}...: replace it by "
            f"an unchanged copy of {url}, or remove it."
        )


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _user_folders() -> list[Path]:
    value = os.environ.get(FOLDER_VARIABLE)
    if not value:
        return []
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise InputError(f"{FOLDER_VARIABLE} must name a folder, got {value!r}: create it, or unset {FOLDER_VARIABLE}.")
    return [folder, folder / COLLECTION]
