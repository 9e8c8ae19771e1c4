"""UCI classification sets: mushroom, spambase, ionosphere and pima-indians-diabetes."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pyrobnn.data.in_memory import Data
from pyrobnn.datasets.published import PublishedFile, PublishedSet, Splits

_MUSHROOM_COLUMNS = (
    "cap-shape cap-surface cap-color bruises odor gill-attachment gill-spacing gill-size gill-color stalk-shape "
    "stalk-root stalk-surface-above-ring stalk-surface-below-ring stalk-color-above-ring stalk-color-below-ring "
    "veil-type veil-color ring-number ring-type spore-print-color population habitat"
)
_SPAMBASE_WORDS = (
    "make address all 3d our over remove internet order mail receive will people report addresses free business email "
    "you credit your font 000 money hp hpl george 650 lab labs telnet 857 data 415 85 technology 1999 parts pm direct "
    "cs meeting original project re edu table conference"
)
_SPAMBASE_COLUMNS = (
    *(f"word_freq_{word}" for word in _SPAMBASE_WORDS.split()),
    *(f"char_freq_{sign}" for sign in ";([!$#"),
    *(f"capital_run_length_{kind}" for kind in ("average", "longest", "total")),
)
_PIMA_COLUMNS = ("pregnancies", "glucose", "blood_pressure", "skin_thickness", "insulin", "bmi", "pedigree", "age")
_HOME = "https://archive.ics.uci.edu/dataset"


def read_mushroom(paths: Sequence[Path]) -> tuple[Data, Splits]:
    """Return the mushrooms with 22 categories each in one-hot columns, not to be standardised; "?" is a category."""
    import pandas as pd

    frame = pd.read_csv(paths[0], header=None, dtype=str, keep_default_na=False)
    frame.columns = pd.Index(["class", *_MUSHROOM_COLUMNS.split()])
    columns = pd.get_dummies(frame.drop(columns="class"), prefix_sep="=", dtype=np.float32)
    return Data(columns, _labels(frame["class"], "ep"), target_name="class"), ()


def read_table(paths: Sequence[Path], *, features: Sequence[str], codes: str) -> tuple[Data, Splits]:
    """Return a table without header whose last column is the class, `codes[k]` for class k."""
    import pandas as pd

    frame = pd.read_csv(paths[0], header=None)
    x = frame.iloc[:, :-1].to_numpy(dtype=np.float64)
    y = _labels(frame.iloc[:, -1].astype(str), codes)
    return Data(x, y, standardize=True, feature_names=features, target_name="class"), ()


def _labels(column: Iterable[str], codes: str) -> np.ndarray:
    labels = {code: label for label, code in enumerate(codes)}
    return np.array([labels[code] for code in column])


def _file(folder: str, *names: str) -> PublishedFile:
    return PublishedFile((*names, *(f"{folder}/{name}" for name in names)))


def _table_set(
    name: str, rows: int, features: Sequence[str], *, codes: str, classes: tuple[str, str], source: str
) -> PublishedSet:
    read = partial(read_table, features=tuple(features), codes=codes)
    file = _file("uci_classification", *(f"{name}{end}" for end in (".data", ".csv", ".csv.gz")))
    return PublishedSet(name, "classification", rows, len(features), read, (file,), source, class_names=classes)


_MUSHROOM = _file("mushroom", "agaricus-lepiota.data", "agaricus-lepiota.data.gz")
_RADAR = [f"{part}_{pulse}" for pulse in range(17) for part in ("real", "imaginary")]
_SMITH = "Smith et al. 1988, UCI Pima Indians Diabetes; zeros stand for missing values from glucose to bmi"

CLASSIFICATION_SETS = (
    PublishedSet(
        "mushroom",
        "classification",
        8124,
        117,
        read_mushroom,
        (_MUSHROOM,),
        f"UCI Mushroom; {_HOME}/73/mushroom",
        class_names=("edible", "poisonous"),
    ),
    _table_set(
        "spambase",
        4601,
        _SPAMBASE_COLUMNS,
        codes="01",
        classes=("mail", "spam"),
        source=f"UCI Spambase; {_HOME}/94/spambase",
    ),
    _table_set(
        "ionosphere", 351, _RADAR, codes="bg", classes=("bad", "good"), source=f"UCI Ionosphere; {_HOME}/52/ionosphere"
    ),
    _table_set(
        "pima-indians-diabetes", 768, _PIMA_COLUMNS, codes="01", classes=("negative", "positive"), source=_SMITH
    ),
)
