"""Data: which rows an index takes, and which stay together in a split."""

import numpy as np
import pandas as pd
import pytest
import torch

import pyrobnn as bnn
from pyrobnn import Data, InputError
from pyrobnn.baselines import _Problem
from pyrobnn.data.in_memory import same_inputs
from pyrobnn.diagnostics.folds import folds_of_inputs
from pyrobnn.inference import automatic

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


# Copies


def copied(seed=0):
    """Sixty rows, the first twenty of which come three times, in any order."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 3, generator=generator)
    rows = torch.cat([torch.arange(60), torch.arange(20), torch.arange(20)])
    rows = rows[torch.randperm(100, generator=generator)]
    return bnn.Data(x[rows], torch.arange(100.0)), rows


def test_rows_of_the_same_inputs_have_the_same_number():
    data, rows = copied()
    numbers = same_inputs(data.x)
    assert torch.equal(numbers[:, None] == numbers, rows[:, None] == rows)
    assert torch.equal(numbers[numbers.diff(prepend=torch.tensor([-1])) > 0].unique(), numbers.unique())
    assert int(numbers[0]) == 0
    zeros = torch.cat([torch.tensor([0.0, -0.0]), torch.arange(1.0, 12.0)])[:, None]
    assert same_inputs(zeros)[:3].tolist() == [0, 0, 1]
    assert torch.equal(same_inputs(data.x[:, :1] > 0), torch.arange(100))  # two categories are no copies


@pytest.mark.parametrize("seed", range(5))
def test_copies_of_a_row_fall_on_one_side_of_a_split(seed):
    data, _ = copied(seed)
    rest, part = data.split(0.2, seed=seed)
    assert len(part) == 20
    assert len(rest) == 80
    assert not {*map(tuple, rest.x.tolist())} & {*map(tuple, part.x.tolist())}


def test_a_split_of_rows_that_differ_is_a_permutation():
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(50, generator=torch.Generator().manual_seed(7))
    rest, part = bnn.Data(x, x[:, 0]).split(0.3, seed=7)
    assert torch.equal(part.x, x[order[:15]])
    assert torch.equal(rest.x, x[order[15:]])


def test_copies_of_a_row_fall_on_one_side_in_automatic_folds_and_baselines():
    data, rows = copied()
    for train, held_out in automatic._splits(data, 3):
        assert len(held_out) == 25
        assert not {*map(tuple, train.x.tolist())} & {*map(tuple, held_out.x.tolist())}
    labels = folds_of_inputs(4, data.x, np.arange(100) % 2, 0)
    folds = _Problem.of(bnn.likelihoods.Gaussian("learned"), data.x, data.y, 1).folds
    for number in range(60):
        assert len(set(labels[rows == number])) == 1
        assert len(set(folds[rows == number].tolist())) == 1
