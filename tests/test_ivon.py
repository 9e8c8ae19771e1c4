"""IVON against its algorithm in NumPy, exact posteriors, and its own two engines."""

import importlib

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from exact import linear_posterior
from helpers import quick
from scipy.optimize import minimize
from torch import nn
from torch.nn.functional import softplus

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn.inference.capture.updates import VariationalNewton

UNIT = bnn.priors.Normal(1.0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)) @ (np.eye(3) + 0.3 * RNG.normal(size=(3, 3)))
Y = X @ [1.0, -0.5, 0.2] + 0.5 * RNG.normal(size=40)
NOISE = 0.5
MEAN, COVARIANCE = linear_posterior(X, Y, NOISE)
PRECISION = np.linalg.inv(COVARIANCE)


def linear(prior=UNIT):
    return bnn.BNN(nn.Linear(3, 1, bias=False).double(), prior=prior, likelihood=bnn.likelihoods.Gaussian(NOISE))


def network(**parts):
    """One layer without a prior, one whose prior is not normal, one that is, and noise that is learned."""
    normals = {"0.weight": bnn.priors.Normal(0.7, loc=0.1), "2.weight": bnn.priors.Normal(1.0)}
    prior = normals | {"0.bias": "laplace", "2.bias": None}
    return bnn.BNN(bnn.MLP(3, [5], 1), **({"prior": prior, "likelihood": "gaussian"} | parts))


def algorithm(m, sigma, noises, *, delta, prior_mean, size, settings):
    """Shen et al. (2024), algorithm 1, line by line, for the mean loss of the examples; delta for each weight."""
    h, g = 1 / (size * sigma**2) - delta, np.zeros_like(m)
    lr, beta1, beta2, radius = (settings[name] for name in ("lr", "beta1", "beta2", "clip_radius"))
    for step, noise in enumerate(noises, 1):
        theta = m + sigma * noise
        gradient = X.T @ (X @ theta - Y) / NOISE**2 / len(Y)
        h_hat = gradient * (theta - m) / sigma**2
        g = beta1 * g + (1 - beta1) * gradient
        h = beta2 * h + (1 - beta2) * h_hat + 0.5 * (1 - beta2) ** 2 * (h - h_hat) ** 2 / (h + delta)
        direction = (g / (1 - beta1**step) + delta * (m - prior_mean)) / (h + delta)
        m = m - lr * np.clip(direction, -radius, radius)
        sigma = 1 / np.sqrt(size * (h + delta))
    return m, sigma


def moments(posterior):
    """Return means and standard deviations of the weights of the linear model."""
    ((loc, scale),) = posterior.guide.moments().values()
    return loc[0].detach().numpy(), scale[0].detach().numpy()


def recorded_noise(monkeypatch):
    """Return the list to which every draw of a guide appends its noise."""
    noises, draw = [], torch.randn_like

    def noted(*args, **kwargs):
        noises.append(draw(*args, **kwargs))
        return noises[-1]

    monkeypatch.setattr(torch, "randn_like", noted)
    return noises


@pytest.mark.parametrize(
    ("settings", "temperature"),
    [({"clip_radius": 1e6}, 1.0), ({"clip_radius": 0.05, "lr": 0.1, "beta1": 0.5, "beta2": 0.9}, 0.3)],
    ids=["no clipping", "clipped and cold"],
)
def test_steps_are_those_of_the_algorithm(settings, temperature, monkeypatch):
    """Ten steps with the same noise; the prior has another mean and scale for each weight."""
    settings = {"lr": 0.3, "beta1": 0.9, "beta2": 0.98} | settings
    prior_mean, prior_scale = np.array([0.3, 0.0, -2.0]), np.array([0.7, 2.0, 0.1])
    model = linear(dist.Normal(torch.tensor(prior_mean)[None], torch.tensor(prior_scale)[None]))
    monkeypatch.setattr(importlib.import_module("pyrobnn.inference.fit"), "tell", lambda *_, **__: None)
    noises = recorded_noise(monkeypatch)
    guide = bnn.guides.MeanField(init_rho=-3.0, noise="shared")
    method = bnn.IVON(guide, steps=10, schedule=None, temperature=temperature, **settings)
    posterior = quick(model, method, (X, Y))
    noises = [noise.numpy() for noise in noises[-10:]]
    start = model.initial_values["weight"][0].numpy()
    size = len(Y) / temperature
    exact = {"delta": 1 / prior_scale**2 / size, "prior_mean": prior_mean, "size": size, "settings": settings}
    mean, sigma = algorithm(start, softplus(torch.full((3,), -3.0).double()).numpy(), noises, **exact)
    np.testing.assert_allclose(posterior.guide.loc.detach(), mean, rtol=1e-9)
    np.testing.assert_allclose(softplus(posterior.guide.rho.detach()), sigma, rtol=1e-9)


def test_without_noise_of_the_draws_it_ends_in_the_mean_field_optimum():
    """The gradients of the ELBO itself, whose optimum has the exact means and the variances 1 / diag(precision)."""
    precision, mean = torch.tensor(PRECISION), torch.tensor(MEAN)
    optimizer = VariationalNewton(
        [loc := nn.Parameter(torch.zeros(3).double()), rho := nn.Parameter(torch.zeros(3).double())],
        *(loc, rho, (torch.zeros(3).double(), torch.ones(3).double())),
        **{"lr": 0.3, "adam_lr": 0.1, "beta1": 0.9, "beta2": 0.9, "clip_radius": 1.0, "temperature": 1.0},
    )
    for _ in range(400):
        scale = softplus(rho.detach())
        loc.grad = precision @ (loc.detach() - mean)
        rho.grad = (precision.diagonal() * scale - 1 / scale) * torch.sigmoid(rho.detach())
        optimizer.step()
    torch.testing.assert_close(loc.detach(), mean)
    torch.testing.assert_close(softplus(rho.detach()) ** 2, 1 / precision.diagonal())


@pytest.mark.one_in(0, 3)
@pytest.mark.parametrize("seed", range(3))
def test_a_fit_has_the_marginal_variances_of_the_mean_field_optimum(seed):
    """64 draws a step leave the variances a standard error of 0.5 %, and the means one of a hundredth of their own."""
    posterior = quick(linear(), bnn.IVON(steps=3000, num_particles=64), (X, Y), seed=seed, engine="captured")
    loc, scale = moments(posterior)
    np.testing.assert_allclose(scale**2 * PRECISION.diagonal(), 1, atol=0.02)
    np.testing.assert_allclose((loc - MEAN) * PRECISION.diagonal() ** 0.5, 0, atol=0.04)


@pytest.mark.slow
def test_a_prior_that_is_not_normal_is_a_part_of_the_loss():
    """The optimum of the ELBO under Student's t by quadrature and BFGS."""
    prior = bnn.priors.StudentT(scale=0.1, df=3.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    t = torch.distributions.StudentT(torch.tensor(3.0).double(), 0.0, 0.1)

    def loss(parameters):
        mean, scale = parameters[:3], np.exp(parameters[3:])
        likelihood = ((Y - X @ mean) ** 2).sum() + ((X * scale) ** 2).sum()
        log_p = t.log_prob(torch.tensor(mean + scale * nodes[:, None])).numpy()
        return likelihood / 2 / NOISE**2 - (weights[:, None] * log_p).sum() / weights.sum() - parameters[3:].sum()

    optimum = minimize(loss, np.r_[MEAN, np.log(0.1) * np.ones(3)]).x
    for kl in ("quadrature", "mc"):
        posterior = quick(linear(prior), bnn.IVON(steps=3000, num_particles=64, kl=kl), (X, Y), engine="captured")
        loc, scale = moments(posterior)
        np.testing.assert_allclose(scale, np.exp(optimum[3:]), rtol=0.03)
        np.testing.assert_allclose(loc, optimum[:3], atol=0.005)


def test_replicates_of_other_priors_train_side_by_side():
    """The tighter prior ends in the smaller weights, in one graph."""
    models = [linear(bnn.priors.Normal(scale)) for scale in (1.0, 0.01)]
    method = bnn.IVON(steps=60, clip_radius=1.0)
    wide, tight = bnn.fit_replicates(models, (X, Y), method, seed=0, engine="captured", progress=False)
    assert tight.record.engine.used == "captured"
    assert tight.guide.loc.detach().abs().max() < 0.1 < wide.guide.loc.detach().abs().max()
    assert softplus(tight.guide.rho.detach()).max() < 0.02


def test_replicates_of_other_rates_are_not_trained_under_the_settings_of_the_first():
    methods = [bnn.IVON(steps=3, lr=lr) for lr in (0.1, 0.2)]
    with pytest.warns(UserWarning, match="replicates differ in `first_lr` of the optimiser"):
        bnn.fit_replicates(linear(), (X, Y), methods, seed=0, engine="captured", progress=False)
    with pytest.raises(InputError, match=r"Replicates run SVI\(...\), or IVON\(...\), side by side"):
        bnn.fit_replicates(linear(), (X, Y), [bnn.IVON(steps=3), bnn.SVI(steps=3)], seed=0, progress=False)


def test_everything_without_a_distribution_is_trained():
    model = network()
    fitted = quick(model, bnn.IVON(steps=30, adam_lr=0.05), (X, Y)).bnn
    moved = [not torch.equal(*pair) for pair in zip(model.parameters(), fitted.parameters(), strict=True)]
    assert len(moved) == 2
    assert all(moved)


def test_latent_scales_need_the_draws():
    model = linear(bnn.priors.Hierarchical())
    with pytest.raises(InputError, match="use kl='mc'"):
        quick(model, bnn.IVON(steps=2), (X, Y))
    posterior = quick(model, bnn.IVON(steps=20, kl="mc"), (X, Y))
    assert set(posterior.draw(2)) == {"weight", "prior.weight.scale"}


def test_it_refuses_what_it_does_not_have():
    with pytest.raises(InputError, match=r"IVON: trains independent normals: use guide='mean_field', got FullRank"):
        bnn.IVON(guide="full_rank")
    with pytest.raises(InputError, match="IVON: is an optimiser itself: leave out `optimizer`"):
        bnn.IVON(optimizer="sgd")
    with pytest.raises(InputError, match="IVON: give `steps` or `epochs`, not both"):
        bnn.IVON(steps=1, epochs=1)
