"""Scores on unseen examples against the closed forms of linear regression, and refused where they do not compare."""

import copy
import dataclasses
import itertools
import math
import warnings

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import at_normal, quick
from scipy import stats
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.random import derive
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.distributions.units import Scaler
from pyrobnn.posterior.record import FitRecord

NOISE, SCALE = 0.7, 1.5


def problem(num=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num, 3, generator=generator, dtype=torch.float64)
    x[:, 1] = 0.4 * x[:, 0] + 0.9 * x[:, 1]
    noise = NOISE * torch.randn(num, generator=generator, dtype=torch.float64)
    return bnn.Data(x, x @ torch.tensor([1.0, -0.5, 0.2], dtype=torch.float64) + noise)


def exact_posterior(x, y):
    precision = torch.eye(3, dtype=torch.float64) / SCALE**2 + x.T @ x / NOISE**2
    return torch.linalg.solve(precision, x.T @ y / NOISE**2), torch.linalg.inv(precision)


def exact_elpd(train, test):
    """Log density of each test example under the exact posterior predictive."""
    mean, covariance = exact_posterior(train.x, train.y)
    variance = NOISE**2 + (test.x @ covariance * test.x).sum(1)
    return stats.norm(test.x @ mean, variance.sqrt()).logpdf(test.y)


def linear_model():
    net = nn.Linear(3, 1, bias=False).double()
    return bnn.BNN(net, prior=bnn.priors.Normal(SCALE), likelihood=bnn.likelihoods.Gaussian(scale=NOISE))


@dataclasses.dataclass(frozen=True)
class Exact(bnn.inference.BaseMethod):
    """A method that finds the posterior of the linear model in closed form, or one `width` times as wide."""

    width: float = 1.0

    def infer(self, model, data, run):
        mean, covariance = exact_posterior(data.x, data.y)
        return at_normal(model, data, mean, self.width * torch.linalg.cholesky(covariance), seed=run.seed)


def fitted(data, **settings):
    return bnn.fit(linear_model(), data, Exact(**settings), seed=0)


DATA = problem()
TRAIN, TEST = DATA[:40], DATA[40:]
LEAVE_ONE_OUT = np.array([exact_elpd(DATA[[j for j in range(60) if j != i]], DATA[[i]]).item() for i in range(60)])


def test_held_out_density_is_that_of_the_exact_predictive():
    """Within 5 Monte Carlo errors of each example at seed 0, by the delta method."""
    posterior = fitted(TRAIN)
    found = bnn.heldout_elpd(posterior, TEST, num_draws=4000)
    density = posterior.predict(TEST.x, num_draws=4000).draw_log_prob(TEST.y).exp()
    error = density.std(0) / density.mean(0) / math.sqrt(4000)
    expected = exact_elpd(TRAIN, TEST)
    assert (np.abs(found.elpd_i.values - expected) < 5 * error.numpy()).all()
    assert error.max() < 0.02
    assert found.elpd == pytest.approx(found.elpd_i.values.sum())
    assert found.se == pytest.approx(math.sqrt(20) * found.elpd_i.values.std())


def test_held_out_density_is_the_log_score_times_the_number_of_examples():
    x, y = TEST.x, 40 + 7 * TEST.y
    model = bnn.BNN(bnn.MLP(3, [4], 1), prior=bnn.priors.Normal(1.0))
    mixture = quick(model, bnn.Ensemble(bnn.SVI(steps=5), members=2), bnn.Data(x, y, standardize=True))
    found = bnn.heldout_elpd(mixture, (x, y), num_draws=30, seed=3)
    score = bnn.score(mixture.predict(x, num_draws=30, seed=3), y)["log_likelihood"]
    assert found.elpd == pytest.approx(20 * score.value, rel=1e-6)
    assert found.se == pytest.approx(20 * score.stderr * math.sqrt(19 / 20), rel=1e-6)
    assert (found.kind, found.n_data_points, found.n_samples) == ("held-out", 20, 30)
    assert "elpd_held-out" in str(found)


def test_arviz_takes_held_out_densities_and_keeps_them_from_others():
    narrow, right = (bnn.heldout_elpd(fitted(TRAIN, width=w), TEST) for w in (0.1, 1.0))
    table = az.compare({"narrow": narrow, "right": right})
    assert set(table.index) == {"narrow", "right"}
    az.plot_compare(table)
    plt.close("all")
    with pytest.raises(ValueError, match="incompatible cross-validation methods"):
        az.compare({"one": right, "other": bnn.loo(fitted(TRAIN), TRAIN)})


def test_leave_one_out_of_exact_draws_is_that_of_refits():
    """Within 5 Monte Carlo errors at seed 0: elpd_i = -log mean 1 / p_i, and errors of examples share the draws."""
    posterior = fitted(DATA)
    found = bnn.loo(posterior, DATA, num_draws=4000)
    inverse = (-posterior.predict(DATA.x, num_draws=4000).draw_log_prob(DATA.y)).exp()
    influence = inverse / inverse.mean(0)
    assert abs(found.elpd - LEAVE_ONE_OUT.sum()) < 5 * influence.sum(1).std() / math.sqrt(4000)
    each = 5 * influence.std(0).numpy() / math.sqrt(4000)
    assert (np.abs(found.elpd_i.values - LEAVE_ONE_OUT) < each).all()
    assert found.kind == "LOO under q"
    assert "LOO under q" in str(found)
    az.plot_khat(found)
    plt.close("all")


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("scale", [0.3, "heteroscedastic"])
def test_arviz_finds_the_same_score_from_the_same_draws(scale, columns):
    """In original units; more draws move the score where some examples have a large k-hat."""
    rows = bnn.datasets.sinusoid(40)
    y = 1000 * (rows.y[:, None] + torch.arange(columns))
    data = bnn.Data(50 + 9 * rows.x, y, standardize=True)
    model = bnn.BNN(bnn.MLP(1, [5], columns * (1 + (scale != 0.3))), likelihood=bnn.likelihoods.Gaussian(scale))
    posterior = quick(model, bnn.SVI(steps=100), data)
    tree = bnn.to_datatree(posterior, data, num_draws=200, prior=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Estimated shape parameter", category=UserWarning)
        ours, arviz = bnn.loo(posterior, data, num_draws=200), az.loo(tree, pointwise=True)
    np.testing.assert_allclose(ours.elpd_i, arviz.elpd_i, rtol=1e-12)
    assert arviz.elpd_i.shape == (40,)


def test_the_correction_of_arviz_finds_the_exact_score_from_a_guide_that_is_too_wide():
    """Within 5 Monte Carlo errors at seed 0, where the score under q is not; log p - log q is in closed form here."""
    posterior = fitted(DATA, width=1.25)
    plain = bnn.loo(posterior, DATA, num_draws=4000)
    stats_of = (tree := bnn.to_datatree(posterior, DATA, num_draws=4000, prior=False))["sample_stats"]
    found = az.loo_approximate_posterior(tree, log_p=stats_of["lp"], log_q=stats_of["log_q"])
    draws = posterior.draw(4000)["weight"][:, 0]
    mean, covariance = exact_posterior(DATA.x, DATA.y)
    p, q = (stats.multivariate_normal(mean, factor * covariance).logpdf(draws) for factor in (1, 1.25**2))
    weights = np.exp(p - q)[:, None]
    inverse = weights / stats.norm(draws @ DATA.x.T, NOISE).pdf(DATA.y)
    influence = (weights / weights.mean() - inverse / inverse.mean(0)).sum(1)
    error = influence.std() / math.sqrt(4000)
    assert abs(found.elpd - LEAVE_ONE_OUT.sum()) < 5 * error < abs(plain.elpd - LEAVE_ONE_OUT.sum())
    assert bnn.importance_weights(posterior, DATA, num_draws=4000).khat < 0.3


def stored(draws, name):
    """A posterior that holds draws (chain, draw, 3) of the linear model."""
    model, example, one = linear_model(), (DATA.x[:1], DATA.y[:1]), Scaler.identity()
    with local_parameters():
        guide = bnn.guides.Empirical(num_chains=draws.shape[0], num_draws=draws.shape[1]).build(model, *example)
    guide.hold(draws, torch.zeros(*draws.shape[:2], 0))
    record = FitRecord(method={"type": name})
    return bnn.Posterior(model, guide, example=example, x_scaler=one, y_scaler=one, seed=0, record=record)


def test_chains_have_their_efficiency(monkeypatch):
    """Each of 200 independent draws stands 4 times in its chain: 1 / 4 of the draws count, up to the noise of ESS."""
    draws = fitted(DATA).draw(400)["weight"][:, 0].reshape(2, 200, 3)
    chains = stored(draws.repeat_interleave(4, 1), "nuts")
    taken, original = [], az.loo
    monkeypatch.setattr(az, "loo", lambda *args, **options: taken.append(options["reff"]) or original(*args, **options))
    found = bnn.loo(chains, DATA)
    bnn.loo(fitted(DATA), DATA)
    assert taken == [pytest.approx(0.25, rel=0.2), 1.0]
    assert (found.kind, found.n_samples) == ("loo", 1600)
    assert found.elpd == pytest.approx(LEAVE_ONE_OUT.sum(), abs=0.5)
    assert bnn.loo(stored(draws, "sgld"), DATA).kind == "LOO under q"


def test_leave_one_out_refuses_points_and_few_draws():
    model = bnn.BNN(bnn.MLP(3, [4], 1), prior=bnn.priors.Normal(1.0))
    with pytest.raises(bnn.InputError, match="the draws of a point mass such as Map are all equal"):
        bnn.loo(quick(model, bnn.SVI(guide="map", steps=2), TRAIN), TRAIN)
    with pytest.raises(bnn.InputError, match="`num_draws` must give 100 different draws, got 99: draw"):
        bnn.loo(fitted(TRAIN), TRAIN, num_draws=99)
    with pytest.raises(bnn.InputError, match="different draws, got 2: draw"):
        bnn.loo(stored(torch.randn(1, 2, 3).repeat_interleave(100, 1), "nuts"), DATA)


def test_folds_are_scored_as_by_the_exact_predictive_of_the_rest():
    """Within 7 Monte Carlo errors of each of 60 examples at seed 0; folds of unequal sizes, with labels of text."""
    labels = np.array(list("abcde"))[np.arange(60) % 5]
    labels[0] = "b"
    found = bnn.kfold(linear_model(), DATA, Exact(), folds=labels, num_draws=4000, progress=False)
    for label in "abcde":
        rest, held_out = DATA[labels != label], DATA[labels == label]
        each, error = found.elpd_i.values[labels == label], monte_carlo_error(rest, held_out)
        assert (np.abs(each - exact_elpd(rest, held_out)) < 7 * error).all()
    assert (found.kind, found.n_folds, found.n_data_points) == ("loo_kfold", 5, 60)
    whole = exact_elpd(DATA, DATA)
    assert found.p == pytest.approx(whole.sum() - found.elpd, abs=0.2)
    again = bnn.kfold(linear_model(), DATA, Exact(), folds=labels, num_draws=4000, progress=False)
    np.testing.assert_array_equal(found.elpd_i, again.elpd_i)


def monte_carlo_error(rest, held_out):
    """Standard error of the log density of each example from 4000 draws of the exact posterior."""
    density = fitted(rest).predict(held_out.x, num_draws=4000).draw_log_prob(held_out.y).exp()
    return (density.std(0) / density.mean(0) / math.sqrt(4000)).numpy()


class Noted(bnn.inference.BaseMethod):
    """A method that notes which rows it saw, told by the last column of x, and with which seed."""

    def __init__(self):
        self.rows, self.seeds = [], []

    def infer(self, model, data, run):
        self.rows.append(data.x[:, -1].int().tolist())
        self.seeds.append(run.seed)
        return model.fit(data, guide="map", steps=1, seed=run.seed, engine="eager", progress=False)


def noted(y, *, likelihood="gaussian", **arguments):
    """The rows that each fit but the last did not see, and the seeds of all."""
    net, method = nn.Linear(1, 3 if likelihood == "categorical" else 1), Noted()
    model = bnn.BNN(net, likelihood=likelihood, prior=bnn.priors.Normal(1.0))
    bnn.kfold(model, (torch.arange(len(y)).float()[:, None], y), method, progress=False, num_draws=2, **arguments)
    assert method.rows[-1] == list(range(len(y)))
    return [sorted(set(range(len(y))) - set(rows)) for rows in method.rows[:-1]], method.seeds


def test_folds_are_disjoint_cover_all_and_differ_by_one_at_most():
    rows, seeds = noted(torch.arange(17.0), folds=5)
    assert sorted(itertools.chain(*rows)) == list(range(17))
    assert sorted(map(len, rows)) == [3, 3, 3, 4, 4]
    assert seeds == [derive(0, f"fit {index}") for index in range(6)]
    assert rows != noted(torch.arange(17.0), folds=5, seed=1)[0]
    assert rows == noted(torch.arange(17.0), folds=5)[0]


def test_classes_are_spread_evenly():
    y = torch.tensor([0] * 30 + [1] * 10 + [2] * 5)
    rows, _ = noted(y, likelihood="categorical")
    assert [np.bincount(y[part], minlength=3).tolist() for part in rows] == [[6, 2, 1]] * 5
    rows, _ = noted(torch.tensor([0, 0, 1, 1, 2, 2]), likelihood="categorical", folds=6)
    assert [len(part) for part in rows] == [1] * 6


def test_folds_are_those_of_a_loop_by_hand():
    """The same bits: the whole data and the fold of another size by `fit`, the two of one size by `fit_replicates`."""
    x, y = DATA.x[:14].float(), (40 + 7 * DATA.y[:14]).float()
    data, labels = bnn.Data(x, y, standardize=True), np.array([0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 2])
    model, method = bnn.BNN(bnn.MLP(3, [4], 1), prior=bnn.priors.Normal(1.0)), bnn.SVI(steps=20, lr=0.05)
    options = {"engine": "eager", "progress": False}
    found = bnn.kfold(model, data, method, folds=labels, seed=5, num_draws=50, **options)
    alone = bnn.fit(model, data[labels != 1], method, seed=derive(5, "fit 1"), **options)
    pair = bnn.fit_replicates(model, [data[labels != 0], data[labels != 2]], method, seed=derive(5, "fit 0"), **options)
    for fold, posterior in zip((0, 1, 2), (pair[0], alone, pair[1]), strict=True):
        held_out = data[labels == fold]
        expected = posterior.predict(held_out.x, num_draws=50).log_prob(held_out.y)
        np.testing.assert_allclose(found.elpd_i[labels == fold], expected, rtol=1e-5)
        torch.testing.assert_close(posterior.y_scaler.loc, y[labels != fold].double().mean())


REFUSED = [
    ({"folds": 1}, "`folds` must lie between 2 and the number of examples, 60; got 1"),
    ({"folds": 61}, "the number of examples, 60; got 61"),
    ({"folds": np.arange(59)}, "one label for each of the 60 examples"),
    ({"folds": np.zeros(60)}, "name two folds or more"),
    ({"folds": True}, "`folds` must have one label for each of the 60 examples"),
    ({"folds": ["a", None] * 30}, "`folds` has no label in place 1, but None"),
    ({"groups": ["a", None] * 30}, "`groups` has no label in place 1, but None"),
    ({"groups": np.r_[np.zeros(59), np.nan]}, "`groups` has no label in place 59, but nan"),
    ({"groups": np.arange(59)}, "`groups` must have one label for each of the 60 examples, got shape"),
    ({"groups": np.arange(60) % 3}, "`folds` must lie between 2 and the number of groups, 3; got 5"),
    ({"data": bnn.Data(DATA.x, DATA.y, groups=np.arange(60) % 3)}, "number of groups, 3; got 5"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_folds_and_groups_that_do_not_fit_are_refused(given, message):
    with pytest.raises(bnn.InputError, match=message):
        bnn.kfold(linear_model(), method=Exact(), **({"data": DATA} | given))


PATIENTS = torch.arange(60) // 4
LABELS = {
    "numbers": PATIENTS,
    "text": [f"p{number}" for number in PATIENTS.tolist()],
    "mixed": [number if number % 2 else f"p{number}" for number in PATIENTS.tolist()],
    "Series": pd.Series(PATIENTS.numpy(), index=range(100, 160)).astype("category"),
    "dates": pd.to_datetime(PATIENTS.numpy(), unit="D"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LABELS)
def test_groups_stay_in_one_fold(name):
    rows, _ = noted(torch.arange(60.0), folds=4, groups=LABELS[name])
    assert sorted(itertools.chain(*rows)) == list(range(60))
    held_out = [set(PATIENTS[part].tolist()) for part in rows]
    assert sum(map(len, held_out)) == 15
    assert sorted(map(len, held_out)) == [3, 4, 4, 4]


@pytest.mark.slow
def test_groups_are_scored_by_the_exact_predictive_of_the_other_groups_with_an_error_over_groups():
    """15 patients of 4 rows, each with an intercept: the score is within 7 Monte Carlo errors of each row at seed 0."""
    shift = torch.randn(15, generator=torch.Generator().manual_seed(1), dtype=torch.float64)[PATIENTS]
    data = bnn.Data(DATA.x, DATA.y + 2 * shift)
    found = bnn.kfold(linear_model(), data, Exact(), folds=15, groups=PATIENTS, num_draws=4000, progress=False)
    for patient in range(15):
        is_in = patient == PATIENTS
        rest, held_out = data[~is_in], data[is_in]
        each, error = found.elpd_i.values[is_in], monte_carlo_error(rest, held_out)
        assert (np.abs(each - exact_elpd(rest, held_out)) < 7 * error).all()
    sums = found.elpd_i.values.reshape(15, 4).sum(1)
    assert found.se == pytest.approx(math.sqrt(15) * sums.std())
    assert found.se > 1.3 * math.sqrt(60) * found.elpd_i.values.std()

    by_rows = bnn.kfold(linear_model(), data, Exact(), folds=15, progress=False)
    with pytest.raises(bnn.InputError, match="examples or groups; got a: 15, b: 60"):
        bnn.compare({"a": found, "b": by_rows})
    wide = bnn.kfold(linear_model(), data, Exact(width=3.0), folds=15, groups=PATIENTS, num_draws=4000, progress=False)
    table = bnn.compare({"usual": found, "wide": wide})
    between = (found.elpd_i.values - wide.elpd_i.values).reshape(15, 4).sum(1)
    assert table["dse"].iloc[1] == pytest.approx(math.sqrt(15) * between.std())
    better = stats.norm.cdf(abs(table["elpd_diff"].iloc[1]) / table["dse"].iloc[1])
    assert table["p_worse"].iloc[1] == pytest.approx(better)


@pytest.fixture(scope="module")
def results():
    exact, narrow = fitted(TRAIN), fitted(TRAIN, width=0.1)
    return {
        "held-out": bnn.heldout_elpd(exact, TEST),
        "held-out, narrow": bnn.heldout_elpd(narrow, TEST),
        "held-out, fewer": bnn.heldout_elpd(exact, TEST[:10]),
        "held-out, others": bnn.heldout_elpd(exact, TRAIN[:20]),
        "loo": bnn.loo(exact, TRAIN),
        "2 folds": bnn.kfold(linear_model(), TRAIN, Exact(), folds=2, progress=False),
        "3 folds": bnn.kfold(linear_model(), TRAIN, Exact(), folds=3, progress=False),
    }


def test_comparison_ranks_and_keeps_every_digit(results):
    pair = {"a": results["held-out, narrow"], "b": results["held-out"]}
    table = bnn.compare(pair)
    best = max(pair, key=lambda name: pair[name].elpd)
    assert table.index[0] == best
    np.testing.assert_array_equal(table.loc[["a", "b"], "elpd"], [pair["a"].elpd, pair["b"].elpd])
    difference = pair["a"].elpd_i.values - pair["b"].elpd_i.values
    other = table.index[1]
    assert table.loc[other, "elpd_diff"] == pytest.approx(-abs(difference.sum()))
    assert table.loc[other, "dse"] == pytest.approx(math.sqrt(20) * difference.std())
    assert table["weight"].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["held-out"], "two or more results, got 1"),
        (["loo", "2 folds"], "different kinds .* loo: LOO under q, 2 folds: loo_kfold with 2 folds"),
        (["held-out", "loo"], "Results of different kinds"),
        (["2 folds", "3 folds"], "loo_kfold with 3 folds"),
        (["held-out", "held-out, fewer"], "on the same examples in the same order only"),
        (["held-out", "held-out, others"], "on the same examples in the same order only"),
    ],
)
def test_what_measures_different_things_is_not_compared(results, names, message):
    with pytest.raises(bnn.InputError, match=message):
        bnn.compare({name: results[name] for name in names})


def test_comparison_refuses_what_is_no_result(results):
    with pytest.raises(bnn.InputError, match="takes results of heldout_elpd, loo or kfold by name, got DataTree"):
        bnn.compare({"a": results["held-out"], "b": az.from_dict({"posterior": {"w": np.zeros((1, 3))}})})
    foreign = copy.deepcopy(results["held-out, fewer"])
    foreign.elpd_i.attrs = {}
    with pytest.raises(bnn.InputError, match="Results rest on different numbers of examples or groups"):
        bnn.compare({"a": results["held-out"], "b": foreign})
