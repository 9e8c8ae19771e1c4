"""Bayesian linear regression, where everything is known exactly: n = 40, d = 3, float64."""

import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

import pyrobnn as bnn

NUM, DIM, NOISE = 40, 3, 0.5


def regression():
    generator = torch.Generator().manual_seed(1)
    # Correlated inputs, so that the best diagonal Gaussian is far from the exact posterior.
    mixing = torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.5], [0.0, 0.0, 0.7]], dtype=torch.float64)
    x = torch.randn(NUM, DIM, generator=generator, dtype=torch.float64) @ mixing
    weights = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    y = x @ weights + NOISE * torch.randn(NUM, generator=generator, dtype=torch.float64)
    return bnn.Data(x, y)


DATA = regression()
PRECISION = torch.eye(DIM, dtype=torch.float64) + DATA.x.T @ DATA.x / NOISE**2
MEAN = torch.linalg.solve(PRECISION, DATA.x.T @ DATA.y / NOISE**2)
LOG_EVIDENCE = float(
    torch.distributions.MultivariateNormal(
        torch.zeros(NUM, dtype=torch.float64), DATA.x @ DATA.x.T + NOISE**2 * torch.eye(NUM, dtype=torch.float64)
    ).log_prob(DATA.y)
)
KL_OF_BEST_DIAGONAL = 0.5 * float(PRECISION.diagonal().log().sum() - torch.logdet(PRECISION))


def model():
    net = nn.Linear(DIM, 1, bias=False).double()
    return bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=NOISE))


def fit(guide, *, steps, lr, engine="eager", **settings):
    decay = {"type": "exponential_lr", "gamma": 1e-3 ** (1 / steps)}
    method = bnn.SVI(guide=guide, steps=steps, lr=lr, schedule=decay, **{"num_particles": 2} | settings)
    return bnn.fit(model(), DATA, method, seed=0, engine=engine, progress=False)


@pytest.fixture(scope="module")
def posterior():
    return fit(bnn.guides.MeanField(), steps=800, lr=0.2, engine="captured")


def test_mean_field_reaches_the_best_diagonal_gaussian(posterior):
    loc, scale = (moment[0] for moment in posterior.guide.moments()["weight"])
    exact = MultivariateNormal(MEAN, precision_matrix=PRECISION)
    gap = float(kl_divergence(MultivariateNormal(loc, torch.diag(scale.square())), exact)) - KL_OF_BEST_DIAGONAL
    assert 0 <= gap <= 0.02
    assert KL_OF_BEST_DIAGONAL > 0.2
    elbo = bnn.elbo_report(posterior, DATA, num_draws=40_000, seed=0).elbo
    assert elbo.mean == pytest.approx(LOG_EVIDENCE - KL_OF_BEST_DIAGONAL - gap, abs=4 * elbo.stderr)


def test_elbo_report_agrees_with_the_closed_form_elbo(posterior):
    loc, scale = (moment[0] for moment in posterior.guide.moments()["weight"])
    residual = (DATA.y - DATA.x @ loc).square() + DATA.x.square() @ scale.square()
    log_likelihood = -0.5 * float(residual.sum()) / NOISE**2 - NUM * math.log(NOISE * math.sqrt(2 * math.pi))
    kl = 0.5 * float((scale.square() + loc.square() - 1 - 2 * scale.log()).sum())
    report = bnn.elbo_report(posterior, DATA, num_draws=4000, seed=3)
    assert report.log_likelihood.mean == pytest.approx(log_likelihood, abs=4 * report.log_likelihood.stderr)
    assert report.kl_exact == pytest.approx(kl, rel=1e-10)
    assert report.elbo.mean == pytest.approx(log_likelihood - kl, abs=4 * report.elbo.stderr)


@pytest.mark.slow
def test_analytic_kl_reaches_the_optimum_whose_variance_the_temperature_scales():
    posterior = fit(bnn.guides.MeanField(), steps=800, lr=0.2, kl="analytic", temperature=0.25)
    loc, scale = posterior.guide.moments()["weight"]
    precision = torch.eye(DIM, dtype=torch.float64) + DATA.x.T @ DATA.x / NOISE**2 / 0.25
    torch.testing.assert_close(
        loc[0], torch.linalg.solve(precision, 4 * DATA.x.T @ DATA.y / NOISE**2), atol=0.02, rtol=0
    )
    torch.testing.assert_close(scale[0], precision.diagonal().rsqrt(), atol=0, rtol=0.05)
