"""The data of the measure `beside`, its page, and the normals that stand beside the regressor."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import KFold

from benchmarks.measures import beside
from benchmarks.measures.harness import load_measure, parsed
from benchmarks.references import Normals, normals

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = 100 + 10 * X[:, 0] + RNG.normal(size=60)


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
    data = X, Y, X[:3], Y[:3]
    squares = np.concatenate(
        [
            (Y[test] - LinearRegression().fit(X[train], Y[train]).predict(X[test])) ** 2
            for train, test in KFold(5).split(X)
        ]
    )
    held_out, fitted = (normals(LinearRegression(), data, folds=folds) for folds in (5, 0))
    assert held_out.std == pytest.approx(np.sqrt(squares.mean()))
    np.testing.assert_allclose(held_out.mean, LinearRegression().fit(X, Y).predict(X[:3]))
    assert held_out.std > fitted.std


@pytest.mark.parametrize(("rows", "train"), [(111, 88), (5000, 2000)])
def test_a_fifth_is_to_test_on_and_no_more_than_2000_rows_to_train_on(rows, train):
    table = np.arange(rows)[:, None], np.arange(rows)
    x, y, x_test, y_test = beside.four_fifths(table, seed=1)
    assert (len(y), len(y_test)) == (train, rows - rows * 4 // 5)
    assert not set(y) & set(y_test)
    assert (x[:, 0] == y).all()
    assert (x_test[:, 0] == y_test).all()
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
