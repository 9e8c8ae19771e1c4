"""Fits recover what simulated data came from: maximum likelihood and its Fisher error, the posterior by quadrature.

The prior of a linear network has a standard deviation of 100, so that its MAP is SciPy's maximum of the likelihood.
"""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from test_likelihoods import counted
from torch import nn

import pyrobnn as bnn
from pyrobnn.likelihoods import CensoredGaussian, Gaussian, MixtureDensity, NegativeBinomial, Ordinal, StudentT, noise

NUM = 400
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(NUM, 2))
WEIGHTS, BIAS = np.array([0.5, -0.3]), 1.0
F = X @ WEIGHTS + BIAS
DISPERSION, SCALE, CUTS, LIMIT = 0.4, 0.8, np.array([-0.5, 1.0, 2.0]), 0.5


def predictor(theta):
    return X @ theta[:2] + theta[2]


def cumulative_logits(y, position, cuts):
    cumulative = np.column_stack([np.zeros(NUM), special.expit(cuts - position[:, None]), np.ones(NUM)])
    return np.log(np.diff(cumulative, axis=1)[np.arange(NUM), y])


def tobit(y, loc, scale):
    return np.where(y <= LIMIT, stats.norm.logcdf(LIMIT, loc, scale), stats.norm.logpdf(y, loc, scale))


CASES = {
    "negative_binomial": (
        NegativeBinomial(),
        GENERATOR.negative_binomial(1 / DISPERSION, 1 / (1 + DISPERSION * np.exp(F))),
        [*WEIGHTS, BIAS, math.log(DISPERSION)],
        lambda y, t: counted(predictor(t), math.exp(t[3])).logpmf(y),
        lambda likelihood: [likelihood.dispersion.log()],
    ),
    "ordinal": (
        Ordinal(4),
        (X @ WEIGHTS + GENERATOR.logistic(size=NUM) > CUTS[:, None]).sum(0),
        [*WEIGHTS, *CUTS],
        lambda y, t: cumulative_logits(y, X @ t[:2], t[2:]),
        lambda likelihood: [likelihood.first_cut[0], *(likelihood.first_cut + likelihood.gaps.cumsum(0))],
    ),
    "student_t": (
        StudentT(df=3.0),
        F + SCALE * GENERATOR.standard_t(3.0, size=NUM),
        [*WEIGHTS, BIAS, math.log(SCALE)],
        lambda y, t: stats.t.logpdf(y, 3.0, predictor(t), math.exp(t[3])),
        lambda likelihood: [likelihood.scale.log()],
    ),
    "censored_gaussian": (
        CensoredGaussian(lower=LIMIT),
        np.maximum(F + SCALE * GENERATOR.normal(size=NUM), LIMIT),
        [*WEIGHTS, BIAS, math.log(SCALE)],
        lambda y, t: tobit(y, predictor(t), math.exp(t[3])),
        lambda likelihood: [likelihood.scale.log()],
    ),
}


def hessian(function, at, step=1e-3):
    def mixed(a, b):
        return sum(s * r * function(at + s * a + r * b) for s in (-1, 1) for r in (-1, 1)) / (4 * step**2)

    shifts = step * np.eye(len(at))
    return np.array([[mixed(a, b) for b in shifts] for a in shifts])


def estimate(name):
    """Return the fit, the maximum of the likelihood, its standard errors and the truth."""
    setting, y, truth, log_prob, own = CASES[name]

    def loss(theta):
        return -log_prob(y, theta).sum()

    best = optimize.minimize(loss, truth, method="BFGS", options={"gtol": 1e-6}).x
    net = nn.Linear(2, 1, bias=name != "ordinal").double()
    model = bnn.BNN(net, prior=bnn.priors.Normal(100.0), likelihood=setting)
    decay = {"type": "exponential_lr", "gamma": 1e-3 ** (1 / 500)}
    settings = {"guide": "map", "steps": 500, "lr": 0.1, "schedule": decay, "engine": "captured"}
    posterior = model.fit(X, y, seed=0, progress=False, **settings)
    with torch.no_grad():
        fitted = torch.cat([*(v.flatten() for v in posterior.mean().values()), *(
            value.flatten() for value in own(posterior.bnn.likelihood)
        )])  # fmt: skip
    return fitted.numpy(), best, np.sqrt(np.diag(np.linalg.inv(hessian(loss, best)))), np.array(truth)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_fit_recovers_the_truth_as_maximum_likelihood_does(name):
    fitted, best, errors, truth = estimate(name)
    np.testing.assert_allclose((fitted - best) / errors, 0, atol=0.02)
    assert (np.abs(fitted - truth) <= 3 * errors).all(), (fitted - truth) / errors
    assert (errors < 0.3).all()


@pytest.mark.slow
def test_noise_under_a_prior_has_the_posterior_of_quadrature():
    """One weight with a N(0, 1) prior, integrated out in closed form; the log of the noise scale on a grid.

    A mean-field guide is off by the skewness of the log scale alone, 0.1 standard deviations; 4 Monte Carlo errors.
    """
    num, prior = 100, noise.HalfNormal(0.3)
    x = torch.linspace(-1, 1, num, dtype=torch.float64)[:, None]
    y = 0.7 * x[:, 0] + 0.5 * torch.randn(num, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grid = np.linspace(math.log(0.3), math.log(0.9), 2001)
    squared, projected, length = float((y**2).sum()), float(x[:, 0] @ y), float((x**2).sum())
    variance = np.exp(2 * grid)
    quadratic = (squared - projected**2 / (variance + length)) / variance
    log_likelihood = -0.5 * (num * math.log(2 * math.pi) + (num - 1) * 2 * grid + np.log(variance + length) + quadratic)
    log_joint = log_likelihood + stats.halfnorm.logpdf(np.exp(grid), scale=0.3) + grid
    log_evidence = special.logsumexp(log_joint) + math.log(grid[1] - grid[0])
    mass = np.exp(log_joint - special.logsumexp(log_joint))
    mean = (mass * grid).sum()
    std = math.sqrt((mass * (grid - mean) ** 2).sum())

    model = bnn.BNN(nn.Linear(1, 1, bias=False).double(), prior=bnn.priors.Normal(1.0), likelihood=Gaussian(prior))
    decay = {"type": "exponential_lr", "gamma": 1e-3 ** (1 / 1500)}
    settings = {"steps": 1500, "lr": 0.05, "schedule": decay, "num_particles": 2}
    posterior = model.fit(x, y, seed=0, engine="captured", progress=False, **settings)
    draws = posterior.draw(4000, seed=1)["likelihood.scale"].log().numpy()
    assert draws.shape == (4000,)
    assert abs(draws.mean() - mean) < 0.1 * std + 4 * std / math.sqrt(4000)
    assert draws.std() / std == pytest.approx(1, abs=0.1 + 4 / math.sqrt(8000))
    elbo = bnn.elbo_report(posterior, bnn.Data(x, y), num_draws=4000, seed=0).elbo
    assert log_evidence - 0.03 - 4 * elbo.stderr <= elbo.mean <= log_evidence + 4 * elbo.stderr


def test_predictions_take_the_noise_of_each_draw():
    x = torch.linspace(-1, 1, 20)[:, None]
    model = bnn.BNN(bnn.MLP(1, [4], 1), likelihood=Gaussian(noise.HalfNormal(1.0)), prior=bnn.priors.Normal(1.0))
    posterior = model.fit(x, x[:, 0], standardize=True, steps=5, seed=0, progress=False)
    draws = posterior.draw(7, seed=2)
    prediction = posterior.predict(x, draws=draws)
    unit = float(x.double().std(correction=0))
    expected = (draws["likelihood.scale"] * unit)[:, None].expand(7, 20)
    torch.testing.assert_close(prediction.distribution.stddev * unit, expected)
    torch.testing.assert_close(prediction.aleatoric_variance, expected.double().square().mean(0))


@pytest.mark.slow
def test_two_components_find_two_branches():
    """y = x or -x, as often: at each x half of the mass is on each."""
    x = torch.linspace(0.2, 1, 40).repeat(2)[:, None]
    y = torch.cat([x[:40, 0], -x[40:, 0]])
    model = bnn.BNN(bnn.MLP(1, [8], 6), prior=bnn.priors.Normal(1.0), likelihood=MixtureDensity(2))
    found = model.fit(x, y, guide="map", steps=300, lr=0.02, seed=0, progress=False).predict(x[:40])
    torch.testing.assert_close(found.quantile([0.25, 0.75]), torch.stack([y[40:], y[:40]]), rtol=0, atol=0.1)
    assert float(found.cdf(torch.zeros(40)).sub(0.5).abs().max()) < 0.1
