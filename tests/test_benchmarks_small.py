"""Agreement with NUTS as a suite, and refusals of suites."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import run, typed

import pyrobnn as bnn
from benchmarks.tasks import nuts

SUITES = Path(__file__).parents[1] / "benchmarks" / "suites"


def suite(name):
    tables = tomllib.loads((SUITES / f"{name}.toml").read_text())
    return {key: value for key, value in tables.items() if key not in ("task", "title", "threads")}


@pytest.mark.parametrize(("task", "num"), [(nuts, 57)])
def test_suites_are_jobs_with_complete_settings(task, num):
    jobs = task.jobs(suite(task.__name__.rpartition(".")[2]))
    assert len(jobs) == num
    assert all({"entry", "data", "engine"} <= set(job) for job in jobs)
    assert len({(job["entry"], str(job)) for job in jobs}) == num


def test_distances_of_a_shift_are_known():
    problem = nuts.PROBLEMS["sinusoid"]()
    draws = np.random.default_rng(0).normal(size=(500, len(problem.test))).astype(np.float32)
    std = np.full_like(draws, 0.5)
    reference = {"mean": draws, "std": std}
    assert nuts.distances(reference, reference, problem) == {"function": 0.0, "predictive": 0.0}
    shifted = nuts.distances({"mean": draws + 0.3, "std": std}, reference, problem)
    assert shifted["function"] == pytest.approx(0.3 / float(problem.data.y.std()), rel=1e-4)
    points = {"mean": np.zeros_like(draws), "std": std}
    apart = nuts.distances({"mean": points["mean"] + 1.0, "std": std}, points, problem)
    normal = torch.distributions.Normal(0.0, 1.0)
    assert apart["predictive"] == pytest.approx(float(2 * normal.cdf(torch.tensor(1.0)) - 1), abs=1e-3)


def test_halves_of_nuts_are_close_and_a_network_is_not():
    tables = {"problems": ["moons"], "draws": 50, "engine": "eager"}
    jobs = nuts.jobs({**tables, "entries": [{"name": "map", "guide": "map", "fit": {"type": "svi", "steps": 5}}]})
    rows = [row for job in jobs for row in run(nuts, job)]
    assert [row["entry"] for row in rows] == [nuts.FLOOR, "map"]
    assert rows[0]["predictive"] == pytest.approx(0.004, abs=5e-4)
    assert rows[0]["agreement"] == pytest.approx(0.996, abs=5e-4)
    assert rows[1]["predictive"] > 0.1
    assert nuts.datasets(typed(nuts, jobs[1])) == ()
    assert [line[0] for line in nuts.tables(rows, [])[0].rows] == [nuts.FLOOR, "map"]
    assert len(nuts.figures(rows)[0].figure.axes) == 1
    with pytest.raises(bnn.InputError, match="make the job anew"):
        run(nuts, jobs[1] | {"reference": "0"})
