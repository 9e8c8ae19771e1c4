"""Columns that give the target away, or number the rows, and last layers that limit their outputs are named."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn.data.in_memory import leaks
from pyrobnn.diagnostics.checks import ALL_CHECKS
from pyrobnn.diagnostics.related_rows import related_rows
from pyrobnn.likelihoods import Bernoulli, Categorical, Gaussian, MixtureDensity, Poisson, StudentT
from pyrobnn.verdict.evidence import Evidence

RNG = np.random.default_rng(0)
NUM = 200
PLAIN = RNG.normal(size=NUM)
NUMBERS, LABELS = RNG.normal(size=NUM), torch.arange(NUM) % 3


@pytest.mark.parametrize(
    ("column", "y", "is_named"),
    [
        (3 - 2 * NUMBERS, NUMBERS, True),
        (NUMBERS + 0.001 * RNG.normal(size=NUM), NUMBERS, True),
        (NUMBERS + 0.1 * RNG.normal(size=NUM), NUMBERS, False),
        (LABELS.numpy() + 0.4 * RNG.uniform(size=NUM), LABELS, True),
        (LABELS.numpy() + 0.6 * RNG.normal(size=NUM), LABELS, False),
        (RNG.permutation(NUM) + 1001, NUMBERS, True),
        (RNG.permutation(NUM)[:NUM] * 1000, NUMBERS, False),
        (np.where(np.arange(NUM) == 3, 4, np.arange(NUM)), NUMBERS, False),
        (np.ones(NUM), NUMBERS, False),
        (np.arange(NUM) % 40 == 0, (torch.arange(NUM) % 40 == 0).long(), True),  # a class of five rows
        (np.arange(NUM) == 0, (torch.arange(NUM) == 0).long(), False),
        (torch.eye(4)[LABELS + (torch.arange(NUM) % 6 == 2)].numpy(), LABELS, True),  # words of its classes
        (torch.eye(30)[torch.arange(NUM) % 30].numpy(), LABELS, False),  # patients, of a class each
    ],
)
def test_columns_that_should_not_be_inputs_are_named(column, y, is_named):
    x = np.column_stack([PLAIN, column])
    names, columns = ["a", "b", *map(str, range(2, x.shape[1]))], {"a": [0], "b": [*range(1, x.shape[1])]}
    data = bnn.Data(x, y, feature_names=names)
    assert list(leaks(data, columns)) == ["b"] * is_named
    assert not leaks(data[:40], columns)


PATIENT = np.repeat(RNG.permutation(20), 10)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (PATIENT, "blocks"),
        (RNG.permutation(PATIENT), None),
        (np.repeat([0, 1, 2], [60, 70, 70]), None),  # a table sorted by a column of few values
        (np.cumsum(RNG.uniform(1, 2, NUM)), "in time"),
        (np.arange(NUM), None),  # the numbers of rows have a finding of their own
        (PLAIN, None),
    ],
)
def test_a_column_that_repeats_in_blocks_or_goes_on_in_time_is_named(column, name):
    data = bnn.Data(np.stack([PLAIN, column], 1), NUMBERS, feature_names=["a", "b"])
    found = related_rows(Evidence(None, data))
    assert (None if found is None else found.name) == name
    if name == "blocks":
        assert (found.severity, found.value, found.remedy.settings) == ("care", 20, ("data.groups=b",))
        shuffled = data[RNG.permutation(NUM)]
        assert related_rows(Evidence(None, shuffled)) is None
        names = torch.cat([data.x[:, :1], torch.eye(20)[PATIENT]], 1)  # a column of text, as the encoder gives it
        table = bnn.Data(names, NUMBERS, feature_names=["a", *map(str, range(20))])
        columns = {"a": [0], "patient": [*range(1, 21)]}
        told = related_rows(Evidence(None, table[RNG.permutation(NUM)], table=table, columns=columns))
        assert (told.value, told.facts) == (20, {"columns": "'patient'"})
        assert related_rows(Evidence(None, table)) is None  # each of them alone has two values
    assert related_rows(Evidence(None, bnn.Data(data.x, data.y, groups=PATIENT))) is None


def of_patients(num, rows, seed):
    """Age and weight of patients in whole numbers, a dose of each row, and the patient, in any order."""
    rng = np.random.default_rng(seed)
    patient = rng.permutation(np.repeat(np.arange(num), rows))
    age, weight = rng.integers(20, 80, num)[patient], rng.normal(75, 12, num).round()[patient]
    return np.stack([rng.normal(size=len(patient)), age, weight, patient], 1)


@pytest.mark.parametrize(("num", "rows"), [(12, 20), (50, 20)])
@pytest.mark.parametrize("seed", range(3))
def test_columns_that_are_alike_in_all_rows_of_a_patient_are_named(num, rows, seed):
    x = of_patients(num, rows, seed)
    for columns in ([0, 1, 2], [0, 1, 2, 3]):
        data = bnn.Data(x[:, columns], x[:, 0], feature_names=[str(column) for column in columns])
        found = related_rows(Evidence(None, data))
        assert (found.name, found.severity) == ("shared", "note")
        assert sorted(found.facts["columns"].split(", ")) == [f"'{column}'" for column in columns[1:]]
        assert found.remedy.settings[0].removeprefix("data.groups=") in "123"


@pytest.mark.parametrize("seed", range(3))
def test_columns_that_only_depend_on_each_other_are_no_groups(seed):
    """A correlated column, the same in other units, a rare one, and factors of an experiment in all combinations."""
    rng = np.random.default_rng(seed)
    height = rng.normal(170, 9, 600).round()
    columns = {
        "height": height,
        "shoe": (height / 4.2 + rng.normal(size=600)).round(),
        "inches": (height / 2.54).round(),
        "rare": np.where(rng.random(600) < 0.05, rng.integers(1, 9, 600), 0),
        "five": np.arange(600) % 5,
        "six": np.arange(600) // 5 % 6,
    }
    data = bnn.Data(np.stack([*columns.values()], 1), height, feature_names=list(columns))
    assert related_rows(Evidence(None, data)) is None


@pytest.mark.parametrize(("most", "is_number"), [(3 * NUM, True), (NUM * NUM, False)])
def test_names_of_rows_are_whole_numbers_that_chance_would_repeat_also_where_rows_are_copied(most, is_number):
    names = np.random.default_rng(1).permutation(most)[:NUM]
    x = np.repeat(np.stack([names, PLAIN], 1), 2, axis=0)
    x[1::2, 1] += 1.0
    data = bnn.Data(x, np.repeat(NUMBERS, 2), weights=np.full(2 * NUM, 0.5), feature_names=["id", "a"])
    assert leaks(data) == ({"id": "row number"} if is_number else {})


def test_days_made_of_dates_number_no_rows():
    data = bnn.Data(np.stack([PLAIN, np.arange(NUM)], 1), NUMBERS, feature_names=["a", "day (days)"])
    assert leaks(data, {"a": [0], "day": [1]}) == {}
    assert leaks(data, {"a": [0], "day (days)": [1]}) == {"day (days)": "row number"}


def test_rows_held_out_after_those_of_training_do_not_lie_between_them():
    table = bnn.Data(np.stack([PLAIN, np.cumsum(RNG.uniform(1, 2, NUM))], 1), NUMBERS, feature_names=["a", "b"])
    order = RNG.permutation(NUM)
    for train, test, is_named in [(slice(160), slice(160, None), False), (order[:160], order[160:], True)]:
        found = related_rows(Evidence(None, table[train], table[test], table=table))
        assert (found is not None) == is_named


def test_columns_to_leave_out_are_named_with_those_that_are_left_out_already():
    data = bnn.Data(np.stack([PLAIN, 2 * NUMBERS, np.arange(NUM)], 1), NUMBERS, feature_names=["a", "copy", "id"])
    found = ALL_CHECKS["leak"](Evidence(None, data, dropped=["other"]))
    assert (found.name, found.remedy.settings) == ("copy", ('data.drop=["other", "copy"]',))
    assert ALL_CHECKS["leak"](Evidence(None, data.__class__(data.x[:, :1], data.y))) is None


@pytest.mark.slow
def test_an_estimator_and_a_table_name_them(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"a": PLAIN, "copy": 2 * NUMBERS, "id": np.arange(NUM)})
    with pytest.warns(bnn.PoorFitWarning) as found:
        bnn.BNNRegressor(steps=5, random_state=0).fit(frame, NUMBERS)
    named = {name for name in ("copy", "id") for one in found if f"Column {name!r}" in str(one.message)}
    assert named == {"copy", "id"}
    frame.assign(y=NUMBERS).to_csv(tmp_path / "t.csv", index=False)
    doubts = "\n".join(bnn.datasets.load_table(tmp_path / "t.csv", "y").doubts)
    assert "Column 'copy' gives the target away: leave it out" in doubts
    assert "Column 'id' numbers the rows: leave it out" in doubts


G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G)
REAL = X[:, 0].sin() + 0.1 * torch.randn(60, generator=G)
THREE = torch.arange(60) % 3
BINARY = (X[:, 0] > 0).float()
COUNTS = torch.poisson(X[:, 0].exp(), generator=G).long()


def messages(layers, likelihood, y, *, standardize=False):
    net = nn.Sequential(nn.Linear(3, likelihood.num_outputs(y)), *layers)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.fit(bnn.Data(X, y, standardize=standardize), guide="map", steps=1, seed=0, progress=False)
    return [str(each.message) for each in found if "ends in" in str(each.message)]


NESTED = nn.Sequential(nn.Softmax(-1), nn.Identity())
INSIDE = 0.5 + 0.4 * REAL / REAL.abs().max()
LAST = {
    "softmax": ([nn.Softmax(-1)], Categorical(), THREE, "Softmax", "0 and 1"),
    "nested, then dropout": ([NESTED, nn.Dropout(0.1)], Categorical(), THREE, "Softmax", "0 and 1"),
    "bernoulli": ([nn.ReLU()], Bernoulli(), BINARY, "ReLU", "0 and inf"),
    "two columns": ([nn.LogSigmoid()], Bernoulli(), torch.stack([BINARY] * 2, 1), "LogSigmoid", "-inf and 0"),
    "poisson": ([nn.Softplus()], Poisson(), COUNTS, "Softplus", "0 and inf"),
    "gaussian": ([nn.Sigmoid()], Gaussian(), REAL, "Sigmoid", "0 and 1"),
    "one column of two": ([nn.Tanh()], StudentT(), torch.stack([REAL, 100 + REAL], 1), "Tanh", "-1 and 1"),
    "standardised": ([nn.Sigmoid()], Gaussian(), INSIDE, "Sigmoid", "0 and 1"),
    "within the limits": ([nn.Sigmoid()], Gaussian(), INSIDE),
    "linear": ([], Categorical(), THREE),
    "log_softmax": ([nn.LogSoftmax(-1)], Categorical(), THREE),
    "half a line of logits of classes": ([nn.ReLU()], Categorical(), THREE),
    "tanh around its targets": ([nn.Tanh()], Gaussian(), REAL),
    "positive targets": ([nn.ReLU()], Gaussian(), 100 + REAL),
    "mixtures": ([nn.Tanh()], MixtureDensity(2), REAL),
}


@pytest.mark.parametrize("name", LAST)
def test_a_last_layer_that_limits_outputs_as_the_network_sees_them_is_named_and_no_other(name):
    layers, likelihood, y, *words = LAST[name]
    found = messages(layers, likelihood, y, standardize=name == "standardised")
    assert len(found) == bool(words)
    assert all(f"ends in {words[0]}," in text and words[1] in text for text in found)
