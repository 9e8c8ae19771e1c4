"""Likelihoods of positive targets, shares, whole numbers and any density: against SciPy, Pyro and quadrature."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import nn

import pyrobnn as bnn
from pyrobnn import InputError, Prediction, likelihoods

F64 = torch.float64
F = torch.tensor([[-1.5], [-0.2], [0.0], [0.7], [2.0]], dtype=F64)
POSITIVE = torch.tensor([0.03, 0.9, 1.0, 3.0, 20.0], dtype=F64)
SHARES = torch.tensor([0.001, 0.3, 0.5, 0.9, 0.999], dtype=F64)
COUNTS = torch.tensor([0.0, 0.0, 1.0, 4.0, 30.0], dtype=F64)


def build(setting, columns=1, unit=1.0):
    shape = () if columns == 1 else (columns,)
    return setting.build(torch.zeros((), dtype=F64), torch.full(shape, unit, dtype=F64))


def net(outputs):
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def expit(f):
    return 1 / (1 + np.exp(-f))


def negative_binomial(f, dispersion):
    return stats.nbinom(1 / dispersion, 1 / (1 + dispersion * np.exp(f)))


REFERENCES = {
    "log_normal": (likelihoods.LogNormal(0.4), POSITIVE, lambda f: stats.lognorm(0.4, scale=np.exp(f))),
    "gamma": (likelihoods.Gamma(0.3), POSITIVE, lambda f: stats.gamma(1 / 0.3, scale=0.3 * np.exp(f))),
    "gamma, narrow": (likelihoods.Gamma(1e-5), POSITIVE, lambda f: stats.gamma(1e5, scale=1e-5 * np.exp(f))),
    "beta": (likelihoods.Beta(4.0), SHARES, lambda f: stats.beta(4 * expit(f), 4 * expit(-f))),
    "beta, wide": (likelihoods.Beta(0.5), SHARES, lambda f: stats.beta(0.5 * expit(f), 0.5 * expit(-f))),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_positive_targets_and_shares_agree_with_scipy(name):
    setting, y, reference = REFERENCES[name]
    found, expected = build(setting)(F), reference(F[:, 0].numpy())
    np.testing.assert_allclose(found.log_prob(y), expected.logpdf(y), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.cdf(y), expected.cdf(y), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.icdf(torch.tensor(0.3, dtype=F64)), expected.ppf(0.3), rtol=1e-8)
    np.testing.assert_allclose(found.mean, expected.mean(), rtol=1e-9)
    np.testing.assert_allclose(found.variance, expected.var(), rtol=1e-9)


def test_further_zeros_are_added_to_the_counts():
    gate = torch.tensor([[-2.0], [0.0], [1.0], [0.5], [-1.0]], dtype=F64)
    share = expit(gate[:, 0].numpy())
    for dispersion, base in (
        (0, stats.poisson(np.exp(F[:, 0].numpy()))),
        (0.6, negative_binomial(F[:, 0].numpy(), 0.6)),
    ):
        found = build(likelihoods.ZeroInflated(dispersion))(torch.cat([F, gate], 1))
        probs = (1 - share) * base.pmf(COUNTS) + share * (COUNTS.numpy() == 0)
        np.testing.assert_allclose(found.log_prob(COUNTS), np.log(probs), rtol=1e-10)
        np.testing.assert_allclose(found.cdf(COUNTS), share + (1 - share) * base.cdf(COUNTS), rtol=1e-10)
        np.testing.assert_allclose(found.mean, (1 - share) * base.mean(), rtol=1e-10)
        square = (1 - share) * (base.var() + base.mean() ** 2)
        np.testing.assert_allclose(found.variance, square - found.mean.numpy() ** 2, rtol=1e-10)
        assert (found.cdf(-torch.ones(5)) == 0).all()


def test_mixtures_are_sums_of_their_components():
    f = torch.randn(7, 9, generator=torch.Generator().manual_seed(0), dtype=F64)
    y = torch.linspace(-3, 3, 7, dtype=F64)
    logits, shifts, widths = f.numpy().reshape(7, 3, 3).transpose(1, 0, 2)
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    first = stats.norm.ppf([1 / 6, 0.5, 5 / 6])
    for df, kind in ((None, stats.norm()), (4.0, stats.t(4.0))):
        spread = math.sqrt((1 - (first**2).mean()) / kind.var())
        scale = 1e-3 + np.logaddexp(0, widths + math.log(math.expm1(spread - 1e-3)))
        found = build(likelihoods.MixtureDensity(3, df=df))(f)
        z = (y.numpy()[:, None] - first - shifts) / scale
        np.testing.assert_allclose(found.log_prob(y).exp(), (share * kind.pdf(z) / scale).sum(1), rtol=1e-9)
        prediction = Prediction(found.expand((1, 7)))
        np.testing.assert_allclose(prediction.cdf(y), (share * kind.cdf(z)).sum(1), rtol=1e-9, atol=1e-12)
        quantile = prediction.quantile(0.3)
        np.testing.assert_allclose(prediction.cdf(quantile), 0.3, rtol=1e-9)
        start = build(likelihoods.MixtureDensity(5, df=df))(torch.zeros(1, 15, dtype=F64))
        np.testing.assert_allclose([float(start.mean), float(start.variance)], [0, 1], atol=1e-9)


SETTINGS = {
    "log_normal": (likelihoods.LogNormal(0.4), 1, POSITIVE),
    "gamma": (likelihoods.Gamma(0.4), 1, POSITIVE),
    "mixture_density": (likelihoods.MixtureDensity(2), 6, POSITIVE),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_log_scores_are_densities_in_the_units_of_the_targets(name):
    """The same fit of targets in cents and in euros: log scores differ by log 100, quantiles by 100."""
    setting, outputs, y = SETTINGS[name]
    found, layers = [], net(outputs)
    for unit in (1.0, 100.0):
        model = bnn.BNN(layers, likelihood=setting)
        data = bnn.Data(F, unit * y, standardize=True)
        posterior = model.fit(data, guide="map", steps=30, lr=0.05, seed=0, engine="eager", progress=False)
        prediction = posterior.predict(F)
        found.append((prediction.log_prob(unit * y) + math.log(unit), prediction.quantile(0.9) / unit))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        ("log_normal", [1.0, 0.0], "LogNormal needs positive targets, got 0: for zeros"),
        ("gamma", [1.0, -2.0], "Gamma needs positive targets, got -2"),
        ("beta", [0.0, 0.5], r"Beta needs targets above 0 and below 1, got 0 to 0.5: move 0 and 1 inwards"),
        ("beta", [3.0, 40.0], "got 3 to 40: divide percentages by 100"),
        ("zero_inflated", [1.0, -1.0], "ZeroInflated needs counts from 0 up, got -1"),
        ("mixture_density", [1.0, 2.0], r"MixtureDensity\(components=3, df=None\) needs 9 network output"),
    ],
)
def test_targets_that_cannot_be_are_refused(likelihood, y, message):
    model = bnn.BNN(bnn.MLP(1, [3], 2 if likelihood == "zero_inflated" else 1), likelihood=likelihood)
    with pytest.raises(InputError, match=message):
        model.fit([[0.0], [1.0]], y, steps=1, progress=False)


@pytest.mark.parametrize("number", [1e-9, -1.0])
def test_a_dispersion_is_0_or_large_enough(number):
    with pytest.raises(InputError, match="dispersion"):
        likelihoods.ZeroInflated(dispersion=number)


@pytest.mark.slow
def test_two_branches_are_learned():
    """y = +-sin(x) 2 with noise 0.2, half each; a Gaussian loses 1.3 nats. The truth scores -0.53; 4 errors of 400."""
    g = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(1400, 1, generator=g) - 2
    middle = 2 * x[:, 0].sin() + 1
    sign = 1 - 2 * (torch.rand(1400, generator=g) < 0.5).float()
    y = sign * middle + 0.2 * torch.randn(1400, generator=g)
    likelihood = likelihoods.MixtureDensity(2)
    truth = torch.logaddexp(
        *(torch.distributions.Normal(side * middle, 0.2).log_prob(y) - math.log(2) for side in (1, -1))
    )[1000:]
    model = bnn.BNN(bnn.MLP(1, [30], likelihood.num_outputs(y)), likelihood=likelihood)
    posterior = model.fit(bnn.Data(x[:1000], y[:1000], standardize=True), seed=0, progress=False)
    scores = posterior.predict(x[1000:], num_draws=100, seed=0).log_prob(y[1000:])
    lost = truth - scores
    assert float(lost.mean()) < 0.15 + 4 * float(lost.std()) / 20


def gamma(f):
    return torch.distributions.Gamma(f[..., 0].exp(), f[..., 1].exp())


OWN = {
    "pyro": (lambda f: dist.Gamma(f[..., 0].exp(), f[..., 1].exp()), POSITIVE, 2),
    "torch": (gamma, POSITIVE, 2),
    "counts": (lambda f: dist.Geometric(logits=f[..., 0]), COUNTS.long(), 1),
    "columns": (lambda f: dist.Laplace(f, 1.0).to_event(1), torch.stack([POSITIVE, SHARES], 1), 2),
    "joint": (
        lambda f: dist.MultivariateNormal(f, torch.eye(2, dtype=f.dtype)),
        torch.stack([POSITIVE, SHARES], 1),
        2,
    ),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("guide", ["mean_field", "laplace"])
def test_a_function_to_a_distribution_is_a_likelihood(name, guide):
    """Its log score is the mean over draws of the densities that the function gives for their outputs."""
    function, y, outputs = OWN[name]
    likelihood = likelihoods.resolve(function)
    assert likelihood.num_outputs(y) == outputs
    assert likelihood.integer_targets == (name == "counts")
    model = bnn.BNN(net(outputs), likelihood=function)
    posterior = model.fit(F, y, guide=guide, steps=20, seed=0, progress=False)
    draws = posterior.draw(7, seed=1)
    prediction = posterior.predict(F, draws=draws, linearized=False)
    weights = [{name: value[i] for name, value in draws.items()} for i in range(7)]
    f = torch.stack([posterior.bnn.outputs(each, F) for each in weights])
    expected = torch.stack([function(each).log_prob(y) for each in f]).logsumexp(0) - math.log(7)
    torch.testing.assert_close(prediction.log_prob(y), expected)


def test_a_function_that_does_not_fit_is_refused(tmp_path):
    model = bnn.BNN(bnn.MLP(1, [3], 1), likelihood=gamma)
    with pytest.raises(InputError, match=r"must map outputs \(N, 1\) .* it gives IndexError"):
        model.fit(F, POSITIVE, steps=1, progress=False)
    model = bnn.BNN(bnn.MLP(1, [3], 2), likelihood=gamma)
    with pytest.raises(InputError, match=r"Targets such as -0.03 are impossible under Gamma"):
        model.fit(F, -POSITIVE, steps=1, progress=False)
    posterior = model.fit(F, POSITIVE, steps=1, progress=False)
    with pytest.raises(InputError, match="cannot be written to a file, since it is no setting"):
        posterior.save(tmp_path / "p")
    with pytest.raises(InputError, match="no distribution for targets of shape"):
        likelihoods.FromFunction(lambda f: f).num_outputs(POSITIVE)


def test_baselines_learn_a_number_that_was_known_but_leave_poisson_counts():
    assert likelihoods.LogNormal(0.3).opened() == likelihoods.LogNormal("learned")
    assert likelihoods.ZeroInflated(0.3).opened() == likelihoods.ZeroInflated("learned")
    for setting in (likelihoods.ZeroInflated(0), likelihoods.Gamma("heteroscedastic"), likelihoods.Poisson()):
        assert setting.opened() == setting
