import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from helpers import run

import pyrobnn as bnn
from benchmarks.report import regression as report
from benchmarks.report.regression_figures import critical_difference
from benchmarks.tasks import regression
from pyrobnn import InputError

ENTRY = {"name": "map", "guide": {"type": "map"}}
SUITE = {
    "data": ["diabetes"],
    "num_splits": 2,
    "base": {
        "net": {"type": "mlp", "hidden": [3]},
        "prior": {"type": "normal", "scale": 1.0},
        "fit": {"type": "svi", "steps": 40, "lr": 0.05, "engine": "eager"},
        "predict": {"num_draws": 20},
    },
}


def settings(**entry):
    (job,) = regression.jobs(SUITE | {"entries": [ENTRY | entry]})
    return job


def test_a_job_has_a_whole_spec_for_each_candidate():
    grid = {"prior.scale": [0.1, 1.0], "fit.steps": [10, 20]}
    job = settings(grid=grid)
    found = [(one["prior"]["scale"], one["fit"]["steps"]) for one in job["candidates"]]
    assert found == [(0.1, 10), (0.1, 20), (1.0, 10), (1.0, 20)]
    assert all(one["net"] == SUITE["base"]["net"] for one in job["candidates"])
    assert job["numbers"] == [0, 1]
    assert json.loads(json.dumps(job)) == job


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entries": [ENTRY | {"fit": {"engine": "auto"}}]}, "must be captured or eager, .* got 'auto'"),
        ({"entries": [ENTRY | {"grid": {"data.split": [1]}}]}, "Unknown key `data` in what the grid of map names"),
        ({"entries": [ENTRY | {"inputs": "rank"}]}, "`inputs` in .*map.* 'plain', 'ranks' or 'waves', got 'rank'"),
        ({"entries": [ENTRY | {"fit": {"seed": 1}}]}, "`fit.seed` in entry map has no effect .*suite.*leave it out"),
        ({"data": ["digits"]}, "needs data for regression, and digits is for classification: choose others"),
        ({"num_splits": 11, "splits": "gap"}, "diabetes has 10 gap splits, and `num_splits` is 11"),
        ({"tuning_members": 2}, "`tuning_members` is for ensembles, and map has SVI"),
    ],
)
def test_what_cannot_be_is_refused_before_work(change, message):
    with pytest.raises(InputError, match=message):
        regression.jobs(SUITE | {"entries": [ENTRY]} | change)


def test_the_middle_third_along_a_feature_is_the_test_part():
    x = torch.tensor([[5.0, 0.0], [1.0, 1.0], [4.0, 2.0], [2.0, 3.0], [3.0, 4.0], [6.0, 5.0], [7.0, 6.0]])
    train, test = regression.gap_split(bnn.Data(x, torch.arange(7.0)), 0)
    assert sorted(test.x[:, 0].tolist()) == [3.0, 4.0, 5.0]
    assert sorted(train.x[:, 0].tolist()) == [1.0, 2.0, 6.0, 7.0]
    assert sorted([*train.y.tolist(), *test.y.tolist()]) == list(range(7))


@pytest.mark.slow
def test_rows_are_the_same_for_the_same_settings_and_scores_are_those_of_the_exact_mixture():
    fit = {"type": "ensemble", "members": 2, "engine": "eager", "method": {"steps": 40, "lr": 0.05}}
    job = settings(fit=fit, guide={"type": "map"})
    first, again = (run(regression, job) for _ in range(2))
    times = ("seconds", "tuning_seconds")
    assert [{k: v for k, v in row.items() if k not in times} for row in first] == [
        {k: v for k, v in row.items() if k not in times} for row in again
    ]
    dataset = bnn.datasets.load("diabetes")
    train, test = dataset.split(1)
    data = bnn.Data(train.x, train.y, standardize=True)
    others = bnn.Data(*(getattr(dataset.split(0)[0], name) for name in "xy"), standardize=True)
    model = bnn.BNN(bnn.MLP(10, [3], 1), prior=bnn.priors.Normal(1.0))
    method = bnn.SVI(guide="map", steps=40, lr=0.05)
    members = bnn.fit_replicates(model, [others, others, data, data], method, seed=0, engine="eager", progress=False)[
        2:
    ]
    log_probs = torch.stack([one.predict(test.x, num_draws=1).log_prob(test.y).double() for one in members])
    expected = float((torch.logsumexp(log_probs, 0) - math.log(2)).mean())
    assert first[1]["log_score"] == pytest.approx(expected, abs=1e-5)
    assert sum(first[1]["pit"]) == len(test)


def with_test_targets_shifted(by):
    """Return what loads a data set whose one split, there twice, has test targets of another level."""
    load = bnn.datasets.load

    def shifted(name):
        dataset = load(name)
        train, test = np.split(np.random.default_rng(0).permutation(len(dataset.data)), [-44])
        y = dataset.data.y.clone()
        y[test] += by
        return dataclasses.replace(dataset, data=bnn.Data(dataset.data.x, y), splits=((train, test),) * 2)

    return shifted


@pytest.mark.slow
def test_targets_of_the_test_part_have_no_say_in_what_is_chosen(monkeypatch):
    job = settings(grid={"prior.scale": [0.9, 1.0]})
    found = []
    for shift in (0.0, 1000.0):
        with monkeypatch.context() as patch:
            patch.setattr(bnn.datasets, "load", with_test_targets_shifted(shift))
            found.append(run(regression, job))
    before, after = found
    assert [row["validation_log_score"] for row in after] == [row["validation_log_score"] for row in before]
    assert [row["chosen"] for row in after] == [row["chosen"] for row in before]
    assert all(new["log_score"] < old["log_score"] - 1 for new, old in zip(after, before, strict=True))


def row(entry, data, score, **others):
    return {"entry": entry, "data": data, "split": 0, "log_score": score, "rmse": 1.0, "coverage_95": 0.9} | others


def test_means_have_standard_errors_over_splits():
    means = report.own_means([row("a", "b", score) for score in (1.0, 2.0, 6.0)], "log_score")
    assert means["a"]["b"].value == pytest.approx(3.0)
    assert means["a"]["b"].error == pytest.approx(math.sqrt(7 / 3))
    for lost in (math.nan, -math.inf):
        means = report.own_means([row("a", "b", score) for score in (1.0, lost)], "log_score")
        assert not math.isfinite(means["a"]["b"].error)


def test_published_numbers_are_brought_to_one_convention():
    base = {"dataset": "yacht", "status": "read", "source": "s", "where_read": "r"}
    rows = [
        base | {"method": "deviation", "metric": "nll", "value": 1.18, "error": 0.21, "error_kind": "stddev"},
        base | {"method": "both", "metric": "ll", "value": -1.55, "error": 0.12, "error_kind": "stddev"},
        base | {"method": "both", "metric": "ll", "value": -1.55, "error": 0.03, "error_kind": "stderr"},
        base | {"method": "PBP as quoted there", "metric": "nll", "value": 1.63, "error": 0.02, "error_kind": "stderr"},
        base | {"method": "unclear", "metric": "ll", "value": -0.47, "error": 0.03, "error_kind": "stderr?"},
    ]
    found = report.published_means(rows, "log_score", ["yacht"])
    assert set(found) == {"deviation", "both", "unclear"}
    assert found["deviation"]["yacht"].value == -1.18
    assert found["deviation"]["yacht"].error == pytest.approx(0.21 / math.sqrt(20))
    assert found["both"]["yacht"].error == 0.03
    assert str(found["unclear"]["yacht"]) == "-0.470 ± 0.030 (?)"


def test_the_critical_difference_is_that_of_the_paper():
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
