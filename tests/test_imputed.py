"""Rows that lack values: draws against conditional distributions that are known, and fits and predictions with them."""

import pickle

import numpy as np
import pandas as pd
import pytest

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn.data.imputed import TO_FIT, TO_PREDICT, Imputer, with_copies, with_targets
from pyrobnn.datasets import load_table
from pyrobnn.posterior.mixture import predict_copies
from pyrobnn.runs.predict import predict_table
from pyrobnn.runs.run import run
from pyrobnn.runs.spec import RunSpec, apply_overrides

NOISE = 0.5
SHARES = {"a": 30, "b": 20, "c": 10}
EFFECTS = {"a": -2.0, "b": 1.0, "c": 4.0}
GAPS = np.arange(60) % 4 == 1


def copied(x, y, weights=None, num_labels=0):
    both = with_targets(x, y, num_labels)
    imputer = Imputer(both, (), both.shape[1] - x.shape[1])
    return with_copies(x, y, num_labels, imputer, weights=weights, groups=None)


def slopes_of(x, y):
    """The slopes of weighted least squares on rows and copies."""
    data = copied(x, y)
    root = np.sqrt(data.weights.numpy())[:, None]
    columns = np.c_[data.x.numpy(), np.ones(len(data))]
    return np.linalg.lstsq(root * columns, root[:, 0] * data.y.numpy(), rcond=None)[0][:-1]


def normals(rho, num=2000, seed=0):
    """Two correlated columns, and one of noise."""
    x = np.random.default_rng(seed).normal(size=(num, 3))
    x[:, 1] = rho * x[:, 0] + (1 - rho**2) ** 0.5 * x[:, 1]
    return x


def frame():
    kind = [name for name, count in SHARES.items() for _ in range(count)]
    size = np.linspace(-1, 1, 60)[np.random.default_rng(0).permutation(60)]
    return pd.DataFrame({"size": size, "kind": kind, "y": size + [EFFECTS[one] for one in kind]})


def linear(guide="map", **settings):
    net, noise = bnn.MLP(hidden=(), dtype="float64"), bnn.likelihoods.Gaussian(scale=NOISE)
    method = bnn.SVI(guide=guide, steps=150, lr=0.1)
    return bnn.BNNRegressor(net, likelihood=noise, method=method, random_state=0, **settings)


def test_draws_have_the_conditional_mean_and_variance():
    """Of normals: rho x and 1 - rho^2."""
    rows = np.array([[0.5, np.nan, 0.0], [-1.0, np.nan, 1.0]]).repeat(200, 0)
    drawn = Imputer(normals(0.8)).copies(rows, 10)[..., 1].reshape(10, 2, 200)
    np.testing.assert_allclose(drawn.mean((0, 2)), [0.4, -0.8], atol=0.06)
    np.testing.assert_allclose(drawn.var((0, 2)), 0.36, rtol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(("num", "at"), [(60, 1.5), (60, 5.0), (400, 4.0), (400, 8.0)])
def test_rows_outside_of_the_others_have_the_conditional_mean_and_variance(num, at):
    """The closed form of normals, with the uncertainty of the slope, over 6 tables."""
    rows, tables = np.array([[at, np.nan]] * 40), [normals(0.8, num, seed)[:, :2] for seed in range(6)]
    drawn = np.stack([Imputer(table).copies(rows, 5)[..., 1] for table in tables])
    scale = 0.6 * (1 + (1 + at**2) / num) ** 0.5
    np.testing.assert_allclose(drawn.std((1, 2)).mean(), scale, rtol=0.12)
    assert abs(drawn.mean() - 0.8 * at) < 3 * 0.6 * ((1 + at**2) / num / 6) ** 0.5 + 0.05
    inside = np.abs(drawn.mean((1, 2)) - 0.8 * at) < 1.64 * scale
    assert inside.mean() >= 0.8


def test_gaps_of_rows_beyond_those_that_have_the_column_do_not_bend_a_slope():
    """b is missing where a is large, so that no row that has it is near; y = a + 2 b."""
    x = normals(0.8, 600)
    y = x[:, 0] + 2 * x[:, 1] + 0.3 * x[:, 2]
    x[x[:, 0] > 0.5, 1] = np.nan
    np.testing.assert_allclose(slopes_of(x[:, :2], y), [1, 2], atol=0.12)


@pytest.mark.parametrize("curve", [lambda a, b: a * b, lambda a, b: a**2], ids=["product", "square"])
def test_what_depends_on_squares_and_products_is_found(curve):
    x, new = normals(0.0, 500), normals(0.0, 50, seed=1)
    x[:, 2] = curve(x[:, 0], x[:, 1]) + 0.1 * x[:, 2]
    true, new[:, 2] = curve(new[:, 0], new[:, 1]), np.nan
    drawn = Imputer(x).copies(new, 20)[..., 2]
    assert np.median(np.abs(drawn.mean(0) - true)) < 0.05
    assert 0.003 < np.median(drawn.var(0)) < 0.03


def test_draws_of_a_row_belong_together():
    x = normals(0.5, 1000)
    drawn = Imputer(x).copies(np.full((300, 3), np.nan), 5).reshape(-1, 3)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(x.T), atol=0.15)


def test_shares_of_categories_follow_from_the_other_columns():
    """Below 0 there are nine of a for one of b, and above as many the other way; plain shares would be a half."""
    x = np.linspace(-1, 1, 400)
    is_a = (np.arange(400) % 10 > 0) == (x < 0)
    imputer = Imputer(np.stack([x, is_a, ~is_a], 1).astype(float), [[1, 2]])
    drawn = imputer.copies(np.array([[-0.5, 0, 0], [0.5, 0, 0]]).repeat(200, 0), 5)
    assert (drawn[..., 1:].sum(-1) == 1).all()
    np.testing.assert_allclose(drawn[..., 1].reshape(5, 2, 200).mean((0, 2)), [0.9, 0.1], atol=0.15)


@pytest.mark.parametrize("labels", [False, True])
def test_copies_share_the_weight_of_a_row_and_complete_rows_stay(labels):
    x, y = normals(0.8, 80), np.arange(80) % 2
    x[:20, 1] = np.nan
    given = np.arange(1.0, 81)
    found = copied(x, y if labels else 1.0 * y, given, num_labels=2 * labels)
    assert len(found) == 60 + 20 * TO_FIT
    assert found.weights.sum() == pytest.approx(given.sum())
    assert found.groups.tolist() == [*range(20, 80), *[*range(20)] * TO_FIT]
    np.testing.assert_array_equal(found.x[:60], x[20:])
    np.testing.assert_array_equal(found.x[60:80, 0], x[:20, 0])
    np.testing.assert_array_equal(found.y[60:80], y[:20])
    assert copied(x[20:], y[20:], num_labels=2 * labels).weights is None


def test_slopes_are_not_biased_by_gaps():
    """Half of a column that shares its information with another; without the targets the slope would be too small."""
    x = normals(0.5, 400)
    y = 2 * x[:, 0] + 2 * x[:, 1] + 0.3 * x[:, 2]
    x[np.random.default_rng(1).random(400) < 0.5, 1] = np.nan
    np.testing.assert_allclose(slopes_of(x[:, :2], y), 2, atol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["map", "mean_field"])
def test_a_row_is_the_mixture_over_its_copies_and_others_stay_as_they_are(guide):
    """Of a point exactly; each copy has an equal share of the draws."""
    train = frame()[["size", "kind"]].assign(size=lambda rows: rows["size"].mask(GAPS))
    model = linear(guide, missing="impute").fit(train, frame()["y"])
    new = pd.DataFrame({"size": [0.3, None, 0.1], "kind": [*"abc"]})
    found, x = model.predict_dist(new), model.encoder_.transform(new)
    assert found.num_draws == 500
    copies = model._fitted.coding.imputer.copies(x[1:2], TO_PREDICT)[:, 0]
    each = model.posterior_.predict(copies, num_draws=500).mean.double()
    assert float(found.mean[1]) == pytest.approx(float(each.mean()), abs=1e-6 if guide == "map" else 0.1)
    plain = model.posterior_.predict(x[[0, 2]], num_draws=500)
    np.testing.assert_allclose(found.mean[[0, 2]], plain.mean, atol=1e-6 if guide == "map" else 0.05)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(new), model.predict(new))


@pytest.mark.slow
def test_mixtures_and_chains_with_few_draws_are_joined_too():
    x, y = normals(0.8, 60), normals(0.8, 60).sum(1)
    new = x[:4].copy()
    new[1, 1] = np.nan
    model = bnn.BNN(bnn.MLP(3, [], 1))
    ensemble = bnn.fit(model, (x, y), bnn.Ensemble(bnn.SVI(guide="map", steps=5), members=3), progress=False)
    chains = bnn.fit(model, (x, y), bnn.NUTS(num_draws=7, warmup=5), progress=False)
    for posterior in (ensemble, chains):
        found = predict_copies(posterior, Imputer(x), new, num_draws=100)
        assert found.num_draws % (TO_PREDICT * len(posterior.members)) == 0  # equally many of each member
        assert bool(found.mean.isfinite().all())


def test_an_unknown_category_is_a_mixture_of_the_known_ones():
    model = linear().fit(frame()[["size", "kind"]], frame()["y"])
    known = model.predict(pd.DataFrame({"size": 0.3, "kind": [*"abc"]}))
    with pytest.warns(UserWarning, match="mixtures of the known"):
        new = model.predict_dist(pd.DataFrame({"size": [0.3, 0.3], "kind": ["a", "new"]}))
    assert float(new.mean[0]) == pytest.approx(known[0], abs=1e-6)
    shares = np.array([*SHARES.values()]) / 60
    assert float(new.mean[1]) == pytest.approx(shares @ known, abs=1.5)
    assert float(new.epistemic_std[1]) == pytest.approx((shares @ (known - shares @ known) ** 2) ** 0.5, rel=0.4)
    ordinal = linear(categories="ordinal").fit(frame()[["kind"]], frame()["y"])
    with pytest.warns(UserWarning, match="categories are -1"):
        found = ordinal.predict(pd.DataFrame({"kind": ["new", "a"]}))
    np.testing.assert_array_equal(found, ordinal.posterior_.predict([[-1.0], [0.0]]).mean)


def test_missing_values_that_tell_of_the_target_get_an_indicator():
    """Targets 20 lower where the number is missing: as much as 40 standard deviations of the noise."""
    train = frame()[["size"]].mask(np.stack([GAPS], 1))
    model = linear("laplace", missing="impute").fit(train, frame()["size"] - 20 * GAPS)
    assert model.predict(pd.DataFrame({"size": [np.nan]}))[0] == pytest.approx(-20, abs=1)


@pytest.mark.filterwarnings("ignore:X has what the fit had not")
@pytest.mark.parametrize("labels", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_later_rows_are_imputed_by_those_of_the_first_call(labels, monkeypatch):
    """Each column is around 100; the later rows alone know nothing of the first."""
    seen = []
    monkeypatch.setattr("pyrobnn.estimators.base.fit_on", lambda fit, _, examples, run: seen.append(examples) or fit)
    x = 100 + normals(0.8, 60)[:, :2]
    make = bnn.BNNClassifier if labels else bnn.BNNRegressor
    model = make(bnn.MLP(hidden=()), guide="mean_field", steps=2, missing="impute", random_state=0)
    model.partial_fit(x, np.arange(60) % 2, **({"classes": [0, 1, 2]} if labels else {}))
    model.partial_fit([[np.nan, 100.0], [np.nan, 101.0], [99.0, 100.0]], [0, 2, 1])
    assert len(seen[0]) == 1 + 2 * TO_FIT
    assert 95 < float(seen[0].x[:, 0].min()) < float(seen[0].x[:, 0].max()) < 105


@pytest.mark.slow
def test_values_that_are_missing_at_first_in_new_rows_are_told(tmp_path):
    train = frame()[["size", "kind", "y"]].assign(gaps=[None, *range(59)])
    model = linear(missing="impute").fit(train.drop(columns="y"), train["y"])
    new = train.drop(columns="y").head(4).assign(size=[0.1, None, 0.2, 0.3], kind=["a", "a", None, "b"])
    with pytest.warns(UserWarning, match=r"X has what the fit had not(.|\n)*size +0 +1 +0 +1 (.|\n)*kind +0 +1 +0 +2 "):
        assert np.isfinite(model.predict(new)).all()
    train.to_csv(tmp_path / "t.csv", index=False)
    new.to_csv(tmp_path / "new.csv", index=False)
    encoder = load_table(tmp_path / "t.csv", "y", missing="impute").encoder
    assert encoder.outside(encoder.read(tmp_path / "new.csv").columns).rows == ["", "size", "kind", ""]
    with pytest.raises(InputError, match="'size' has 2 missing values .*, in rows 1, 2: drop"):
        linear().fit(train[["size"]], train["y"]).predict(new[["size"]].where(new["size"] != 0.2))


def test_data_refuse_gaps_and_name_the_estimators():
    with pytest.raises(InputError, match="NaN .* BNNRegressor or BNNClassifier with missing='impute'"):
        bnn.Data([[np.nan, 1.0], [0.0, 1.0]], [0.0, 1.0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("missing", ["impute", "raise"])
def test_a_run_scores_and_predicts_rows_with_gaps_as_estimators_do(tmp_path, missing):
    table = pd.concat([frame()] * 3, ignore_index=True).assign(row=np.random.default_rng(0).normal(size=180))
    if missing == "impute":
        table["size"] = table["size"].mask(np.random.default_rng(3).random(180) < 0.2)
    table.to_csv(tmp_path / "t.csv", index=False)
    new = table.drop(columns="y").tail(20).assign(kind=["new", *"abcab" * 3, *"abca"])
    new.to_csv(tmp_path / "new.csv", index=False)
    tables = {"data": {"path": str(tmp_path / "t.csv"), "target": "y", "missing": missing}}
    changes = ["net.hidden=[]", "fit.type=svi", "fit.steps=300", "fit.lr=0.05", "guide.type=map"]
    spec = RunSpec.from_dict(apply_overrides(tables, changes))
    said = []
    spec.prepare(said.append)
    rows = load_table(tmp_path / "t.csv", "y", missing=missing).rows(0)[0]
    assert f" {180 - len(rows)} held out." in said[0]
    result = run(spec, tmp_path / "run", progress=False)
    data = load_table(tmp_path / "t.csv", "y", missing=missing)
    train, test = data.split(0)
    assert len(result.evidence.train) == len(train)
    assert (len(train) + len(test) > 180) == (missing == "impute")
    found = predict_copies(result.evidence.posterior, data.imputer, data.held_out(0), num_draws=500)
    assert result.scores["rmse"].value == pytest.approx(float((found.mean - test.y).square().mean().sqrt()), rel=1e-6)
    for name, scores in result.evidence.baseline_scores.items():  # mixtures over the same copies
        assert result.baselines[name]["log_likelihood"].value == pytest.approx(float(scores.mean()))
    last = load_table(tmp_path / "t.csv", "y", missing=missing, all_rows=result.final is not result.evidence.posterior)
    x = last.encoder.transform(tmp_path / "new.csv")
    expected = predict_copies(result.final, last.imputer, x, num_draws=500)
    rows = predict_table(tmp_path / "run", tmp_path / "new.csv")
    np.testing.assert_allclose(rows["mean"], expected.mean, rtol=1e-6)
    assert rows["std"][0] > 2 * rows["std"][1:].min()
