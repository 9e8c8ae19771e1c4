"""The data sets known by name."""

import hashlib
import zlib
from pathlib import Path

from pyrobnn._core.errors import InputError, did_you_mean
from pyrobnn._torch.inputs import single
from pyrobnn.datasets import published
from pyrobnn.datasets.base import Dataset
from pyrobnn.datasets.published import DatasetInfo
from pyrobnn.datasets.sets import SETS

_REPLACE = "replace it by the published file, or remove it"


def names() -> list[str]:
    """Return the names that `load` takes, sorted.

    Examples:
        >>> "diabetes" in bnn.datasets.names()
        True
    """
    return sorted(SETS)


def load(name: str) -> Dataset:
    """Return a data set by its name, with all its rows, its published splits, and its licence.

    Files are looked for in the folder of the environment variable PYROBNN_DATA, then in a folder shared/data beside or
    above the working directory, then in the download cache. The UCI regression sets, MNIST and Fashion-MNIST are
    downloaded; for the others the error says which file goes where.

    Raises:
        InputError: unknown name, a file that differs from the published file, or no file and no download.

    Examples:
        >>> cancer = bnn.datasets.load("breast-cancer")
        >>> cancer.data.x.shape, cancer.class_names
        (torch.Size([569, 30]), ('malignant', 'benign'))
    """
    entry = _find(name)
    paths = entry.fetch()
    try:
        data, splits = entry.read(paths)
    except (ValueError, LookupError, OSError, EOFError, zlib.error) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise InputError(f"{paths[0]} cannot be read as the set {name!r} ({reason}): {_REPLACE}.") from None
    x = single(data.x, "A set")
    if tuple(x.shape) != (entry.rows, entry.columns):
        known = f"The set {name!r} has {entry.rows} rows and {entry.columns} feature columns"
        raise InputError(f"{known}, {paths[0]} gave {len(data)} and {x.shape[1]}: {_REPLACE}.")
    arrays = [value.numpy().tobytes() for value in (x, data.y)]
    checksum = published.sha256(*paths) if paths else hashlib.sha256(b"".join(arrays)).hexdigest()
    return Dataset(name, entry.task, data, splits, entry.class_names, entry.source, entry.licence, checksum)


def fetch(name: str) -> Path:
    """Make sure that the files of a set are on this machine and return the path of the first.

    Files with a published SHA-256, downloaded or the user's, must have it.

    Raises:
        InputError: unknown name, a set without files, wrong checksum, or no file and no download.

    Examples:
        >>> import contextlib
        >>> with contextlib.suppress(bnn.InputError):  # diabetes comes with scikit-learn: it has no file
        ...     path = bnn.datasets.fetch("diabetes")
    """
    entry = _find(name)
    if not entry.files:
        raise InputError(f"{name!r} comes with scikit-learn and has no file to fetch: call load({name!r}).")
    return entry.fetch()[0]


def info() -> list[DatasetInfo]:
    """Return what is known of each data set, sorted by name, without reading or downloading any.

    Examples:
        >>> {one.name: one.rows for one in bnn.datasets.info() if one.task == "regression"}["diabetes"]
        442
    """
    return [entry for _, entry in sorted(SETS.items())]


def _find(name: str) -> DatasetInfo:
    if name not in SETS:
        raise InputError(f"Unknown data set {name!r}.{did_you_mean(name, names())} Known: {', '.join(names())}.")
    return SETS[name]
