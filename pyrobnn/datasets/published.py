"""Sets that stand in files of their own: where the files are looked for, and how they become a Dataset."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn._core.tables import Task
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets import _files
from pyrobnn.datasets.base import NUM_RANDOM_SPLITS, Dataset

Splits = tuple[tuple[np.ndarray, np.ndarray], ...]
"""Pairs (train_index, test_index) of row numbers."""


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """A file of a set.

    Attributes:
        place: its path in the user's folder and in the cache.
        others: other paths in a user's or shared/data folder where it may stand, in the order in which they are tried.
        url: address of the download; none where no checksum is published.
        sha256: SHA-256 of the file at that address.
    """

    place: str
    others: tuple[str, ...] = ()
    url: str = ""
    sha256: str = ""

    def local(self) -> Path | None:
        """Return the file in the user's or a shared/data folder, None if there is none."""
        return _files.find([self.place, *self.others])

    @property
    def available(self) -> bool:
        """Whether the file is on this machine."""
        return self.local() is not None or (bool(self.url) and _files.cache_file(self.place).is_file())


@dataclasses.dataclass(frozen=True)
class PublishedSet:
    """What is known of a set before its files are read; `read` turns these into the data and the published splits."""

    name: str
    task: Task
    rows: int
    columns: int
    read: Callable[[Sequence[Path]], tuple[Data, Splits]]
    files: tuple[PublishedFile, ...]
    source: str
    licence: str
    class_names: tuple[str, ...] = ()
    published_splits: int = 0

    @property
    def splits(self) -> int:
        """Number of splits that `Dataset.split` offers."""
        return self.published_splits or NUM_RANDOM_SPLITS


def fetch_published(entry: PublishedSet) -> list[Path]:
    """Return the local files of a set, downloaded if need be; those with a published checksum must have it."""
    return [_fetch(entry, file) for file in entry.files]


def load_published(entry: PublishedSet) -> Dataset:
    """Return a set with its published splits, if it has any."""
    paths = fetch_published(entry)
    try:
        data, splits = entry.read(paths)
    except (ValueError, LookupError, OSError, EOFError, zlib.error) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise InputError(
            f"{paths[0]} cannot be read as the set {entry.name!r} ({reason}): replace it by the published file, or "
            "remove it."
        ) from None
    if tuple(data.x.shape) != (entry.rows, entry.columns):
        raise InputError(
            f"The set {entry.name!r} has {entry.rows} rows and {entry.columns} feature columns, {paths[0]} gave "
            f"{len(data)} and {data.x.shape[1]}: replace it by the published file, or remove it."
        )
    checksum = _files.sha256(*paths)
    return Dataset(entry.name, entry.task, data, splits, entry.class_names, entry.source, entry.licence, checksum)


def _fetch(entry: PublishedSet, file: PublishedFile) -> Path:
    path = file.local()
    if path is None and not file.url:
        raise InputError(
            f"The data set {entry.name!r} is not on this machine and has no download with a published checksum: get it "
            f"from its source ({entry.source}), put it as {file.place} into a folder, and set {_files.FOLDER_VARIABLE} "
            "to that folder."
        )
    path = path or _files.download(entry.name, file.place, file.url, file.sha256)
    if file.sha256:
        _files.verify(path, file.url, file.sha256)
    return path
