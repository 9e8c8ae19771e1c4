"""Published data sets: their numbers, where their files are looked for, and how they are read."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pyrobnn._core.errors import InputError
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets import _files
from pyrobnn.datasets.base import NUM_RANDOM_SPLITS
from pyrobnn.tables.reading import Task

Splits = tuple[tuple[np.ndarray, np.ndarray], ...]
"""Pairs (train_index, test_index) of row numbers."""


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """A file of a set: its paths in folders, in the order of the search, and its address and SHA-256, if published.

    A copy in another format, with another suffix, has no checksum.
    """

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
        return _files.find(self.paths) is not None or (bool(self.url) and _files.cache_file(self.place).is_file())

    def fetch(self, name: str, source: str) -> Path:
        """Return the local file of the set `name`, downloaded if need be."""
        path = _files.find(self.paths)
        if path is None and not self.url:
            raise InputError(
                f"The data set {name!r} is not on this machine and has no download with a published checksum: get it "
                f"from its source ({source}), put it as {self.place} into a folder, and set {_files.FOLDER_VARIABLE} "
                "to that folder."
            )
        path = path or _files.download(name, self.place, self.url, self.sha256)
        if self.sha256 and path.suffix == Path(self.place).suffix and (found := _files.sha256(path)) != self.sha256:
            raise InputError(
                f"{path} has the wrong checksum: expected SHA-256 {self.sha256[:12]}..., got {found[:12]}...: replace "
                f"it by an unchanged copy of {self.url}, or remove it."
            )
        return path


@dataclasses.dataclass(frozen=True)
class PublishedSet:
    """A data set known by name; `read` turns its files into the data and the published splits.

    Data sets of scikit-learn have no files.
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

    def fetch(self) -> list[Path]:
        """Return the local files, downloaded if need be; those with a published checksum must have it."""
        return [file.fetch(self.name, self.source) for file in self.files]
