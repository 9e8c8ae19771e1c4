"""What is known of a published data set, and where its files are: in a folder of the user, or in the cache."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.base import NUM_RANDOM_SPLITS
from pyrobnn.tables.schema import Task

Splits = tuple[tuple[np.ndarray, np.ndarray], ...]
"""Pairs (train_index, test_index) of row numbers."""
FOLDER_VARIABLE = "PYROBNN_DATA"


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """A file of a set: its paths in folders, in the order of search, its address, and its SHA-256 in that format."""

    paths: tuple[str, ...]
    url: str = ""
    sha256: str = ""

    @property
    def place(self) -> str:
        """Its path in the cache and in messages: the first path in the format of the download."""
        suffix = Path(self.url or self.paths[0]).suffix
        return next(path for path in self.paths if Path(path).suffix == suffix)

    @property
    def available(self) -> bool:
        """Whether the file is on this machine."""
        return find(self.paths) is not None or (bool(self.url) and cache_file(self.place).is_file())

    def fetch(self, name: str, source: str) -> Path:
        """Return the local file of the set `name`, downloaded if need be."""
        path = find(self.paths)
        if path is None and not self.url:
            what = f"The data set {name!r} is not on this machine and has no download with a published checksum"
            remedy = f"put it as {self.place} into a folder, and set {FOLDER_VARIABLE} to that folder"
            raise InputError(f"{what}: get it from its source ({source}), {remedy}.")
        path = path or download(name, self.place, self.url, self.sha256)
        if self.sha256 and path.suffix == Path(self.place).suffix and (found := sha256(path)) != self.sha256:
            what = f"{path} has the wrong checksum: expected SHA-256 {self.sha256[:12]}..., got {found[:12]}..."
            raise InputError(f"{what}: replace it by an unchanged copy of {self.url}, or remove it.")
        return path


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """A data set known by name.

    Attributes:
        name: the name for `load`.
        task: "regression" or "classification".
        rows: number of examples.
        columns: number of features.
        read: turns its files into the data and the published splits.
        files: its files; none of the sets of scikit-learn.
        source: where the data come from.
        licence: terms of use.
        class_names: the name of each class.
        published_splits: number of splits that are published.

    Examples:
        >>> digits = next(one for one in bnn.datasets.info() if one.name == "digits")
        >>> digits.task, digits.rows, digits.columns, digits.splits, digits.available
        ('classification', 1797, 64, 20, True)
    """

    name: str
    task: Task
    rows: int
    columns: int
    read: Callable[[Sequence[Path]], tuple[Data, Splits]]
    files: tuple[PublishedFile, ...]
    source: str
    licence: str = "CC BY 4.0"
    class_names: tuple[str, ...] = ()
    published_splits: int = 0

    @property
    def splits(self) -> int:
        """Number of splits that `Dataset.split` offers."""
        return self.published_splits or NUM_RANDOM_SPLITS

    @property
    def available(self) -> bool:
        """Whether it loads without a download."""
        return all(file.available for file in self.files)

    def fetch(self) -> list[Path]:
        """Return the local files, downloaded if need be; those with a published checksum must have it."""
        return [file.fetch(self.name, self.source) for file in self.files]


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
        remedy = f"put {url} as {place} into the folder {folder}, or set {FOLDER_VARIABLE} to a folder that has it"
        raise InputError(f"The data set {name!r} is not on this machine and {reason}: {remedy}.") from None
    return Path(path)


def sha256(*paths: Path) -> str:
    """Return the SHA-256 of a file, or of several files in order, hexadecimal."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _user_folders() -> list[Path]:
    folders = [Path(value).expanduser() for value in [os.environ.get(FOLDER_VARIABLE)] if value]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{FOLDER_VARIABLE} must name a folder, got '{folder}': create it, or unset the variable.")
    return folders
