"""Dataset: a data set with its train and test splits, and where it came from."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import single
from pyrobnn.data.imputed import Imputer, with_copies, with_targets
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import classes_of, split_rows
from pyrobnn.tables.schema import Task

if TYPE_CHECKING:
    from pyrobnn.tables.encoder import Encoder

NUM_RANDOM_SPLITS = 20
TEST_FRACTION = 0.1
"""Share of the rows in the test part of a random split, of data sets by name and of large tables."""
OF_SMALL, _ROWS = 0.2, 200
"""The share of small tables, and the rows that are enough for larger ones."""
_TEST_ROWS_A_CLASS = 10.5
_LARGEST_TEST_SHARE = 0.5
_MOST_TEST_ROWS = 500
"""Test rows that each class should have, and the largest share and number of rows that may be held out for that."""
FOR_CALIBRATION, _MOST_FOR_CALIBRATION = 20, 1 / 3
"""Test rows with real targets that tell something of calibration, and the largest share of rows for that."""


def test_share(y: Tensor) -> float:
    """Return the share of a table's rows that are held out by default, so that they can tell how good a fit is.

    It is a fifth up to 1,000 rows, 200 rows up to 2,000, and a tenth of more; of 60 rows and more with real targets at
    least 20, and at least ten in all, or of each class, up to half of the rows and 500 of them.
    """
    share = max(TEST_FRACTION, min(OF_SMALL, _ROWS / len(y)))
    classes = classes_of(y)
    if classes is None and (few := FOR_CALIBRATION / len(y)) <= _MOST_FOR_CALIBRATION:
        share = max(share, few)
    needed = _TEST_ROWS_A_CLASS / (len(y) if classes is None else int(classes.bincount().min()))
    return max(share, needed) if needed <= min(_LARGEST_TEST_SHARE, _MOST_TEST_ROWS / len(y)) else share


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A loaded data set.

    Attributes:
        name: its name in files and on the command line.
        task: "regression" or "classification".
        data: all N rows in raw units, to be standardised unless all columns share a scale (pixels, one-hot columns).
        splits: published (train_index, test_index) pairs, integer arrays of row numbers; empty if none are published.
        class_names: the name of each class 0..C-1; empty for regression.
        source: where the data come from.
        licence: terms of use.
        checksum: SHA-256 (hexadecimal) of the bytes of its files in order, or of the arrays for the sets of
            scikit-learn.
        reason: of a user's table, as all that follows: the reason for this task, in words.
        encoder: how its columns were read and encoded; `encoder.transform` makes the inputs of a file or a frame.
        notes: what was assumed in reading it, a line for each.
        described: its columns by their kinds, in a line.
        doubts: columns to look at again, and why, a line for each.
        groups: the group of each row, (N,): copies of a row share it, and a split keeps them in one part.
        test: share of the rows in the test part of a random split.
        given: inputs with NaN and zeros where rows lack values; `data` has a value that was drawn.
        imputer: draws these values, from the rows to train on.
        is_ordered: whether classes have an order, as numbers and ordered categories do, and text does not.
        strata: the targets (N,) whose shares a split keeps: the same for counts read as numbers and as classes.
        numbers: the row of each example in the file, (N,), counted from 1.

    Examples:
        >>> diabetes = bnn.datasets.load("diabetes")
        >>> diabetes.task, diabetes.data, diabetes.num_splits
        ('regression', Data(x=(442, 10), y=(442,) float64, standardize=True), 20)
    """

    name: str
    task: Task
    data: Data
    splits: tuple[tuple[np.ndarray, np.ndarray], ...] = dataclasses.field(repr=False)
    class_names: tuple[str, ...]
    source: str
    licence: str
    checksum: str
    reason: str = ""
    encoder: "Encoder | None" = dataclasses.field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    described: str = ""
    doubts: tuple[str, ...] = ()
    groups: Tensor | None = dataclasses.field(default=None, repr=False)
    test: float = TEST_FRACTION
    given: np.ndarray | None = dataclasses.field(default=None, repr=False)
    imputer: Imputer | None = dataclasses.field(default=None, repr=False)
    is_ordered: bool = True
    strata: Tensor | None = dataclasses.field(default=None, repr=False)
    numbers: np.ndarray | None = dataclasses.field(default=None, repr=False)

    @property
    def num_splits(self) -> int:
        """Number of splits that `split` offers: the published splits, or else 20 random splits."""
        return len(self.splits) or NUM_RANDOM_SPLITS

    def split(self, i: int) -> tuple[Data, Data]:
        """Return the data of split `i`, 0 to `num_splits` - 1, as (train, test).

        If no splits are published, the test part of split i is drawn as by `Data.split` with the seed i. Rows of
        a table that lack values are there five times in the training part, with values drawn anew.

        Raises:
            InputError: no split of that number.

        Examples:
            >>> train, test = bnn.datasets.load("diabetes").split(0)
            >>> len(train), len(test)
            (398, 44)
        """
        if i not in range(self.num_splits):
            known = f"{self.name} has splits 0 to {self.num_splits - 1}"
            raise InputError(f"{known}, got {i!r}: pass a number in that range.")
        train, test = self.rows(i)
        return self.to_fit(train), self.data[test]

    def rows(self, i: int) -> tuple[Any, Any]:
        """Return the row numbers of both parts of a split, each row once."""
        if self.splits:
            return self.splits[i]
        groups = self.data.row_groups() if self.groups is None else self.groups
        return split_rows(groups, self.data.y if self.strata is None else self.strata, self.test, seed=i)

    def held_out(self, i: int) -> np.ndarray:
        """Return the inputs of the test part of a split, with NaN where rows of a table lack values."""
        x = single(self.data.x, "A table").numpy() if self.given is None else self.given
        return np.asarray(x[np.asarray(self.rows(i)[1])])

    def to_fit(self, rows: Any = slice(None)) -> Data:
        """Return some rows to fit, with copies of those that lack values."""
        data = self.data[rows]
        if self.given is None or self.imputer is None:
            return data
        x, y = self.given[np.arange(len(self.data))[rows]], data.y.numpy()
        both = with_targets(x, y, len(self.class_names))
        imputer = Imputer(both, self.imputer.categories, both.shape[1] - x.shape[1])
        names = ("weights", "groups", "standardize", "inputs", "feature_names", "target_name")
        same: dict[str, Any] = {name: getattr(data, name) for name in names}
        return with_copies(x, y, len(self.class_names), imputer, **same)
