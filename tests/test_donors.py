"""Rows that lack values: donors against conditional distributions that are known, and what predictions make of them."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import pyrobnn as bnn
from pyrobnn._core.columns import as_table
from pyrobnn._core.errors import InputError
from pyrobnn.data import donors as donors_module
from pyrobnn.data.donors import Donors
from pyrobnn.data.gaps import Rows, learn
from pyrobnn.posterior import stand_ins
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.runs.overrides import apply_overrides
from pyrobnn.runs.predictions import predict_table
from pyrobnn.runs.run import run
from pyrobnn.runs.spec import RunSpec


def normals(rho, num=2000, seed=0):
    """Two correlated columns, and one of noise."""
    x = torch.randn(num, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[:, 1] = rho * x[:, 0] + (1 - rho**2) ** 0.5 * x[:, 1]
    return x


def donors_of(rows, categories=()):
    return Donors.of(rows, torch.ones(len(rows)).double(), categories)


def moments(donors, x, column):
    values, shares = donors.stand_ins(x)
    mean = (shares * values[..., column]).sum(0)
    return mean, (shares * (values[..., column] - mean).square()).sum(0)


def test_the_values_have_the_conditional_mean_and_variance():
    """Of normals: rho x and 1 - rho^2. Within one standard deviation of the errors lie 250 of 2000 rows at least."""
    rows = torch.tensor([[0.5, torch.nan, 0.0], [-1.0, torch.nan, 1.0]]).double()
    mean, variance = moments(donors_of(normals(0.8)), rows, 1)
    np.testing.assert_allclose(mean, [0.4, -0.8], atol=4 * 0.6 / 250**0.5)
    np.testing.assert_allclose(variance, 0.36, rtol=4 * (2 / 250) ** 0.5)


def test_independent_columns_have_the_quantiles_of_all_rows():
    x = normals(0.0)
    values, shares = donors_of(x).stand_ins(torch.tensor([[0.5, torch.nan, 0.0]]).double())
    levels = (np.arange(32) + 0.5) / 32
    quantiles = np.quantile(x[:, 1], levels, method="inverted_cdf")
    np.testing.assert_allclose(values[:, 0, 1].sort().values, quantiles, atol=4 / 1999)  # of 1999 rows, each left out
    assert shares.unique().tolist() == [1 / 32]
    weights = torch.arange(2000.0).double()
    mean, _ = moments(Donors(x[:, 1:].sort(0).values, weights), torch.full((1, 2), torch.nan).double(), 0)
    assert float(mean) == pytest.approx(float(weights @ x[:, 1].sort().values / weights.sum()), abs=0.05)


@pytest.mark.parametrize("curve", [lambda a, b: a * b, lambda a, b: a.square()], ids=["product", "square"])
def test_what_depends_on_squares_and_products_is_found(curve):
    x = normals(0.0, 500)
    x[:, 2] = curve(x[:, 0], x[:, 1]) + 0.1 * x[:, 2]
    new = normals(0.0, 50, seed=1)
    true = curve(new[:, 0], new[:, 1])
    new[:, 2] = torch.nan
    mean, variance = moments(donors_of(x), new, 2)
    assert float((mean - true).abs().median()) < 0.05  # a half of the standard deviation that the truth leaves
    assert 0.003 < float(variance.median()) < 0.03


def test_several_values_come_from_the_same_row_and_are_as_of_one_gap_where_columns_are_copies():
    x = normals(0.5, 200)
    x[:, 2] = -x[:, 1]
    values, shares = donors_of(x).stand_ins(torch.tensor([[0.5, torch.nan, torch.nan]]).double())
    used = shares[:, 0] > 0
    assert torch.equal(values[used, 0, 2], -values[used, 0, 1])


def test_shares_of_categories_follow_from_the_other_columns():
    """Below 0 there are nine of a for one of b, and above as many the other way; plain shares would be a half."""
    x = torch.linspace(-1, 1, 400).double()
    is_a = (torch.arange(400) % 10 > 0) == (x < 0)
    rows = torch.stack([x, is_a.double(), (~is_a).double()], 1)
    mean, _ = moments(donors_of(rows, [[1, 2]]), torch.tensor([[-0.5, 0, 0], [0.5, 0, 0]]).double(), 1)
    np.testing.assert_allclose(mean, [0.9, 0.1], atol=0.12)


@pytest.mark.parametrize("classes", [False, True])
def test_gaps_at_random_leave_rows_out_and_gaps_that_tell_of_the_target_keep_them(classes):
    """The target is a curve, which the regression does not have: of 60 tables, three standard errors, at most two."""

    def kept(seed, *, tells):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(300, 3))
        x[:, 1] += x[:, 0]
        y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=300)
        gone = rng.random(300) < 0.12
        if tells:
            y[gone] += 1.5
        x[gone, 0] = np.nan
        y = (y > 0).astype(np.int64) if classes else y
        return learn(Rows(as_table(x)[0], y), categories="onehot", missing="impute", has_classes=classes).kept.all()

    assert sum(kept(seed, tells=False) for seed in range(60)) <= 2
    assert sum(kept(seed, tells=True) for seed in range(20)) >= 15


def test_gaps_at_random_of_many_columns_and_classes_leave_rows_out():
    """60 comparisons for each table; by three standard deviations for each, three of 40 kept their rows, these."""

    def kept(seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(600, 12))
        y = np.digitize(x[:, 0] + x[:, 1] + rng.normal(size=600), [-1.5, -0.5, 0.5, 1.5])
        x[rng.random(x.shape) < 0.025] = np.nan
        return learn(Rows(as_table(x)[0], y), categories="onehot", missing="impute", has_classes=True).kept.all()

    assert not any(kept(seed) for seed in (6, 16, 35))


@pytest.mark.parametrize("classes", [False, True])
def test_whole_weights_are_copies_when_gaps_are_judged(classes, monkeypatch):
    """Errors and variances are those of rows that are there as often, of which the sums are taken."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 3))
    y = x[:, 0] + 0.5 * rng.normal(size=200)
    weights = rng.integers(1, 4, 200)
    x[rng.random(200) < 0.15, 0] = np.nan
    targets = (y > 0).astype(np.int64) if classes else y
    seen = []
    found = Donors.errors
    monkeypatch.setattr(Donors, "errors", lambda *args, **options: seen.append(found(*args, **options)) or seen[-1])
    options = {"categories": "onehot", "missing": "impute", "has_classes": classes}
    learn(Rows(as_table(x)[0], targets, weights.astype(float)), **options)
    learn(Rows(as_table(x.repeat(weights, 0))[0], targets.repeat(weights)), **options)
    few = torch.tensor(weights[np.isnan(x[:, 0])])
    for weighted, repeated in zip(*seen, strict=True):
        np.testing.assert_allclose(weighted.repeat_interleave(few, 0), repeated, rtol=1e-9)
    learn(Rows(as_table(x)[0], targets, weights / 7), **options)
    assert bool(torch.stack(seen[2]).isfinite().all())
    assert not torch.equal(seen[0][0], seen[2][0])


def test_regressions_are_kept_for_each_pattern_and_neither_copied_nor_many(monkeypatch):
    donors = donors_of(normals(0.5, 100))
    x = normals(0.5, 8, seed=1)
    x[torch.arange(6), torch.arange(6) % 3] = torch.nan
    first = donors.stand_ins(x)
    monkeypatch.setattr(donors_module, "_regressed", None)
    for one, other in zip(first, donors.stand_ins(x), strict=True):
        assert torch.equal(one, other)
    assert len(donors._kept) == 3
    for copied in (pickle.loads(pickle.dumps(donors)), copy.deepcopy(donors)):
        assert not copied._kept
        assert torch.equal(copied.rows, donors.rows)
    monkeypatch.undo()
    monkeypatch.setattr(donors_module, "_MOST_KEPT", 2)
    donors._kept.clear()
    assert torch.equal(first[0], donors.stand_ins(x)[0])
    assert len(donors._kept) == 2
    assert repr(donors) == "Donors(100 rows, 3 columns)"


def table(num=160):
    rng = np.random.default_rng(3)
    a = rng.normal(size=num)
    b, kind = a + 0.3 * rng.normal(size=num), np.where(a > 0, "high", "low")
    y = 2 * a + b + (kind == "high") + 0.2 * rng.normal(size=num)
    frame = pd.DataFrame({"a": a, "b": b, "kind": kind, "y": y})
    frame["a"] = frame["a"].mask(rng.random(num) < 0.15)
    frame["kind"] = frame["kind"].mask(rng.random(num) < 0.05)
    return frame


def test_a_row_is_the_mixture_over_its_donors_and_others_stay_as_they_are():
    data = table()
    model = bnn.BNNRegressor(bnn.MLP(hidden=()), guide="map", steps=200, missing="impute", random_state=0)
    model.fit(data.drop(columns="y"), data["y"])
    assert model.posterior_.record.num_data == len(data.dropna())
    row = torch.tensor([[np.nan, 0.4, 1.0, 0.0]]).double()
    values, shares = model._donors.stand_ins(row)
    each = model.posterior_.predict(values[:, 0]).mean.double()
    found = model.predict_dist(pd.DataFrame({"a": [np.nan, 0.1], "b": [0.4, 0.2], "kind": ["high", "low"]}))
    assert float(found.mean[0]) == pytest.approx(
        float(shares[:, 0] @ each), abs=3 / 500 * float(each.max() - each.min())
    )
    assert float(found.epistemic_std[0]) == pytest.approx(float(each.std(correction=0)), rel=0.03)
    alone = model.posterior_.predict(torch.tensor([[0.1, 0.2, 0.0, 1.0]]).double())
    assert float(found.std[1]) == pytest.approx(float(alone.std), rel=1e-6)


def test_data_with_gaps_are_predicted_and_not_fitted(tmp_path):
    table().to_csv(tmp_path / "t.csv", index=False)
    dataset = bnn.datasets.load_table(tmp_path / "t.csv", "y", missing="impute")
    train, test = dataset.split(0)
    assert not train.x.isnan().any()
    assert test.x.isnan().any()
    model = bnn.BNN(bnn.MLP(4, [], 1))
    with pytest.raises(InputError, match="of 160 rows lack values.* pass `data.complete`"):
        model.fit(dataset.data, steps=2, progress=False)
    posterior = model.fit(train, guide="map", steps=2, seed=0, progress=False)
    assert bool(posterior.predict(test.x).mean.isfinite().all())
    with pytest.raises(InputError, match="8 of 32 rows lack values, .* set `donors` to those of the posterior"):
        bnn.load(posterior.save(tmp_path / "saved")).predict(test.x)
    with pytest.raises(InputError, match="1 of 1 rows lack values, .* take `predict`, which has donors"):
        posterior.predictor(5)(test.x[test.x.isnan().any(1)][:1])
    for fitted in (bnn.load(tmp_path / "saved"), posterior.predictor(5)):
        call = getattr(fitted, "predict", fitted)
        with pytest.warns(
            UserWarning, match="1 of 2 rows have an unknown category, .* surely as others, without donors"
        ):
            call(torch.tensor([[0.1, 0.2, 0.0, 0.0], [0.1, 0.2, 0.0, 1.0]]))
    with pytest.raises(InputError, match="All of 1 rows lack values"):
        len(bnn.Data([[np.nan, 1.0]], [0.0], donors=donors_of(torch.zeros(2, 2).double())).complete)


def mean_field(data, **options):
    return bnn.BNN(bnn.MLP(3, [5], 1)).fit(data, guide="mean_field", steps=20, seed=0, progress=False, **options)


@pytest.mark.filterwarnings("ignore:It seems that the fit was trained on")
def test_validation_rows_with_gaps_are_scored_as_mixtures():
    data, new = with_gap()
    y = new.nan_to_num().sum(1)
    method = bnn.SVI(guide="mean_field", steps=100, patience=1, eval_every=50)
    model = bnn.BNN(bnn.MLP(3, [5], 1))
    for validation in (bnn.Data(new, y, donors=data.donors), (new, y)):
        fitted = bnn.fit(model, data, method, seed=0, progress=False, validation=validation)
        expected = float(fitted.predict(new, num_draws=100).log_prob(y).mean())
        assert fitted.history.validation_scores[-1] == pytest.approx(expected, abs=0.1)
    for calibrated in (bnn.conformal(fitted, (new, y)), bnn.calibrate(fitted, (new, y))):
        assert bool(calibrated.predict(new).mean.isfinite().all())


@pytest.mark.filterwarnings("ignore")
def test_all_ways_to_a_posterior_have_the_donors_of_the_data_and_refuse_rows_with_gaps():
    data, new = with_gap()
    model = bnn.BNN(bnn.MLP(3, [5], 1))
    fitted = mean_field(data)
    laplace = model.fit(data, guide="laplace", steps=20, seed=0, progress=False)
    loop = {"num_data": 60, "seed": 0}
    swag = bnn.SWAG(bnn.SVI(guide="map", steps=5), steps=20, every=2, rank=5)
    ways = {
        "fit": fitted,
        "start": mean_field(data, start=fitted),
        "tuned": bnn.tune_prior(laplace, data),
        "prepared": bnn.prepare(model, bnn.SVI(guide="mean_field"), like=data, **loop).posterior(),
        "updated": bnn.update_prior(fitted).fit(data, guide="mean_field", steps=5, seed=0, progress=False),
        "ensemble": bnn.fit(model, data, bnn.Ensemble(bnn.SVI(guide="map", steps=5)), seed=0, progress=False),
        "swag": bnn.fit(model, data, swag, seed=0, progress=False),
    }
    assert [name for name, posterior in ways.items() if posterior.donors is not data.donors] == []
    assert all(bool(posterior.predict(new).mean.isfinite().all()) for posterior in ways.values())
    gaps = bnn.Data(new, new.nan_to_num().sum(1), donors=data.donors)
    for call in (
        lambda: bnn.tune_prior(laplace, gaps),
        lambda: bnn.fit_replicates(model, gaps, bnn.SVI(steps=2), replicates=2, progress=False),
        lambda: bnn.prepare(model, bnn.SVI(guide="mean_field"), like=gaps, **loop),
    ):
        with pytest.raises(InputError, match="1 of 6 rows lack values.* pass `data.complete`"):
            call()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_scores_and_predicts_rows_with_gaps_as_its_posterior_does(tmp_path):
    table().to_csv(tmp_path / "t.csv", index=False)
    table().tail(30).drop(columns="y").to_csv(tmp_path / "new.csv", index=False)
    tables = {"data": {"path": str(tmp_path / "t.csv"), "target": "y", "missing": "impute"}}
    changes = ["net.hidden=[]", "fit.type=svi", "fit.steps=300", "fit.lr=0.05", "guide.type=laplace"]
    result = run(RunSpec.from_dict(apply_overrides(tables, changes)), tmp_path / "run", progress=False)
    assert "missingindicator_a" not in result.train.feature_names
    assert len(result.train) + len(result.test) < 160
    gaps = result.test.x.isnan().any(1)
    prediction = result.posterior.predict(result.test.x)
    assert float(prediction.std[gaps].min()) > 1.3 * float(prediction.std[~gaps].median())
    assert result.scores["rmse"].value == pytest.approx(float((prediction.mean - result.test.y).square().mean().sqrt()))
    rows = predict_table(tmp_path / "run", tmp_path / "new.csv")
    new = bnn.datasets.load_features(tmp_path / "new.csv", (), encoder=result_encoder(tmp_path))
    np.testing.assert_allclose(rows["mean"], result.final.predict(new).mean, rtol=1e-6)


def result_encoder(folder):
    return bnn.datasets.load_table(folder / "t.csv", "y", missing="impute", all_rows=True).encoder


def with_gap(num=60):
    x = normals(0.8, num)
    y = x.sum(1)
    new = x[:6].clone()
    new[2, 1] = torch.nan
    return bnn.Data(x, y, standardize=True, donors=donors_of(x.clone())), new


def test_few_draws_are_repeated_where_rows_lack_values_but_not_those_that_were_given():
    """Batches without gaps then have as many as others."""
    data, new = with_gap()
    model = bnn.BNN(bnn.MLP(3, [5], 1))
    posterior = model.fit(data, steps=20, seed=0, progress=False)
    assert posterior.predict(new, num_draws=40).num_draws == 520
    assert posterior.predict(new, draws=posterior.draw(7)).num_draws == 7
    points = bnn.Mixture(model.fit(data, guide="map", replicates=3, steps=20, seed=0, progress=False))
    assert points.predict(new[:2]).num_draws == 3
    points.donors = donors_of(torch.eye(3).double().repeat(20, 1), [[0, 1, 2]])
    new = torch.eye(3).double().repeat(2, 1)
    new[2] = 0  # an unknown category
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(new, new[:, 0]), batch_size=2)
    whole, batches = points.predict(new), points.predict(loader)
    assert batches.num_draws == whole.num_draws == 501
    torch.testing.assert_close(batches.mean, whole.mean)


def test_a_mixture_has_the_donors_of_its_members_and_weighs_them_alike():
    data, new = with_gap()
    fits = bnn.BNN(bnn.MLP(3, [5], 1)).fit(data, replicates=3, steps=20, seed=0, progress=False)
    mixture = bnn.Mixture(fits)
    assert mixture.donors is data.donors
    assert mixture.predict(new, num_draws=90).num_draws == 540
    whole = mixture.predict(new[3:], num_draws=90)
    torch.testing.assert_close(mixture.predict(new, num_draws=90).mean[3:], whole.mean, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["posterior", "mixture", "given"])
def test_each_draw_meets_the_values_of_its_donors_alone_where_pairs_are_many(kind, monkeypatch):
    """The same mixture as from predictions of all values by all draws, from far fewer products of a row and a draw."""
    data, _ = with_gap()
    new = normals(0.8, 30)
    new[:, 1], new[::3, 2] = torch.nan, torch.nan
    fits = bnn.BNN(bnn.MLP(3, [5], 1)).fit(data, guide="laplace", replicates=3, steps=20, seed=0, progress=False)
    posterior = bnn.Mixture(fits) if kind == "mixture" else fits[0]
    options = {"draws": posterior.draw(200)} if kind == "given" else {"num_draws": 200}
    counts, outputs = [], Posterior._likelihood

    def counted(self, f, others):
        counts.append(f.shape[0] * f.shape[1])
        return outputs(self, f, others)

    monkeypatch.setattr(Posterior, "_likelihood", counted)
    whole = posterior.predict(new, **options)
    most = sum(counts)
    monkeypatch.setattr(stand_ins, "_AT_ONCE", 2000)
    counts.clear()
    found = posterior.predict(new, **options)
    assert found.num_draws == whole.num_draws
    torch.testing.assert_close(found.mean, whole.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.std, whole.std, rtol=1e-5, atol=1e-5)
    assert sum(counts) < 0.4 * most


def test_later_rows_of_an_unknown_category_are_learned_from():
    data = table().dropna()
    x, y = data.drop(columns="y"), data["y"]
    model = bnn.BNNRegressor(guide="mean_field", steps=20, random_state=0, missing="impute").partial_fit(x, y)
    with pytest.warns(UserWarning, match="'new'"):
        model.partial_fit(x.assign(kind="new")[:30], y[:30])
    assert model.posterior_.record.num_data == 30
    later = x.assign(a=x["a"].mask(np.arange(len(x)) < 10))
    with pytest.warns(UserWarning, match="'a' has no value"):
        model.partial_fit(later, y)
    assert model.posterior_.record.num_data == len(x) - 10
    assert model.posterior_.donors is not None
    with pytest.warns(UserWarning, match="'a' has no value"), pytest.raises(InputError, match="All of 9 rows lack"):
        model.partial_fit(later[:9], y[:9])


def test_effects_of_rows_that_lack_numbers_are_those_of_the_others():
    data, _ = with_gap()
    posterior = bnn.BNN(bnn.MLP(3, [5], 1)).fit(data, steps=20, seed=0, progress=False)
    x = torch.cat([data.x, data.x[:5]])
    x[-5:, 1] = torch.nan
    rows = bnn.Data(x, torch.cat([data.y, data.y[:5]]), donors=data.donors)
    shown, expected = (bnn.plots.effects(posterior, each, num_draws=50).axes for each in (rows, data))
    for axis, other in zip(shown, expected, strict=True):
        np.testing.assert_allclose(axis.lines[0].get_xydata(), other.lines[0].get_xydata(), rtol=1e-5)
