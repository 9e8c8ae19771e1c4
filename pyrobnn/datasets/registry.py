"""The data sets known by name."""

import dataclasses
from pathlib import Path

from pyrobnn._errors import InputError, did_you_mean
from pyrobnn.datasets import _files
from pyrobnn.datasets.base import NUM_RANDOM_SPLITS, Dataset, Task
from pyrobnn.datasets.bundled import BUNDLED_SETS, BundledSet, load_bundled
from pyrobnn.datasets.uci import UCI_SETS, UCISet, fetch_uci, load_uci


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """One line of the list of data sets.

    Attributes:
        name: what `load` takes.
        task: "regression" or "classification".
        rows: number of examples.
        columns: number of features.
        splits: number of splits that `Dataset.split` offers.
        licence: terms of use.
        source: where the data come from.
        available: whether it loads without a download.
    """

    name: str
    task: Task
    rows: int
    columns: int
    splits: int
    licence: str
    source: str
    available: bool


def names() -> list[str]:
    """Return the names that `load` takes, sorted."""
    return sorted([*UCI_SETS, *BUNDLED_SETS])


def load(name: str) -> Dataset:
    """Return a data set by its name, downloading it on first use where it does not come with scikit-learn.

    A UCI set is looked for in the folder of the environment variable PYROBNN_DATA, then in a folder
    shared/data/uci_regression beside or above the working directory, then in the download cache.

    Raises:
        InputError: unknown name, a file that is not the published set, or no file and no connection.
    """
    entry = _find(name)
    return load_uci(entry) if isinstance(entry, UCISet) else load_bundled(entry)


def fetch(name: str) -> Path:
    """Make sure that the file of a UCI set is on this machine and return its path.

    A text file, downloaded or the user's, must have the published SHA-256.

    Raises:
        InputError: unknown name, a set without a file of its own, wrong checksum, or no file and no connection.
    """
    entry = _find(name)
    if isinstance(entry, BundledSet):
        raise InputError(f"{name!r} comes with scikit-learn and has no file to fetch: call load({name!r}).")
    return fetch_uci(entry)


def info() -> list[DatasetInfo]:
    """Return a line on each data set, sorted by name, without reading or downloading any."""
    return [_describe(_find(name)) for name in names()]


def _find(name: str) -> UCISet | BundledSet:
    entry = UCI_SETS.get(name) or BUNDLED_SETS.get(name)
    if entry is None:
        raise InputError(f"Unknown data set {name!r}.{did_you_mean(name, names())} Known: {', '.join(names())}.")
    return entry


def _describe(entry: UCISet | BundledSet) -> DatasetInfo:
    if isinstance(entry, BundledSet):
        shape = (entry.rows, entry.columns, NUM_RANDOM_SPLITS)
        return DatasetInfo(entry.name, entry.task, *shape, entry.licence, entry.source, available=True)
    shape = (entry.rows, len(entry.features), entry.splits)
    available = _files.local_file(entry.name) is not None or _files.cache_file(entry.name).is_file()
    return DatasetInfo(entry.name, "regression", *shape, entry.licence, entry.url, available)
