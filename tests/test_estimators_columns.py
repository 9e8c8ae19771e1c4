"""Columns at `fit` and later: kinds and names that differ from call to call, and columns that cannot be used."""

import datetime
import functools
from decimal import Decimal
from itertools import permutations

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context

import pyrobnn as bnn
from pyrobnn._core.errors import InputError

QUICK = {
    "net": bnn.MLP(hidden=(3,), dtype="float64"),
    "method": bnn.SVI(guide="mean_field", steps=2),
    "engine": "eager",
    "random_state": 0,
    "num_draws": 5,
}
SIZES = np.arange(6.0)
Y = SIZES**2


def regressor(**settings):
    return bnn.BNNRegressor(**(QUICK | settings))


def frame(column, **more):
    return pd.DataFrame({"size": SIZES[: len(column)], "c": column, **more})


# Kinds


TEXT = ["u", "v", None, "u", "v", None]


@pytest.mark.parametrize("dtype", [object, "str", "category"])
@pytest.mark.parametrize("categories", ["onehot", "ordinal"])
def test_a_category_column_may_hold_only_missing_values_later(dtype, categories):
    model = regressor(missing="impute", categories=categories).fit(frame(TEXT).astype({"c": dtype}), Y)
    expected = model.predict(frame(TEXT))[[2]]
    for rows in (frame(TEXT).iloc[[2]], frame(TEXT, k=1).astype({"c": object}).iloc[[2], :2]):
        np.testing.assert_array_equal(model.predict(rows), expected)
    for kind, missing in ((pd, None), (pd, np.nan), (pd, pd.NA), (pl, None)):
        one = kind.DataFrame({"size": [2.0], "c": [missing]})
        np.testing.assert_array_equal(model.predict(one), expected)


@pytest.mark.filterwarnings("ignore:Column .* has categories")
@pytest.mark.parametrize("categories", ["onehot", "ordinal"])
def test_a_number_in_a_text_column_is_an_unknown_category(categories):
    model = regressor(categories=categories).fit(frame(list("uvuvuv")), Y)
    numbers, text, mixed = (model.predict(frame(values)) for values in ([7] * 6, ["?"] * 6, [7, "?"] * 3))
    np.testing.assert_array_equal(numbers, text)
    np.testing.assert_array_equal(mixed, text)


@pytest.mark.parametrize("categories", ["onehot", "ordinal"])
@pytest.mark.parametrize("later", [[1, 2, 3] * 2, [1.0, 2.0, 3.0] * 2, pd.Categorical([1, 2, 3] * 2, [3, 1, 2])])
def test_categories_that_are_numbers_stay_categories(categories, later):
    table = frame(pd.Categorical([1, 2, 3] * 2))
    model = regressor(categories=categories).fit(table, Y)
    np.testing.assert_array_equal(model.predict(frame(later)), model.predict(table))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(model.predict(np.column_stack([SIZES, later])), model.predict(table))


@pytest.mark.parametrize(
    "later",
    [
        pd.Categorical([1, 2, 3] * 2),
        pl.Series([1, 2, 3] * 2),
        pd.Series([Decimal(1), Decimal(2), Decimal(3)] * 2),
        [1.0, 2, 3] * 2,
    ],
)
def test_numbers_stay_numbers(later):
    model = regressor().fit(frame([1, 2, 3] * 2), Y)
    rows = pl.DataFrame({"size": SIZES, "c": later}) if isinstance(later, pl.Series) else frame(later)
    np.testing.assert_array_equal(model.predict(rows), model.predict(frame([1, 2, 3] * 2)))


@pytest.mark.parametrize("dtype", [object, "str", "category", "Float64", "datetime64[ns]"])
def test_a_column_of_numbers_may_hold_only_missing_values_later(dtype):
    model = regressor(missing="impute").fit(frame([1.0, 2, 3] * 2), Y)
    with pytest.warns(UserWarning, match="Column 'c' has no value in rows 0, 1, 2, 3, 4 and 1 more, and had values in"):
        means = model.predict(frame([None] * 6).astype({"c": dtype}))
    known = [model.predict(frame([value] * 6)) for value in (1.0, 2.0, 3.0)]  # their shares, a third each, by 500 draws
    np.testing.assert_allclose(means, np.mean(known, 0), atol=3 / 500 * np.ptp(known))


def test_text_in_a_column_of_numbers_is_refused():
    model = regressor().fit(frame([1, 2, 3] * 2), Y)
    with pytest.raises(InputError, match="Column 'c' had only numbers when the estimator was fitted, got 'u': turn it"):
        model.predict(frame(list("uvuvuv")))


DAY = datetime.date(2026, 1, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([DAY] * 5 + [None], r"Column 'c' has dtype object \(date\): turn it into numbers, such as days since"),
        ([datetime.time(3)] * 6, r"'c' has dtype object \(time\)"),
        (pd.date_range(DAY, periods=6).astype(object), r"'c' has dtype object \(datetime\)"),
        (pl.Series([DAY] * 6), "'c' has dtype datetime64"),
        ([1, "u"] * 3, "Column 'c' has values of type int and str: a column must have numbers alone, or text alone"),
        (pl.Series([[1, 2]] * 6), "Column 'c' has values of type ndarray: a column must"),
        ([[1, 2]] * 6, "Column 'c' has values of type list: a column must"),
    ],
)
def test_columns_of_other_values_are_refused_at_any_call(values, message):
    rows = pl.DataFrame({"size": SIZES, "c": values}) if isinstance(values, pl.Series) else frame(values)
    with pytest.raises(InputError, match=message):
        regressor(missing="impute").fit(rows, Y)
    if "int and str" in message:
        return  # later a category that is not known
    with pytest.raises(InputError, match=message):
        regressor(missing="impute").fit(frame(TEXT), Y).predict(rows)


@pytest.mark.parametrize("names", [["a", "a", "b"], [0, 0, 1], ["a", "b", "b"]])
def test_two_columns_of_one_name_are_refused_at_fit_and_at_predict(names):
    table = pd.DataFrame(np.arange(18.0).reshape(6, 3), columns=["a", "b", "c"])
    model = regressor().fit(table, Y)
    twice = table.set_axis(names, axis=1)
    for refused in (lambda: regressor().fit(twice, Y), lambda: model.predict(twice)):
        with pytest.raises(bnn.InputError, match="more than one column of the name"):
            refused()


def test_a_lazy_frame_is_refused():
    lazy = pl.DataFrame({"size": SIZES}).lazy()
    with pytest.raises(InputError, match=r"X is a LazyFrame, which has no values yet: collect it first, X.collect()"):
        regressor().fit(lazy, Y)


def test_text_that_is_different_in_most_rows_is_refused():
    """As the command line does; categories that are said to be such are taken."""
    days = pd.Series(pd.date_range("2022-01-01", periods=21).strftime("%Y-%m-%d"))
    with pytest.raises(InputError, match="Column 'day' holds 21 different texts in 21 rows, such as '2022-01-01'"):
        regressor().fit(pd.DataFrame({"day": days}), np.arange(21.0))
    for taken in (days.astype("category"), days.repeat(2)):
        fitted = regressor().fit(pd.DataFrame({"day": taken}), np.arange(float(len(taken))))
        assert len(fitted.encoder_.get_feature_names_out()) == 21


def test_a_column_named_collect_is_a_column():
    table = pd.DataFrame({"collect": SIZES, "columns": SIZES[::-1]})
    fitted = regressor().fit(table, Y)
    assert list(fitted.encoder_.columns) == ["collect", "columns"]


def test_an_array_of_another_width_is_refused_by_the_encoder():
    encoder = regressor().fit(X, Y).encoder_
    np.testing.assert_array_equal(encoder.transform(X), X)
    with pytest.raises(InputError, match="X has 2 columns, and the fit had 3"):
        encoder.transform(X[:, :2])


# Names


X = np.column_stack([SIZES, SIZES[::-1], SIZES**2])
FRAMES = {
    "array": X,
    "numbered": pd.DataFrame(X),
    "named": pd.DataFrame(X, columns=["p", "q", "r"]),
    "polars": pl.DataFrame(X, schema=["p", "q", "r"]),
}


@functools.cache
def learned_twice():
    """Predictions of a regressor for arrays alone."""
    return regressor().fit(X, Y).partial_fit(X, Y).predict(X)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("first", "later"), list(permutations(FRAMES, 2)))
@pytest.mark.filterwarnings("ignore:X (does not have valid|has) feature names:UserWarning")  # by scikit-learn
def test_columns_go_by_position_where_one_side_has_no_names(first, later):
    expected = learned_twice()
    model = regressor().fit(FRAMES[first], Y).partial_fit(FRAMES[later], Y)
    np.testing.assert_array_equal(model.predict(FRAMES[later]), expected)


@pytest.mark.parametrize("kind", ["array", "numbered", "named"])
def test_the_number_of_columns_must_be_that_of_training(kind):
    rows = {"array": X[:, :2], "numbered": pd.DataFrame(X[:, :2]), "named": FRAMES["named"][["p", "q"]]}[kind]
    with pytest.raises(ValueError, match="is expecting 3 features|feature names should match"):
        regressor().fit(FRAMES[kind], Y).predict(rows)


@pytest.mark.parametrize("output", ["default", "pandas"])
def test_names_that_collide_are_told_apart(output):
    table = frame(["x", "y"] * 3, c_x=SIZES, c_x_2=SIZES)
    with config_context(transform_output=output):
        model = regressor().fit(table, Y)
    assert model.posterior_.info["feature_names"] == ["size", "c_x", "c_x_2", "c_x_3", "c_y"]
    assert np.isfinite(model.predict(table)).all()


# Targets, weights of classes, numbers of draws


def test_targets_of_any_type_of_number():
    y = SIZES > 2
    expected = regressor().fit(X, y.astype(float)).predict(X)
    for dtype in (np.longdouble, np.float16, np.float32, np.uint8, np.uint64, np.int8, bool):
        np.testing.assert_allclose(regressor().fit(X, y.astype(dtype)).predict(X), expected, err_msg=str(dtype))


@pytest.mark.parametrize("num_draws", [0, -1, "a", 2.5, None, True])
def test_numbers_of_draws_are_refused_before_training(num_draws):
    with pytest.raises(InputError, match="`num_draws` must be a whole number, at least 1, got"):
        regressor(num_draws=num_draws).fit(X, Y)


def test_a_number_of_draws_may_be_of_numpy():
    assert regressor(num_draws=np.int64(3)).fit(X, Y).predict_dist(X).num_draws == 3


LABELS = np.array([0, 1] * 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bnn.BNNClassifier(**QUICK, class_weight={0: 0.0, 1: 0.0}).fit(X, LABELS),
            r"No example has a positive weight: class_weight=.* gives 0 to all classes among them, \[0 1\]",
        ),
        (
            lambda: bnn.BNNClassifier(**QUICK, class_weight={0: 0.0, 1: 1.0}).partial_fit(X[::2], LABELS[::2], [0, 1]),
            r"gives 0 to all classes among them, \[0\]. Pass examples of other classes",
        ),
        (
            lambda: bnn.BNNClassifier(**QUICK, class_weight={0: -1.0, 1: 1.0}).fit(X, LABELS),
            "`class_weight` must be finite and not negative, got",
        ),
        (
            lambda: bnn.BNNClassifier(**QUICK, class_weight={0: 0.0, 1: 1.0}).fit(
                X, LABELS, sample_weight=1.0 - LABELS
            ),
            "No example has a positive weight",
        ),
    ],
)
def test_weights_of_classes_that_leave_nothing_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
