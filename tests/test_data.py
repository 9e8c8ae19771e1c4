"""Data: which rows an index takes."""

import numpy as np
import pandas as pd
import pytest
import torch

from pyrobnn import Data, InputError

X = torch.arange(8.0).reshape(4, 2)
DATA = Data(X, torch.arange(4.0), standardize=True, feature_names=["a", "b"], target_name="t")
MASK = [False, True, False, True]
TAKES_1_AND_3 = {
    "slice": slice(1, None, 2),
    "torch mask": torch.tensor(MASK),
    "numpy mask": np.array(MASK),
    "list mask": MASK,
    "tuple mask": tuple(MASK),
    "pandas mask": pd.Series(MASK),
    "torch index": torch.tensor([1, 3]),
    "short index": torch.tensor([1, 3], dtype=torch.uint8),
    "numpy index": np.array([1, 3], dtype=np.int32),
    "list index": [1, 3],
    "range": range(1, 4, 2),
    "from the end": [-3, -1],
}


@pytest.mark.parametrize("kind", TAKES_1_AND_3)
def test_rows(kind):
    part = DATA[TAKES_1_AND_3[kind]]
    assert part.y.tolist() == [1.0, 3.0]
    assert torch.equal(part.x, X[1::2])
    assert (part.standardize, part.feature_names, part.target_name) == (True, ("a", "b"), "t")


def test_index_may_repeat_and_reorder():
    assert DATA[[3, 0, 0]].y.tolist() == [3.0, 0.0, 0.0]


REFUSED = {
    "scalar": (1, r"got int64 values of shape \(\): for a single row i pass \[i\]"),
    "scalar tensor": (torch.tensor(1), r"got int64 values of shape \(\)"),
    "one truth value": (True, r"got bool values of shape \(\)"),
    "float": ([0.0, 1.0], r"`rows` must be a slice, a boolean mask of length 4, or row numbers .* got float64 values"),
    "short mask": (np.array([True, False]), r"boolean mask of length 4, .* got bool values of shape \(2,\)"),
    "long torch mask": (torch.ones(5, dtype=torch.bool), r"got bool values of shape \(5,\)"),
    "two dimensions": (torch.zeros(4, 2, dtype=torch.bool), r"got bool values of shape \(4, 2\)"),
    "pair of indices": (([0, 1], [0, 1]), r"got int64 values of shape \(2, 2\)"),
    "ragged": ([[0], [0, 1]], "rows of unequal length"),
    "text": (["a"], "`rows` must be numeric"),
    "above": ([0, 4], "Row numbers must lie below the 4 rows, got 4: check `rows`"),
    "far below": ([-5], "Row numbers must lie below the 4 rows, got -5"),
    "none": ([], "`x` must not be empty"),
    "empty mask": (np.zeros(4, dtype=bool), "`x` must not be empty"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_rows_refused(kind):
    rows, message = REFUSED[kind]
    with pytest.raises(InputError, match=message):
        DATA[rows]
