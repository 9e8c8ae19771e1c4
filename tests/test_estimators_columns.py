"""Columns at `fit` and later: kinds and names that differ from call to call, and columns that cannot be used."""

import functools
import json
import warnings
from itertools import permutations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from helpers import ESTIMATOR

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn.data.batches import checked_batch
from pyrobnn.data.in_memory import leaks
from pyrobnn.runs.spec import RunSpec
from pyrobnn.tables.encoder import Encoder

QUICK = ESTIMATOR | {"method": bnn.SVI(guide="mean_field", steps=2)}
SIZES = np.arange(6.0)
Y = SIZES**2


def regressor(**settings):
    return bnn.BNNRegressor(**(QUICK | settings))


def frame(column, **more):
    return pd.DataFrame({"size": SIZES[: len(column)], "c": column, **more})


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


@pytest.mark.parametrize("dtype", [object, "str", "category", "Float64", "datetime64[ns]"])
def test_a_column_of_numbers_may_hold_only_missing_values_later(dtype):
    model = regressor(missing="impute").fit(frame([1.0, 2, 3] * 2), Y)
    with pytest.warns(UserWarning, match=r"X has what the fit had not(.|\n)*\nc +0 +6"):
        means = model.predict(frame([None] * 6).astype({"c": dtype}))
    known = [model.predict(frame([value] * 6)) for value in (1.0, 3.0)]
    assert (means >= np.min(known, 0)).all()
    assert (means <= np.max(known, 0)).all()


LEVELS = ["low", "medium", "high"]
OF_LEVELS = pd.Categorical([*LEVELS, *LEVELS], LEVELS, ordered=True)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_ordered_labels_of_a_file_need_an_order(suffix, tmp_path):
    many, path = pd.DataFrame({"c": OF_LEVELS.take([*range(6)] * 5), "size": np.arange(30.0)}), tmp_path / f"t.{suffix}"
    many.to_parquet(path) if suffix == "parquet" else many.to_csv(path, index=False)
    likelihood = {"type": "ordinal", "num_classes": 3}
    spec = RunSpec.from_dict({"data": {"path": str(path), "target": "c"}, "likelihood": likelihood})
    if suffix == "parquet":
        assert spec.prepare().dataset.class_names == tuple(LEVELS)
    else:
        with pytest.raises(InputError, match="Ordered labels need an order"):
            spec.prepare()


WIDE = pd.DataFrame(np.zeros((2, 1500)), columns=[f"column_{i}" for i in range(1500)])


@pytest.mark.parametrize(
    "refused",
    [
        lambda path: Encoder.stored(None, list(WIDE)).transform(WIDE.iloc[:, 1:]),
        lambda path: regressor().fit(pd.concat([WIDE, WIDE], axis=1), [0.0, 1.0]),
        lambda path: bnn.datasets.load_table(path, "y"),
        lambda path: bnn.datasets.load_table(path, "column_0", drop=[f"{i}" for i in range(1500)]),
        lambda path: RunSpec.from_dict({"data": {"path": str(path), "target": "y"}}).prepare(),
        lambda path: checked_batch(dict.fromkeys(WIDE, torch.zeros(2))),
        lambda path: bnn.datasets.load_table(path.with_name("json.csv"), "y"),
        lambda path: RunSpec.from_toml(path.with_name("t.json")),
        lambda path: regressor(likelihood="x" * 9000).fit(WIDE, [0.0, 1.0]),
    ],
)
def test_messages_name_ten_of_many_and_quote_no_file(refused, tmp_path):
    path, cells = tmp_path / "wide.csv", WIDE.astype(str).replace("0.0", "-")
    cells.to_csv(path, index=False)
    for name in ("json.csv", "t.json"):
        (tmp_path / name).write_text(json.dumps([{"it's": i, "text": "x" * 300} for i in range(100)]))
    with pytest.raises(InputError) as told:
        refused(path)
    assert len(str(told.value).replace(str(tmp_path), "")) < 1500, "ten reasons are the longest"


@pytest.mark.parametrize("y", [np.zeros((6, 0)), [], pd.DataFrame(index=range(6))], ids=["no column", "list", "frame"])
def test_targets_that_are_empty_are_refused_as_targets(y):
    for refused in (lambda: regressor().fit(frame(SIZES), y), lambda: bnn.Data(np.zeros((len(y), 1)), y)):
        with pytest.raises(InputError, match="`[yx]` must not be empty, got shape"):
            refused()


def test_predictions_keep_the_index_of_a_frame():
    """Arrays have none."""
    table = pd.DataFrame({"a": SIZES}, index=list("uvwxyz"))
    posterior = bnn.BNN(bnn.MLP(1, [3], 1)).fit(table, Y, steps=3, seed=0, progress=False)
    ensemble = bnn.Ensemble(members=2, method=bnn.SVI(guide="map", steps=3))
    mixed = bnn.fit(bnn.BNN(bnn.MLP(1, [3], 1)), bnn.Data(table, Y), ensemble, seed=0, progress=False)
    assert list(posterior.predict(table.to_numpy()).to_frame().index) == [*range(6)]
    model, labels = regressor().fit(table, Y), bnn.BNNClassifier(**QUICK).fit(table, Y > 4)
    later = table.iloc[::-1]
    fits = [posterior.predict, mixed.predict, model.predict_dist, labels.predict_dist]
    fits += [bnn.conformal(posterior, (table, Y)).predict, bnn.calibrate(posterior, (table, Y)).predict]
    for predict in fits:
        found = predict(later)
        assert list(found.to_frame().index) == list("zyxwvu")
        assert list(found[[4, 1]].to_frame().index) == list("vy")
        assert list(found[later["a"].to_numpy() > 3].to_frame().index) == list("zy")


STAYS = pd.DataFrame(
    {
        "from": pd.date_range("2023-11-20 06:00", periods=60, freq="31h").strftime("%Y-%m-%d %H:%M"),
        "booked": pd.date_range("2023-01-02", periods=60, freq="7D").strftime("%d.%m.%Y"),
        "paid": [f"{1000 + 37 * i:,.2f}" for i in range(60)],
        "room": ["A-1", "A-2", "B-1"] * 20,
        "nights": np.arange(60) % 5 + 1.0,
        "y": np.sin(np.arange(60.0)),
    }
)
STAYS_X = STAYS.drop(columns="y")


@functools.cache
def of_stays():
    return regressor().fit(STAYS_X, STAYS["y"])


HOURS = np.sin(np.arange(40.0))
MOMENTS = pd.Series(pd.date_range("2023-03-20", periods=40, freq="9h"))


@pytest.mark.parametrize(
    "y", [MOMENTS.dt.tz_localize("UTC"), MOMENTS, MOMENTS.dt.date, MOMENTS.dt.to_period("h"), MOMENTS - MOMENTS[0]]
)
@pytest.mark.parametrize("Estimator", [bnn.BNNRegressor, bnn.BNNClassifier])
def test_dates_as_targets_or_in_lists_are_refused(y, Estimator):
    with pytest.raises(InputError, match="`y` holds dates or times, such as '.*: make numbers of them"):
        Estimator(**QUICK).fit(np.arange(40.0)[:, None], y)
    with pytest.raises(InputError, match="X is an array with .*: pass a data frame"):
        Estimator(**QUICK).fit([[day] for day in y], HOURS > 0)


def test_words_that_count_as_missing_are_told():
    table = STAYS_X.assign(paid=["n/a", *STAYS_X["paid"][1:]])
    with pytest.warns(UserWarning, match="column 'paid': 'n/a' in row 0 counted as missing"):
        model = regressor(missing="impute").fit(table, STAYS["y"])
    with pytest.warns(UserWarning, match="'n/a' in row 0 counted"):
        assert np.isfinite(model.predict(table)).all()


@pytest.mark.parametrize("kind", ["texts of dates", "dates", "a row"])
def test_an_array_of_texts_or_dates_is_refused_in_words(kind):
    """Arrays of numbers as objects or texts are taken, as by scikit-learn."""
    days = pd.Series(pd.date_range("2020-01-01", periods=6))
    table = frame(list("uvuvuv"), day=days if kind == "dates" else days.dt.strftime("%Y-%m-%d"))
    model = regressor().fit(table, Y)
    given = table.iloc[0] if kind == "a row" else table.to_numpy()
    with pytest.raises(InputError, match="an array with 'u', .* frame with the columns of the fit, size, c, day"):
        model.predict(given)
    with pytest.raises(InputError, match="an array with '2020-01-01.*', and arrays hold numbers: pass a data frame"):
        regressor().fit(table[["day", "size"]].to_numpy(), Y)
    numbers = regressor().fit(table[["size"]].to_numpy(), Y)
    for dtype in (object, str):
        given = table[["size"]].to_numpy().astype(dtype)
        np.testing.assert_array_equal(numbers.predict(given), numbers.predict(table[["size"]].to_numpy()))


@pytest.mark.parametrize(("make", "Estimator"), [(np.asarray, "BNNRegressor"), (np.digitize, "BNNClassifier")])
def test_columns_that_only_name_the_rows_are_told(make, Estimator):
    """Not the only column."""
    settings = {"net": bnn.MLP(hidden=(3,)), "guide": "map", "steps": 2, "random_state": 0, "num_draws": 2}
    g = np.random.default_rng(0)
    table = pd.DataFrame({"a": g.normal(size=60), "my id": np.arange(60), "key": g.permutation(99999)[:60]})
    y = make(g.normal(size=60), [0]) if make is np.digitize else g.normal(size=60)
    model = getattr(bnn, Estimator)(**settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(table, y)
        model.fit(table[["my id"]], y)
    (said,) = [one for one in caught if "may only name the rows" in str(one.message)]
    assert "'my id'" in str(said.message)
    assert said.filename == __file__


def test_importance_and_effects_of_a_date_are_those_of_its_columns():
    model = of_stays()
    names = [*model.encoder_.get_feature_names_out()]
    data = bnn.Data(model.encoder_.transform(STAYS_X), STAYS["y"], feature_names=names)
    groups = model.encoder_.positions()
    table = bnn.metrics.permutation_importance(model.posterior_, data, groups=groups, num_draws=5, seed=0)
    assert set(table.index) == set(STAYS_X)
    layout = model.encoder_.layout()
    figure = bnn.plots.effects(model.posterior_, data, groups=groups, layout=layout, num_draws=5)
    assert [axis.get_xlabel() for axis in figure.axes] == list(STAYS_X)
    starts = {one.column: one.start for one in layout if one.start and one.name.endswith("(days)")}
    assert starts == {"from": "2023-11-20 06:00:00", "booked": "2023-01-02 00:00:00"}


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


@pytest.mark.parametrize("kind", ["array", "numbered", "named", "in another order"])
def test_columns_must_be_those_of_training(kind):
    named = FRAMES["named"]
    given = {"array": X, "numbered": FRAMES["numbered"]}.get(kind, named)
    rows = {"array": X[:, :2], "numbered": pd.DataFrame(X[:, :2]), "named": named[["p", "q"]]}
    with pytest.raises(ValueError, match="is expecting 3 features|feature names should match"):
        regressor().fit(given, Y).predict(rows.get(kind, named[["q", "p", "r"]]))


def test_targets_of_any_type_of_number():
    y = SIZES > 2
    expected = regressor().fit(X, y.astype(float)).predict(X)
    for dtype in (np.longdouble, np.float16, np.float32, np.uint8, np.uint64, np.int8, bool):
        np.testing.assert_allclose(regressor().fit(X, y.astype(dtype)).predict(X), expected, err_msg=str(dtype))


def test_rows_outside_of_a_fit_are_told_with_their_column():
    model = of_stays()
    far, new = STAYS_X.assign(nights=[*STAYS_X["nights"][1:], 90.0]), STAYS_X.assign(room="C", nights=90.0)
    with pytest.warns(UserWarning, match="^Column 'nights' has 90 in row 59, far from the 1 to 5 of the fit: the data"):
        model.predict(far)
    with pytest.warns(UserWarning, match=r"X has what the fit had not(.|\n)*room +60 +0 +0(.|\n)*nights +0 +0 +60"):
        model.predict(new)
    assert model.outside(far)[["unknown", "missing", "beyond"]].to_numpy().tolist() == [[0, 0, 1]]
    assert model.outside(STAYS_X).empty
    later = regressor(guide="mean_field").partial_fit(X, Y).partial_fit(X + 100, Y)
    assert later.outside(X + 100).empty
    assert not later.outside(X + 300).empty


def test_standardize_is_no_text_and_huge_columns_are_quiet():
    with pytest.raises(InputError, match="`standardize` must be True or False, got 'no'"):
        regressor(standardize="no").fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert not leaks(bnn.Data(np.random.default_rng(0).normal(size=(60, 2)) * 1e300, np.arange(60.0)))
