"""Fits that have memorised their targets, or make larger errors than a Gaussian process on rows left out, are told."""

import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import pdist

import pyrobnn as bnn
from pyrobnn.diagnostics.checks import error, missed
from pyrobnn.verdict.baselines import process_scores
from pyrobnn.verdict.evidence import Budget, Evidence
from pyrobnn.verdict.scores import left_out_linearised

WORDS = "The fit has memorised its targets"


def sines(num, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, 3))
    return bnn.Data(x, np.sin(2 * x[:, 0]) + x[:, 1] + noise * rng.normal(size=num), standardize=True)


def halves(num=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, 2))
    return bnn.Data(x, (x[:, 0] + rng.normal(size=num) > 0).astype(int), standardize=True)


def fit(data, guide, likelihood, steps, *, scale=1.0, outputs=1):
    model = bnn.BNN(bnn.MLP(data.x.shape[1], [50], outputs), likelihood=likelihood, prior=bnn.priors.Normal(scale))
    return bnn.fit(model, data, bnn.SVI(guide=guide, steps=steps), seed=0, engine="captured")


@pytest.mark.parametrize("guide", ["map", "laplace"])
def test_scores_of_a_linear_model_are_exact(guide):
    """Against a fit without each row in closed form; 512 draws of the outputs leave 0.02 nats (4 standard errors)."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 2))
    y = x @ [1.0, -2.0] + 0.5 * rng.normal(size=30)
    net = torch.nn.Linear(2, 1, bias=False).double()
    model = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(0.5), prior=bnn.priors.Normal(2.0))
    method = bnn.SVI(guide=guide, steps=3000, lr=0.01, schedule="cosine_annealing_lr")
    data = bnn.Data(x, y, standardize=False)
    found = left_out_linearised(bnn.fit(model, data, method, seed=0, progress=False), data)
    expected = []
    for row in range(30):
        kept = np.arange(30) != row
        covariance = np.linalg.inv(x[kept].T @ x[kept] / 0.25 + np.eye(2) / 4)
        mean = x[row] @ covariance @ x[kept].T @ y[kept] / 0.25
        spread = np.sqrt(x[row] @ covariance @ x[row] + 0.25)
        expected.append(stats.norm.logpdf(y[row], mean, spread))
    np.testing.assert_allclose(found.numpy(), expected, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guide", "likelihood", "num", "is_told"),
    [
        ("map", bnn.likelihoods.Gaussian("learned"), 60, True),
        ("laplace", bnn.likelihoods.Gaussian("learned"), 60, True),
        ("map", bnn.likelihoods.Gaussian(0.01), 60, True),
        ("map", bnn.likelihoods.StudentT(scale="learned"), 60, True),
        ("map", bnn.likelihoods.Gaussian(0.3), 200, False),
        ("laplace", bnn.likelihoods.Gaussian(0.3), 60, False),
        ("mean_field", bnn.likelihoods.Gaussian("learned"), 60, False),
        ("map", bnn.likelihoods.Gaussian("heteroscedastic"), 100, True),
        ("laplace", bnn.likelihoods.Gaussian("heteroscedastic"), 100, False),
    ],
)
def test_noise_that_is_too_small_is_told(guide, likelihood, num, is_told):
    train = sines(num)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        posterior = fit(train, guide, likelihood, 4000, outputs=1 + (likelihood.scale == "heteroscedastic"))
    found = bnn.diagnose(posterior, train, sines(100, seed=1), num_draws=20)
    assert ("memorised" in found.names) == is_told
    assert any(WORDS in str(one.message) for one in told) == is_told


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "is_told"), [(10.0, True), (0.5, False)])
def test_labels_learned_by_heart_are_told(scale, is_told):
    posterior = fit(halves(), "map", "categorical", 4000, scale=scale, outputs=2)
    found = bnn.diagnose(posterior, halves(), halves(100, seed=1), num_draws=20)
    assert ("memorised" in found.names) == is_told


@pytest.mark.slow
def test_predictions_without_spread_are_judged():
    """Targets cut off below, of which a point with hardly any noise predicts many to be the bound itself."""
    data = sines(60)
    data = bnn.Data(data.x, data.y.clamp(-0.5), standardize=True)
    likelihood = bnn.likelihoods.CensoredGaussian(lower=-0.5, scale=1e-3)
    with pytest.warns(bnn.PoorFitWarning, match=WORDS):
        fit(data, "map", likelihood, 2000)


@pytest.mark.slow
def test_members_share_their_scores_and_what_costs_too_much_is_left():
    data = sines(40)
    model = bnn.BNN(bnn.MLP(3, [5], 1), prior=bnn.priors.Normal(1.0))
    method = bnn.Ensemble(members=2, method=bnn.SVI(guide="map", steps=50))
    mixture = bnn.fit(model, data, method, seed=0, progress=False)
    own = torch.stack([left_out_linearised(member, data) for member in mixture.members])
    torch.testing.assert_close(left_out_linearised(mixture, data), own.logsumexp(0) - np.log(2))
    chains = bnn.SGLD(step_size=1e-5, num_draws=3, burn_in=2, thinning=1, num_chains=1)
    assert left_out_linearised(bnn.fit(model, data, chains, seed=0, progress=False), data) is None
    wide = bnn.BNN(bnn.MLP(3, [2000], 1), prior=bnn.priors.Normal(1.0))
    many = sines(3000)
    fitted = bnn.fit(wide, many, bnn.SVI(guide="map", steps=1, batch_size=10), seed=0, progress=False)
    assert left_out_linearised(fitted, many) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "noise", "num"),
    [
        (lambda x: np.sin(2.5 * x), 0.0, 25),
        (lambda x: x**3, 0.0, 25),
        (lambda x: np.sin(2 * x), 0.1, 25),
        (lambda x: np.tanh(20 * x), 0.3, 40),
        (lambda x: np.sin(3 * x), 0.5, 100),
    ],
)
def test_good_fits_of_little_noise_have_memorised_nothing(function, noise, num):
    """They score 500 new targets above a constant; at seed 3."""
    rng = np.random.default_rng(3)
    x, new = rng.uniform(-2, 2, (num, 1)), rng.uniform(-2, 2, (500, 1))
    y, expected = (function(values[:, 0]) + noise * rng.normal(size=len(values)) for values in (x, new))
    posterior = bnn.fit(bnn.BNN(bnn.MLP(1, [50], 1)), (x, y), seed=0, progress=False)
    score = float(posterior.predict(new).log_prob(expected).mean())
    assert score > stats.norm.logpdf(expected, y.mean(), y.std()).mean()
    assert "memorised" not in bnn.diagnose(posterior, (x, y)).names


def waves(num, seed, noise=0.1):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(num, 2, generator=g, dtype=torch.float64) * 4 - 2
    return x, torch.sin(2 * x[:, 0]) + x[:, 1] + noise * torch.randn(num, generator=g, dtype=torch.float64)


def fit_of(weight, x, y):
    """A point at a line through the second input, of this slope in standard units."""
    model = bnn.BNN(bnn.MLP(2, [], 1), likelihood=bnn.likelihoods.Gaussian(0.5), prior=bnn.priors.Normal(1.0))
    weights = {"0.weight": torch.tensor([[0.0, weight]]), "0.bias": torch.zeros(1)}
    return bnn.guides.Map().around(model, bnn.Data(x, y, standardize=True), weights=weights, progress=False)


def judged(fit, data):
    return Evidence(fit, data, budget=Budget(draws=2, rows=500, level=0.0))


def test_a_line_through_waves_is_named_and_through_a_line_is_not():
    x, y = waves(60, 0)
    data = bnn.Data(x, y, standardize=True)
    found = missed(judged(fit_of(0.9, x, y), data))
    own = bnn.calibrate(fit_of(0.9, x, y), data).predict(x).log_prob(y).double().mean()
    assert found.value == pytest.approx(float(process_scores(x, y)[1].mean() - own), rel=1e-4)
    line = x[:, 1] + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slope = float(x[:, 1].std() / line.std())
    assert missed(judged(fit_of(slope, x, line), bnn.Data(x, line, standardize=True))) is None
    assert missed(judged(fit_of(0.9, x, y), data[:19])) is None


def test_rows_held_out_are_compared_where_there_are_any():
    (x, y), test = waves(60, 0, noise=0.5), waves(40, 1, noise=0.5)
    data, fit = bnn.Data(x, y, standardize=True), fit_of(0.9, x, y)
    assert missed(judged(fit, data)).severity == "note"
    found = missed(Evidence(fit, data, bnn.Data(*test), budget=Budget(draws=2, level=0.0)))
    own = bnn.calibrate(fit, test).predict(test[0]).log_prob(test[1]).double()
    assert found.value == pytest.approx(float((process_scores(x, y)[0](*test) - own).mean()), rel=1e-4)
    assert found.facts["rows"] == "40 held-out examples"


def test_a_process_scores_rows_left_out_and_new_ones_as_that_of_scikit_learn(monkeypatch):
    from sklearn.gaussian_process import GaussianProcessRegressor, kernels

    monkeypatch.setattr("pyrobnn.verdict.baselines._SQUARED_LENGTHS", (0.5,))
    monkeypatch.setattr("pyrobnn.verdict.baselines._RELATIVE_NOISES", (0.1,))
    (x, y), (new, targets) = waves(20, 0), waves(10, 1)
    score, left_out = process_scores(x, y)
    at, there = (((inputs - x.mean(0)) / x.std(0)).numpy() for inputs in (x, new))
    off = (y - y.mean()).numpy()
    length = np.sqrt(float(torch.tensor(pdist(at, "sqeuclidean")).median()) / 2)
    kernel = kernels.RBF(length) + kernels.WhiteKernel(0.1)
    variance = off @ np.linalg.solve(kernel(at), off) / 20

    def expected(kept, rows, values):
        process = GaussianProcessRegressor(variance * kernel, alpha=0, optimizer=None).fit(at[kept], off[kept])
        mean, spread = process.predict(rows, return_std=True)
        return stats.norm.logpdf(values, mean, spread)

    found = [expected(np.arange(20) != row, at[[row]], off[row])[0] for row in range(20)]
    np.testing.assert_allclose(left_out, found, atol=1e-6)
    everywhere = expected(np.arange(20) >= 0, there, targets.numpy() - y.mean().item())
    np.testing.assert_allclose(score(new, targets), everywhere, atol=1e-6)


def test_copies_do_not_tell_the_process_the_target():
    """Noise alone: 30 rows twice each, so that a row left out has its copy among the others."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 2, generator=g).repeat(2, 1), torch.randn(30, generator=g).repeat(2)
    assert float(process_scores(x, y.double())[1].mean()) > stats.norm.logpdf(y, y.mean(), y.std()).mean() + 1
    data = bnn.Data(x, y, standardize=True)
    assert missed(judged(fit_of(0.0, x, y), data)) is None


def test_diagnose_warns_of_it_where_no_other_check_of_the_predictions_does():
    (x, y), test = waves(60, 0), waves(60, 1)
    for slope, is_missed in ((0.9, True), (0.0, False)):
        fit = fit_of(slope, x, y)
        found = bnn.diagnose(fit, (x, y), test, num_draws=20)
        assert ("missed" in found.names) == is_missed != bool({"constant", "linear"} & {*found.names})


@pytest.mark.parametrize("what", ["weights", "counts", "columns", "limits"])
def test_nothing_is_said_of_other_targets(what):
    x, y = waves(60, 0)
    likelihood = {"counts": "poisson", "limits": bnn.likelihoods.CensoredGaussian(upper=1.0)}.get(what, "gaussian")
    model = bnn.BNN(bnn.MLP(2, [], 2 if what == "columns" else 1), likelihood=likelihood)
    columns, limited = torch.stack([y, y], 1), y.clamp_max(1.0)
    targets = {"weights": y, "counts": y.abs().round(), "columns": columns, "limits": limited}[what]
    data = bnn.Data(x, targets, weights=torch.ones(60) if what == "weights" else None)
    fit = model.fit(data, guide="map", steps=1, progress=False)
    assert missed(judged(fit, data)) is None


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_a_mean_that_is_further_from_the_targets_than_a_line_is_named_though_scores_are_good(scale):
    """A line through the logarithm, whose slope is right or far too steep, under noise that takes either."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1, generator=g, dtype=torch.float64)
    y = (x[:, 0] + 0.5 * torch.randn(300, generator=g, dtype=torch.float64)).exp()
    train, test = (bnn.Data(x[rows], y[rows], standardize=False) for rows in (slice(200), slice(200, None)))
    net, noise = bnn.MLP(1, [], 1, dtype="float64"), bnn.likelihoods.LogNormal(0.5)
    model = bnn.BNN(net, likelihood=noise, prior=bnn.priors.Normal(1.0))
    weights = {"0.weight": torch.tensor([[scale]]), "0.bias": torch.zeros(1)}
    fit = bnn.guides.Map().around(model, train, weights=weights, progress=False)
    evidence = Evidence(fit, train, test, Budget(level=0.0))
    found = error(evidence)
    assert (found is not None) == (scale > 1)
    if found is not None:
        own = float((fit.predict(test.x).mean - test.y).square().mean().sqrt())
        assert (found.value, found.facts["rival"]) == (pytest.approx(own, rel=1e-6), "an ordinary linear model")
    # apart from the penalty, of targets that spread by 2
    line = np.polyval(np.polyfit(x[:200, 0], y[:200], 1), x[:, 0])
    assert evidence.least_squares.predict(x).mean.reshape(-1).numpy() == pytest.approx(line, abs=0.2)
