"""Dataset: a data set with its train and test splits, and where it came from."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.tables import Task
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import same_inputs, split_rows

NUM_RANDOM_SPLITS = 20
TEST_FRACTION = 0.1


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
        reason: for a user's table, the reason for this task, in words.
        encoder: for a user's table, how its columns were read and encoded, in JSON's types;
            `pyrobnn.datasets.load_features` takes it.
        notes: for a user's table, what was assumed in reading it, a line for each.
        groups: for a user's table, the group of each row, (N,): copies of a row share it, and a split keeps them in one
            part. Else rows of the same inputs are copies.
        test: share of the rows in the test part of a random split.

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
    encoder: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    groups: Tensor | None = dataclasses.field(default=None, repr=False)
    test: float = TEST_FRACTION

    @property
    def num_splits(self) -> int:
        """Number of splits that `split` offers: the published splits, or else 20 random splits."""
        return len(self.splits) or NUM_RANDOM_SPLITS

    def split(self, i: int) -> tuple[Data, Data]:
        """Return the data of a split as (train, test).

        If no splits are published, split i has a random share `test` of the rows (rounded, at least one) as its test
        part, drawn as by `Data.split` with the seed i, with its share of each class.

        Args:
            i: number of the split, 0 to `num_splits` - 1.

        Raises:
            InputError: no split of that number.

        Examples:
            >>> train, test = bnn.datasets.load("diabetes").split(0)
            >>> len(train), len(test)
            (398, 44)
        """
        if i not in range(self.num_splits):
            raise InputError(
                f"{self.name} has splits 0 to {self.num_splits - 1}, got {i!r}: pass a number in that range."
            )
        if not self.splits:
            groups = same_inputs(self.data.x) if self.groups is None else self.groups
            rest, part = split_rows(groups, self.data.y, self.test, seed=i)
            return self.data[rest], self.data[part]
        train, test = self.splits[i]
        return self.data[train], self.data[test]
