"""Tasks and measures of the benchmarks: what their jobs ask for, what a row says, and what is written of rows."""

import copy
import dataclasses
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from helpers import run, typed
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

import pyrobnn as bnn
from benchmarks.gpu import SECONDS
from benchmarks.measures import beside
from benchmarks.measures.harness import load_measure, parsed
from benchmarks.noise import SameNoise
from benchmarks.references import Normals, normals
from benchmarks.report import regression as report
from benchmarks.report.regression_figures import critical_difference
from benchmarks.tasks import bandit, mnist, nuts, regression
from benchmarks.tasks.mnist_scores import error_rate, evaluate, evaluate_pruned, load_images, rotated

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = 100 + 10 * X[:, 0] + RNG.normal(size=60)
ENTRY = {"name": "map", "guide": {"type": "map"}}
TABLES = {
    "data": ["diabetes"],
    "num_splits": 2,
    "base": {
        "net": {"type": "mlp", "hidden": [3]},
        "prior": {"type": "normal", "scale": 1.0},
        "fit": {"type": "svi", "steps": 40, "lr": 0.05, "engine": "eager"},
        "predict": {"num_draws": 20},
    },
    "entries": [ENTRY],
}
LAPLACE = {"name": "Kronecker", "structure": "kron", "sites": "last_layer", "tuned": True}
DIGITS = {
    "units": [8],
    "num_draws": 5,
    "num_train": 300,
    "num_held_out": 80,
    "rotations": [0, 90],
    "num_rotated": 20,
    "engine": "eager",
    "base": {"fit": {"type": "svi", "steps": 40, "batch_size": 100, "lr": 0.01}},
    "entries": [
        {"name": "SGD", "guide": {"type": "map"}, "laplace": [LAPLACE]},
        {
            "name": "Bayes by Backprop",
            "prior": {"type": "scale_mixture"},
            "guide": {"type": "mean_field"},
            "grid": {"guide.init_rho": [2.0, -4.0]},
            "tuning": {"fit.steps": 30},
            "pruned": [0.5, 0.98],
        },
    ],
}
needs_images = pytest.mark.needs_data("mnist", "fashion-mnist-test")


def without_seconds(row):
    return {key: value for key, value in row.items() if not key.endswith("seconds")}


def entry(**settings):
    return {"entries": [{"name": "a"} | settings]}


FILE = {"file": "b.csv", "target": "y"}
WRONG = [
    (bandit, {}, entry() | {"mushroom": 5}, "Unknown key `mushroom` in the suite. Known: .*mushrooms"),
    (bandit, {}, entry(eps=0.1), "Unknown key `eps` in entry a. Known: epsilon, guide"),
    (bandit, {}, entry(epsilon=5), "`epsilon` in entry a: .* less than or equal to 1, got 5"),
    (bandit, {}, {"lr": float("inf")}, "`lr` in the suite: .* finite number, got inf"),
    (mnist, DIGITS, entry(rate=1), r"Unknown key `rate` in entry a\. Known: "),
    (mnist, DIGITS, entry(laplace=[{"rank": 1}]), "Unknown key `rank` in laplace of a"),
    (mnist, DIGITS, entry(tuning={"fit.stops": 1}), "stops"),
    (mnist, DIGITS, entry(laplace=[{"name": "b", "structure": "ful"}]), "Laplace: `structure`"),
    (regression, TABLES, entry(fit={"engine": "auto"}), "must be captured or eager, .* got 'auto'"),
    (regression, TABLES, entry(grid={"data.split": [1]}), "Unknown key `data` in what the grid of a names"),
    (regression, TABLES, entry(inputs="rank"), "`inputs` in .*a.* 'plain', 'ranks' or 'waves', got 'rank'"),
    (regression, TABLES, entry(fit={"seed": 1}), "`fit.seed` in entry a has no effect .*suite.*leave it out"),
    (regression, TABLES, {"data": ["digits"]}, "needs data for regression, and digits is for classification: choose"),
    (regression, TABLES, {"num_splits": 11, "splits": "gap"}, "diabetes has 10 gap splits, and `num_splits` is 11"),
    (regression, TABLES, {"data": [FILE | {"colour": 1}]}, "unknown setting `colour`"),
    (regression, TABLES, {"data": [FILE | {"file": "../b.csv"}]}, "`file` in `data` must lie beside the suite file"),
    (regression, TABLES, {"data": [{"file": "b.csv"}]}, "needs a `name`, or a `path` with a `target`"),
    (regression, TABLES, {"data": [FILE, FILE | {"file": "c/b.csv"}]}, "Two data sets are called 'b'"),
    (regression, TABLES, {"data": [FILE], "splits": "gap"}, "`splits` must be published"),
    (regression, TABLES, {"tuning_members": 2}, "`tuning_members` is for ensembles, and map has SVI"),
]


@pytest.mark.parametrize(("task", "suite", "change", "message"), WRONG)
def test_suites_with_mistakes_are_refused(task, suite, change, message):
    with pytest.raises(bnn.InputError, match=message):
        task.jobs(suite | change)


def settings(**changes):
    (job,) = regression.jobs(TABLES | {"entries": [ENTRY | changes]})
    return job


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
    assert list(map(without_seconds, first)) == list(map(without_seconds, again))
    dataset = bnn.datasets.load("diabetes")
    train, test = dataset.split(1)
    data = bnn.Data(train.x, train.y, standardize=True)
    others = bnn.Data(*(getattr(dataset.split(0)[0], name) for name in "xy"), standardize=True)
    model = bnn.BNN(bnn.MLP(10, [3], 1), prior=bnn.priors.Normal(1.0))
    method = bnn.SVI(guide="map", steps=40, lr=0.05)
    fits = bnn.fit_replicates(model, [others, others, data, data], method, seed=0, engine="eager", progress=False)
    log_probs = torch.stack([one.predict(test.x, num_draws=1).log_prob(test.y).double() for one in fits[2:]])
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
    job, found = settings(grid={"prior.scale": [0.9, 1.0]}), []
    for shift in (0.0, 1000.0):
        with monkeypatch.context() as patch:
            patch.setattr(bnn.datasets, "load", with_test_targets_shifted(shift))
            found.append(run(regression, job))
    for old, new in zip(*found, strict=True):
        assert (new["validation_log_score"], new["chosen"]) == (old["validation_log_score"], old["chosen"])
        assert new["log_score"] < old["log_score"] - 1


def test_means_have_standard_errors_over_splits():
    def means(*scores):
        row = {"entry": "a", "data": "b", "split": 0, "rmse": 1.0, "coverage_95": 0.9}
        return report.own_means([row | {"log_score": score} for score in scores], "log_score")["a"]["b"]

    assert means(1.0, 2.0, 6.0).value == pytest.approx(3.0)
    assert means(1.0, 2.0, 6.0).error == pytest.approx(math.sqrt(7 / 3))
    assert not any(math.isfinite(means(1.0, lost).error) for lost in (math.nan, -math.inf))
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


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


def test_scores_of_normals_are_those_of_another_library():
    import scoringrules

    mean, std = RNG.normal(size=60), RNG.uniform(0.5, 2, size=60)
    y = mean + std * RNG.normal(size=60)
    scores = Normals(mean, std).scores(y)
    assert scores["crps"] == pytest.approx(scoringrules.crps_normal(y, mean, std).mean())
    assert scores["log_score"] == pytest.approx(-scoringrules.logs_normal(y, mean, std).mean())
    assert scores["error"] == pytest.approx(np.sqrt(((y - mean) ** 2).mean()))
    assert scores["coverage"] == (np.abs(y - mean) < 1.959964 * std).mean()


def test_the_variance_of_held_out_residuals_is_that_of_a_loop_over_folds():
    fits = ((LinearRegression().fit(X[train], Y[train]), test) for train, test in KFold(5).split(X))
    squares = np.concatenate([(Y[test] - fit.predict(X[test])) ** 2 for fit, test in fits])
    held_out, fitted = (normals(LinearRegression(), (X, Y, X[:3], Y[:3]), folds=folds) for folds in (5, 0))
    assert held_out.std == pytest.approx(np.sqrt(squares.mean()))
    np.testing.assert_allclose(held_out.mean, LinearRegression().fit(X, Y).predict(X[:3]))
    assert held_out.std > fitted.std


@pytest.mark.parametrize(("rows", "train"), [(111, 88), (5000, 2000)])
def test_a_fifth_is_to_test_on_and_no_more_than_2000_rows_to_train_on(rows, train):
    table = np.arange(rows)[:, None], np.arange(rows)
    x, y, x_test, y_test = beside.four_fifths(table, seed=1)
    assert (len(y), len(y_test)) == (train, rows - rows * 4 // 5)
    assert not set(y) & set(y_test)
    assert (np.r_[x, x_test][:, 0] == np.r_[y, y_test]).all()
    assert not np.array_equal(beside.four_fifths(table, seed=2)[3], y_test)


def test_jobs_are_those_asked_for_and_a_constant_has_the_moments_of_the_targets():
    asked = "--groups small published --sets bend-30 yacht --models BNNRegressor NGBoost --splits 2 --seeds 3"
    jobs = beside.jobs(parsed("beside", load_measure("beside"), asked.split()))
    found = [(job["data"], job["model"]) for job in jobs]
    assert found.count(("bend-30", "BNNRegressor")) == 3
    assert found.count(("yacht", "BNNRegressor")) == found.count(("yacht", "NGBoost")) == 2 == len(found) - 5
    (row,) = beside.run({"data": "bend-30", "seed": 1, "model": "a constant"}, None)
    _, y, _, y_test = beside.SOURCES["bend-30"].draw(1)
    assert row["error"] == pytest.approx(np.sqrt(((y_test - y.mean()) ** 2).mean()), rel=1e-4)


def test_leads_are_over_the_splits_that_both_have():
    some = {"data": "yacht", "train": 1, "inputs": 1, "error": 9e4}
    rows = [some | {"seed": seed, "model": "BNNRegressor", "log_score": 1 + 2 * seed} for seed in range(2)]
    rows += [some | {"seed": seed, "model": "Ridge", "log_score": score} for seed, score in enumerate((0.5, 1, 9))]
    assert beside.leads(rows, "published", "Ridge") == {"yacht": [0.5, 2]}
    lines = beside.page(rows, None).lines
    assert "- Ridge: ours is ahead on 1 of 1, by 1.250 in the mean." in lines
    assert "| yacht | 1 x 1 | Ridge | 3 | 3.500 ± 2.754 | 1.250 ± 0.750 | 90000 ± 0 |  |  |  |  |" in lines


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


AGENTS = [
    {"name": "mean-field", "guide": {"type": "mean_field"}, "prior": {"type": "scale_mixture"}},
    {"name": "ensemble", "members": 2},
    {"name": "laplace", "guide": {"type": "laplace", "structure": "kron"}},
    {"name": "coin", "epsilon": 1.0},
]
TINY = {"mushrooms": 50, "seeds": 2, "hidden": [4], "memory": 32, "batch_size": 8, "steps": 3, "draws": 4}
TINY |= {"engine": "eager", "entries": AGENTS}


class Known:
    """A posterior whose draws value eating as told."""

    def __init__(self, draw_means):
        self.draw_means = draw_means

    def predict(self, x, *, num_draws, seed):
        assert (num_draws, len(x)) == self.draw_means.shape
        assert (x[: len(x) // 2, -2:] == torch.tensor([1.0, 0.0])).all()
        assert (x[len(x) // 2 :, -2:] == torch.tensor([0.0, 1.0])).all()
        return self


def test_regret_is_zero_for_the_oracle_and_exact_for_each_mistake():
    world = bandit.World(torch.zeros(4, 3), torch.tensor([False, False, True, True]), torch.tensor([0, 0, 1, 0]).bool())
    assert world.regrets(torch.tensor([1.0, 1, 0, 0])).tolist() == [0, 0, 0, 0]
    assert world.regrets(torch.tensor([0.0, 1, 1, 1])).tolist() == [5, 0, 15, 15]
    assert world.rewards(slice(None), torch.tensor([1.0, 0, 1, 1])).tolist() == [5, 0, -35, 5]
    found = bandit.outcome(world, torch.tensor([0.0, 1, 1, 1]))
    assert (found["regret"], found["realised_regret"]) == (35, 10 - (5 - 35 + 5))
    assert (found["poisonous_eaten"], found["edible_left"]) == (2, 1)
    assert (found["steps"], found["curve"]) == ([1, 2, 3, 4], [5, 5, 20, 35])
    kinds = torch.eye(6)[torch.randint(6, (40,), generator=torch.Generator().manual_seed(0))]
    world = bandit.make_world(bnn.Data(kinds, torch.arange(40) % 2), 20_000, 0)
    paid = world.rewards(slice(None), torch.ones(20_000))[world.poisonous]
    assert set(paid.tolist()) == {-35.0, 5.0}
    assert abs(float(paid.mean()) - bandit.POISONOUS) < 5 * 20 / len(paid) ** 0.5


def test_choices_follow_the_values_and_toss_coins_as_often_as_told():
    def eaten(values, x, **changes):
        (job,) = bandit.jobs({"entries": [{"name": "greedy"} | changes.pop("entry", {})]} | changes.pop("suite", {}))
        known = None if values is None else Known(values)
        return bandit.Chooser(typed(bandit, job | changes), 0).choose(known, torch.zeros(x, 3), 0)

    eat = torch.arange(2000) % 2 == 0
    values = torch.cat([torch.where(eat, 1.0, -1.0), torch.zeros(2000)])[None]
    assert torch.equal(eaten(values, 2000), eat.long())
    assert abs(float((eaten(values, 2000, epsilon=0.5) != eat).double().mean()) - 0.25) < 0.05
    assert 0.4 < eaten(None, 2000).double().mean() < 0.6
    # Thompson agents judge by the mean of two draws: both draws of the two that want to eat
    thompson = {"entry": {"guide": "mean_field"}, "suite": {"draws": 4}}
    values = torch.cat([torch.tensor([[1.0], [1], [-1.5], [-1.5]]).expand(4, 3000), torch.zeros(4, 3000)], 1)
    assert abs(float(eaten(values, 3000, **copy.deepcopy(thompson)).double().mean()) - 1 / 6) < 0.03
    assert abs(float(eaten(values, 3000, averaged=1, **thompson).double().mean()) - 1 / 2) < 0.05


@pytest.mark.slow
def test_repeating_a_memory_does_not_change_what_is_learned():
    x = torch.linspace(-1, 1, 6)[:, None]
    y = x[:, 0] ** 2
    model = bnn.BNN(bnn.MLP(1, [3], 1), prior=bnn.priors.Normal(0.5), likelihood=bnn.likelihoods.Gaussian(scale=0.3))
    settings = {"steps": 30, "lr": 0.01}
    grown = bandit.Growing(model, bnn.guides.Map(), size=18, settings=settings, engine="eager")
    ours = grown.fit([(x, y)], seed=0)[0].mean()
    method = bnn.SVI(guide="map", **settings)
    plain = bnn.fit_replicates(model, (x, y), [method], seed=0, engine="eager", progress=False)[0].mean()
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-4)


@pytest.mark.needs_data("mushroom")
def test_every_agent_eats_and_its_row_adds_up_and_comes_again():
    rows = [row for job in bandit.jobs(TINY) for row in run(bandit, job)]
    assert [(row["entry"], row["seed"]) for row in rows] == [(a["name"], s) for a in AGENTS for s in (0, 1)]
    for row in rows:
        assert row["regret"] == row["curve"][-1] == 15 * row["poisonous_eaten"] + 5 * row["edible_left"]
        assert row["curve"] == sorted(row["curve"])
        assert row["steps"][-1] == TINY["mushrooms"]
    job = bandit.jobs(TINY)[0]
    assert list(map(without_seconds, run(bandit, job))) == list(map(without_seconds, rows[:2]))
    assert bandit.datasets(typed(bandit, job)) == ("mushroom",)


def test_turned_images_are_exact_at_right_angles():
    images = torch.rand(3, 784)
    square = images.view(3, 28, 28)
    assert torch.equal(rotated(images, 0), images)
    torch.testing.assert_close(rotated(images, 90), torch.rot90(square, 1, (1, 2)).reshape(3, -1), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotated(images, 180), square.flip(1, 2).reshape(3, -1), atol=1e-5, rtol=0)
    assert float((rotated(images, 30) - images).abs().max()) > 0.1


@needs_images
def test_images_are_those_of_the_published_split():
    images = load_images(300, 80)
    assert [len(part) for part in (images.train, images.validation, images.test, images.clothes)] == [300, 80, 80, 80]
    assert images.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert images.validation.y[:10].tolist() == [3, 8, 6, 9, 6, 4, 5, 3, 8, 4]
    assert images.test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    for x in (images.train.x, images.validation.x, images.test.x, images.clothes):
        assert float(x.max()) == pytest.approx(255 / 126)
        np.testing.assert_allclose(126 * x, (126 * x).round(), atol=1e-4)


@needs_images
def test_measures_of_predictions_that_are_known():
    """Digits are all told right and for certain; what is turned or is no digit gets ten equal classes."""
    images = load_images(300, 80)
    known = {tuple(x.tolist()): y for x, y in zip(images.test.x, images.test.y, strict=True)}

    def predict(x):
        labels = [known.get(tuple(row.tolist())) for row in x]
        logits = torch.stack([torch.zeros(10) if y is None else 200.0 * torch.eye(10)[y] for y in labels])
        return bnn.Prediction(dist.Categorical(logits=logits.expand(2, -1, -1)))

    found = evaluate(predict, images, [0, 180], 30)
    exact = {"test_error": 0, "auroc_entropy": 1, "auroc_information": 0.5}
    assert {key: found[key] for key in exact} == exact
    assert found["nll"] == pytest.approx(0, abs=1e-6)
    assert (found["rotation_accuracy"][0], found["rotation_accuracy_stderr"][0]) == (100, 0)
    np.testing.assert_allclose(found["rotation_entropy"], [0, np.log(10)], atol=1e-5)
    np.testing.assert_allclose(found["rotation_information"], 0, atol=1e-5)


@needs_images
def test_pruning_takes_the_weights_of_least_signal():
    images = load_images(300, 80)
    model = bnn.BNN(bnn.MLP(784, [4], 10), likelihood="categorical", prior=bnn.priors.Normal(1.0))
    posterior = bnn.fit(model, images.train, bnn.SVI(steps=5), seed=0, engine="eager", progress=False)
    num = posterior.bnn.num_weights
    found = evaluate_pruned(posterior, images.test, [0.5, 1 - 0.1 / num, 0.0], 3, 0)
    always_the_first = 100 * float((images.test.y != 0).double().mean())
    assert found["pruned_error"][1] == pytest.approx(always_the_first)
    assert found["pruned_weights_left"] == [num - round(num / 2), 0, num]
    assert [spread > 0 for spread in found["pruned_cost_stderr"]] == [True, True, False]
    for place, pruned in ((2, posterior), (0, bnn.prune(posterior, 0.5))):
        whole = pruned.predict(images.test.x, num_draws=3, seed=0)
        assert found["pruned_error"][place] == error_rate(whole, images.test.y)
    assert evaluate_pruned(posterior, images.test, [], 3, 0) == {}


@pytest.mark.slow
@needs_images
def test_the_same_settings_give_the_same_row_also_from_a_kept_fit(tmp_path):
    settings = mnist.jobs(DIGITS)[1]
    first, again = (run(mnist, settings, tmp_path)[0] for _ in range(2))
    plain = run(mnist, settings)[-1]
    assert without_seconds(first) == without_seconds(again) == without_seconds(plain)
    assert first["tuning_seconds"] > 0
    assert again["tuning_seconds"] is again["seconds"] is None
    assert len(list(tmp_path.iterdir())) == 3, "two candidates for tuning, and the fit"


def test_every_request_for_noise_gets_the_same_numbers_rounded():
    with SameNoise("cpu"):
        normal = [torch.randn_like(torch.empty(5)), torch.randn(5, dtype=torch.float64), torch.empty(5).normal_()]
        moved, uniform = torch.empty(5).normal_(2.0, std=3.0), torch.empty(1000).uniform_(-1, 1)
    torch.testing.assert_close(normal[0].double(), normal[1], rtol=1e-6, atol=0)
    assert torch.equal(normal[0], normal[2])
    torch.testing.assert_close(moved, 3 * normal[0] + 2)
    assert -1 < float(uniform.min()) < -0.99
    assert 0.99 < float(uniform.max()) < 1


@pytest.mark.nightly
def test_the_rehearsal_runs_every_measure(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--rehearse", "--out", str(tmp_path)]
    assert subprocess.run(command, cwd=Path(__file__).parents[1], check=False).returncode == 0
    for ending in ("jsonl", "md"):
        assert {path.stem for path in tmp_path.glob(f"*.{ending}")} == {f"gpu-{name}" for name in SECONDS}
