"""The data sets that come with scikit-learn; none of them has published splits."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.published import PublishedSet, Splits


def read_bundled(_: Sequence[Path], *, loader: str, target: str, **options: Any) -> tuple[Data, Splits]:
    """Return the data of a function of sklearn.datasets, in raw units; digits come as 64 pixel columns."""
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, loader)(**options)
    x, names = np.asarray(bunch.data, dtype=np.float64), [str(name) for name in bunch.feature_names]
    return Data(x, np.asarray(bunch.target), standardize=True, feature_names=names, target_name=target), ()


def _classes(name: str, rows: int, columns: int, *labels: str, loader: str, target: str, source: str) -> PublishedSet:
    read = partial(read_bundled, loader=loader, target=target)
    return PublishedSet(
        name, "classification", rows, columns, read, (), f"UCI {source}; scikit-learn", class_names=labels
    )


_CANCER = "Breast Cancer Wisconsin (Diagnostic)"
_DIGITS = "Optical Recognition of Handwritten Digits, test part"
BUNDLED_SETS = (
    PublishedSet(
        "diabetes",
        "regression",
        442,
        10,
        partial(read_bundled, loader="load_diabetes", target="progression", scaled=False),
        (),
        "Efron et al. 2004, Least angle regression; scikit-learn",
        "BSD 3-Clause (scikit-learn)",
    ),
    _classes(
        "breast-cancer", 569, 30, "malignant", "benign", loader="load_breast_cancer", target="diagnosis", source=_CANCER
    ),
    _classes("wine", 178, 13, "class_0", "class_1", "class_2", loader="load_wine", target="cultivar", source="Wine"),
    _classes("digits", 1797, 64, *"0123456789", loader="load_digits", target="digit", source=_DIGITS),
)
