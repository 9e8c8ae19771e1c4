"""SWAG: the covariance of a known path, and what comes of a fit."""

import pytest
import torch
from exact import linear_posterior
from helpers import quick
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.errors import InputError


def problem(num=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num, 2, generator=generator)
    return x, x @ torch.tensor([1.0, -0.5]) + 0.5 * torch.randn(num, generator=generator)


def linear_model(noise=0.5):
    likelihood = bnn.likelihoods.Gaussian(noise)
    return bnn.BNN(nn.Linear(2, 1, bias=False), prior=bnn.priors.Normal(1.0), likelihood=likelihood)


def mode():
    x, y = problem()
    return torch.from_numpy(linear_posterior(x, y, 0.5)[0]).float()


@pytest.fixture(scope="module")
def posterior():
    method = bnn.SWAG(bnn.SVI(guide="map", steps=120, lr=0.05, batch_size=10), lr=0.05, steps=100, every=5, rank=5)
    return quick(linear_model(), method, problem())


def test_the_path_stays_about_the_mode_and_spreads_with_the_noise_of_mini_batches(posterior):
    ((loc, scale),) = posterior.guide.moments().values()
    assert bool(((loc[0] - mode()).abs() < 0.3).all())
    assert bool((scale > 1e-3).all())
    assert bool((scale < 1.0).all())


def test_a_full_batch_path_ends_in_a_point_at_the_mode():
    method = bnn.SWAG(bnn.SVI(guide="map", steps=300, lr=0.05), lr=0.05, steps=60, every=20, rank=3)
    ((loc, scale),) = quick(linear_model(), method, problem()).guide.moments().values()
    torch.testing.assert_close(loc[0], mode(), rtol=0, atol=2e-3)
    assert float(scale.max()) < 5e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "rho"), [({}, 0.0), ({}, 0.6), ({"momentum": 0.5}, 0.0), ({"every": 40, "rank": 30}, 0.0)]
)
@pytest.mark.parametrize("num", [50, 100, 300])
def test_deviations_are_those_of_the_exact_posterior(num, settings, rho):
    """Of a linear model with known noise, over 3 data sets; a path of 50 means has an error of a tenth."""
    ratios = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(num, 2, generator=generator)
        x[:, 1] = rho * x[:, 0] + (1 - rho**2) ** 0.5 * x[:, 1]
        y = x @ torch.tensor([1.0, -0.5]) + 0.5 * torch.randn(num, generator=generator)
        exact = torch.linalg.inv(x.T @ x / 0.25 + torch.eye(2))
        found = bnn.fit(linear_model(), (x, y), bnn.SWAG(**settings), seed=seed, progress=False).draw(2000)["weight"]
        ratios.append((found[:, 0].var(0).sum() / exact.trace()).sqrt())
    assert 0.8 < float(torch.stack(ratios).mean()) < 1.25


@pytest.mark.slow
def test_a_row_of_weight_two_counts_twice():
    x, y = problem(50)
    data = bnn.Data(x, y, weights=torch.full((50,), 2.0)), (x.repeat(2, 1), y.repeat(2))
    spreads = [quick(linear_model(), bnn.SWAG(), one).guide.moments()["weight"][1].mean() for one in data]
    assert float(spreads[0] / spreads[1]) == pytest.approx(1, abs=0.25)


def test_a_single_fit_is_no_replicate(posterior):
    assert (posterior.record.replicate, posterior.record.replicates) == (None, None)


def test_members_of_a_multi_swag_start_apart():
    method = bnn.SWAG(bnn.SVI(guide="map", steps=30, lr=0.05, batch_size=20), steps=40, every=10, rank=2)
    model = bnn.BNN(bnn.MLP(2, [4], 1), prior=bnn.priors.Normal(1.0))
    mixture = quick(model, bnn.Ensemble(method, members=2, bootstrap=True), problem())
    first, second = (member.mean()["0.weight"] for member in mixture.members)
    assert not torch.allclose(first, second, atol=0.1)
    assert mixture.record.method["type"] == "ensemble"
    assert mixture.predict(problem()[0], num_draws=10).mean.shape == (60,)


def test_swag_refuses_other_guides_and_paths_that_are_too_short():
    with pytest.raises(InputError, match="needs guide='map'"):
        bnn.SWAG(bnn.SVI())
    with pytest.raises(InputError, match="fewer than the rank 20"):
        bnn.SWAG(steps=100, every=10)


def test_a_path_that_leaves_the_mode_is_refused_with_its_rate():
    """Noise of 0.01 makes the loss 2500 times as steep as that of 0.5."""
    method = bnn.SWAG(bnn.SVI(guide="map", steps=20, lr=0.05, batch_size=10), lr=0.05, steps=60, every=10, rank=3)
    with pytest.raises(FloatingPointError, match=r"SWAG left the mode .* lr=0\.05: try 0\.005\. The ELBO became"):
        quick(linear_model(0.01), method, problem())


def test_the_rate_of_one_row_is_that_of_stability():
    x = torch.ones(1, 2)
    model = bnn.BNN(nn.Linear(2, 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.5))
    method = bnn.SWAG(bnn.SVI(guide="map", steps=5), steps=20, every=2, rank=4)
    assert bool(bnn.fit(model, (x, x[:, 0]), method, seed=0, progress=False).predict(x).mean.isfinite().all())
