"""The committed results keep the bounds that the project set itself, and what they miss is an expected failure."""

import csv
import math
from statistics import mean, stdev

import pytest

from benchmarks.published import load_published
from benchmarks.report.regression import published_means
from benchmarks.store import RESULTS, Store
from benchmarks.suite import load_suite

pytestmark = pytest.mark.slow
SUITES = sorted((RESULTS.parent / "suites").glob("*.toml"))

BEATEN = {"yacht": -0.47, "energy": -0.61, "protein-tertiary-structure": -2.63}
NEAR = {"concrete": (-2.82, 0.02), "power-plant": (-2.67, 0.01)}
ONE_LAYER = "ensemble, heteroscedastic Student-t"


def rows_of(suite, **wanted):
    rows = [row for record in Store(RESULTS / suite).current() for row in record.rows]
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert found
    return found


def estimate(suite, **wanted):
    scores = [row["log_score"] for row in rows_of(suite, **wanted)]
    return mean(scores), stdev(scores) / math.sqrt(len(scores))


def pruning_costs(row):
    return {share: error - row["test_error"] for share, error in zip(row["pruned"], row["pruned_error"], strict=True)}


@pytest.mark.parametrize("path", [path for path in SUITES if path.stem != "mnist-full"], ids=lambda path: path.stem)
@pytest.mark.needs_data
def test_every_job_of_a_suite_is_done(path, require_data):
    done = [record.job for record in Store(RESULTS / path.stem).current()]
    require_data(*(name for job in done for name in job.data))
    assert [job.work for job in done] == [job.work for job in load_suite(path).jobs]


@pytest.mark.parametrize("name", BEATEN)
def test_deep_ensembles_beat_the_best_published_row(name):
    assert estimate("uci-deep", data=name)[0] > BEATEN[name]


@pytest.mark.parametrize("name", NEAR)
def test_deep_ensembles_are_within_two_standard_errors_of_the_best_published_row(name):
    (ours, our_error), (theirs, their_error) = estimate("uci-deep", data=name), NEAR[name]
    assert ours > theirs - 2 * math.hypot(our_error, their_error)


@pytest.mark.parametrize("method", ["PBP", "MC dropout"])
def test_one_hidden_layer_is_above_the_published_rows_with_the_same_network(method):
    data = list(dict.fromkeys(row["data"] for row in rows_of("uci", entry=ONE_LAYER)))
    theirs = published_means(load_published(), "log_score", data)[method]
    assert len(data) == len(theirs) == 6
    for name in data:
        assert estimate("uci", entry=ONE_LAYER, data=name)[0] > theirs[name].value


def test_a_scale_mixture_has_at_most_one_and_a_half_percent_errors_on_mnist():
    (row,) = rows_of("mnist", entry="Bayes by Backprop, scale-mixture prior")
    assert row["test_error"] <= 1.5


def test_a_sparse_network_survives_pruning():
    (row,) = rows_of("mnist", entry="Bayes by Backprop, scale-mixture prior, sparse")
    costs = pruning_costs(row)
    assert costs[0.95] <= 0.1
    assert costs[0.98] <= 0.2


@pytest.mark.xfail(strict=True, reason="1.50 % or pruned, not both: benchmarks/suites/mnist.toml says what was tried")
def test_one_network_has_few_errors_and_survives_pruning():
    rows = [row for row in rows_of("mnist") if row.get("pruned")]
    assert any(row["test_error"] <= 1.5 and pruning_costs(row)[0.98] <= 0.2 for row in rows)


@pytest.mark.parametrize(("units", "bound"), [(400, 1.36), (800, 1.34), (1200, 1.32)])
@pytest.mark.xfail(not (RESULTS / "mnist-full").exists(), strict=True, reason="not run: a GPU, or many hours")
def test_a_scale_mixture_has_the_published_errors_after_600_epochs(units, bound):
    (row,) = rows_of("mnist-full", entry="Bayes by Backprop, scale-mixture prior", units=units)
    assert row["test_error"] <= bound


SETS = ["yacht", "energy", "concrete", "wine-quality-red", "power-plant", "protein-tertiary-structure"]


SHORT = pytest.mark.xfail(strict=True, reason="243 nats of 41,000 rows, 0.006 each, after 40,000 steps of 20 ms")


@pytest.mark.parametrize(
    ("guide", "data"),
    [
        pytest.param(guide, data, marks=[SHORT] if (guide, data) == ("full-rank", SETS[-1]) else [])
        for guide in ("matrix-normal", "low-rank", "full-rank")
        for data in SETS
    ],
)
def test_a_richer_guide_ends_with_no_lower_elbo_than_mean_field(guide, data):
    """Five splits, split by split; two standard errors of the mean difference."""
    richer, plain = (rows_of("uci-converged", entry=entry, data=data) for entry in (guide, "mean-field"))
    assert [row["split"] for row in richer] == [row["split"] for row in plain] == list(range(5))
    gains = [own["elbo"] - other["elbo"] for own, other in zip(richer, plain, strict=True)]
    errors = sum(row["elbo_error"] ** 2 for row in (*richer, *plain)) / len(gains) ** 2
    assert mean(gains) > -2 * math.hypot(stdev(gains) / len(gains) ** 0.5, errors**0.5)


@pytest.mark.parametrize(("data", "bound"), [("yacht", -1.05), ("energy", -1.20)])
def test_the_full_rank_guide_scores_well_when_it_ends_by_itself(data, bound):
    assert estimate("uci-converged", entry="full-rank", data=data)[0] >= bound


@pytest.mark.parametrize("data", ["yacht", "energy"])
@pytest.mark.xfail(strict=True, reason="86,000 to 147,000: at 10,000 steps the ELBO is 10 to 40 nats short")
def test_mean_field_converges_within_ten_thousand_steps(data):
    assert max(row["steps"] for row in rows_of("uci-converged", entry="mean-field", data=data)) <= 10_000


@pytest.mark.xfail(strict=True, reason="1.99 times: the noise alone takes 0.31, closed-form mean-field by Adam 1.54")
def test_a_step_of_ivon_takes_little_more_than_one_of_a_point():
    table = (RESULTS / "ivon-speed.md").read_text(encoding="utf-8")
    (row,) = [line for line in table.splitlines() if line.startswith("| IVON")]
    assert float(row.split("|")[-2]) <= 1.15


def test_mean_field_thompson_sampling_ends_below_epsilon_greedy_in_every_seed():
    thompson, greedy = (
        {row["seed"]: row["regret"] for row in rows_of("bandit", entry=entry)}
        for entry in ("mean-field, Thompson", "greedy, ε = 5 %")
    )
    assert sorted(thompson) == sorted(greedy) == list(range(5))
    assert all(thompson[seed] < greedy[seed] for seed in thompson)


SMALL = {"regression": "100", "classification": "60"}


def small_tables(task):
    path = RESULTS / "tables.csv"
    found = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    rows = [row for row in found if row["task"] == task and row["rows"] == SMALL[task]]
    by_set = {}
    for row in rows:
        by_set.setdefault(row["data"], []).append(
            {k: float(v) for k, v in row.items() if v and k not in ("task", "data")}
        )
    assert all(len(found) == 10 for found in by_set.values())
    return by_set


def mean_of(rows, column):
    return mean(row[column] for row in rows)


def test_regression_of_small_tables_is_near_the_best_of_scikit_learn():
    tables = small_tables("regression")
    assert len(tables) == 8
    for name, rows in tables.items():
        best = max(mean_of(rows, f"r2_{model}") for model in ("mlp", "linear", "trees", "gp"))
        assert mean_of(rows, "r2") >= best - 0.05, name
        assert min(row["r2"] for row in rows) > 0.3, name  # no constant
    near = [name for name, rows in tables.items() if mean_of(rows, "log_score") >= mean_of(rows, "log_score_gp") - 0.1]
    assert len(near) >= 6


def test_classification_of_small_tables_is_near_the_best_of_scikit_learn():
    for name, rows in small_tables("classification").items():
        best = max(mean_of(rows, f"log_score_{model}") for model in ("linear", "trees", "gp"))
        assert mean_of(rows, "log_score") >= best - 0.05, name


def test_regression_on_300_rows_is_near_the_best_of_scikit_learn():
    text = (RESULTS / "tables.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["task"] == "regression" and row["rows"] == "300"]
    assert len(rows) == 7
    for row in rows:
        best = max(float(row[f"r2_{model}"]) for model in ("mlp", "linear", "trees", "gp"))
        assert float(row["r2"]) >= best - 0.05, row["data"]
        assert float(row["log_score"]) >= float(row["log_score_gp"]) - 0.1, row["data"]


def alarms(is_meant):
    text = (RESULTS / "alarms.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if is_meant(float(row["over linear"]))]
    return sum(row["named"] == "True" for row in rows), len(rows)


@pytest.mark.xfail(strict=True, reason="56 of 69: most of the others are points after few steps, and losses below 0.2")
def test_nearly_all_bad_fits_are_named():
    named, total = alarms(lambda difference: difference < -0.1)
    assert total >= 40
    assert named >= 0.95 * total


def test_hardly_any_good_fit_is_named():
    named, total = alarms(lambda difference: difference >= -0.02)
    assert total >= 60
    assert named <= 0.05 * total


def by_name(problem):
    """The rows of a problem of the gallery, by kind and name: means over seeds of what is a number."""
    text = (RESULTS / "defaults.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["problem"] == problem]
    names = dict.fromkeys((row["kind"], row["name"]) for row in rows)
    columns = ("error", "log_score", "coverage", "epistemic")
    return {
        pair: {
            column: mean(values)
            for column in columns
            if (values := [float(row[column]) for row in rows if (row["kind"], row["name"]) == pair and row[column]])
        }
        for pair in names
    }


def missed(name):
    return pytest.param(name, marks=pytest.mark.xfail(strict=True))


GUIDES = ["mean_field", "low_rank", "full_rank", "matrix_normal", "dropout", "map", "laplace", "flow"]
SPREAD_OF_CUBIC = 24.2


@pytest.mark.parametrize("problem", ["cubic, noise learned", "cubic, noise known"])
@pytest.mark.parametrize("name", [*GUIDES, missed("radial")])  # radial is too wide: 8 to 9 among the data
def test_each_guide_by_its_name_follows_the_cubic(problem, name):
    found = by_name(problem)["guide", name]
    assert found["error"] * SPREAD_OF_CUBIC <= 4
    assert found["epistemic"] * SPREAD_OF_CUBIC <= 6


@pytest.mark.parametrize(
    "name",  # intervals of Laplace are too wide (0.991); the flow has no row yet: it takes more than 10 minutes
    [*(missed(name) if name in ("laplace", "flow") else name for name in GUIDES), "radial"],
)
def test_each_guide_by_its_name_is_as_good_as_ridge_on_diabetes(name):
    rows = by_name("diabetes, 331 rows")
    found, ridge = rows["guide", name], rows["reference", "ridge"]
    assert 1 - found["error"] ** 2 >= 1 - ridge["error"] ** 2 - 0.05
    assert found["log_score"] >= ridge["log_score"] - 0.1
    assert 0.9 <= found["coverage"] <= 0.98 + 1 / 111  # one row of the test part, with one seed


@pytest.mark.parametrize(
    "pair",
    [
        *(("guide", name) for name in ("dropout", "map")),
        *(("method", name) for name in ("nuts", "ensemble", "swag")),
        *(missed(("guide", name)) for name in ("mean_field", "low_rank", "full_rank", "matrix_normal", "laplace")),
        *(missed(("method", name)) for name in ("ivon", "evidence_framework", "marginal_likelihood")),
    ],
    ids=str,
)
def test_sixty_points_of_moons_are_told_apart(pair):
    """Below the bound of 0.35 are points and chains; guides with a Gaussian lose 0.01 to 0.06 nats more."""
    assert by_name("moons, 60 points")[pair]["log_score"] >= -0.35


@pytest.mark.parametrize(
    "problem", ["100 rows, 3 columns", "Friedman 1, 300 rows", "outliers, 200 rows", "counts, 200 rows"]
)
def test_every_name_beats_the_linear_model_where_the_truth_is_not_linear(problem):
    rows = by_name(problem)
    linear = rows["reference", "linear model"]["log_score"]
    worse = {
        pair for pair, found in rows.items() if pair[0] != "reference" and not found.get("log_score", -99) > linear
    }
    assert worse == ({("method", "sgld")} if problem == "counts, 200 rows" else set())
