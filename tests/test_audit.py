"""The audited objective: KL in closed form, ELBO by quadrature, and the report itself."""

import math

import numpy as np
import pytest
import torch
from helpers import quick
from pyro.infer import Trace_ELBO
from torch import nn
from torch.nn.functional import softplus
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import local_parameters
from pyrobnn.diagnostics import Estimate

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


FAR = torch.randn(12, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
STANDARD = bnn.Data(FAR, 40 * FAR[:, 0].sin() + 100, standardize=True)


def test_elbo_is_that_of_pyro_in_original_units():
    posterior = quick(bnn.BNN(bnn.MLP(1, [4], 1), prior=UNIT), bnn.SVI(steps=30), STANDARD)
    model, guide, rows = posterior.bnn, posterior.guide, STANDARD.tensors
    x, y = (scaler.transform(v).float() for scaler, v in zip((STANDARD.x_scaler, STANDARD.y_scaler), rows, strict=True))
    with torch.no_grad(), local_parameters(), seeded(0):
        losses = torch.tensor([Trace_ELBO().loss(model, guide, x, y) for _ in range(50)])
    theirs = Estimate.of(-losses - len(x) * float(STANDARD.y.std(correction=0).log()))
    ours = bnn.elbo_report(posterior, rows, num_draws=400).elbo
    assert ours.mean == pytest.approx(theirs.mean, abs=4 * math.hypot(ours.stderr, theirs.stderr))


def test_elbo_of_the_exact_posterior_is_the_evidence_in_original_units():
    line = bnn.BNN(bnn.MLP(1, [], 1, dtype="float64"), prior=UNIT, likelihood=bnn.likelihoods.Gaussian(scale=20.0))
    features, scale = torch.cat([STANDARD.x_scaler.transform(FAR), torch.ones_like(FAR)], 1), STANDARD.y_scaler.scale
    precision = features.T @ features + (20.0 / scale) ** 2 * torch.eye(2)
    slope, bias = torch.linalg.solve(precision, features.T @ STANDARD.y_scaler.transform(STANDARD.y))
    weights = {"0.weight": slope[None, None], "0.bias": bias[None]}
    posterior = bnn.guides.Laplace(structure="full").around(line, STANDARD, weights=weights, progress=False)
    covariance = scale**2 * features @ features.T + 20.0**2 * torch.eye(len(FAR))
    exact = torch.distributions.MultivariateNormal(STANDARD.y_scaler.loc.expand(len(FAR)), covariance)
    report = bnn.elbo_report(posterior, (STANDARD.x, STANDARD.y), num_draws=100)
    assert report.elbo.mean == pytest.approx(float(exact.log_prob(STANDARD.y)), abs=1e-6)
    assert report.reservation == ""  # the linearised line is the line


POINT = "(no bound: some sites are at a point, and a density at a point is no ELBO)"
RESERVATIONS = {
    "mean_field": "",
    "laplace": "(of the linearised model, not comparable)",
    bnn.guides.Laplace(linearized=False): "",
    bnn.guides.Laplace(sites="last_layer"): POINT,
    "map": POINT,
    "AutoDelta": POINT,
    "dropout": POINT,
}


@pytest.mark.parametrize("guide", RESERVATIONS)
def test_what_is_no_bound_of_the_network_says_so(guide):
    model = bnn.BNN(bnn.MLP(1, [4], 1), prior=UNIT, likelihood=KNOWN)
    report = bnn.elbo_report(quick(model, bnn.SVI(guide=guide, steps=3), STANDARD), STANDARD, num_draws=10)
    assert str(report).splitlines()[-1] == f"ELBO {report.elbo} {RESERVATIONS[guide]}".rstrip()


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
