"""The record of a fit: typed fields, and `info`, a view of them that is read only."""

import copy
import dataclasses
import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import pyrobnn as bnn
from pyrobnn._core.tree_files import read_tree
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
INFO = {
    "method": {"type": "ensemble", "method": {"type": "svi", "lr": 0.1}, "guide": {"type": "map"}},
    "num_data": 12,
    "feature_names": ["a", "b"],
    "engine": {"asked": "auto", "used": "eager", "reason": "short", "from_step": None} | {"compile_seconds": None},
    "rewinds": [{"step": 3, "back_to": 2, "lr_factor": 0.5}],
    "laplace": LAPLACE,
    "evidence": {
        "starts": [{"noise": None, "log_evidence": float("-inf"), "log_left_out": -1.0, "determined": 2.5}],
        "chosen": 0,
        "precision": {"0.weight": [1.0, 2.0], "0.bias": 3.0},
        "members": [1],
    },
    "mine": {"note": None},
}


def posterior_with(info):
    x = torch.linspace(-1, 1, 6)[:, None]
    posterior = bnn.BNN(bnn.MLP(1, [2], 1), prior=bnn.priors.Normal(1.0)).fit(
        x, x[:, 0], steps=1, seed=0, engine="eager", progress=False
    )
    posterior.info = info
    return posterior


def test_a_record_shows_the_mapping_that_it_was_read_from():
    posterior = posterior_with(INFO)
    assert posterior.info == INFO
    assert json.loads(json.dumps(posterior.info)) == INFO
    assert type(posterior.info["rewinds"][0]["step"]) is int
    assert pickle.loads(pickle.dumps(posterior.info)) == copy.deepcopy(posterior.info) == INFO
    record = posterior.record
    assert record.engine == EngineRecord("auto", "eager", "short")
    assert [table["type"] for table in record.methods] == ["ensemble", "svi"]
    assert record.extra == {"mine": {"note": None}}
    assert FitRecord().methods == FitRecord(method="SVI(...)").methods == []


def test_info_changes_by_assignment_alone():
    posterior = posterior_with(INFO)
    for change in (
        lambda info: info.update(num_data=3),
        lambda info: info.pop("num_data"),
        lambda info: info["method"].setdefault("lr", 1),
        lambda info: info["laplace"].clear(),
    ):
        with pytest.raises(TypeError, match="`info` shows the record of a fit and is read only: add to it by"):
            change(posterior.info)
    with pytest.raises(dataclasses.FrozenInstanceError):
        posterior.record.num_data = 3
    posterior.info |= {"num_data": 3, "note": "second try"}
    assert posterior.info == INFO | {"num_data": 3, "note": "second try"}
    assert posterior.record.num_data == 3


@pytest.mark.parametrize(
    "info",
    [{"num_data": "many"}, {"engine": "mine"}, {"engine": {"used": "eager"}}, {"laplace": LAPLACE | {"more": 1}}],
)
def test_values_that_a_field_does_not_take_are_kept_beside_the_others(info):
    posterior = posterior_with(info | {"threads": 2})
    assert posterior.record.extra == info
    assert posterior.info == info | {"threads": 2}


@pytest.mark.parametrize(
    "path", [path for path in (Path(__file__).parent / "fixtures").glob("posterior_v*/*") if not path.suffix], ids=str
)
def test_stored_records_are_read_whole(path):
    info = read_tree(path)["info"]
    record = FitRecord.of(info)
    assert not record.extra
    posterior = posterior_with(info)
    assert json.dumps(posterior.info, sort_keys=True) == json.dumps(info, sort_keys=True)


def test_a_fit_is_printed_in_a_few_lines():
    """The numbers of measured parts have four digits; a list, which shows each in one line, too."""
    model = bnn.BNN(
        bnn.MLP(1, [5], 1, activation="tanh"), prior="student_t", likelihood=bnn.likelihoods.Gaussian(1.63020753)
    )
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
