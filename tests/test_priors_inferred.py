"""Scales that priors add are inferred with the weights, and what the prior says before there are data."""

import math

import arviz as az
import numpy as np
import pyro
import pytest
import torch
from pyro.infer import MCMC, NUTS, Predictive
from scipy import stats
from torch import nn

import pyrobnn as bnn
from pyrobnn import InputError, priors
from pyrobnn._core.random import seeded

F64 = torch.float64


def linear(inputs, *, bias=False, dtype=F64):
    with seeded(0):
        return nn.Linear(inputs, 1, bias=bias).to(dtype)


def simulated(num, weights, noise, seed, dtype=F64):
    """Normal inputs, and targets linear in them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, len(weights), generator=generator, dtype=F64)
    y = x @ torch.as_tensor(weights, dtype=F64) + noise * torch.randn(num, generator=generator, dtype=F64)
    return bnn.Data(x.to(dtype), y.to(dtype))


def fit(prior, data, net, *, noise=0.5, steps=3, lr=0.05, guide="mean_field"):
    """A long fit runs captured."""
    model = bnn.BNN(net, prior=prior, likelihood=bnn.likelihoods.Gaussian(noise))
    method = bnn.SVI(guide=guide, steps=steps, lr=lr, schedule={"type": "exponential_lr", "gamma": 1e-2 ** (1 / steps)})
    return bnn.fit(model, data, method, seed=0, progress=False, engine="captured" if steps > 100 else "eager")


SITES = {
    "hierarchical": (priors.Hierarchical(), {f"{n}.{part}.scale": () for n in (0, 2) for part in ("weight", "bias")}),
    "anchored": ({"2.bias": priors.Anchored(priors.Hierarchical()), "*": None}, {"0.prior.2.bias.scale": ()}),
    "relevance": (priors.ARD(), {"0.weight.scale": (3,), "2.weight.scale": (4,)}),
    "horseshoe": (
        priors.Horseshoe(local="weight"),
        {
            "0.weight.global_scale": (),
            "0.weight.local_scale": (4, 3),
            "2.weight.global_scale": (),
            "2.weight.local_scale": (1, 4),
        },
    ),
    "regularized": (
        {"0.weight": priors.RegularizedHorseshoe(), "*": None},
        {"0.0.weight.global_scale": (), "0.0.weight.local_scale": (3,), "0.0.weight.slab_variance": ()},
    ),
    "spike and slab": (
        {"*.weight": priors.SpikeAndSlab(), "*": bnn.priors.Normal(1.0)},
        {"0.0.weight.inclusion": (), "0.2.weight.inclusion": ()},
    ),
}
every_prior = pytest.mark.parametrize(("prior", "shapes"), SITES.values(), ids=SITES)
X = torch.linspace(-1, 1, 24).reshape(8, 3)
DATA = bnn.Data(X, X.sum(1))


def network():
    return bnn.MLP(3, [4], 1, activation="tanh")


def added(values):
    return {name.removeprefix("prior."): value for name, value in values.items() if name.startswith("prior.")}


@every_prior
def test_scales_start_at_typical_values(prior, shapes):
    model = bnn.BNN(network(), prior=prior)
    expected = {"scale": 1.0, "global_scale": 1.0, "local_scale": 1.0, "slab_variance": 4.0, "inclusion": 0.5}
    starts = added(model.initial_values)
    assert {name: tuple(value.shape) for name, value in starts.items()} == shapes
    for name, value in starts.items():
        assert bool((value == expected[name.rpartition(".")[2]]).all())
    assert model.num_weights == sum(model.initial_values[name].numel() for name in model.site_names)
    posterior = fit(prior, DATA, network(), steps=1, guide=bnn.guides.MeanField(init_rho=-20.0), lr=1e-9)
    for name, value in added(posterior.mean()).items():
        torch.testing.assert_close(value, starts[name].to(value.dtype), rtol=1e-5, atol=1e-5)


def test_pyro_infers_the_scales_too():
    pyro.set_rng_seed(0)
    model = bnn.BNN(bnn.MLP(3, [2], 1), prior=priors.RegularizedHorseshoe(), likelihood=bnn.likelihoods.Gaussian(0.3))
    mcmc = MCMC(NUTS(model, max_tree_depth=3), num_samples=5, warmup_steps=5, disable_progbar=True)
    mcmc.run(X, DATA.y)
    assert mcmc.get_samples()["prior.0.weight.local_scale"].shape == (5, 3)
    assert Predictive(model, num_samples=4)(X)["prior.2.weight.slab_variance"].shape[0] == 4
    pyro.clear_param_store()


NUM_WEIGHTS, NOISE, TAU = 25, 0.5, 0.6


def scale_problem(num):
    weights = TAU * torch.randn(NUM_WEIGHTS, generator=torch.Generator().manual_seed(3), dtype=F64)
    return simulated(num, weights, NOISE, seed=4)


def exact_log_scale(data):
    """Mean and standard deviation of log tau given the data, by quadrature: y ~ N(0, tau^2 X X' + noise^2 I)."""
    log_tau = np.linspace(math.log(0.01), math.log(20.0), 4000)
    eigenvalues, vectors = np.linalg.eigh((data.x @ data.x.T).numpy())
    rotated = vectors.T @ data.y.numpy()
    variances = np.exp(2 * log_tau)[:, None] * eigenvalues.clip(0) + NOISE**2
    log_prior = stats.halfcauchy().logpdf(np.exp(log_tau)) + log_tau
    log_joint = log_prior - 0.5 * (np.log(variances) + rotated**2 / variances).sum(1)
    weights = np.exp(log_joint - log_joint.max())
    weights /= weights.sum()
    mean = (weights * log_tau).sum()
    return mean, math.sqrt((weights * (log_tau - mean) ** 2).sum())


def test_an_inferred_scale_agrees_with_quadrature():
    """With 200 examples the weights are known well, and then a mean-field guide is nearly exact about tau."""
    data = scale_problem(200)
    mean, deviation = exact_log_scale(data)
    posterior = fit(priors.Hierarchical(), data, linear(NUM_WEIGHTS), steps=600)
    loc, scale = posterior.guide.moments()["prior.weight.scale"]
    assert float(loc) == pytest.approx(mean, abs=0.15 * deviation)
    assert float(scale) == pytest.approx(deviation, rel=0.15)


@pytest.mark.slow
def test_relevance_switches_off_an_input_that_says_nothing():
    posterior = fit(priors.ARD(), simulated(200, [1.0, 0.0], NOISE, seed=4), linear(2), steps=600)
    used, idle = posterior.mean()["prior.weight.scale"]
    assert idle < used / 3


@pytest.mark.slow
@pytest.mark.parametrize("num", [12, 200])
def test_chains_draw_the_scale_from_its_exact_posterior(num):
    """Mean and variance of log tau within 4 standard errors by effective draws, of few and of many data; seed 0."""
    data = scale_problem(num)
    mean, deviation = exact_log_scale(data)
    model = bnn.BNN(linear(NUM_WEIGHTS), prior=priors.Hierarchical(), likelihood=bnn.likelihoods.Gaussian(NOISE))
    posterior = bnn.fit(model, data, bnn.NUTS(num_draws=500, warmup=300, num_chains=2), seed=0, progress=False)
    logs = posterior.guide.chains()["prior.weight.scale"].log().numpy()
    assert float(az.ess(logs, method="mean")) > 100
    for differences in (logs - mean, (logs - mean) ** 2 - deviation**2):
        assert abs(differences.mean()) < 4 * float(az.mcse(differences, method="mean"))


def prior_of_line(weight=0.7, bias=0.3, noise=0.2, net=None):
    prior = {"weight": priors.Normal(weight), "bias": priors.Normal(bias)}
    net = net or linear(2, bias=True)
    return bnn.BNN(net, prior=prior, likelihood=bnn.likelihoods.Gaussian(noise))


@pytest.mark.slow
def test_prior_predictive_under_a_hierarchical_prior():
    """tau ~ half-normal(0.5): the variance of f is 0.25 |x|^2, and f is heavy-tailed with kurtosis 9."""
    num, x = 1000, torch.tensor([[1.0, 2.0]], dtype=F64)
    model = bnn.BNN(linear(2), prior=priors.Hierarchical("half_normal", 0.5))
    draws = model.sample_prior_predictive(x, num_draws=num, seed=2).draw_means[:, 0]
    square = draws.square()
    assert float(square.mean()) == pytest.approx(1.25, abs=4 * float(square.std()) / math.sqrt(num))
    assert float(draws.pow(4).mean() / square.mean() ** 2) > 5


@pytest.mark.parametrize("standardize", [False, True])
def test_prior_predictive_of_a_line_has_the_moments_of_the_formula_in_the_units_of_data(standardize):
    """f = w x + b has variance s^2 |x|^2 + s_b^2 for standardised inputs and targets; 4 or 5 standard errors."""
    num, generator = 1000, torch.Generator().manual_seed(3)
    x, y = (torch.randn(30, *size, generator=generator, dtype=F64) for size in ((2,), ()))
    loc, unit = torch.zeros((), dtype=F64), torch.ones((), dtype=F64)
    if standardize:
        x, y = 5 + 2 * x, 100 + 10 * y
        loc, unit = y.mean(), y.std(correction=0)
    data, errors = bnn.Data(x, y, standardize=standardize), 5 if standardize else 4
    prediction = prior_of_line(noise=3.0).sample_prior_predictive(data if standardize else x, num_draws=num, seed=4)
    standard = (x - x.mean(0)) / x.std(0, correction=0) if standardize else x
    variance = unit**2 * (0.7**2 * standard.square().sum(1) + 0.3**2)
    assert prediction.draw_means.shape == (num, 30)
    assert float(((prediction.mean - loc) / (variance / num).sqrt()).abs().max()) < errors
    assert float((prediction.epistemic_variance / variance - 1).abs().max()) < errors * math.sqrt(2 / num)
    torch.testing.assert_close(prediction.aleatoric_std, torch.full((30,), 3.0, dtype=F64))
    correlation = (0.49 * standard[0] @ standard[1] + 0.09) * unit**2 / (variance[0] * variance[1]).sqrt()
    found = float(torch.corrcoef(prediction.draw_means[:, :2].T)[0, 1])
    assert found == pytest.approx(float(correlation), abs=4 / math.sqrt(num))


def test_prior_predictive_of_classes_and_of_weights_that_are_not_bayesian():
    model = bnn.BNN(bnn.MLP(3, [4], 2), prior={"2.*": "horseshoe", "*": None}, likelihood="categorical")
    prediction = model.sample_prior_predictive(X, num_draws=20, seed=1)
    assert prediction.class_probs.shape == (8, 2)
    torch.testing.assert_close(prediction.class_probs.sum(1), torch.ones(8))
    assert float(prediction.epistemic_variance.min()) > 0


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(4, 7), "The network does not take inputs of shape \\(4, 7\\)"),
        (torch.zeros(4), "must have shape \\(N, features\\)"),
        (bnn.Data(torch.zeros(4, 7), torch.zeros(4)), "The network does not take inputs of shape \\(4, 7\\)"),
    ],
)
def test_prior_predictive_refuses_inputs_that_do_not_fit(x, message):
    with pytest.raises(InputError, match=message):
        prior_of_line().sample_prior_predictive(x, seed=0)
