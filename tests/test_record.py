"""The record of a fit: typed fields, written as a table and read from it."""

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest

import pyrobnn as bnn
from pyrobnn.posterior.record import EngineRecord, FitRecord

LAPLACE = {
    "setting": {"type": "laplace", "structure": "kron"},
    "log_evidence": -3.0,
    "log_likelihood": -1.0,
    "log_prior": -2.0,
    "log_det": 6.0,
    "dimension": 3,
    "clipped": {},
    "repaired": 0,
    "product_error": {"0.weight": 1.5},
    "slow": [],
}
TABLE = {
    "method": {"type": "ensemble", "method": {"type": "svi", "lr": 0.1}, "guide": {"type": "map"}},
    "num_data": 12,
    "feature_names": ["a", "b"],
    "engine": {"asked": "auto", "used": "eager", "reason": "short", "from_step": None} | {"compile_seconds": None},
    "laplace": LAPLACE,
    "evidence": {
        "starts": [{"noise": None, "log_evidence": float("-inf"), "log_left_out": -1.0, "determined": 2.5}],
        "chosen": 0,
        "precision": {"0.weight": [1.0, 2.0], "0.bias": 3.0},
        "members": [1],
    },
    "automatic": {
        "method": {"type": "automatic", "max_seconds": 1.0},  # a setting of an earlier version
        "candidates": [{"name": "svi", "log_score": -1.0, "error": 0.1, "seconds": 2.0}],
        "chosen": "svi",
    },
    "extra": {"mine": {"note": None}},
}


def test_a_record_comes_back_from_its_table():
    record = FitRecord.from_table(TABLE)
    assert record.engine == EngineRecord("auto", "eager", "short")
    assert [table["type"] for table in record.methods] == ["ensemble", "svi"]
    assert FitRecord.from_table(json.loads(json.dumps(record.to_table()))) == record
    assert FitRecord.from_table(TABLE | {"of another version": 1}) == record
    assert FitRecord().methods == FitRecord(method="SVI(...)").methods == []
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.num_data = 3


@pytest.mark.parametrize("table", [{"num_data": "many"}, {"engine": "mine"}, {"engine": {"used": "eager"}}])
def test_tables_of_other_records_are_refused(table):
    with pytest.raises(bnn.InputError, match="cannot be read"):
        FitRecord.from_table(table)


def test_a_fit_is_printed_in_a_few_lines():
    """The numbers of measured parts have four digits; a list, which shows each in one line, too."""
    net = bnn.MLP(1, [5], 1, activation="tanh")
    model = bnn.BNN(net, prior="student_t", likelihood=bnn.likelihoods.Gaussian(1.63020753))
    method = bnn.Ensemble(bnn.SVI(guide="map", steps=2), members=2)
    mixture = bnn.fit(model, bnn.datasets.sinusoid(10), method, seed=0, progress=False)
    shown = str(mixture)
    *lines, took = shown.splitlines()
    assert lines == [
        "Mixture of 2 members",
        "  method     ensemble of svi with guide map",
        "  network    MLP(in_features=1, hidden=(5,), out_features=1, activation='tanh'); 16 weights",
        "  prior      StudentT",
        "  likelihood Gaussian(scale=1.63)",
        "  fitted to  10 examples",
    ]
    assert re.fullmatch(r"  took       \d+\.\d s, 2 steps", took)
    assert repr([mixture]).startswith("[<Mixture of 2 members: MLP(in_features=1, hidden=(5,)")
    assert str(mixture.members[0]).startswith("Posterior\n  method     svi with guide map\n")
    printer = SimpleNamespace(text=(told := []).append)
    mixture._repr_pretty_(printer, cycle=False)
    assert told == [shown]
