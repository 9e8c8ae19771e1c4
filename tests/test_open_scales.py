"""Scales that a model leaves open, and methods that nobody chose."""

import dataclasses
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize, stats
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn.inference.method import Run
from pyrobnn.inference.scales.fixed_point import Rows
from pyrobnn.inference.scales.measure import measure
from pyrobnn.priors.base import scale_of

ROWS, COLUMNS = 60, 3
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(ROWS, COLUMNS))
Y = X @ [1.0, -0.5, 0.0] + 0.4 * _RNG.normal(size=ROWS)
TUNED = bnn.priors.Normal()


def linear():
    return nn.Linear(COLUMNS, 1, bias=False, dtype=torch.float64)


def closed(likelihood="gaussian", prior=TUNED, data=(X, Y), net=None):
    model = bnn.BNN(net or linear(), prior=prior, likelihood=likelihood)
    return measure(model, bnn.Data(*data), Run(seed=0, progress=False), starts_there=True)


def most_probable(held=None):
    """Scales of the inputs and noise of largest evidence, N(y; 0, X diag(s^2) X^T + noise^2 I), by SciPy.

    As for chains, a scale is at least 0.05.
    """

    def loss(logs):
        scale, noise = (np.full(COLUMNS, held), np.exp(logs[0])) if held else (np.exp(logs[1:]), np.exp(logs[0]))
        return -stats.multivariate_normal(cov=X * scale**2 @ X.T + noise**2 * np.eye(ROWS)).logpdf(Y)

    first, options = np.zeros(1 if held else 1 + COLUMNS), {"maxiter": 5000, "xatol": 1e-6, "fatol": 1e-10}
    noise, *scales = np.exp(optimize.minimize(loss, first, method="Nelder-Mead", options=options).x)
    return np.maximum(scales, 0.05), noise


def test_scales_of_a_linear_model_are_those_of_largest_evidence():
    found = closed().bnn.settings
    (prior,) = dict(found["prior"].choices).values()
    scales, noise = most_probable()
    np.testing.assert_allclose(prior.scale, scales, rtol=5e-3)
    np.testing.assert_allclose(found["likelihood"].scale, noise, rtol=2e-3)
    anchored = closed(prior=bnn.priors.Anchored(TUNED)).bnn.settings["prior"]
    np.testing.assert_allclose(dict(anchored.choices)["weight"].prior.scale, prior.scale, rtol=1e-8)


@pytest.mark.measured
@pytest.mark.parametrize(("kind", "law"), [("half_cauchy", stats.halfcauchy), ("log_normal", stats.lognorm(0.5))])
def test_scales_that_are_inferred_are_kept_where_they_are_most_probable_for_the_scales_measured(kind, law):
    scales = np.array(dict(closed().bnn.settings["prior"].choices)["weight"].scale)
    expected = optimize.minimize_scalar(
        lambda log: COLUMNS * log + (scales**2).sum() / (2 * np.exp(2 * log)) - law.logpdf(np.exp(log)) - log
    ).x  # fmt: skip
    prior = bnn.priors.Hierarchical(kind)
    model = bnn.BNN(linear(), prior=prior)
    found = measure(model, bnn.Data(X, Y), Run(seed=0, progress=False), bnn.SVI(), starts_there=True).bnn
    np.testing.assert_allclose(float(found.kept_sites["prior.weight.scale"].log()), expected, atol=1e-4)
    posterior = model.fit(X, Y, steps=50, lr=0.1, seed=0, progress=False)
    np.testing.assert_allclose(float(posterior.guide.moments()["prior.weight.scale"][0]), expected, atol=1e-4)


@pytest.mark.parametrize(("prior", "field"), [("scale_mixture", "sigma1"), ("spike_and_slab", "slab_scale")])
def test_the_wider_scale_of_a_mixture_is_measured(prior, field):
    model = closed(prior=prior).bnn
    scales = dict(closed().bnn.settings["prior"].choices)["weight"].scale
    (setting,) = dict(model.settings["prior"].choices).values()
    np.testing.assert_allclose(getattr(setting, field), scales, rtol=1e-8)
    law = model.prior("weight", model.initial_values["weight"]).base_dist
    np.testing.assert_allclose(law.sigma1.tolist(), scales, rtol=1e-8)
    torch.testing.assert_close(law.sigma2, law.sigma1 / 10)


def test_a_prior_with_a_number_keeps_it_and_the_noise_goes_with_it():
    found = closed(prior=bnn.priors.Normal(0.3)).bnn.settings
    assert found["prior"] == bnn.priors.Normal(0.3)
    np.testing.assert_allclose(found["likelihood"].scale, most_probable(held=0.3)[1], rtol=2e-3)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_noise_of_a_few_rows_is_measured_or_stays(rows):
    """A fifth of so few rows is none, to look at noise on."""
    net = bnn.MLP(X.shape[1], [2], 1, dtype="float64").build()
    found = closed(likelihood="laplace", data=(X[:rows], Y[:rows]), net=net).bnn.settings["likelihood"]
    assert 0 < found.scale < np.inf


def test_few_labels_pull_the_prior_towards_one():
    """The fixed point of Laplace's evidence and gamma priors of shape 2.5 and mean 1 of the precisions, by SciPy."""
    labels = (Y > 0).astype(int)
    (prior,) = dict(closed(likelihood="bernoulli", data=(X, labels)).bnn.settings["prior"].choices).values()
    x = bnn.Data(X, labels).x.double().numpy()

    def mode(precision):
        def loss(w):
            return np.logaddexp(0, -(2 * labels - 1) * (x @ w)).sum() + precision @ w**2 / 2

        return optimize.minimize(loss, np.zeros(COLUMNS), tol=1e-10).x

    precision = np.ones(COLUMNS)
    for _ in range(50):
        w = mode(precision)
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x.T * (p * (1 - p))) @ x
        gamma = 1 - precision * np.linalg.inv(hessian + np.diag(precision)).diagonal()
        precision = (gamma + 5) / (w**2 + 5)
    np.testing.assert_allclose(prior.scale, precision**-0.5, rtol=1e-2)


def test_other_noise_than_gaussian_is_tuned_by_em():
    """Student-t noise of many degrees of freedom is Gaussian; 64 draws in mirrored pairs leave 1 % (seed 0)."""
    found = closed(likelihood=bnn.likelihoods.StudentT(df=1e6)).bnn.settings
    np.testing.assert_allclose(found["likelihood"].scale, most_probable()[1], rtol=0.02)


@pytest.mark.one_in(0, 2)
@pytest.mark.parametrize(
    ("likelihood", "noise"),
    [
        (bnn.likelihoods.StudentT(df=3.0), lambda g, n: g.standard_t(3.0, n)),
        (bnn.likelihoods.Laplace(), lambda g, n: g.laplace(size=n)),
        (bnn.likelihoods.CensoredGaussian(upper=1.0), lambda g, n: g.normal(size=n)),
    ],
    ids=["student_t", "laplace", "censored"],
)
def test_noise_is_found_again(likelihood, noise):
    """Of 500 rows the scale has a standard error of about 4 %; within four of them (seed 1)."""
    g = np.random.default_rng(1)
    x = g.normal(size=(500, COLUMNS))
    y = x @ [1.0, -0.5, 0.0] + 0.4 * noise(g, 500)
    if isinstance(likelihood, bnn.likelihoods.CensoredGaussian):
        y = np.minimum(y, 1.0)
    assert closed(likelihood=likelihood, data=(x, y)).bnn.settings["likelihood"].scale == pytest.approx(0.4, rel=0.16)


@pytest.mark.slow
def test_dispersion_is_found_again():
    """Of 500 counts the dispersion has a standard error of about 12 % (seed 2)."""
    g = np.random.default_rng(2)
    x = g.normal(size=(500, COLUMNS))
    mean = np.exp(1.0 + 0.3 * x[:, 0])
    y = g.poisson(mean * g.gamma(2.0, 0.5, 500))
    found = closed(likelihood="negative_binomial", data=(x, y), net=bnn.MLP(COLUMNS, [], 1, dtype="float64"))
    assert found.bnn.settings["likelihood"].dispersion == pytest.approx(0.5, rel=0.4)


def test_noise_under_a_prior_stays_a_site():
    noise = {"type": "half_normal", "scale": 1.0}
    found = closed(likelihood=bnn.likelihoods.Gaussian(scale=noise)).bnn.settings
    assert found["likelihood"] == bnn.likelihoods.Gaussian(scale=noise)
    (prior,) = dict(found["prior"].choices).values()
    np.testing.assert_allclose(prior.scale, most_probable()[0], rtol=5e-3)


def test_what_is_not_open_or_cannot_be_looked_at_stays():
    assert closed(likelihood=bnn.likelihoods.Gaussian(0.3), prior=bnn.priors.Normal(1.0)).record is None
    model = bnn.BNN(bnn.MLP(COLUMNS, [4], 1), prior={"2.*": bnn.priors.Normal(1.0), "*": None})
    run = Run(seed=0, progress=False)
    assert measure(model, bnn.Data(X, Y), run, starts_there=True).record is None
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)), 10)
    assert measure(bnn.BNN(linear()), loader, run, starts_there=True).record is None
    images = bnn.BNN(nn.Sequential(nn.Flatten(), nn.Linear(1600, 2**11), nn.ReLU(), nn.Linear(2**11, 1)))
    pixels = bnn.Data(torch.rand(20, 40, 40), torch.zeros(20))
    assert measure(images, pixels, run, starts_there=True).record is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden",
    [pytest.param([300] * 3, id="the search finds little"), pytest.param([2**20], id="too large to look at")],
)
def test_a_linear_model_tells_the_noise_where_the_search_finds_less_or_costs_too_much(hidden):
    """The noise of 0.4 within 4 standard errors of 60 rows; the prior stays open where nothing was looked at."""
    found = closed(net=bnn.MLP(COLUMNS, hidden, 1)).bnn
    assert found.settings["likelihood"].scale == pytest.approx(0.4, abs=4 * 0.4 / np.sqrt(2 * ROWS))
    assert (found.settings["prior"] == TUNED) == (hidden == [2**20])


@pytest.mark.slow
def test_targets_without_a_signal_have_their_spread_for_noise():
    y = np.random.default_rng(2).normal(size=ROWS)
    found = closed(net=bnn.MLP(COLUMNS, [20], 1), data=(X, y)).bnn
    assert found.settings["likelihood"].scale == pytest.approx(y.std(), rel=0.15)


def test_more_rows_than_are_looked_at_leave_the_noise_to_the_guide():
    g = np.random.default_rng(3)
    x = g.normal(size=(2000, COLUMNS))
    found = closed(data=(x, x @ [1.0, -0.5, 0.0] + 0.4 * g.normal(size=2000))).bnn
    assert found.settings["likelihood"].scale == "tuned"
    found.scale_targets(torch.tensor(1.0))
    copied = found.fresh()
    copied.scale_targets(torch.tensor(1.0))
    start, copied = (model.likelihood.scale.detach() for model in (found, copied))
    assert float(start) == pytest.approx(0.4, rel=0.15)
    assert torch.equal(start, copied)


@dataclasses.dataclass(frozen=True)
class Silent(bnn.priors.SitePrior):
    """A prior of another package, whose field `scale` could mean anything."""

    scale: Any = "tuned"

    def site(self, name, value):
        return dist.Normal(value.new_tensor(0.0), scale_of(self.scale, value))


class Says(Silent):
    """The same, which says that its scale is open."""

    has_open_scale = True


def test_a_prior_of_another_package_may_say_that_its_scale_is_open():
    (said,) = dict(closed(prior=Says()).bnn.settings["prior"].choices).values()
    assert type(said) is Says
    np.testing.assert_allclose(said.scale, most_probable()[0], rtol=5e-3)
    assert closed(prior=Silent()).bnn.settings["prior"] == Silent()


def test_a_tuned_prior_keeps_its_mean():
    prior = bnn.priors.Normal(loc=0.5)
    (found,) = dict(closed(prior=prior).bnn.settings["prior"].choices).values()
    around = np.linalg.inv(X.T @ X) @ X.T @ Y
    assert found.loc == 0.5
    np.testing.assert_allclose(found.scale, np.abs(around - 0.5), rtol=0.5, atol=0.06)


class Packed(bnn.inference.BaseMethod):
    """A method of another package, whose record says nothing of scales."""

    def offer(self):
        return bnn.inference.Offer(wants_measured_scales=True)

    def infer(self, model, data, run):
        return bnn.Mixture([bnn.SVI(steps=1).infer(model, data, run)])


def test_the_record_of_any_method_and_its_members_has_the_measured_scales():
    mixture = bnn.fit(bnn.BNN(linear(), prior=TUNED), bnn.Data(X, Y), Packed(), seed=0, progress=False)
    for one in (mixture, *mixture.members):
        assert (one.record.measured, one.record.evidence.members) == (["scale"], [])
        assert isinstance(one.bnn.settings["likelihood"].scale, float)


@pytest.mark.slow
def test_replicates_have_the_scales_of_a_single_fit():
    model, data = bnn.BNN(bnn.MLP(COLUMNS, [4], 1)), bnn.Data(X, Y)
    arguments = {"seed": 0, "engine": "eager", "progress": False}
    pair = bnn.fit_replicates(model, data, bnn.SVI(max_steps=4), replicates=2, **arguments)
    alone = bnn.fit(model, data, bnn.SVI(max_steps=4), **arguments)
    assert [one.bnn.settings["likelihood"] for one in (*pair, alone)] == 3 * [pair[0].bnn.settings["likelihood"]]
    assert isinstance(pair[0].bnn.settings["likelihood"].scale, float)
    assert all(one.record.evidence is not None for one in pair)
    other = bnn.Data(X, 3 * Y)
    first, second = bnn.fit_replicates(model, [data, other], bnn.SVI(max_steps=4), **arguments)
    ratio = second.bnn.settings["likelihood"].scale / first.bnn.settings["likelihood"].scale
    assert ratio == pytest.approx(3, rel=0.3)


def test_bad_parts_are_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr("pyrobnn.inference.scales.measure.tuned_modes", None)
    with pytest.raises(InputError, match="nothing"):
        bnn.BNN(bnn.MLP(COLUMNS, [4], 1)).fit(X, Y, guide={"nothing.*": "map", "*": "mean_field"}, seed=0)


def test_a_guide_with_a_spread_has_wider_noise_by_what_independent_weights_spend():
    """A linear model in closed form, and a network of more weights than rows, whose noise is a fifth wider at most."""

    def noise(guide, rows, net):
        method = bnn.SVI(guide=guide, max_steps=1)
        fitted = bnn.fit(bnn.BNN(net), (X[:rows], Y[:rows]), method, seed=0, progress=False)
        return fitted.bnn.settings["likelihood"].scale

    scales, deviation = most_probable()
    information = (X**2).sum(0) / deviation**2
    exact = np.linalg.inv(X.T @ X / deviation**2 + np.diag(scales**-2.0)).diagonal()
    more = (information / (information + scales**-2.0)).sum() - (1 - exact / scales**2).sum()
    wider = deviation * np.sqrt(1 + more / ROWS)
    assert noise("mean_field", ROWS, linear()) == pytest.approx(wider, rel=2e-3)
    assert noise("map", ROWS, linear()) == pytest.approx(deviation, rel=2e-3)
    point, spread = (noise(guide, 20, bnn.MLP(COLUMNS, [30], 1)) for guide in ("map", "mean_field"))
    assert spread == pytest.approx(1.2 * point)


@pytest.mark.one_in(0, 4)
@pytest.mark.parametrize("guide", ["mean_field", "low_rank", "full_rank", "matrix_normal", "radial", "dropout", "map"])
def test_no_guide_by_its_name_collapses_on_the_cubic(guide):
    """Noise learned. NUTS has an error of 2 to 3 inside the data; the curve's own spread is 24."""
    g = np.random.default_rng(0)
    x = g.uniform(-4, 4, (20, 1))
    cubic = bnn.Data(x, x[:, 0] ** 3 + 3 * g.normal(size=20), standardize=True)
    found = bnn.BNN(bnn.MLP(1, [100], 1)).fit(cubic, guide=guide, max_steps=20_000, seed=0, progress=False)
    x = np.linspace(-4, 4, 100)[:, None]
    prediction = found.predict(x, num_draws=200)
    assert np.sqrt(np.mean((prediction.mean.numpy() - x[:, 0] ** 3) ** 2)) < 5
    assert float(prediction.epistemic_std.mean()) < 7


def test_swag_finds_a_rate_that_neither_leaves_the_mode_nor_stays_a_point():
    """Known noise of 0.01 has a steep loss: the path at the rate 0.01 leaves the mode."""
    model = bnn.BNN(linear(), likelihood=bnn.likelihoods.Gaussian(0.01), prior=bnn.priors.Normal(1.0))
    y = X @ [1.0, -0.5, 0.0] + 0.01 * np.random.default_rng(4).normal(size=ROWS)
    mode = bnn.SVI(guide="map", steps=500, lr=0.05, schedule="cosine_annealing_lr")
    with pytest.raises(FloatingPointError, match="left the mode"):
        bnn.fit(model, (X, y), bnn.SWAG(mode, lr=0.01), seed=0, progress=False)
    found = bnn.fit(model, (X, y), bnn.SWAG(mode, rank=10), seed=0, progress=False)
    exact = np.sqrt(np.diag(np.linalg.inv(X.T @ X / 0.01**2 + np.eye(COLUMNS))))
    drawn = found.draw(2000, seed=0)["weight"].reshape(2000, -1).std(0).numpy()
    assert (drawn / exact > 0.2).all()
    assert (drawn / exact < 5).all()


@pytest.mark.one_in(0, 3)
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
@pytest.mark.parametrize("guide", ["mean_field", "map"])
def test_weights_that_take_up_most_targets_do_not_choose_the_noise(likelihood, guide):
    """60 rows of 100 columns: a constant has a log score of -2.1, and noise of a tenth of the spread one of -240."""
    rng = np.random.default_rng(1000)
    x = rng.normal(size=(1060, 100))
    y = x[:, :5] @ [1, -1, 1, 0.5, 0.5] + 0.5 * rng.normal(size=1060)
    model = bnn.BNN(bnn.MLP(100, [20], 1), likelihood=likelihood)
    data = bnn.Data(x[:60], y[:60], standardize=True)
    posterior = bnn.fit(model, data, bnn.SVI(guide=guide), seed=0, progress=False)
    assert float(posterior.predict(x[60:]).log_prob(torch.tensor(y[60:])).mean()) > -2.42


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["negative_binomial", "zero_inflated"])
@pytest.mark.parametrize("num", [0, 1])
def test_counts_that_are_all_zero_or_but_one_have_a_mean_near_them(likelihood, num):
    """The likelihood alone has no largest dispersion there: any mean fits. Poisson has 0.0092 for 1 in 200 rows."""
    x, y = np.random.default_rng(0).normal(size=(200, 3)), np.zeros(200, dtype=int)
    y[7] = num
    regressor = bnn.BNNRegressor(likelihood=likelihood, random_state=0).fit(x, y)
    mean, std = regressor.predict(x, return_std=True)
    assert 0 <= mean.min() <= mean.max() < 0.02
    assert std.max() < 0.2
    assert float(regressor.predict_dist(x).mean.max()) < 0.02


def test_dispersions_are_limited_only_where_counts_show_none():
    generator = np.random.default_rng(0)
    for dispersion in (0.1, 1.0, 20.0):
        y = torch.tensor(generator.negative_binomial(1 / dispersion, 1 / (1 + dispersion * 3.0), 2000))
        assert Rows(y[:, None], (y,)).most_dispersed > 1.5 * dispersion
    for y in (torch.zeros(50), torch.eye(50)[0]):
        assert Rows(y[:, None], (y,)).most_dispersed.tolist() == [1.0]
        assert Rows(y[:, None], (y, torch.full((50,), 2.0))).most_dispersed.tolist() == [1.0]
