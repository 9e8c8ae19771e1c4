"""Predictions for unknown categories: mixtures over the known ones, exact for linear models."""

import numpy as np
import pandas as pd
import pytest
import torch

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn.data.donors import Donors
from pyrobnn.datasets import load_table
from pyrobnn.datasets.table import load_rows
from pyrobnn.runs.overrides import apply_overrides
from pyrobnn.runs.predictions import predict_table
from pyrobnn.runs.run import run
from pyrobnn.runs.spec import RunSpec

NOISE = 0.5
SHARES = {"a": 30, "b": 20, "c": 10}
EFFECTS = {"a": -2.0, "b": 1.0, "c": 4.0}


def frame():
    kind = [name for name, count in SHARES.items() for _ in range(count)]
    other = [*"uvw"] * 20
    size = np.linspace(-1, 1, 60)[np.random.default_rng(0).permutation(60)]
    y = size + [EFFECTS[one] + (two == "w") for one, two in zip(kind, other, strict=True)]
    return pd.DataFrame({"size": size, "kind": kind, "other": other, "y": y})


def linear(**settings):
    net = bnn.MLP(hidden=(), dtype="float64")
    method = bnn.SVI(guide=settings.pop("guide", "laplace"), steps=400, lr=0.05)
    return bnn.BNNRegressor(
        net, likelihood=bnn.likelihoods.Gaussian(scale=NOISE), method=method, random_state=0, **settings
    )


def mixture(model, rows, shares):
    """The mean and the variance of the mixture of the posterior's normals at rows of known categories."""
    at = bnn.functional(model.posterior_, model._inputs(rows))
    scaler = model.posterior_.y_scaler
    means = scaler.inverse(at.mean).flatten()
    variances = scaler.inverse_scale(scaler.inverse_scale(at.covariance.flatten())) + NOISE**2
    mean = shares @ means
    return float(mean), float(shares @ (variances + means.square()) - mean.square())


@pytest.mark.slow
@pytest.mark.parametrize("columns", [["kind"], ["kind", "other"]])
def test_an_unknown_category_is_the_mixture_of_the_known_ones_by_their_shares(columns):
    """20,000 draws: within 5 standard errors of mean and variance."""
    model = linear(num_draws=20_000).fit(frame()[["size", "kind", "other"]], frame()["y"])
    row = pd.DataFrame({"size": [0.3], "kind": ["a"], "other": ["v"]})
    with pytest.warns(UserWarning, match="predicted as a mixture of the known ones"):
        new = model.predict_dist(pd.concat([row, row.assign(**dict.fromkeys(columns, "new")), row], ignore_index=True))
    others = [*"uvw"] if "other" in columns else ["v"]
    known = pd.DataFrame([(0.3, one, two) for one in SHARES for two in others], columns=["size", "kind", "other"])
    shares = torch.tensor([SHARES[one] / 60 / len(others) for one in known["kind"]], dtype=torch.float64)
    mean, variance = mixture(model, known, shares)
    assert abs(float(new.mean[1]) - mean) < 5 * (variance / 20_000) ** 0.5
    assert float(new.variance[1]) == pytest.approx(variance, rel=5 * (2 / 20_000) ** 0.5)
    same = model.predict_dist(row)
    for place in (0, 2):
        assert float(new.mean[place]) == pytest.approx(float(same.mean), abs=1e-2)
        assert float(new.std[place]) == pytest.approx(float(same.std), rel=1e-2)
    assert new.std[1] > 3 * new.std[0]


def test_a_point_is_mixed_over_as_many_categories():
    """A single draw: the shares of 500 components are within 3 of those in training."""
    model = linear(guide="map", num_draws=1).fit(frame()[["size", "kind"]], frame()["y"])
    rows = pd.DataFrame({"size": 0.3, "kind": [*"abc"]})
    means = model.predict(rows)
    shares = np.array([*SHARES.values()]) / 60
    with pytest.warns(UserWarning, match="mixture of the known"):
        new = model.predict_dist(rows.assign(kind=["a", "b", "new"]))
    assert new.num_draws == 500
    np.testing.assert_allclose(new.mean[:2], means[:2], rtol=1e-9)
    assert float(new.mean[2]) == pytest.approx(shares @ means, abs=3 / 500 * np.ptp(means))
    expected = NOISE**2 + shares @ np.square(means - shares @ means)
    assert float(new.variance[2]) == pytest.approx(expected, rel=0.02)


def test_of_many_combinations_of_categories_some_stand_for_all():
    """A linear posterior adds the columns' effects, so the mixture is known; 64 of 900 pairs, within 2 errors."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 30, (600, 2))
    effects = rng.normal(size=(2, 30))
    x = np.concatenate([np.eye(30)[codes[:, 0]], np.eye(30)[codes[:, 1]]], 1)
    y = effects[0, codes[:, 0]] + effects[1, codes[:, 1]]
    model = linear(num_draws=500).fit(x, y)
    columns = [[*range(30)], [*range(30, 60)]]
    model.posterior_.donors = Donors(torch.tensor(x), torch.ones(600).double(), columns)
    new = model.posterior_.predict(np.zeros((2, 60)), num_draws=500)
    assert len(model.posterior_.donors.stand_ins(torch.zeros(2, 60).double())[0]) == 64
    assert float(new.mean[0]) == pytest.approx(y.mean(), abs=0.25 * y.std())
    assert float(new.epistemic_std[0]) == pytest.approx(y.std(), rel=0.18)


def test_unknown_classes_of_ordinal_codes_stay_as_they_were():
    model = linear(guide="map", categories="ordinal").fit(frame()[["kind"]], frame()["y"])
    with pytest.warns(UserWarning, match="their number is -1"):
        found = model.predict(pd.DataFrame({"kind": ["new", "a"]}))
    np.testing.assert_array_equal(found, model.posterior_.predict([[-1.0], [0.0]]).mean)


def test_values_that_are_missing_at_first_in_new_rows_are_told(tmp_path):
    """They are mixtures of those of similar rows, and are marked. Columns with gaps in training are not."""
    train = frame()[["size", "kind", "y"]].assign(gaps=[None, *range(59)])  # in the order of the kinds
    model = linear(guide="map", missing="impute").fit(train.drop(columns="y"), train["y"])
    new = train.drop(columns="y").head(4).assign(size=[0.1, None, 0.2, 0.3], kind=["a", "a", None, "b"])
    with pytest.warns(UserWarning, match="has no value") as told:
        found = model.predict(new)
    assert [str(one.message)[:40] for one in told] == [
        "Column 'size' has no value in row 1, and",
        "Column 'kind' has no value in row 2, and",
    ]
    filled = new.assign(size=new["size"].fillna(train["size"].mean()))
    known = [model.predict(filled.assign(kind=name))[2] for name in SHARES]
    with pytest.warns(UserWarning, match="'kind' has no value"):
        mean = model.predict(filled)
    np.testing.assert_array_equal(found[[0, 2, 3]], mean[[0, 2, 3]])
    assert found[1] == pytest.approx(mean[1], abs=0.02)  # a line: the mean at the values' mean
    assert abs(found[2] - known[0]) < 0.1 * np.ptp(known)  # by plain shares 0.33

    train.to_csv(tmp_path / "t.csv", index=False)
    new.to_csv(tmp_path / "new.csv", index=False)
    table = load_table(tmp_path / "t.csv", "y", missing="impute")
    num = round(60 * (1 - table.test))
    assert f"1 of {num} rows to train on lacks a value of 'gaps': left out of the fit" in table.doubts
    rows = load_rows(tmp_path / "new.csv", (), table.encoder)
    assert rows.outside == ["", "size", "kind", ""]
    assert rows.notes == (
        "size: 1 row without a value, as none was in training, predicted as a mixture over those of similar rows",
        "kind: 1 row without a value, as none was in training, predicted as a mixture over those of similar rows",
        "1 row has missing values, which widen the predictions for it: gaps (1)",
    )
    new.assign(gaps=[None, None, 1, 2]).to_csv(tmp_path / "new.csv", index=False)
    *_, line = load_rows(tmp_path / "new.csv", (), table.encoder).notes
    assert line == "2 rows have missing values, which widen the predictions for them: gaps (2)"
    with pytest.raises(InputError, match="2 of 4 values of column 'size' are missing, in rows 1, 2[.] Drop"):
        linear(guide="map").fit(train[["size"]], train["y"]).predict(new[["size"]].where(new["size"] != 0.2))


GAPS = np.arange(60) % 4 == 1


def test_a_missing_number_is_the_mixture_of_the_known_ones():
    """Of a line y = size + noise: the values' mean, and their variance beside that of the noise; 32 quantiles of 45."""
    train = frame()[["size"]].assign(size=lambda rows: rows["size"].mask(GAPS))
    target = 10 * frame()["size"]
    model = linear(guide="map", missing="impute").fit(train, target)
    new = model.predict_dist(pd.DataFrame({"size": [0.3, None]}))
    assert list(model.encoder_.get_feature_names_out()) == ["size"]
    assert model.posterior_.record.num_data == 45
    assert float(new.std[0]) == pytest.approx(NOISE)
    assert float(new.mean[1]) == pytest.approx(target[~GAPS].mean(), abs=0.2)
    assert float(new.epistemic_std[1]) == pytest.approx(target[~GAPS].std(), rel=0.03)
    whole = linear(guide="map").fit(train[~GAPS], target[~GAPS])
    np.testing.assert_array_equal(model.predict(train[~GAPS]), whole.predict(train[~GAPS]))


def test_missing_numbers_and_categories_of_a_row_come_from_the_same_donor():
    """The variance is that of the predictions for complete rows."""
    train = frame()[["size", "kind"]].assign(size=lambda rows: (3 * rows["size"]).mask(GAPS))
    target = frame()["y"] + 2 * frame()["size"]
    model = linear(guide="map", missing="impute").fit(train, target)
    with pytest.warns(UserWarning, match="'kind' has no value"):
        new = model.predict_dist(pd.DataFrame({"size": [np.nan], "kind": [None]}))
    each = model.predict(train[~GAPS])
    assert float(new.mean[0]) == pytest.approx(each.mean(), abs=3 / 500 * np.ptp(each))
    assert float(new.epistemic_std[0]) == pytest.approx(each.std(), rel=0.02)


def test_missing_values_that_tell_of_the_target_get_an_indicator():
    """Targets 20 lower where the number is missing: as much as 40 standard deviations of the noise."""
    train = frame()[["size"]].mask(np.stack([GAPS], 1))
    model = linear(missing="impute").fit(train, frame()["size"] - 20 * GAPS)
    assert list(model.encoder_.get_feature_names_out()) == ["size", "missingindicator_size"]
    assert model.predict(pd.DataFrame({"size": [np.nan]}))[0] == pytest.approx(-20, abs=1)


@pytest.mark.parametrize(
    "settings", [{"num": 25}, {"share": 2}, {"categories": "ordinal"}], ids=["few rows", "few complete rows", "ordinal"]
)
def test_incomplete_rows_stay_where_the_others_do_not_suffice(settings):
    rows = frame()[["size", "kind"]][: settings.get("num", 60)].reset_index(drop=True)
    gaps = np.arange(len(rows)) % settings.get("share", 4) == 1
    rows = rows.assign(kind=rows["kind"].mask(gaps))
    model = linear(missing="impute", categories=settings.get("categories", "onehot"))
    assert model.fit(rows, rows["size"]).posterior_.record.num_data == len(rows)


def test_incomplete_rows_stay_where_they_alone_have_a_class():
    x = frame()["size"].mask(GAPS).to_numpy()[:, None]
    plain = np.where(frame()["size"] > 0, "a", "b")
    labels = np.where(GAPS & (frame()["size"] > 0.5), "c", plain)
    classifier = bnn.BNNClassifier(bnn.MLP(hidden=()), method=bnn.SVI(steps=20), missing="impute", random_state=0)
    assert list(classifier.fit(x, labels).classes_) == ["a", "b", "c"]
    assert classifier.posterior_.record.num_data == 60
    assert classifier.fit(x, plain).posterior_.record.num_data == 45


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_command_line_predicts_the_same_mixture(tmp_path):
    frame().to_csv(tmp_path / "t.csv", index=False)
    new = pd.DataFrame({"size": [0.3, 0.3], "kind": ["a", "new"], "other": ["u", "u"]})
    new.to_csv(tmp_path / "new.csv", index=False)
    tables = {"data": {"path": str(tmp_path / "t.csv"), "target": "y"}}
    changes = ["net.hidden=[]", "fit.type=svi", "fit.steps=200", "fit.lr=0.05", "guide.type=map"]
    result = run(RunSpec.from_dict(apply_overrides(tables, changes)), tmp_path / "run", progress=False)
    notes = []
    found = predict_table(tmp_path / "run", tmp_path / "new.csv", on_note=notes.append)
    train = load_table(tmp_path / "t.csv", "y")
    kinds = [name for name in train.data.feature_names if name.startswith("kind_")]
    at = torch.tensor([train.data.feature_names.index(name) for name in kinds])
    rows = torch.zeros(3, train.data.x.shape[1], dtype=torch.float64)
    rows[:, 0], rows[torch.arange(3), at], rows[:, list(train.data.feature_names).index("other_u")] = 0.3, 1.0, 1.0
    means = result.posterior.predict(rows).mean.double()
    shares = result.train.x[:, at].double().mean(0)
    mean = float(shares @ means)
    assert found["mean"][0] == pytest.approx(float(means[0]), rel=1e-6)
    assert found["mean"][1] == pytest.approx(mean, abs=3 / 500 * float(means.max() - means.min()))
    spread = float(shares @ (means - mean).square()) ** 0.5
    assert found["epistemic_std"].tolist() == [pytest.approx(0, abs=1e-6), pytest.approx(spread, rel=0.02)]
    assert [line for line in notes if "unknown in training" in line]
