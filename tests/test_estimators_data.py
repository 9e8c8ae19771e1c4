"""What the estimators take and refuse: frames, categories, missing values, labels, parameters."""

import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers import ESTIMATOR
from sklearn.exceptions import NotFittedError

import pyrobnn as bnn
from pyrobnn._core.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:There are . training examples")

QUICK, DEFAULT = ESTIMATOR | {"method": bnn.SVI(guide="mean_field", steps=5)}, ESTIMATOR | {"steps": 5, "lr": 0.02}
SIZES = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
PLACES = ["b", "a", "c", "a", "b", "c"]
Y = np.arange(6.0)


def table(**more):
    flags = [True, False, True, True, False, False]
    return pd.DataFrame({"size": SIZES, "flag": flags, "place": PLACES, **more})


def regressor(**settings):
    return bnn.BNNRegressor(**(QUICK | settings))


@pytest.mark.parametrize("y", [PLACES, np.array(PLACES), pd.Series(PLACES, dtype="category"), np.array([["a", 1]] * 6)])
def test_text_as_targets_of_a_regressor_leads_to_the_classifier(y):
    for learn in (regressor().fit, regressor().partial_fit):
        with pytest.raises(
            InputError, match="^BNNRegressor predicts numbers, and `y` holds text such as '[ab]': use BNNC"
        ):
            learn(table(), y)


def test_texts_of_numbers_in_objects_are_targets():
    as_objects, as_numbers = (regressor().fit(table(), y).predict(table()) for y in (Y.astype(str).astype(object), Y))
    assert np.array_equal(as_objects, as_numbers)


def test_numbers_as_targets_of_a_classifier_are_refused():
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        bnn.BNNClassifier(**QUICK).fit(table(), Y + 0.5)


@pytest.mark.filterwarnings("error:There are . training examples")
@pytest.mark.parametrize("make", [bnn.BNNRegressor, bnn.BNNClassifier])
def test_a_fit_on_few_rows_warns(make):
    x, y = np.arange(10.0)[:, None], np.arange(10) % 2
    with pytest.warns(bnn.PoorFitWarning, match="^There are 9 training examples: .* Collect 10 or more.$") as caught:
        make(**QUICK).fit(x[1:], y[1:])
    with pytest.warns(bnn.PoorFitWarning, match="^There are 8 training examples: "):
        make(**QUICK, missing="impute").fit(np.where(x[2:] < 6, np.nan, x[2:]), y[2:])
    assert sum("training examples" in str(warning.message) for warning in caught) == 1
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="There are")
        make(**QUICK).fit(x, y)
        make(**QUICK).fit(x[1:], y[1:], sample_weight=np.full(9, 2.0))
        make(**QUICK).partial_fit(x[:5], y[:5], **({"classes": [0, 1]} if make is bnn.BNNClassifier else {}))


def test_text_becomes_columns_of_zero_and_one_and_booleans_numbers():
    frame = table()
    one_hot = [[float(place == name) for name in "abc"] for place in PLACES]
    expected = np.column_stack([SIZES, frame["flag"], one_hot])
    found = regressor().fit(frame, Y)
    np.testing.assert_allclose(found.predict(frame), regressor().fit(expected, Y).predict(expected))
    assert list(found.feature_names_in_) == ["size", "flag", "place"]
    assert found.n_features_in_ == 3
    assert found.posterior_.record.feature_names == ["size", "flag", "place_a", "place_b", "place_c"]


def test_missing_values_are_refused_by_column():
    x = np.column_stack([SIZES, SIZES])
    model = regressor().fit(x, Y)
    x[0, 1] = np.nan
    with pytest.raises(InputError, match="Column 'x1' has 1 missing value .* in row 0: drop those rows; a fit could"):
        model.predict(x)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([0, 1, np.nan, 3, 4, np.nan], "NaN, in rows 2, 5: drop those rows"),
        (np.column_stack([Y, [0, 1, 2, np.nan, 4, 5]]), "NaN, in row 3"),
        (pd.Series(["a", None, "b", "a", "b", None]), "NaN, in rows 1, 5"),
        (pd.Series([1, None, 2, 3, 4, 5], dtype="Int64"), "NaN, in row 1"),
        ([0, 1, 2, 3, -np.inf, 5], "infinity, in row 4"),
    ],
    ids=["numbers", "two columns", "labels", "nullable", "infinite"],
)
def test_targets_that_are_missing_are_refused_by_row(y, words):
    with pytest.raises(InputError, match=f"^Input y contains {words}"):
        classifier().fit(np.column_stack([SIZES, SIZES]), y)
    if not isinstance(y, pd.Series) or y.dtype == "Int64":  # text is refused before
        with pytest.raises(InputError, match=f"^Input y contains {words}"):
            regressor().fit(np.column_stack([SIZES, SIZES]), y)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("labels", [["no", "yes"], [7, -1], [True, False]], ids=["text", "numbers", "booleans"])
@pytest.mark.parametrize("likelihood", [None, "bernoulli", {"type": "ordinal", "num_classes": 2}])
def test_labels_come_back_as_they_were(labels, likelihood):
    x = np.concatenate([np.linspace(-2, -1, 6), np.linspace(1, 2, 6)])[:, None]
    y = np.repeat(labels, 6)
    model = bnn.BNNClassifier(**QUICK | {"net": bnn.MLP(hidden=())}, likelihood=likelihood, steps=50, lr=0.2).fit(x, y)
    assert list(model.classes_) == sorted(labels)
    np.testing.assert_array_equal(model.predict(x), y)
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)


LEVELS = ["low", "medium", "high"]
CODES = np.digitize(np.random.default_rng(0).normal(size=90), [-0.5, 0.5])
NAMES = np.array(LEVELS)[CODES]
ORDERED = pd.Categorical(NAMES, LEVELS, ordered=True)


def ordinal(num=3, **settings):
    settings = {"net": bnn.MLP(hidden=()), "likelihood": bnn.likelihoods.Ordinal(num), "method": None} | settings
    return bnn.BNNClassifier(**(QUICK | {"guide": "map", "steps": 60, "lr": 0.2} | settings))


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (ORDERED, LEVELS),
        (pd.DataFrame({"y": ORDERED}), LEVELS),
        (pl.Series(NAMES, dtype=pl.Enum(LEVELS)), LEVELS),
        (ORDERED.add_categories(["none"]), LEVELS),
        (pd.Categorical(np.array([3, 1, 2])[CODES], [3, 1, 2], ordered=True), [3, 1, 2]),
        (pd.Series(CODES), [0, 1, 2]),
    ],
    ids=["categorical", "frame", "polars", "unused", "numbers", "codes"],
)
def test_ordered_labels_follow_their_order(y, classes):
    """The same model as for the codes 0, 1, 2, to the last digit."""
    x = CODES[:, None] + np.random.default_rng(1).normal(size=(90, 1)) / 2
    model, like = ordinal().fit(x, y), ordinal().fit(x, CODES)
    assert list(model.classes_) == classes
    np.testing.assert_array_equal(model.predict_proba(x), like.predict_proba(x))
    np.testing.assert_array_equal(model.predict(x), np.array(classes)[like.predict(x)])
    assert model.score(x, np.array(classes)[CODES]) == like.score(x, CODES) > 0.6


def test_ordered_labels_may_lack_one_that_is_declared():
    y = ORDERED.add_categories(["more"])
    model = ordinal(4).fit(CODES[:, None], y)
    assert list(model.classes_) == [*LEVELS, "more"]
    assert model.predict_proba(CODES[:, None]).shape == (90, 4)
    levels = pd.Categorical(LEVELS, LEVELS, ordered=True)
    again = ordinal(guide="mean_field").partial_fit(CODES[:, None], y, classes=levels)
    assert list(again.partial_fit(CODES[:, None], NAMES).classes_) == LEVELS
    first = ordinal(guide="mean_field", steps=1).partial_fit(CODES[:, None], ORDERED, classes=LEVELS[::-1])
    assert list(first.classes_) == LEVELS
    with pytest.raises(InputError, match="`y` holds intervals, such as"):
        ordinal().fit(CODES[:, None], pd.cut(CODES, 3))


@pytest.mark.parametrize("y", [NAMES, NAMES.tolist(), pd.Series(NAMES), pd.Categorical(NAMES)], ids=type)
def test_texts_without_an_order_are_no_ordered_labels(y):
    for learn in (ordinal().fit, lambda x, y: ordinal(guide="mean_field").partial_fit(x, y, classes=LEVELS)):
        with pytest.raises(
            InputError, match="Ordered labels need an order, and texts such as 'high' and 'low' have no"
        ):
            learn(CODES[:, None], y)
    with pytest.raises(InputError, match="The likelihood has 4 ordered labels, got 3: set `num_classes`"):
        ordinal(4).fit(CODES[:, None], CODES)


def classifier(**settings):
    return bnn.BNNClassifier(**(QUICK | settings))


LABELS = np.array(["a", "b"] * 3)
X = np.column_stack([SIZES, SIZES[::-1]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: regressor(missing="mean").fit(X, Y), "^`missing` must be 'raise' or 'impute', got 'mean'$"),
        (lambda: classifier().fit(X, ["a"] * 6), "needs labels of at least 2 classes, got one class, a"),
        (
            lambda: classifier(likelihood="gaussian").fit(X, LABELS),
            "are classes, and Gaussian.* for numbers: .* or fit a regression",
        ),
        (
            lambda: regressor(likelihood="categorical").fit(X, np.arange(6)),
            "are numbers, and Categor.* for classes: .* or fit a classification",
        ),
        (lambda: classifier().partial_fit(X, LABELS), "classes must be passed on the first call to partial_fit"),
        (
            lambda: classifier().partial_fit(X, LABELS, ["a", "b"]).partial_fit(X, LABELS, ["a", "c"]),
            r"`classes` must stay those of the first call, \['a' 'b'\], got \['a' 'c'\]",
        ),
        (lambda: classifier().partial_fit(X, LABELS, ["a", "c"]), "has the label b, which is none of `classes`"),
        (
            lambda: classifier(class_weight="balanced").partial_fit(X, LABELS, ["a", "b"]),
            "class_weight='balanced' needs the counts of all labels",
        ),
        (
            lambda: regressor().partial_fit(X, Y).partial_fit(X, X),
            r"`y` must have the columns of the first call, \(\), got \(2,\)",
        ),
        (
            lambda: regressor(guide="map").partial_fit(X, Y),
            r"partial_fit makes the posterior so far the prior .* Map\(\) leaves points without a spread",
        ),
        (
            lambda: regressor(guide=bnn.guides.Laplace(sites="last_layer")).partial_fit(X, Y).partial_fit(X, Y),
            "becomes the prior of the next fit, and '0.weight' has weights without a spread under BlockGuide",
        ),
        (
            lambda: regressor(prior={"2.*": bnn.priors.Normal(1.0), "*": None}).partial_fit(X, Y).partial_fit(X, Y),
            "partial_fit makes the posterior .* '0.weight' has no prior: give all weights a prior",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(("weight", "message"), [(-1, "Negative values"), (0, "at least one non-zero")])
def test_weights_and_early_predictions_are_refused_by_scikit_learn(weight, message):
    with pytest.raises(ValueError, match=message):
        regressor().fit(X, Y, sample_weight=np.full(6, weight))
    with pytest.raises(NotFittedError):
        regressor().predict_dist(X)


def test_noise_of_several_columns_or_that_is_known_is_not_tuned():
    targets = np.column_stack([Y, -10 * Y, Y**2])
    model = bnn.BNNRegressor(**DEFAULT).fit(X, targets)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == model.predict_interval(X)[0].shape == (6, 3)
    known = bnn.BNNRegressor(**DEFAULT, likelihood=bnn.likelihoods.Gaussian(scale=1.0)).fit(X, Y)
    assert known.posterior_.bnn.settings["likelihood"].scale == 1.0


def test_random_states_are_those_of_scikit_learn():
    same = [regressor().fit(X, Y).predict(X) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    state = np.random.RandomState(0)
    first, second = (regressor(random_state=state).fit(X, Y).predict(X) for _ in range(2))
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(first, regressor(random_state=np.random.RandomState(0)).fit(X, Y).predict(X))
    np.random.seed(3)
    drawn = regressor(random_state=None).fit(X, Y).predict(X)
    np.random.seed(3)
    np.testing.assert_array_equal(drawn, regressor(random_state=None).fit(X, Y).predict(X))


def test_a_fit_is_quiet_unless_asked(capfd, monkeypatch):
    regressor().fit(X, Y)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    regressor(verbose=False).fit(X, Y)
    assert capfd.readouterr() == ("", "")
    regressor().fit(X, Y)
    said, shown = capfd.readouterr()
    assert not said
    assert "fitting (verbose=True shows more) ..." in shown
    regressor(verbose=True).fit(X, Y)
    assert "training" in capfd.readouterr().err


def test_settings_of_parts_are_parameters_also_of_parts_given_by_name():
    model = bnn.BNNRegressor(guide="low_rank", method="ensemble")
    params = model.get_params()
    assert params["guide"] == "low_rank"
    assert params["guide__rank"] == bnn.guides.LowRank().rank
    assert params["method__method__lr"] == bnn.SVI().lr
    assert params["net__hidden"] == (50,)  # of the default
    model.set_params(guide__rank=7, method__members=2, method__method__lr=0.5, net__hidden=(4,), prior__scale=2.0)
    assert model.guide == bnn.guides.LowRank(rank=7)
    assert model.method == bnn.Ensemble(bnn.SVI(guide="map", lr=0.5), members=2)
    assert model.net == bnn.MLP(hidden=(4,), activation="silu", dtype="float64")
    assert model.prior == bnn.priors.Normal(scale=2.0)
    assert "guide__rank" not in model.get_params(deep=False)
    model = bnn.BNNRegressor().set_params(  # parts and their settings at once
        guide__rank=3, guide="low_rank", method__guide__rank=2, method__guide="low_rank"
    )
    assert model.guide == bnn.guides.LowRank(rank=3)


def test_settings_of_the_method_are_those_of_the_fit():
    model = bnn.BNNRegressor(**DEFAULT).set_params(method__num_particles=3, guide__init_rho=-2.0)
    params = model.get_params()
    assert params["method__guide"] == params["guide"] == bnn.guides.MeanField(init_rho=-2.0)
    assert (params["method__num_particles"], params["method__steps"], params["method__lr"]) == (3, 5, 0.02)
    record = model.fit(X, Y).posterior_.record
    assert (record.guide["init_rho"], record.method["steps"]) == (-2.0, 5)
    assert model.set_params(steps=None).get_params()["method__steps"] is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rank", "Invalid parameter 'rank' for estimator BNNRegressor"),
        ("guide__rnak", r"Invalid parameter 'rnak' for Laplace\(.* Did you mean 'rank'\? Valid parameters"),
        ("method__guide__rnak", "Invalid parameter 'rnak' for Laplace"),
        ("method__lr__x", "Invalid parameter 'lr' for EvidenceFramework"),
        ("engine__x", "Invalid parameter|has no attribute"),
    ],
)
def test_unknown_parameters_are_refused_as_scikit_learn_does(name, message):
    with pytest.raises((ValueError, AttributeError), match=message):
        bnn.BNNRegressor().set_params(**{name: 1})
    with pytest.raises(InputError, match="EvidenceFramework: `rounds`"):
        bnn.BNNRegressor().set_params(method__rounds=-1)


def test_a_default_without_a_guide_asks_for_one_first():
    with pytest.raises(ValueError, match=r"\['rank'\]: there is no guide yet. Set it first"):
        bnn.BNNClassifier().set_params(guide__rank=3)
    assert bnn.BNNClassifier(guide="low_rank").set_params(guide__rank=3).guide.rank == 3


@pytest.mark.filterwarnings("ignore:.* draws diverged:UserWarning")
def test_chains_of_a_default_fit_are_not_learned_on():
    x, y = np.arange(12.0)[:, None], np.arange(12) % 2
    chains = bnn.NUTS(num_draws=10, warmup=10, num_chains=1, max_tree_depth=3)
    model = bnn.BNNClassifier(bnn.MLP(hidden=(2,)), method=chains, random_state=0, engine="eager").fit(x, y)
    model.set_params(method=None)
    with pytest.raises(InputError, match="begin with partial_fit"):
        model.partial_fit(x, y)
    assert model.set_params(method=chains).partial_fit(x, y).classes_.tolist() == [0, 1]


@pytest.mark.parametrize("categories", ["onehot", "ordinal"])
def test_categories_that_the_fit_had_not_seen_are_named(categories):
    frame = pd.DataFrame({"a": np.linspace(0, 1, 12), "b": ["u", "v", None] * 4})
    model = regressor(categories=categories, missing="impute").fit(frame, frame.a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known = model.predict(frame)
    later = frame.assign(b=["zzz", "u", "v"] * 4)
    with pytest.warns(UserWarning, match=r"X has what the fit had not(.|\n)*b +4 +0 +0 +zzz +0 +3 categories"):
        assert np.isfinite(model.predict(later)).all()
    assert known.shape == (12,)
