"""Active learning, inputs of another kind, and agreement with NUTS as suites."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import run, typed

import pyrobnn as bnn
from benchmarks.measures import processes
from benchmarks.tasks import active, bandit, mnist, nuts, ood, regression
from benchmarks.tasks.schema import METHOD, check_suite

SUITES = Path(__file__).parents[1] / "benchmarks" / "suites"
ENTRIES = [{"name": "mean-field", "guide": {"type": "mean_field"}}, {"name": "ensemble", "members": 2}]
ACTIVE = {"data": ["digits"], "seeds": 2, "hidden": [4], "first": 5, "acquired": 3, "rounds": 1, "steps": 2}
ACTIVE |= {"draws": 4, "engine": "eager"}
OOD = {"seeds": 2, "draws": 6, "steps": 2, "engine": "eager"}
DIGITS = {"data": "digits", "without": [0, 9], "train": 100, "test": 50, "hidden": [4]}


def suite(name):
    tables = tomllib.loads((SUITES / f"{name}.toml").read_text())
    return {key: value for key, value in tables.items() if key not in ("task", "title", "threads")}


@pytest.mark.parametrize(("task", "num"), [(active, 8), (ood, 16), (nuts, 57)])
def test_suites_are_jobs_with_complete_settings(task, num):
    jobs = task.jobs(suite(task.__name__.rpartition(".")[2]))
    assert len(jobs) == num
    assert all({"entry", "data", "engine"} <= set(job) for job in jobs)
    assert len({(job["entry"], str(job)) for job in jobs}) == num


@pytest.mark.parametrize(
    ("task", "tables", "message"),
    [
        (active, {"entries": ENTRIES, "round": 3}, "Unknown key `round` in the suite. Known: .*rounds"),
        (ood, {"entries": ENTRIES, "sets": [DIGITS | {"size": 3}]}, "Unknown key `size` in set digits"),
        (ood, {"entries": ENTRIES}, r"needs \[\[sets\]\]"),
        (ood, {"entries": ENTRIES, "sets": [{"data": "digits"}]}, "either `without`"),
        (
            nuts,
            {"entries": [{"name": "map", "fit": {"type": "svi"}}], "problems": ["circle"]},
            "Unknown problem `circle`",
        ),
        (nuts, {"entries": [{"name": "map", "fits": {}}]}, "Unknown key `fits` in entry map"),
        (nuts, {}, r"needs \[\[entries\]\]"),
        (active, {"entries": [{"name": "a", "tuned": True}]}, "a has `tuned`, which needs a Laplace guide"),
        (nuts, {"entries": ENTRIES, "engine": "auto"}, "captured or eager"),
        (active, {"entries": ENTRIES, "data": "digits"}, "`data` in the suite: .* list, got 'digits'"),
        (active, {"entries": [*ENTRIES, *ENTRIES]}, "Two entries are called 'mean-field'"),
        (active, {"entries": [{"name": "a", "tuned": "yes"}]}, "`tuned` in entry a: .* boolean, got 'yes'"),
        (active, {"entries": ENTRIES, "rounds": 124}, "pool of digits has 1258 rows, and 1260 are labelled in the end"),
        (ood, {"entries": ENTRIES, "sets": [DIGITS | {"train": 0}]}, "`train` in set digits: .* greater than 0, got 0"),
        (ood, {"entries": ENTRIES, "sets": [DIGITS | {"data": "diabetes"}]}, "data for classification, and diabetes"),
        (nuts, {"entries": [{"name": "a"}], "seeds": [0, 1, 0]}, "`seeds` has a seed twice"),
        (
            ood,
            {"entries": ENTRIES, "sets": [{"data": "digits", "outside": "wine"}]},
            "wine has 13 columns, and digits 64: they must agree",
        ),
        (ood, {"entries": ENTRIES, "seeds": 0}, "`seeds` in the suite: .* greater than 0, got 0"),
        (nuts, {"entries": [{"name": "a"}, {"name": "a"}]}, "Two entries are called 'a'"),
        (nuts, {"entries": [{"name": nuts.FLOOR}]}, "Two entries are called 'NUTS, half of it'"),
        (nuts, {"entries": [{"name": "a", "fit": {"type": "svi", "seed": 1}}]}, "`fit.seed` in entry a has no effect"),
        (nuts, {"entries": [{"name": "a", "fit": {"engine": "eager"}}]}, "`fit.engine` in entry a has no effect"),
        (nuts, {"entries": ENTRIES, "problems": "moons"}, "`problems` in the suite: .* list, got 'moons'"),
        (nuts, {"entries": ENTRIES, "draws": 0}, "`draws` in the suite: .* greater than 0, got 0"),
    ],
)
def test_suites_with_mistakes_are_refused(task, tables, message):
    with pytest.raises(bnn.InputError, match=message):
        task.jobs(tables)


@pytest.mark.parametrize("task", [active, bandit, mnist, nuts, ood, regression])
def test_defaults_are_what_a_suite_may_say(task):
    defaults = task.SuiteSettings().model_dump()
    assert check_suite(defaults, task.SuiteSettings) == defaults


class Told:
    """A posterior whose predictions are given."""

    def __init__(self, doubt):
        self.doubt = doubt

    def predict(self, x, *, num_draws, seed):
        parts = {"is_classification": False, "mean": torch.zeros(len(x)), "epistemic_std": self.doubt(x)}
        return type("Prediction", (), {**parts, "log_prob": lambda self, y: torch.zeros(len(y))})()


def test_uncertainty_labels_the_most_doubtful_of_those_that_have_no_label():
    settings = typed(active, ACTIVE | METHOD | {"data": "diabetes", "entry": "told"})
    lane, chance = (active.Lane(settings, 0, how) for how in active.ACQUISITIONS)
    assert torch.equal(lane.labelled, chance.labelled)
    assert abs(float(lane.pool.x.mean())) < 1e-5
    first = lane.labelled
    for one in (lane, chance):
        one.acquire(Told(lambda x: x[:, 2]))
    others = np.setdiff1d(np.arange(len(lane.pool)), first)
    best = others[np.argsort(-lane.pool.x[others, 2].numpy(), kind="stable")][:3]
    assert lane.labelled.tolist() == [*first.tolist(), *best.tolist()]
    assert len(set(chance.labelled.tolist())) == 8
    assert set(chance.labelled.tolist()) != set(lane.labelled.tolist())


def test_the_test_part_has_no_row_of_the_pool():
    settings = active.Settings.model_construct(data="diabetes")
    pool, test = active.pool_and_test(settings, 3)
    assert (len(pool), len(test)) == (309, 133)
    assert not (torch.cdist(pool.x.double(), test.x.double()) < 1e-9).any()
    assert abs(float(pool.y.std()) - 1) < 1e-5


def test_active_learning_makes_a_curve_for_each_seed_and_acquisition():
    jobs = active.jobs({**ACTIVE, "entries": ENTRIES})
    rows = [row for job in jobs for row in run(active, job)]
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        assert row["labels"] == [5, 8]
        assert row["errors"][-1] == row["error"]
        assert all(0 <= error <= 1 for error in row["errors"])
    by_name = {(row["entry"], row["acquisition"], row["seed"]): row for row in rows}
    assert len(by_name) == len(rows)
    again = run(active, jobs[0])
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows[:4]]
    table = active.tables(rows, [])[0]
    assert [line[:2] for line in table.rows[:2]] == [["mean-field", "uncertainty"], ["mean-field", "random"]]
    assert len(active.figures(rows)[0].figure.axes) == 2


@pytest.mark.slow
def test_real_targets_are_learned_with_their_noise():
    laplace = {"name": "laplace", "guide": "laplace", "tuned": True}
    job = active.jobs({**ACTIVE, "data": ["diabetes"], "seeds": 1, "steps": 30, "entries": [laplace]})[0]
    rows = run(active, job)
    assert [row["acquisition"] for row in rows] == ["uncertainty", "random"]
    assert all(np.isfinite(row["log_scores"]).all() and 0.3 < row["error"] < 3 for row in rows)


def test_classes_left_out_are_outside_and_nowhere_else():
    settings = ood._OF_SET | DIGITS
    parts = ood.parts_of(typed(ood, settings), 0)
    digits = bnn.datasets.load("digits").data
    outside = {tuple(row) for row in (digits.x[torch.isin(digits.y, torch.tensor([0, 9]))] / 16).float().tolist()}
    assert all(tuple(row) in outside for row in parts.outside.tolist())
    assert not any(tuple(row) in outside for row in torch.cat([parts.train.x, parts.inside.x]).tolist())
    assert sorted(parts.train.y.unique().tolist()) == list(range(8))
    assert (len(parts.train), len(parts.inside), len(parts.outside)) == (100, 50, 50)
    with pytest.raises(bnn.InputError, match="ask for less"):
        ood.parts_of(typed(ood, settings | {"train": 1500}), 0)


def test_out_of_distribution_scores_are_rows_of_seeds():
    jobs = ood.jobs({**OOD, "sets": [DIGITS], "entries": [*ENTRIES, {"name": "map"}]})
    rows = [row for job in jobs for row in run(ood, job)]
    assert [(row["entry"], row["seed"]) for row in rows[-2:]] == [("map", 0), ("map", 1)]
    assert {row["data"] for row in rows} == {"digits against its classes 0 and 9"}
    assert all(0 <= row["auroc_entropy"] <= 1 for row in rows)
    assert rows[0]["auroc_mutual_information"] != rows[0]["auroc_entropy"]
    assert [row.get("auroc_mutual_information") for row in rows[-2:]] == [None, None]
    assert run(ood, jobs[0])[0] | {"seconds": 0} == rows[0] | {"seconds": 0}
    assert [line[0] for line in ood.tables(rows, [])[0].rows] == ["mean-field", "ensemble", "map"]
    assert len(ood.figures(rows)[0].figure.axes) == 1


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


def test_the_model_of_several_processes_is_that_of_its_parts():
    """Of 5 + 20 ms and 2000 bytes: in 4 processes 5 + 20 / 4 + 0.1 + 2 x 3 / 4 x 2000 / 1000."""
    sides = {processes.CAPTURED: 9.0, processes.ONE: 25.0, processes.HALF: 15.0, processes.TWO: 18.0}
    rows = [
        {"what": name, "side": side, "ms": ms + 1, "cpu ms": ms, "numbers": 500, "steps a second": 1.0, "load": 2.5}
        for name in processes.NETS
        for side, ms in sides.items()
    ]
    reduced = zip(processes.SIZES.items(), (0.1, 0.4, 4.0, 40.0), strict=True)
    rows += [
        {"what": processes.REDUCE, "side": side, "numbers": size, "ms": ms, "load": 3.0} for (side, size), ms in reduced
    ]
    assert processes.parts(rows, "784-400-400-10") == (5.0, 20.0)
    assert processes.gloo(rows) == (0.1, 1e6)
    assert processes.all_reduce(500, 4, 0.1, 1000.0) == pytest.approx(0.1 + 1.5 * 2000 / 1000)
    lines = processes.page(rows, None).lines
    said = "| 784-400-400-10 | 5.0 | 20.0 | 500 | 15.1 | 19.0 | 18.0 |"
    assert said in lines
    (many,) = [line for line in lines if line.startswith("| three convolutions, one core")]
    assert many.startswith("| three convolutions, one core, eager | 25.0 | 7.6 | 3.3 | 5.8 | 4.3 |")
