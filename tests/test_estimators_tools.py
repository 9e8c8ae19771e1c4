"""The estimators in scikit-learn's tools: pipelines, searches, calibration, pickles and files, on small data."""

import ast
import pickle
import re

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
import pyrobnn.report
from pyrobnn._core.remedies import Remedy, current_spelling
from pyrobnn._core.tree_files import read_tree, write_tree
from pyrobnn.report.page import Rendered
from pyrobnn.verdict.evidence import Evidence
from pyrobnn.verdict.remedies import RULES

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


@pytest.mark.filterwarnings("ignore:Column 'bp'")
def test_an_estimator_that_learned_on_pickles_and_learns_on(diabetes, tmp_path):
    x, y = diabetes
    model = bnn.BNNRegressor(**QUICK, guide="mean_field").partial_fit(x[:20], y[:20]).partial_fit(x[20:40], y[20:40])
    joblib.dump(model, tmp_path / "model.joblib")
    loaded = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))
    for one in (loaded, model):
        one.partial_fit(x[40:60], y[40:60])
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


GAPS = pd.DataFrame({"size": np.sin(np.arange(40.0)), "room": ["a", "b", None, "c"] * 10})
GAPS["day"] = pd.date_range("2024-03-01", periods=40)
GAPS.loc[3:8, "size"] = np.nan
LABELS = np.where(np.arange(40) % 3 > 0, "yes", "no")
OF_GAPS = bnn.BNNClassifier(**QUICK, guide="mean_field", missing="impute", class_weight={"yes": 2.0, "no": 1.0})


@pytest.fixture(scope="module")
def of_gaps():
    return OF_GAPS.fit(GAPS, LABELS)


@pytest.mark.slow
def test_a_saved_estimator_predicts_the_same_bits(of_gaps, diabetes, tmp_path):
    x, y = diabetes
    for model, inputs in ((of_gaps, GAPS), (FITTED["default"].fit(x[:20], y[:20]), x[:20])):
        loaded = type(model).load(model.save(tmp_path / type(model).__name__))
        np.testing.assert_array_equal(loaded.predict(inputs), model.predict(inputs))
        np.testing.assert_array_equal(loaded.feature_names_in_, model.feature_names_in_)
        assert loaded.get_params() == model.get_params()
    assert loaded.predict_dist(x[:20]).mean.shape == (20,)
    with pytest.raises(bnn.InputError, match="holds an estimator: load it by BNNClassifier.load"):
        bnn.load(tmp_path / "BNNClassifier")
    with pytest.raises(bnn.InputError, match="holds 'BNNClassifier', no BNNRegressor"):
        bnn.BNNRegressor.load(tmp_path / "BNNClassifier")


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (lambda tree: tree["encoder"]["columns"].pop("size"), "the encoder makes"),
        (lambda tree: tree["encoder"].pop("missing"), "stored by an earlier version"),
        (lambda tree: tree["params"].update(engine__x=1), "unexpected keyword"),
        (lambda tree: tree["params"].update(guide={"type": "os.system"}), "Unknown guide"),
        (lambda tree: tree["arrays"].update(classes_=["<U3", 1, 2]), "too many values"),
        (lambda tree: tree["posterior"].pop("guide"), "does not fit"),
        (lambda tree: tree["facts"].update(other=1), "does not fit"),
        (lambda tree: tree.update(imputer={"rows": 3, "targets": 1}), "does not fit"),
    ],
)
def test_a_forged_file_of_an_estimator_is_refused(of_gaps, forge, words, tmp_path):
    tree = read_tree(of_gaps.save(tmp_path / "model"))
    forge(tree)
    write_tree(tmp_path / "model", tree)
    with pytest.raises(bnn.InputError, match=words):
        bnn.BNNClassifier.load(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"net": nn.Linear(1, 1)}, {"random_state": np.random.RandomState(0)}])
def test_parameters_that_are_objects_are_not_saved(settings, tmp_path):
    model = bnn.BNNRegressor(**(QUICK | settings), guide="map").fit(np.arange(12.0)[:, None], np.arange(12.0))
    with pytest.raises(bnn.InputError, match=f"`{next(iter(settings))}` is an object.*bnn.save"):
        model.save(tmp_path / "model")
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_fit_is_judged_in_names_of_the_frame_and_parameters_of_estimators(of_gaps, tmp_path, monkeypatch):
    found = of_gaps.diagnose(GAPS[:30], LABELS[:30], held_out=(GAPS[30:], LABELS[30:]))
    assert "set_params(" in str(found)
    assert found.num_held_out >= 10
    seen = {}
    monkeypatch.setattr(
        pyrobnn.report,
        "render",
        lambda *given: seen.update(enumerate((*given, current_spelling.get()))) or Rendered("<p>", {}),
    )
    assert of_gaps.report(tmp_path / "report.html", GAPS, LABELS).read_text() == "<p>"
    with pytest.raises(bnn.InputError, match="report.html exists already: choose another name, or remove it first"):
        of_gaps.report(tmp_path / "report.html", GAPS, LABELS)
    assert (list(seen[0].class_names), set(seen[0].columns)) == (["no", "yes"], set(GAPS))
    assert seen[0].held_out is None
    assert seen[5] == "estimator"


@pytest.mark.slow
@pytest.mark.parametrize("num_new", [0, 1100])
def test_a_report_says_how_many_examples_were_scored(num_new, tmp_path, monkeypatch):
    monkeypatch.setattr(pyrobnn.report.page, "_figures", lambda *_, **__: iter(()))
    x, model = np.linspace(-1, 1, 1100)[:, None], bnn.BNNRegressor(**(QUICK | {"steps": 3}), guide="map")
    rows = slice(None, None, 20) if num_new else slice(None)
    held_out = (x[:num_new], x[:num_new, 0]) if num_new else None
    page = model.fit(x[rows], x[rows, 0]).report(tmp_path / "a.html", x[rows], x[rows, 0], held_out).read_text()
    lead, *_, heading = re.findall(r"([\d,]+ (?:held-out|training)) example", page.partition("Is the fit credible")[0])
    assert lead.replace(",", "") == heading == f"1000 {'held-out' if num_new else 'training'}"


@pytest.mark.slow
def test_groups_reach_the_data():
    """Each copy of a row with gaps is of the group of its row."""
    groups, model = np.arange(40) // 4, bnn.BNNClassifier(missing="impute")
    _, data = model._examples(GAPS, model._targets(LABELS), groups=groups)
    assert len(data) > 40
    assert len(data.groups.unique()) == 10
    with pytest.raises(bnn.InputError, match="groups"):
        OF_GAPS.fit(GAPS, LABELS, groups=groups[1:])


def test_remedies_are_parameters_of_estimators():
    data = bnn.Data([[0.0], [1.0]], [0.0, 1.0])
    model = bnn.BNN(bnn.MLP(1, [2], 1), prior=bnn.priors.Normal(1.0))
    evidence = Evidence(model.fit(data, guide="map", steps=1, progress=False), data)
    for rule in RULES.values():
        settings = rule.settings(evidence) if callable(rule.settings) else rule.settings
        code = Remedy("", settings).code("estimator").partition(", in a")[0].strip("`")
        if code.startswith("set_params"):
            changes = {each.arg: ast.literal_eval(each.value) for each in ast.parse(code).body[0].value.keywords}
            of_method = any(name.startswith("method__") for name in changes)
            method = ("svi" if "steps" in code else "nuts") if of_method else None
            bnn.BNNRegressor(method=method).set_params(**changes)._parts()
        else:
            assert not settings or settings[0].startswith("data.")


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


@pytest.mark.slow
def test_a_diagnosis_is_of_predictions_as_they_are_made_also_with_gaps_and_ranks():
    """Of 600 rows 90 lack a column that carries most of the target: 95 % intervals hold as many as `predict` says."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 600))
    x = pd.DataFrame({"a": a, "b": 0.5 * a + b})
    y = (3 * x["a"] + x["b"] + 0.3 * rng.normal(size=600)).to_numpy()
    x.loc[rng.choice(600, 90, replace=False), "a"] = np.nan
    train, new = (x[:150], y[:150]), (x[150:], y[150:])
    model = bnn.BNNRegressor(missing="impute", method=bnn.EvidenceFramework(starts=1), random_state=0).fit(*train)
    found = model.diagnose(*train, held_out=new)
    lower, upper = model.predict_interval(new[0])
    coverage = next(one for one in found.findings if one.name == "coverage")
    assert found.num_held_out == 450
    assert coverage.value == pytest.approx(np.mean((lower <= new[1]) & (new[1] <= upper)), abs=0.01)
    ranks = bnn.BNNRegressor(guide="map", steps=20, inputs="ranks", random_state=0).fit(b[:100, None], y[:100])
    assert ranks.diagnose(b[:100, None], y[:100], held_out=(b[100:, None], y[100:])).num_held_out == 500
