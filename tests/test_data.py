"""Data: which rows an index takes, which kinds of numbers, and what stays together in a split."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from helpers import refused
from torch.masked import masked_tensor

import pyrobnn as bnn
from pyrobnn import Data, InputError
from pyrobnn._core.checks import check_flag
from pyrobnn.data.splits import same_inputs
from pyrobnn.diagnostics.cross_validation import _folds
from pyrobnn.verdict.baselines import _Problem

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


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_groups_stay_whole_also_in_parts_that_lack_their_numbers(classes, seed):
    y = torch.arange(100) % classes
    data = bnn.Data(torch.randn(100, 2), y, groups=[f"patient {row // 5:02}" for row in range(100)])[80:]
    for whole in (data, data.with_inputs("ranks")):
        rest, part = whole.split(0.3, seed=seed)
        assert len(part) == 5  # of groups 16 to 19
        assert {*rest.groups.tolist(), *part.groups.tolist()} == {16, 17, 18, 19}
        assert not {*rest.groups.tolist()} & {*part.groups.tolist()}


def test_a_split_of_rows_that_differ_is_a_permutation():
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(50, generator=torch.Generator().manual_seed(7))
    rest, part = bnn.Data(x, x[:, 0]).split(0.3, seed=7)
    assert torch.equal(part.x, x[order[:15]])
    assert torch.equal(rest.x, x[order[15:]])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [1, 3])
def test_parts_have_their_share_of_each_class_up_to_a_group(seed, rows):
    """Of 600 examples, in groups of copies, 39 are of one class and 3 of another."""
    y = torch.cat([torch.full((558,), 4), torch.full((39,), 7), torch.full((3,), 9)])
    x = torch.arange(600) // rows
    data = bnn.Data(x[:, None].float(), y, standardize=False)
    rest, part = data.split(0.1, seed=seed)
    assert abs(len(part) - 60) <= rows
    assert abs(int((part.y == 7).sum()) - 3.9) < rows + 1
    assert int((part.y == 9).sum()) <= 3
    assert len(rest) + len(part) == 600


def test_each_row_of_a_class_is_as_likely_in_a_part():
    """Of 7 rows of class 1 among 20, over 2,000 seeds: a share of 0.3 within 5 standard errors."""
    y = torch.arange(20) % 3 % 2
    data = bnn.Data(torch.arange(20.0)[:, None], y, standardize=False)
    drawn = torch.zeros(20)
    for seed in range(2000):
        drawn[data.split(0.3, seed=seed)[1].x[:, 0].long()] += 1
    assert float((drawn / 2000 - 0.3).abs().max()) < 5 * (0.3 * 0.7 / 2000) ** 0.5


def test_copies_of_a_row_fall_on_one_side_in_baselines():
    data, rows = copied()
    labels = _folds(4, None, bnn.BNN(bnn.MLP(1, [2], 1)), data, 0)
    targets = (data.y, torch.ones(100), 1)
    folds = _Problem.of(bnn.likelihoods.Gaussian("learned"), data.x, *targets, at_zero=lambda x: 0).folds
    for number in range(60):
        assert len(set(labels[rows == number])) == 1
        assert len(set(folds[rows == number].tolist())) == 1


LARGE = np.array([[2**63 + 5, 1]] * 4, dtype=np.uint64)
MASKED = np.ma.masked_array(X.numpy(), mask=X.numpy() > 5)
with warnings.catch_warnings(action="ignore"):
    UNFIT = {
        "uint64": (LARGE, "whole numbers beyond 9,223,372,036,854,775,807"),
        "uint64 in a frame": (pd.DataFrame(LARGE), "whole numbers beyond"),
        "uint64 tensor": (torch.from_numpy(LARGE), "whole numbers beyond"),
        "masked": (MASKED, r"got 2 masked values: drop or impute"),
        "masked rows": ([*MASKED], r"got 2 masked values"),
        "masked tensor": (masked_tensor(X, X > 5), "pass a dense tensor"),
        "missing booleans": (pd.DataFrame({"a": pd.array([True, None] * 2, dtype="boolean")}), "impute missing values"),
        "sparse": (X.to_sparse(), "pass a dense tensor"),
        "sparse rows": (X.to_sparse_csr(), "pass a dense tensor"),
        "list of sparse": ([X.to_sparse()], "cannot be read as an array"),
        "list with gradients": ([torch.ones(2, requires_grad=True)] * 4, "cannot be read as an array"),
        "SciPy": (scipy.sparse.csr_array(X.numpy()), r"csr_array: pass `toarray\(\)`"),
        "nested": (torch.nested.nested_tensor([*X]), "pass a dense tensor"),
        "quantized": (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), "pass a dense tensor"),
        "without values": (X.to("meta"), "pass a dense tensor"),
        "complex": (X.numpy() + 1j, "must be numeric"),
        "dates": (np.array([["2020-01-01"]] * 4, dtype="M8[D]"), "must be numeric"),
        "records": (np.zeros((4, 1), dtype=[("a", "f8")]), "must be numeric"),
    }


@pytest.mark.parametrize("kind", UNFIT)
def test_values_that_would_lose_places_or_masks_are_refused(kind):
    values, message = UNFIT[kind]
    with pytest.raises(InputError, match=message):
        Data(values, DATA.y)


FITTED = {}


def fitted():
    if not FITTED:
        FITTED[0] = bnn.BNN(bnn.MLP(2, [2], 1)).fit(X, DATA.y, steps=1, seed=0, progress=False)
    return FITTED[0]


@pytest.mark.parametrize("kind", ["uint64", "masked", "masked rows", "sparse", "masked tensor", "SciPy", "quantized"])
@pytest.mark.parametrize(
    "use",
    [
        lambda values: Data(X, values),
        lambda values: fitted().predict(values),
        lambda values: fitted().predict(X).log_prob(values),
        lambda values: bnn.BNN(bnn.MLP(2, [2], 1)).sample_prior_predictive(values, seed=0),
    ],
    ids=["targets", "predict", "score", "prior"],
)
def test_they_are_refused_wherever_values_are_given(use, kind):
    with pytest.raises(InputError, match="whole numbers beyond|must hold a number in each place"):
        use(UNFIT[kind][0])


MASK_OF_ROWS = np.array([False, True, False, True])


@pytest.mark.parametrize(
    "use",
    [
        lambda ones: Data(X, DATA.y, weights=ones),
        lambda ones: DATA[ones.astype(int)],
        lambda ones: bnn.BNNRegressor(steps=1).fit(X.numpy(), ones),
        lambda ones: bnn.BNNRegressor(steps=1).fit(ones[:, None], DATA.y.numpy()),
        lambda ones: bnn.BNNClassifier(steps=1).fit(X.numpy(), ones.astype(int)),
        lambda ones: bnn.BNNRegressor(steps=1).fit(X.numpy(), DATA.y.numpy(), sample_weight=ones),
        lambda ones: bnn.kfold(bnn.BNN(bnn.MLP(2, [2], 1)), DATA, bnn.SVI(steps=1), folds=ones, seed=0),
    ],
    ids=["weights", "rows", "y", "X", "classes", "sample weight", "folds"],
)
def test_masks_are_not_dropped(use):
    with pytest.raises(InputError, match=r"got 2 masked values"):
        use(np.ma.masked_array(np.ones(4), mask=MASK_OF_ROWS))


@pytest.mark.parametrize("value", ["no", 1, None])
def test_standardize_is_true_or_false(value):
    x = np.arange(6.0)[:, None]
    with refused("`standardize` must be True or False, got"):
        bnn.Data(x, x, standardize=value)
    with refused("`standardize` must be True or False, got"):
        bnn.Loader([], standardize=value)
    assert check_flag((x > 1)[-1, 0], "standardize") is True  # a NumPy one


WHOLE = [[1, 2], [3, 4]]
TAKEN = {
    "uint64": (np.array([[2**63 - 1, 2], [3, 4]], dtype=np.uint64), [[2**63 - 1, 2], [3, 4]]),
    "uint64 tensor": (torch.tensor(WHOLE, dtype=torch.uint64), WHOLE),
    "uint16 tensor": (torch.tensor(WHOLE, dtype=torch.uint16), WHOLE),
    "float8 tensor": (torch.tensor(WHOLE).to(torch.float8_e4m3fn), WHOLE),
    "no mask": (np.ma.masked_array(WHOLE), WHOLE),
    "an empty mask": (np.ma.masked_array(WHOLE, mask=[[False, False]] * 2), WHOLE),
    "big-endian": (np.array(WHOLE, dtype=">f4"), WHOLE),
    "backwards": (np.array(WHOLE)[::-1, ::-1], [[4, 3], [2, 1]]),
    "long double": (np.array(WHOLE, dtype=np.longdouble), WHOLE),
    "objects": (np.array(WHOLE, dtype=object), WHOLE),
    "large objects": (np.array([[2**60, 2**70]], dtype=object), [[2.0**60, 2.0**70]]),
    "nullable": (pd.DataFrame({"a": pd.array([1, 3], dtype="Int64"), "b": [2.0, 4.0]}), WHOLE),
    "a negative view": (torch.complex(torch.zeros(2, 2), -torch.tensor(WHOLE).float()).conj().imag, WHOLE),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_other_kinds_of_numbers_are_taken_exactly(kind):
    values, expected = TAKEN[kind]
    assert Data(values, torch.zeros(len(expected))).x.tolist() == expected


def test_numbers_that_may_not_be_written_to_are_copied():
    values = X.numpy().copy()
    values.flags.writeable = False
    data = Data(values, DATA.y)
    data.x[0, 0] = 9.0
    assert values[0, 0] == 0.0
