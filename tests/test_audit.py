"""The audited objective: KL in closed form, ELBO by quadrature, and the report itself."""

import math

import numpy as np
import pytest
import torch
from helpers import quick
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn._core.random import derive

UNIT, KNOWN = bnn.priors.Normal(1.0), bnn.likelihoods.Gaussian(scale=1.0)


def normal_kl(loc, scale, prior_scale):
    ratio = (scale / prior_scale).double().square()
    return 0.5 * float((ratio + (loc.double() / prior_scale).square() - 1 - ratio.log()).sum())


@pytest.mark.parametrize(("hidden", "kl"), [((20, 20), "analytic"), ((200, 200), "mc")])
def test_reported_kl_equals_the_closed_form(hidden, kl):
    prior_scale = 0.7
    model = bnn.BNN(bnn.MLP(1, hidden, 1), prior=bnn.priors.Normal(prior_scale), likelihood=KNOWN)
    data = bnn.datasets.sinusoid()
    method = bnn.SVI(guide=bnn.guides.MeanField(init_rho=-1.0), steps=20, lr=0.01, kl=kl)
    posterior = bnn.fit(model, data, method, seed=0, progress=False)
    exact = normal_kl(posterior.guide.loc.detach(), softplus(posterior.guide.rho).detach(), prior_scale)
    report = bnn.elbo_report(posterior, data, num_draws=400, seed=1)
    assert report.kl_exact == pytest.approx(exact, rel=1e-5)
    assert report.kl.mean == pytest.approx(exact, abs=5 * report.kl.stderr)
    assert report.kl.stderr < 0.01 * exact
    assert report.kl.mean == pytest.approx(-report.entropy.mean - report.log_prior.mean, rel=1e-9)
    for site in report.sites:
        loc, scale = posterior.guide.moments()[site.name]
        assert site.kl_exact == pytest.approx(normal_kl(loc, scale, prior_scale), rel=1e-5)
        assert site.kl.mean == pytest.approx(site.kl_exact, abs=5 * site.kl.stderr)
        assert site.size == loc.numel()


def mixture_density(w, pi, s1, s2):
    normal = lambda s: np.exp(-0.5 * (w / s) ** 2) / (s * math.sqrt(2 * math.pi))  # noqa: E731
    return pi * normal(s1) + (1 - pi) * normal(s2)


def test_elbo_with_mixture_prior_agrees_with_quadrature():
    pi, s1, s2, noise = 0.3, 1.0, 0.2, 0.5
    net = nn.Linear(1, 1).double()
    with torch.no_grad():
        net.weight.fill_(0.4)
        net.bias.fill_(-0.1)
    x = torch.tensor([[-1.0], [-0.2], [0.5], [1.5]], dtype=torch.float64)
    y = torch.tensor([-0.6, 0.1, 0.2, 0.5], dtype=torch.float64)
    prior = bnn.priors.ScaleMixture(pi=pi, sigma1=s1, sigma2=s2)
    model, data = bnn.BNN(net, prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=noise)), bnn.Data(x, y)
    method = bnn.SVI(guide=bnn.guides.MeanField(init_rho=-1.5), steps=1, lr=1e-12)  # it stays where it starts
    posterior = bnn.fit(model, data, method, seed=0, progress=False)
    scale = math.log1p(math.exp(-1.5))

    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = weights / weights.sum()
    log_prior = sum(weights @ np.log(mixture_density(loc + scale * nodes, pi, s1, s2)) for loc in (0.4, -0.1))
    w, b = 0.4 + scale * nodes[:, None], -0.1 + scale * nodes[None, :]
    residual = y.numpy()[:, None, None] - w * x.numpy()[:, 0][:, None, None] - b
    log_likelihood_at = (-0.5 * (residual / noise) ** 2 - math.log(noise * math.sqrt(2 * math.pi))).sum(0)
    log_likelihood = weights @ log_likelihood_at @ weights
    entropy = 2 * (0.5 + math.log(scale * math.sqrt(2 * math.pi)))

    report = bnn.elbo_report(posterior, data, num_draws=400_000, seed=0)
    assert report.log_prior.mean == pytest.approx(log_prior, abs=4 * report.log_prior.stderr)
    assert report.log_likelihood.mean == pytest.approx(log_likelihood, abs=4 * report.log_likelihood.stderr)
    assert report.entropy.mean == pytest.approx(entropy, abs=4 * report.entropy.stderr)
    assert report.elbo.stderr < 2e-3
    assert report.elbo.mean == pytest.approx(log_likelihood + log_prior + entropy, abs=4 * report.elbo.stderr)


def test_report_says_how_standardised_targets_change_the_scale():
    data = bnn.datasets.sinusoid()
    model = bnn.BNN(bnn.MLP(1, [5], 1), likelihood=KNOWN, prior=UNIT)
    scaled = bnn.Data(data.x, data.y, standardize=True)
    posterior = model.fit(scaled, steps=5, seed=0, progress=False)
    report = bnn.elbo_report(posterior, scaled, num_draws=300)
    assert report.log_volume == pytest.approx(32 * math.log(float(data.y.double().std(correction=0))), rel=1e-6)
    draws = posterior.draw(300, seed=derive(posterior.seed, "audit"))
    original = posterior.predict(data.x, draws=draws).draw_log_prob(data.y).sum(1)
    assert report.log_likelihood.mean - report.log_volume == pytest.approx(float(original.mean()), rel=1e-4)


def test_refusals_and_pruning_nothing():
    data, loader = bnn.datasets.sinusoid(), DataLoader(TensorDataset(torch.ones(4)))
    posterior = quick(bnn.BNN(bnn.MLP(1, [3], 1), prior=UNIT), bnn.SVI(steps=2), data)
    with pytest.raises(bnn.InputError, match="Expected data in memory, got a DataLoader"):
        bnn.elbo_report(posterior, loader)
    with pytest.raises(bnn.InputError, match="pruned weights are points at zero, without a density"):
        bnn.elbo_report(bnn.prune(posterior, 0.3), data)
    whole, unpruned = (bnn.elbo_report(p, data, num_draws=20).elbo for p in (posterior, bnn.prune(posterior, 0.0)))
    assert unpruned.mean == pytest.approx(whole.mean, rel=1e-6)
    lines = str(bnn.elbo_report(posterior, data, num_draws=20)).splitlines()
    names = ["site", "0.weight", "0.bias", "2.weight", "2.bias", "total", "expected", "ELBO"]
    assert [line.split()[0] for line in lines] == names


def test_autoguide_without_closed_form_is_reported_in_total():
    data = bnn.datasets.sinusoid()
    model = bnn.BNN(bnn.MLP(1, [3], 1), likelihood=KNOWN, prior=UNIT)
    posterior = model.fit(data, guide="AutoMultivariateNormal", steps=2, seed=0, progress=False)
    report = bnn.elbo_report(posterior, data, num_draws=200)
    assert report.kl_exact is None
    scale_tril = (posterior.guide.scale[:, None] * posterior.guide.scale_tril).detach()
    prior = torch.distributions.MultivariateNormal(torch.zeros(10), torch.eye(10))
    q = torch.distributions.MultivariateNormal(posterior.guide.loc.detach(), scale_tril=scale_tril)
    exact = float(torch.distributions.kl_divergence(q, prior))
    assert report.kl.mean == pytest.approx(exact, abs=5 * report.kl.stderr)
