"""The committed results keep the bounds that the project set itself, and what they miss is an expected failure."""

import functools
import itertools
import math
from statistics import mean, median, stdev

import pytest

from benchmarks import RESULTS
from benchmarks.measures import laplace_speed, processes
from benchmarks.measures.alarms import is_bad, is_good
from benchmarks.measures.harness import chosen, load_measure, load_rows, names
from benchmarks.measures.likelihoods import way
from benchmarks.measures.same_bits import CALLS
from benchmarks.measures.tables import MODELS as SKLEARN
from benchmarks.measures.tables import SETS as TABLES
from benchmarks.measures.wide import SETS as WIDE_SETS
from benchmarks.peers.ratios import REQUIREMENTS
from benchmarks.problems import PROBLEMS, WIDE
from benchmarks.published import load_published
from benchmarks.report.regression import published_means
from benchmarks.rows import grouped
from benchmarks.store import Store
from benchmarks.suite import load_suite
from benchmarks.targets import LIKELIHOODS

pytestmark = pytest.mark.slow
SUITES = sorted((RESULTS.parent / "suites").glob("*.toml"))

BEATEN = {"yacht": -0.47, "energy": -0.61, "protein-tertiary-structure": -2.63}
NEAR = {"concrete": (-2.82, 0.02), "power-plant": (-2.67, 0.01)}
LEAST = {
    "yacht": 0.45,
    "energy": -0.20,
    "concrete": -2.75,
    "power-plant": -2.58,
    "protein-tertiary-structure": -1.95,
}
"""Mean test log-likelihood that one recipe is to reach."""
MOST = {"concrete": 4.4, "power-plant": 3.6, "protein-tertiary-structure": 3.6, "yacht": 0.45}
"""The same for the RMSE."""
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


@pytest.mark.parametrize("name", names())
def test_rows_of_a_measure_are_told_apart_by_its_key(name):
    measure = load_measure(name)
    assert all(callable(part) for part in (measure.jobs, measure.run, measure.page))
    assert measure.OPTIONS is not None
    assert all(set(measure.KEY) <= row.keys() for row in load_rows(name))


@pytest.mark.parametrize("name", LEAST)
def test_one_recipe_has_the_log_likelihood_that_was_asked_for(name):
    assert estimate("uci-best", data=name)[0] >= LEAST[name]


@pytest.mark.parametrize("name", MOST)
def test_one_recipe_has_the_error_that_was_asked_for(name):
    assert mean(row["rmse"] for row in rows_of("uci-best", data=name)) <= MOST[name]


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


def test_intervals_hold_85_of_100_targets_in_gaps_of_energy():
    """By a method that was chosen on gaps inside training parts."""
    rows = rows_of("uci-gap", entry="Laplace, full", data="energy")
    assert len(rows) == 8
    assert mean(row["coverage_95"] for row in rows) >= 0.85


@pytest.mark.parametrize("problem", ["sinusoid", "motorcycle", "moons"])
def test_microcanonical_chains_are_close_to_nuts_and_have_twice_its_effective_draws_a_second(problem):
    """In each of two seeds; the distance has the bound 0.04, and adjusted chains need less time as well."""
    rows = {(row["seed"], row["method"]): row for row in chosen(load_rows("mclmc"), problem=problem)}
    for seed in (0, 1):
        nuts, quick, adjusted, mile = (rows[seed, name] for name in ("NUTS", "MCLMC", "MCLMC, adjusted", "MILE"))
        assert max(row["TV"] for row in (quick, adjusted, mile)) <= 0.04
        assert max(quick["seconds"], adjusted["seconds"], mile["seconds"]) < nuts["seconds"]
        assert quick["draws a second"] >= 2 * nuts["draws a second"]


@pytest.mark.parametrize("problem", ["sinusoid", "motorcycle", "moons"])
@pytest.mark.xfail(strict=True, reason="1.4, 0.9 and 0.8 times: most steps of ten chains of 100 draws are warm-up")
def test_mile_has_twice_the_effective_draws_a_second_of_nuts(problem):
    rows = chosen(load_rows("mclmc"), problem=problem)
    nuts, mile = (mean(row["draws a second"] for row in rows if row["method"] == name) for name in ("NUTS", "MILE"))
    assert mile >= 2 * nuts


UCI = ["concrete", "energy", "power-plant", "protein-tertiary-structure", "wine-quality-red", "yacht"]
YACHT = pytest.mark.xfail(strict=True, reason="0.973 ± 0.006: 77 held-out rows alone imply 0.962, and have ties")


@pytest.mark.parametrize("name", [*UCI[:-1], pytest.param("yacht", marks=YACHT)])
def test_intervals_hold_94_to_96_of_100_targets_after_conformal_calibration(name):
    assert 0.94 <= mean(row["after"] for row in chosen(load_rows("conformal"), data=name)) <= 0.96


def test_intervals_with_nothing_set_hold_93_to_97_of_100_targets_on_five_of_six_sets():
    """Before any calibration; yacht has .819. Of the eight published sets two have no files here."""
    found = [mean(row["before"] for row in chosen(load_rows("conformal"), data=name)) for name in UCI]
    assert sum(0.93 <= coverage <= 0.97 for coverage in found) >= 5


@pytest.mark.xfail(strict=True, reason="2.3 times a point, whose step is 2.4 times as fast as before; mean-field 2.1")
def test_a_step_of_ivon_takes_little_more_than_one_of_a_point():
    (row,) = chosen(load_rows("ivon_speed"), step="IVON")
    assert row["times the point"] <= 1.15


def test_mean_field_thompson_sampling_ends_below_epsilon_greedy_in_every_seed():
    thompson, greedy = (
        {row["seed"]: row["regret"] for row in rows_of("bandit", entry=entry)}
        for entry in ("mean-field, Thompson", "greedy, ε = 5 %")
    )
    assert sorted(thompson) == sorted(greedy) == list(range(5))
    assert all(thompson[seed] < greedy[seed] for seed in thompson)


def ten_seeds(task, size):
    """Return the rows of a task and size by set, ten each."""
    by_set = {}
    for row in chosen(load_rows("tables"), task=task, rows=size):
        by_set.setdefault(row["data"], []).append(row)
    assert all(len(found) == 10 for found in by_set.values())
    return by_set


def mean_of(rows, column):
    return mean(row[column] for row in rows)


def behind_the_best(rows, score):
    """Return by how much the mean over seeds is below that of the best model of scikit-learn."""
    return max(mean_of(rows, f"{score}_{model}") for model in SKLEARN) - mean_of(rows, score)


def test_regression_of_100_rows_is_near_the_best_of_scikit_learn():
    tables = ten_seeds("regression", 100)
    assert len(tables) == 8
    for name, rows in tables.items():
        assert behind_the_best(rows, "r2") <= 0.05, name
        assert min(row["r2"] for row in rows) > 0.3, name  # no constant


@pytest.mark.parametrize("size", [30, 100])
def test_log_scores_of_small_tables_are_near_those_of_a_gaussian_process(size):
    tables = ten_seeds("regression", size)
    assert len(tables) == 8
    near = [name for name, rows in tables.items() if mean_of(rows, "log_score") >= mean_of(rows, "log_score_gp") - 0.1]
    assert len(near) >= 6


FEW_ROWS = {
    "sines": ".61, a Gaussian process .68: single seeds have -.15 to .5",
    "concrete": ".17, a Gaussian process .57: one seed is far below, the other nine are level",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=FEW_ROWS[name])) if name in FEW_ROWS else name
        for name in TABLES["regression"]
    ],
)
def test_regression_of_30_rows_is_near_the_best_of_scikit_learn(name):
    """Tried on other seeds: one precision for each site, five-fold scores, NUTS, and other weights of the scores."""
    assert behind_the_best(ten_seeds("regression", 30)[name], "r2") <= 0.05


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=pytest.mark.xfail(strict=True, reason="-.060: .234, LogisticRegression .174"))
        if (name, size) == ("wine", 30)
        else (name, size)
        for name in TABLES["classification"]
        for size in (30, 60)
    ],
)
def test_classification_of_small_tables_is_near_the_best_of_scikit_learn(name, size):
    """Tried for 30 rows of wine on other seeds: measured scales, scales of 1 and 2, and 0.3 to 2 by layer."""
    assert behind_the_best(ten_seeds("classification", size)[name], "log_score") <= 0.05


WIDE_METHODS = ("estimator", "svi", "evidence")
BELOW_A_CONSTANT = {
    ("diabetes", "svi"): "-.339 in one seed of ten, .078 above on the mean",
    ("diabetes", "evidence"): "-.345 in one seed of ten, .048 above on the mean",
}
BELOW_LINEAR = {
    ("sparse", "svi"): "-2.045, ridge -1.807: a scale for each site keeps the inputs that do not matter",
    ("digits", "svi"): "-1.044, LogisticRegression -.775: ten classes of five rows",
    ("digits", "evidence"): "-1.307",
    ("digits", "estimator"): "-1.1",
}


def wide_jobs(misses):
    """Return the sets and methods, with what misses a bound marked."""
    return [
        pytest.param(*job, marks=pytest.mark.xfail(strict=True, reason=misses[job])) if job in misses else job
        for job in itertools.product(WIDE_SETS, WIDE_METHODS)
    ]


def wide_rows(name, method):
    rows = chosen(load_rows("wide"), data=name, method=method)
    assert len(rows) == 10
    return rows


@pytest.mark.parametrize(("name", "method"), wide_jobs(BELOW_A_CONSTANT))
def test_no_default_is_far_below_a_constant_on_a_wide_table(name, method):
    assert all(row["log_score"] >= row["constant"] - 0.3 for row in wide_rows(name, method))


@pytest.mark.parametrize(("name", "method"), wide_jobs(BELOW_LINEAR))
def test_defaults_are_near_a_linear_model_on_wide_tables(name, method):
    """Tried on other seeds: SiLU and ReLU units, 20 and 50 of them, scales of 1, fan-in and He, chains and Laplace."""
    rows = wide_rows(name, method)
    assert mean_of(rows, "log_score") >= mean_of(rows, "linear") - 0.2


def test_regression_on_300_rows_is_near_the_best_of_scikit_learn():
    rows = chosen(load_rows("tables"), task="regression", rows=300)
    assert len(rows) == 7
    for row in rows:
        assert row["r2"] >= max(row[f"r2_{model}"] for model in SKLEARN) - 0.05, row["data"]
        assert row["log_score"] >= row["log_score_gp"] - 0.1, row["data"]


def of_ten_tables(column, model):
    """Return the mean of a column over three seeds, by table."""
    by_set = grouped(chosen(load_rows("ten_tables"), model=model), "data")
    assert len(by_set) == 10
    assert all(sorted(row["seed"] for row in rows) == [0, 1, 2] for rows in by_set.values())
    return {name: mean_of(rows, column) for name, rows in by_set.items()}


def test_nothing_set_beats_the_residuals_of_boosted_trees_on_eight_of_ten_tables():
    ours, trees = (of_ten_tables("log_score", model) for model in ("BNNRegressor", "HistGradientBoosting"))
    assert sum(ours[name] > trees[name] for name in ours) >= 8


@pytest.mark.xfail(
    strict=True, reason="64 once on NOxEmissions beside other work, where likelihoods are compared; 54, 59"
)
def test_a_table_with_nothing_set_takes_a_minute_of_the_processor_at_most():
    assert max(row["cpu"] for row in chosen(load_rows("ten_tables"), model="BNNRegressor")) <= 60


def alarms(is_meant):
    rows = [row for row in load_rows("alarms") if is_meant(row)]
    return sum(row["named"] for row in rows), len(rows)


@pytest.mark.xfail(strict=True, reason="57 of 67: most of the others are points after few steps, and losses below 0.2")
def test_nearly_all_bad_fits_are_named():
    named, total = alarms(is_bad)
    assert total >= 40
    assert named >= 0.95 * total


def test_hardly_any_good_fit_is_named():
    named, total = alarms(is_good)
    assert total >= 60
    assert named <= 0.05 * total


def wall(case, steps):
    """Return the seconds of a whole process by engine, medians over rounds."""
    rows = chosen(load_rows("wall"), case=case, steps=steps)
    return {engine: median(row["seconds"] for row in found) for engine, found in grouped(rows, "engine").items()}


ALL_STEPS = [*((case, steps) for case in ("sine", "uci") for steps in (100, 500, 2000, 10_000, 50_000)), ("mnist", 938)]


@pytest.mark.parametrize(("case", "steps"), ALL_STEPS)
def test_a_whole_process_ends_before_numpyros(case, steps):
    seconds = wall(case, steps)
    assert seconds["pyrobnn"] <= seconds["numpyro"]


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        *(("sine", 500), ("uci", 500), ("uci", 2000)),
        pytest.param("sine", 2000, marks=pytest.mark.xfail(strict=True, reason=".77: 3.3 of 4.4 s are the import")),
    ],
)
def test_a_fit_of_some_hundred_steps_takes_seven_tenths_of_numpyros_time(case, steps):
    seconds = wall(case, steps)
    assert seconds["pyrobnn"] <= 0.7 * seconds["numpyro"]


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        *(("sine", 500), ("uci", 500)),
        *(
            pytest.param(case, 100, marks=pytest.mark.xfail(reason="1.05 and 1.06 in two rounds: of noise, or .2 s"))
            for case in ("sine", "uci")
        ),
    ],
)
def test_short_fits_are_not_slower_than_eager_ones(case, steps):
    seconds = wall(case, steps)
    assert seconds["pyrobnn"] <= 1.05 * seconds["pyrobnn eager"]


def by_name(problem):
    """Return the rows of a problem by kind and name: error, log score, coverage and epistemic deviation by seed."""
    columns = ("error", "log_score", "coverage", "epistemic")
    return {
        pair: {row["seed"]: {column: row.get(column, math.nan) for column in columns} for row in rows}
        for pair, rows in grouped(chosen(load_rows("defaults"), problem=problem), "kind", "name").items()
    }


def column(rows, name):
    return [row[name] for row in rows.values()]


def missed(name):
    return pytest.param(name, marks=pytest.mark.xfail(strict=True))


GUIDES = ["mean_field", "low_rank", "full_rank", "matrix_normal", "radial", "dropout", "map", "laplace", "flow"]


@functools.cache
def in_units_of_the_cubic(problem, name):
    rows = by_name(problem)["guide", name]
    assert len(rows) == 8
    spreads = {seed: PROBLEMS[problem](seed).curve.std() for seed in rows}
    return [[row[what] * spreads[seed] for seed, row in rows.items()] for what in ("error", "epistemic")]


@pytest.mark.parametrize("problem", ["cubic, noise learned", "cubic, noise known"])
@pytest.mark.parametrize("name", [missed(name) if name == "radial" else name for name in GUIDES])
def test_each_guide_by_its_name_follows_the_cubic(problem, name):
    """Radial weights are too wide."""
    errors, epistemic = in_units_of_the_cubic(problem, name)
    assert median(errors) <= 4
    assert max(errors) <= 6
    assert median(epistemic) <= 6


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        (problem, name)
        if name in ("dropout", "map")
        or (problem == "cubic, noise known" and name in ("mean_field", "low_rank", "laplace", "flow"))
        else pytest.param(problem, name, marks=pytest.mark.xfail(strict=True))
        for problem in ("cubic, noise learned", "cubic, noise known")
        for name in GUIDES
    ],
)
def test_each_guide_by_its_name_is_sure_of_the_cubic_with_every_seed(problem, name):
    """Where the noise is learned, one seed of eight measures it too large: 7 to 7.3 in place of 6."""
    assert max(in_units_of_the_cubic(problem, name)[1]) <= 6


@pytest.mark.parametrize(
    "pair",
    [*(("guide", name) for name in GUIDES), *(("prior", name) for name in ("student_t", "horseshoe", "scale_mixture"))],
    ids=str,
)
def test_each_name_is_as_good_as_ridge_on_diabetes(pair):
    rows = by_name("diabetes, 331 rows")
    found, ridge = rows[pair], rows["reference", "ridge"]
    assert found.keys() == ridge.keys()
    assert len(ridge) == 8
    r2 = [1 - row["error"] ** 2 - (1 - ridge[seed]["error"] ** 2) for seed, row in found.items()]
    assert mean(r2) >= -0.05
    assert mean(column(found, "log_score")) >= mean(column(ridge, "log_score")) - 0.1
    assert 0.9 <= mean(column(found, "coverage")) <= 0.9805


@pytest.mark.parametrize(
    "pair",
    [
        *(("guide", name) if name in ("dropout", "map") else missed(("guide", name)) for name in GUIDES),
        *(("method", name) for name in ("nuts", "ensemble", "swag")),
        *(missed(("method", name)) for name in ("ivon", "evidence_framework", "marginal_likelihood")),
    ],
    ids=str,
)
def test_sixty_points_of_moons_are_told_apart(pair):
    """Below the bound of 0.35 are points and chains. The ELBO of the others prefers a nearly linear solution.

    Tried with the mean-field guide, which has 0.35 to 0.44 on seeds 0 to 4: prior scales that maximise its ELBO (35 to
    55 nats more, test loss the same to 0.02); 3, 6 or 12 units in place of 50 (0.37 to 0.39); prior scales 1.5 to 5
    times as wide, chosen by leave-one-out scores, which get worse where test scores get better; 2 in place of all
    scales is better here, and below a linear model with three classes of 90, 8 and 2 percent. A full covariance moves
    the Laplace approximation by 0.005.
    """
    assert mean(column(by_name("moons, 60 points")[pair], "log_score")) >= -0.35


@pytest.mark.parametrize(
    "name", ["swag", "sgld", "sghmc", "nuts", "ensemble", "marginal_likelihood", "evidence_framework", "ivon"]
)
def test_each_method_by_its_name_takes_a_minute_on_small_problems(name):
    """Chains by NUTS two. Without a method several are tried, which takes one to three: `max_seconds` bounds it."""
    seconds = [row["seconds"] for row in chosen(load_rows("defaults"), kind="method", name=name)]
    assert len(seconds) >= 16
    assert max(seconds) <= (120 if name == "nuts" else 60)


@pytest.mark.parametrize(
    "problem", ["100 rows, 3 columns", "Friedman 1, 300 rows", "outliers, 200 rows", "counts, 200 rows"]
)
def test_every_name_beats_the_linear_model_where_the_truth_is_not_linear(problem):
    rows = by_name(problem)
    linear = rows["reference", "linear model"]
    worse = {
        (*pair, seed)
        for pair, found in rows.items()
        for seed, row in found.items()
        if pair[0] != "reference" and not row["log_score"] > linear[seed]["log_score"]
    }
    known = {("method", "marginal_likelihood", 101)} if problem == "outliers, 200 rows" else set()
    assert worse == known


def likelihood_rows(name):
    found = chosen(load_rows("likelihoods"), likelihood=name)
    assert len(found) == 5
    return found


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_each_likelihood_by_its_name_is_as_good_as_its_linear_model_and_knows_the_noise(name):
    rows = likelihood_rows(name)
    assert mean(row["log_score"] - row["linear"] for row in rows) >= -0.03
    assert all(0.7 <= row["noise"] <= 1.3 for row in rows if "noise" in row)
    assert all(row["seconds"] <= 60 for row in rows)


@pytest.mark.parametrize(
    "name", [missed(name) if name in ("bernoulli", "categorical") else name for name in LIKELIHOODS]
)
def test_each_likelihood_by_its_name_comes_half_of_the_way_to_the_truth(name):
    """200 labels say too little: NUTS comes 0.4 of the way with two classes, and none with 90, 8 and 2 percent."""
    assert mean(map(way, likelihood_rows(name))) >= 0.5


@pytest.mark.parametrize("call", sorted(CALLS))
def test_the_same_call_gives_the_same_bits_in_twenty_processes(call):
    rows = chosen(load_rows("same_bits"), call=call)
    assert len(rows) == 20
    assert {row["cache"] for row in rows} == {"empty", "kept"}
    assert {row.get("beside") for row in rows} == {None, "a busy process"}
    assert len({row["digest"] for row in rows}) == 1


@pytest.mark.parametrize(
    ("engine", "step", "most"),
    [
        ("eager", "map", 1.5),
        ("eager", "mean-field", 2.2),
        ("captured", "map", 1.2),
        ("captured", "mean-field", 1.6),
    ],
)
def test_a_step_of_resnet_takes_little_more_than_that_of_plain_pytorch(engine, step, most):
    (row,) = chosen(load_rows("steps"), net="ResNet-18", engine=engine, step=step)
    assert row["of plain"] <= most


@pytest.mark.parametrize("name", processes.NETS)
def test_a_process_of_a_pair_takes_the_time_that_the_model_says(name):
    """CPU time, within a fifth; the model has the all-reduce in it."""
    rows = load_rows("processes")
    (row,) = chosen(rows, what=name, side=processes.TWO)
    fixed, shared = processes.parts(rows, name)
    said = fixed + shared / 2 + processes.all_reduce(row["numbers"], 2, *processes.gloo(rows))
    assert row["cpu ms"] == pytest.approx(said, rel=0.2)


PASSES = "1.5: draws, densities and their gradients are passes over 2.4 million weights, which wait for the memory"


@pytest.mark.parametrize(
    "net",
    ["784-400-400-10", pytest.param("784-1200-1200-10", marks=pytest.mark.xfail(strict=True, reason=PASSES))],
)
def test_a_captured_step_takes_little_more_than_its_parts(net):
    (row,) = chosen(load_rows("machine_parts"), net=net)
    assert row["ratio"] <= 1.4


def wide(name):
    rows = chosen(load_rows("defaults"), problem=WIDE)
    (linear,) = chosen(rows, name="linear model")
    (row,) = chosen(rows, kind="guide", name=name, seed=linear["seed"])
    return row, linear["log_score"]


@pytest.mark.parametrize("name", ["laplace", "map", "mean_field"])
def test_a_wide_network_scores_above_a_linear_model(name):
    """At least half of the way from there to noise of a known scale, 0.3."""
    row, linear = wide(name)
    truth = -0.5 * math.log(2 * math.pi * math.e * 0.3**2)
    assert row["log_score"] >= (linear + truth) / 2


@pytest.mark.parametrize(
    "name",
    [
        "laplace",
        "map",
        pytest.param(
            "mean_field", marks=pytest.mark.xfail(strict=True, reason="286 s: tens of thousands of steps of 5 ms")
        ),
    ],
)
def test_a_wide_network_is_ready_in_a_minute(name):
    assert wide(name)[0]["seconds"] <= 60


@pytest.mark.parametrize(
    ("net", "most"), [("13-50-1", 8), ("784-100-10", 8), ("LeNet", 16), ("transformer", 16), ("LSTM", 16)]
)
def test_a_first_step_comes_soon_with_nothing_on_disk(net, most):
    (row,) = chosen(load_rows("ready"), what=f"first step, {net}", cache="empty")
    assert row["seconds"] <= most


@pytest.mark.parametrize(
    ("net", "most"), [("1-20-20-1", 0.5), ("13-50-1", 0.5), ("LeNet", 0.5), ("LSTM", 1), ("transformer", 1)]
)
def test_a_first_step_comes_at_once_with_the_library(net, most):
    (row,) = chosen(load_rows("ready"), what=f"first step, {net}", cache="kept")
    assert row["seconds"] <= most


IMPORTS = (
    "8 to 10 s: imports of torch and scikit-learn take 3 to 4.5 s of them, those of Pyro and SciPy in the fit 1 to 2"
)
MODES = "3.2 s: 8,000 gradients in 45 descents by L-BFGS; classifier 2.55"


@pytest.mark.parametrize("name", ["regressor", "classifier"])
@pytest.mark.parametrize(
    ("state", "most"),
    [
        ("empty", 15),
        pytest.param("whole process", 4, marks=pytest.mark.xfail(strict=True, reason=IMPORTS)),
        pytest.param("again", 2.5, marks=pytest.mark.xfail(strict=True, reason=MODES)),
    ],
)
def test_estimators_are_ready_soon(name, state, most):
    (row,) = chosen(load_rows("ready"), what=name, cache=state)
    assert row["seconds"] <= most


@pytest.mark.parametrize("net", ["784-400-400-10", "LSTM", "ViT", "ResNet-18"])
def test_a_prediction_takes_no_longer_than_a_plain_loop(net):
    (row,) = chosen(load_rows("draws"), net=net)
    assert row["ratio"] <= 1.05


@pytest.mark.parametrize("net", ["three convolutions", "ResNet-18"])
@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
@pytest.mark.parametrize("task", ["fit", "probit", "draws"])
def test_last_layer_laplace_is_no_slower_than_laplace_torch(net, structure, task):
    ours, theirs = chosen(load_rows("last_layer"), net=net, structure=structure, task=task)
    assert (ours["engine"], theirs["engine"]) == ("pyrobnn", "laplace-torch")
    assert ours["seconds"] <= theirs["seconds"]
    assert ours["difference"] <= 1e-4


@pytest.mark.parametrize(
    ("case", "most"),
    [
        pytest.param(
            "sine", 0.49, marks=pytest.mark.xfail(strict=True, reason="0.67: a callback costs 0.2 ms, see below")
        ),
        ("mlp400", 0.81),
    ],
)
def test_steps_are_as_fast_beside_numpyros_as_they_were(case, most):
    """Rows of `measure speed --cases sine uci mlp400 --engines pyrobnn numpyro_scan --machine steps-again`.

    The ratios asked for are of an older server. Beside the code of then, by turns on this one, a step of 1-20-20-1
    takes 1.35 times as long with the callback that measures it, and 1.1 without: a callback has the random states of
    its user, which NumPy copies number by number. Cheaper looks at the fit took off a tenth; exchanging NumPy's
    generators and not their states loses the second number of a pair of normals.
    """
    rows = chosen(load_rows("speed"), machine="steps-again", case=case)
    medians = {row["engine"]: row["median"] for row in rows}
    assert medians["pyrobnn"] <= most * medians["numpyro_scan"]


def with_misses(bounds, misses):
    """Return bounds by name as parameters, with those that are missed marked."""
    return [
        pytest.param(
            bound, id=name, marks=[pytest.mark.xfail(strict=True, reason=misses[name])] if name in misses else []
        )
        for name, bound in bounds.items()
    ]


STEPS_MISSED = {
    "mlp1200: pyrobnn / torch_eager, peak memory above that after imports": "1.54",
    "mlp1200-gpu: pyro / pyrobnn": "not measured: a GPU",
}


@pytest.mark.parametrize("bound", with_misses({f"{one.top[0]}: {one.text}": one for one in REQUIREMENTS}, STEPS_MISSED))
def test_steps_beside_those_of_other_engines_keep_their_bounds(bound):
    rows = chosen(load_rows("speed"), machine="amd-epyc-2-cores")
    assert bound.holds({case: {row["engine"]: row for row in same} for case, same in grouped(rows, "case").items()})


LAPLACE = {
    name: holds
    for name, _, _, holds in laplace_speed.bounds({row["engine"]: row for row in load_rows("laplace_speed")})
}
LAPLACE_MISSED = {
    "diag fit: BackPACK without collating / pyrobnn": "2.43",
    "diag fit: BackPACK from a DataLoader / pyrobnn": "3.30",
}


@pytest.mark.parametrize("holds", with_misses(LAPLACE, LAPLACE_MISSED))
def test_laplace_beside_laplace_torch_keeps_its_bounds(holds):
    assert holds


LARGER = sorted({(row["data"], row["rows"]) for row in load_rows("tables") if row["rows"] in (1000, 10_000)})
BEHIND = {
    ("hastie", 1000): "-.081: a mean-field guide has .272, MLPClassifier .191",
    ("wine-quality-red", 1000): "-.099: .348, trees .447, linear .349, a Gaussian process .245",
}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(*job, marks=pytest.mark.xfail(strict=True, reason=BEHIND[job])) if job in BEHIND else job
        for job in LARGER
    ],
)
def test_larger_tables_are_near_the_best_of_scikit_learn(name, size):
    rows = chosen(load_rows("tables"), data=name, rows=size)
    score = "r2" if rows[0]["task"] == "regression" else "log_score"
    for row in rows:
        theirs = [row[f"{score}_{model}"] for model in SKLEARN if f"{score}_{model}" in row]
        assert row[score] >= max(theirs) - 0.05


@pytest.mark.parametrize("size", [1000, 10_000])
def test_there_are_eight_larger_tables(size):
    assert sum(job[1] == size for job in LARGER) >= 8


@pytest.mark.parametrize(
    ("method", "accuracy", "nll", "ece"), [("mean-field", 0.989, 0.036, 1), ("ensemble of 10", 0.994, 0.018, 0.005)]
)
def test_lenet_5_keeps_its_bounds_on_the_test_digits(method, accuracy, nll, ece):
    rows = chosen(load_rows("lenet"), method=method, part="test")
    assert rows
    for row in rows:
        assert row["accuracy"] >= accuracy
        assert row["NLL"] <= nll
        assert row["ECE"] <= ece


def test_ten_members_of_lenet_5_take_half_an_hour_of_two_cores():
    (row,) = chosen(load_rows("lenet"), method="ensemble of 10", part="test")
    assert row["fit, CPU s"] <= 2 * 1800


PRICED = {
    ("last layer", "predict, 500 draws"): ("passes", 2),
    ("all weights", "predict, 2 draws"): ("passes", 40),
    ("all weights", "predict, 500 draws"): ("passes", 40),
    ("all weights", "predict, 5,000 draws"): ("passes", 40),
} | {
    (f"1,000 classes, {structure}", what): ("seconds", most)
    for structure in ("kron", "diag")
    for what, most in (
        ("functional, one input", 0.1),
        ("predict, one input, 500 draws", 0.1),
        ("functional", 2),
        ("probabilities", 10),
    )
}


@pytest.mark.parametrize(("case", "what"), PRICED)
def test_predictions_are_priced_by_outputs(case, what):
    (row,) = chosen(load_rows("priced_by_outputs"), case=case, what=what)
    column, most = PRICED[case, what]
    assert row[column] <= most
    assert row.get("mib", 0) <= 1024
