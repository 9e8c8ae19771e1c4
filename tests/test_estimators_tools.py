"""The estimators in scikit-learn's tools: pipelines, searches, calibration, pickles, on its own small data."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import nn

import pyrobnn as bnn

NET = bnn.MLP(hidden=(), dtype="float64")
QUICK = {"net": NET, "steps": 30, "lr": 0.1, "engine": "eager", "random_state": 0, "num_draws": 20}
REGRESSOR = bnn.BNNRegressor(**QUICK, guide="map")
CLASSIFIER = bnn.BNNClassifier(**QUICK, guide="map")


@pytest.fixture(scope="module")
def diabetes():
    x, y = load_diabetes(return_X_y=True, as_frame=True)
    return x[:150], y[:150]


@pytest.fixture(scope="module")
def iris():
    x, y = load_iris(return_X_y=True)
    return x[::2], np.array(["setosa", "versicolor", "virginica"])[y[::2]]


def test_in_a_pipeline_with_a_column_transformer(diabetes):
    x, y = diabetes
    columns = ColumnTransformer([("sex", OneHotEncoder(), ["sex"]), ("rest", StandardScaler(), ["bmi", "bp", "s5"])])
    model = make_pipeline(columns, TransformedTargetRegressor(REGRESSOR, func=np.log, inverse_func=np.exp))
    assert model.fit(x, y).score(x, y) > 0.3


@pytest.mark.slow
def test_a_grid_search_in_two_processes(diabetes):
    x, y = diabetes
    pipeline = make_pipeline(StandardScaler(), REGRESSOR)
    grid = {"bnnregressor__net__hidden": [(), (2,)], "bnnregressor__prior__scale": [0.01, 0.5]}
    search = GridSearchCV(pipeline, grid, n_jobs=2, cv=2, error_score="raise").fit(x, y)
    assert search.best_params_["bnnregressor__prior__scale"] == 0.5
    assert search.best_estimator_[-1].prior == bnn.priors.Normal(scale=0.5)


def test_cross_validation_and_calibration(iris):
    x, y = iris
    assert cross_val_score(CLASSIFIER, x, y, cv=2).mean() > 0.8
    calibrated = CalibratedClassifierCV(CLASSIFIER, cv=2).fit(x, y)
    assert calibrated.score(x, y) > 0.8


def test_permutation_importance(diabetes):
    x, y = diabetes
    x = pd.DataFrame({"bmi": x["bmi"], "noise": np.random.default_rng(0).normal(size=len(x))})
    found = permutation_importance(REGRESSOR.fit(x, y), x, y, n_repeats=3, random_state=0)
    assert found.importances_mean[0] > 5 * abs(found.importances_mean[1])


FITTED = {
    "default": bnn.BNNRegressor(**QUICK),
    "ensemble": bnn.BNNRegressor(**QUICK, method=bnn.Ensemble(members=2)),
    "mean_field": bnn.BNNRegressor(**QUICK, guide="mean_field", prior="horseshoe"),
    "module": bnn.BNNRegressor(**(QUICK | {"net": nn.Linear(10, 1)}), guide="mean_field"),
    "chains": bnn.BNNRegressor(
        bnn.MLP(hidden=()),
        likelihood=bnn.likelihoods.Gaussian(scale=50.0),
        method=bnn.NUTS(warmup=5, num_draws=5, num_chains=1),
        engine="eager",
        random_state=0,
        num_draws=5,
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("model", FITTED.values(), ids=FITTED)
def test_a_fitted_estimator_pickles(model, diabetes):
    x, y = diabetes
    x, y = x[:20], y[:20]
    model.fit(x, y, sample_weight=np.arange(20) if model is FITTED["mean_field"] else None)
    loaded = pickle.loads(pickle.dumps(model))
    for found, expected in zip(loaded.predict(x, return_std=True), model.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_estimator_that_learned_on_pickles_and_learns_on(diabetes, tmp_path):
    x, y = diabetes
    model = bnn.BNNRegressor(**QUICK, guide="mean_field").partial_fit(x[:20], y[:20]).partial_fit(x[20:40], y[20:40])
    joblib.dump(model, tmp_path / "model.joblib")
    loaded = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    for one in (loaded, model):
        one.partial_fit(x[40:60], y[40:60])
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


def test_mapie_makes_intervals_of_a_regressor():
    """The regressor knows nothing of the noise. Of new targets, intervals from 99 rows hold 0.9 on average.

    From one set of 99 rows to the next the coverage varies by 0.03, and the share of 600 new rows by 0.012.
    """
    mapie = pytest.importorskip("mapie.regression", reason="needs mapie")
    generator, shares = np.random.default_rng(0), []
    x = generator.normal(size=(100, 2))
    regressor = bnn.BNNRegressor(**QUICK, guide="map").fit(x, x[:, 0])
    for _ in range(8):
        x = generator.normal(size=(699, 2))
        y = x[:, 0] + generator.normal(size=len(x))
        split = mapie.SplitConformalRegressor(regressor, confidence_level=0.9, prefit=True).conformalize(x[:99], y[:99])
        middle, bounds = split.predict_interval(x[99:])
        np.testing.assert_array_equal(middle, regressor.predict(x[99:]))
        shares.append(((bounds[:, 0, 0] <= y[99:]) & (y[99:] <= bounds[:, 1, 0])).mean())
    assert abs(np.mean(shares) - 0.9) < 4 * np.hypot(0.03, 0.012) / 8**0.5
    unfitted = mapie.SplitConformalRegressor(REGRESSOR, prefit=False).fit(x[:99], y[:99])
    assert unfitted.conformalize(x[99:], y[99:]).predict_interval(x[:5])[1].shape == (5, 2, 1)
