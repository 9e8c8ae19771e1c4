"""The data sets known by name."""

import dataclasses
from pathlib import Path

from pyrobnn._core.errors import InputError, did_you_mean
from pyrobnn._core.tables import Task
from pyrobnn.datasets import _files
from pyrobnn.datasets.base import NUM_RANDOM_SPLITS, Dataset
from pyrobnn.datasets.bundled import BUNDLED_SETS, BundledSet, load_bundled
from pyrobnn.datasets.images import IMAGE_SETS
from pyrobnn.datasets.measurements import MEASURED_SETS
from pyrobnn.datasets.published import PublishedSet, fetch_published, load_published
from pyrobnn.datasets.uci import UCI_SETS, UCISet, fetch_uci, load_uci
from pyrobnn.datasets.uci_classification import CLASSIFICATION_SETS

PUBLISHED_SETS = {entry.name: entry for entry in (*IMAGE_SETS, *CLASSIFICATION_SETS, *MEASURED_SETS)}


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
    return sorted([*UCI_SETS, *PUBLISHED_SETS, *BUNDLED_SETS])


def load(name: str) -> Dataset:
    """Return a data set by its name, with all its rows, its published splits, and its licence.

    The files of a set that does not come with scikit-learn are looked for in the folder of the environment variable
    PYROBNN_DATA, then in a folder shared/data beside or above the working directory, then in the download cache. What
    is not there is downloaded where a checksum is published: the UCI regression sets, MNIST and Fashion-MNIST. For the
    others the error says which file goes where.

    Raises:
        InputError: unknown name, a file that is not the published one, or no file and no download.
    """
    entry = _find(name)
    if isinstance(entry, BundledSet):
        return load_bundled(entry)
    return load_uci(entry) if isinstance(entry, UCISet) else load_published(entry)


def fetch(name: str) -> Path:
    """Make sure that the files of a set are on this machine and return the path of the first.

    Files with a published SHA-256, downloaded or the user's, must have it.

    Raises:
        InputError: unknown name, a set without a file of its own, wrong checksum, or no file and no download.
    """
    entry = _find(name)
    if isinstance(entry, BundledSet):
        raise InputError(f"{name!r} comes with scikit-learn and has no file to fetch: call load({name!r}).")
    return fetch_uci(entry) if isinstance(entry, UCISet) else fetch_published(entry)[0]


def info() -> list[DatasetInfo]:
    """Return a line on each data set, sorted by name, without reading or downloading any."""
    return [_describe(_find(name)) for name in names()]


def _find(name: str) -> UCISet | PublishedSet | BundledSet:
    entry = UCI_SETS.get(name) or PUBLISHED_SETS.get(name) or BUNDLED_SETS.get(name)
    if entry is None:
        raise InputError(f"Unknown data set {name!r}.{did_you_mean(name, names())} Known: {', '.join(names())}.")
    return entry


def _describe(entry: UCISet | PublishedSet | BundledSet) -> DatasetInfo:
    if isinstance(entry, BundledSet):
        shape = (entry.rows, entry.columns, NUM_RANDOM_SPLITS)
        return DatasetInfo(entry.name, entry.task, *shape, entry.licence, entry.source, available=True)
    if isinstance(entry, PublishedSet):
        shape = (entry.rows, entry.columns, entry.splits)
        available = all(file.available for file in entry.files)
        return DatasetInfo(entry.name, entry.task, *shape, entry.licence, entry.source, available)
    shape = (entry.rows, len(entry.features), entry.splits)
    available = entry.local_file() is not None or _files.cache_file(entry.cache_place).is_file()
    return DatasetInfo(entry.name, "regression", *shape, entry.licence, entry.url, available)
