"""The data sets that come with scikit-learn; none of them has published splits."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from pyrobnn._core.tables import Task
from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.base import Dataset


@dataclasses.dataclass(frozen=True)
class BundledSet:
    """What is known of a set before it is read; `loader` is the function of sklearn.datasets."""

    name: str
    task: Task
    rows: int
    columns: int
    loader: str
    target: str
    source: str
    licence: str = "CC BY 4.0"
    options: tuple[tuple[str, Any], ...] = ()


_SETS = (
    BundledSet(
        "diabetes",
        "regression",
        442,
        10,
        "load_diabetes",
        "progression",
        "Efron et al. 2004, Least angle regression; scikit-learn",
        "BSD 3-Clause (scikit-learn)",
        (("scaled", False),),
    ),
    BundledSet(
        "breast-cancer",
        "classification",
        569,
        30,
        "load_breast_cancer",
        "diagnosis",
        "UCI Breast Cancer Wisconsin (Diagnostic); scikit-learn",
    ),
    BundledSet("wine", "classification", 178, 13, "load_wine", "cultivar", "UCI Wine; scikit-learn"),
    BundledSet(
        "digits",
        "classification",
        1797,
        64,
        "load_digits",
        "digit",
        "UCI Optical Recognition of Handwritten Digits, test part; scikit-learn",
    ),
)
BUNDLED_SETS = {entry.name: entry for entry in _SETS}


def load_bundled(entry: BundledSet) -> Dataset:
    """Return a set of scikit-learn in raw units; digits come as 64 pixel columns."""
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, entry.loader)(**dict(entry.options))
    x, y = np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target)
    data = Data(x, y, standardize=True, feature_names=[str(n) for n in bunch.feature_names], target_name=entry.target)
    classes = tuple(str(name) for name in bunch.target_names) if entry.task == "classification" else ()
    checksum = hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()
    return Dataset(entry.name, entry.task, data, (), classes, entry.source, entry.licence, checksum)
