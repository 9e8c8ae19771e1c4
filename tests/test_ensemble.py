"""Ensembles and SWAG: members against the closed form of their own problem, the mixture, the covariance of a path."""

import math
from contextlib import nullcontext

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from exact import linear_posterior
from helpers import quick
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive, seeded

NOISE, SCALE = 0.5, 0.8


def problem(num=30):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(num, generator=generator).double()
    return x, x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + NOISE * noise


def linear_model():
    net = nn.Linear(2, 1, bias=False).double()
    return bnn.BNN(net, prior=bnn.priors.Normal(SCALE), likelihood=bnn.likelihoods.Gaussian(scale=NOISE))


def fit_members(members=3, steps=200, **settings):
    decay = {"type": "exponential_lr", "gamma": 0.98}
    method = bnn.SVI(guide="map", steps=steps, lr=0.1, schedule=decay)
    ensemble = bnn.Ensemble(method, members=members, **settings)
    return bnn.fit(linear_model(), problem(), ensemble, seed=0, engine="eager", progress=False)


@pytest.mark.parametrize("anchored", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_members_reach_the_mode_under_the_prior_or_one_centred_at_their_anchors(anchored):
    words = "3 members of the ensemble are identical.*bootstrap=True"
    with nullcontext() if anchored else pytest.warns(UserWarning, match=words):
        members = fit_members(anchored=anchored).members
    centres = [member.bnn.prior.shift_0[0] if anchored else torch.zeros(2).double() for member in members]
    assert len({float(centre[0]) for centre in centres}) == (3 if anchored else 1)
    x, y = problem()
    precision = torch.eye(2, dtype=torch.float64) / SCALE**2 + x.T @ x / NOISE**2
    for member, centre in zip(members, centres, strict=True):
        expected = torch.linalg.solve(precision, x.T @ y / NOISE**2 + centre / SCALE**2)
        torch.testing.assert_close(member.mean()["weight"][0], expected, rtol=0, atol=1e-4)


def test_members_that_differ_pass_without_a_warning():
    """Warnings are errors here."""
    method = bnn.SVI(guide="map", steps=3)
    declared = bnn.BNN(bnn.MLP(2, [3], 1), prior=bnn.priors.Normal(1.0))
    for model, different in (
        (linear_model(), {"bootstrap": True}),
        (linear_model(), {"anchored": True}),
        (declared, {}),
    ):
        ensemble = bnn.Ensemble(method, members=2, **different)
        bnn.fit(model, problem(), ensemble, seed=0, engine="eager", progress=False)


def test_anchors_are_draws_from_the_prior():
    values = {"weight": torch.zeros(4000, dtype=torch.float64)}
    prior = bnn.priors.ScaleMixture(pi=0.3, sigma1=2.0, sigma2=0.1)
    with seeded(0):
        module = bnn.priors.Anchored(prior).build(values)
    variance = 0.3 * 4 + 0.7 * 0.01
    fourth = 3 * (0.3 * 16 + 0.7 * 1e-4)
    error = math.sqrt((fourth - variance**2) / 4000)
    assert abs(float(module.shift_0.square().mean()) - variance) < 4 * error
    own = prior.build(values)("weight", values["weight"])
    shifted = module("weight", values["weight"]).log_prob(values["weight"] + module.shift_0)
    torch.testing.assert_close(shifted, own.log_prob(values["weight"]))


def test_bootstrapped_members_take_the_curvature_of_their_own_sample():
    x, y = problem()
    method = bnn.SVI(guide=bnn.guides.Laplace(structure="full"), steps=2)
    ensemble = bnn.Ensemble(method, members=3, bootstrap=True)
    mixture = bnn.fit(linear_model(), (x, y), ensemble, seed=0, engine="eager", progress=False)
    for index, member in enumerate(mixture.members):
        with seeded(derive(0, f"replicate {index}"), "bootstrap"):
            rows = torch.randint(len(x), (len(x),))
        precision = torch.eye(2, dtype=torch.float64) / SCALE**2 + x[rows].T @ x[rows] / NOISE**2
        factor = member.guide.blocks[0].factor
        torch.testing.assert_close(factor @ factor.T, torch.linalg.inv(precision))
        log_likelihood = member.predict(x[rows], at_mean=True).log_prob(y[rows]).sum()
        assert member.record.laplace.log_likelihood == pytest.approx(float(log_likelihood), rel=1e-9)


def regression():
    x = torch.linspace(-1, 1, 24)[:, None]
    return x, torch.sin(3 * x[:, 0])


@pytest.fixture(scope="module")
def mixture():
    model = bnn.BNN(bnn.MLP(1, [6], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian("learned"))
    method = bnn.SVI(steps=60, lr=0.05)
    data = bnn.Data(*regression(), standardize=True)
    return bnn.fit(model, data, bnn.Ensemble(method, members=3), seed=0, progress=False)


def test_members_keep_their_own_noise_and_draws_are_shared_out(mixture):
    scales = [float(member.bnn.likelihood.scale.detach()) for member in mixture.members]
    assert len(set(scales)) == 3
    aleatoric = mixture.predict(regression()[0], num_draws=6).distribution.stddev
    np.testing.assert_allclose(aleatoric[:, 0].detach(), np.repeat(scales, 2), rtol=1e-6)
    draws = mixture.draw(8)
    assert [len(part["0.weight"]) for part in mixture.split(draws)] == [3, 3, 2]
    assert torch.equal(draws["0.weight"][:3], mixture.members[0].draw(3, seed=derive(0, "member 0"))["0.weight"])
    means = torch.stack([member.mean()["0.weight"] for member in mixture.members])
    torch.testing.assert_close(mixture.mean()["0.weight"], means.mean(0))
    assert "3 members" in repr(mixture)


def test_a_mixture_at_its_means_has_one_draw_of_each_member(mixture):
    x = problem()[0][:, :1]
    prediction = mixture.predict(x, at_mean=True)
    means = [member.predict(x, at_mean=True).mean for member in mixture.members]
    assert prediction.num_draws == len(mixture)
    torch.testing.assert_close(prediction.mean, torch.stack(means).mean(0))


def test_a_mixture_refuses_what_does_not_belong_together(mixture):
    with pytest.raises(InputError, match="needs posteriors, at least one"):
        bnn.Mixture([])
    smaller = bnn.BNN(bnn.MLP(1, [5], 1), prior=bnn.priors.Normal(1.0))
    other = smaller.fit(*regression(), seed=0, steps=2, progress=False)
    with pytest.raises(InputError, match="the same weights"):
        bnn.Mixture([mixture.members[0], other])
    raw = bnn.BNN(bnn.MLP(1, [6], 1), prior=bnn.priors.Normal(1.0)).fit(*regression(), seed=0, steps=2, progress=False)
    with pytest.raises(InputError, match="same units"):
        bnn.Mixture([mixture.members[0], raw])
    with pytest.raises(InputError, match="at least 3, one for each member"):
        mixture.draw(2)
    with pytest.raises(InputError, match="leave `patience` out"):
        bnn.Ensemble(bnn.SVI(patience=3))


def test_anchors_need_no_mean():
    """Student's t with one degree of freedom has a mode and no mean."""
    x, y = problem()
    heavy, known = bnn.priors.StudentT(1.0, 1.0), bnn.likelihoods.Gaussian(NOISE)
    model = bnn.BNN(nn.Linear(2, 1).double(), prior=heavy, likelihood=known)
    method = bnn.Ensemble(bnn.SVI(guide="map", steps=5), members=2, anchored=True)
    mixture = bnn.fit(model, (x, y), method, seed=0, engine="eager", progress=False)
    assert bool(mixture.predict(x).mean.isfinite().all())


def test_what_has_neither_mean_nor_mode_is_no_anchor():
    class Strange(dist.Cauchy):
        mode = torch.tensor(float("nan"))

    with pytest.raises(InputError, match="has neither a mean nor a mode to be moved from"):
        bnn.BNN(nn.Linear(2, 1), prior=bnn.priors.Anchored(Strange(0.0, 1.0)))


class Side(bnn.inference.BaseMethod):
    """A method of somebody else, whose fits are those of SVI."""

    def side_by_side(self, model, data, run, *, replicates, bootstrap):
        return bnn.SVI(steps=5).side_by_side(model, data, run, replicates=replicates, bootstrap=bootstrap)


def test_members_may_be_of_any_method_that_fits_several_at_once():
    mixture = bnn.fit(linear_model(), problem(), bnn.Ensemble(Side(), members=3), seed=0, progress=False)
    assert len(mixture) == 3
    with pytest.raises(InputError, match="must fit several posteriors at once, as SVI, IVON and SWAG do, got NUTS"):
        bnn.Ensemble(bnn.NUTS())


def in_float32(num=60):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num, 2, generator=generator)
    return x, x @ torch.tensor([1.0, -0.5]) + 0.5 * torch.randn(num, generator=generator)


def model_in_float32(noise=0.5):
    likelihood = bnn.likelihoods.Gaussian(noise)
    return bnn.BNN(nn.Linear(2, 1, bias=False), prior=bnn.priors.Normal(1.0), likelihood=likelihood)


def mode():
    x, y = in_float32()
    return torch.from_numpy(linear_posterior(x, y, 0.5)[0]).float()


def test_the_path_stays_about_the_mode_and_spreads_with_the_noise_of_mini_batches():
    method = bnn.SWAG(bnn.SVI(guide="map", steps=120, lr=0.05, batch_size=10), lr=0.05, steps=100, every=5, rank=5)
    path = quick(model_in_float32(), method, in_float32())
    ((loc, scale),) = path.guide.moments().values()
    assert bool(((loc[0] - mode()).abs() < 0.3).all())
    assert bool((scale > 1e-3).all())
    assert bool((scale < 1.0).all())
    assert (path.record.replicate, path.record.replicates) == (None, None)


def test_a_full_batch_path_ends_in_a_point_at_the_mode():
    method = bnn.SWAG(bnn.SVI(guide="map", steps=300, lr=0.05), lr=0.05, steps=60, every=20, rank=3)
    ((loc, scale),) = quick(model_in_float32(), method, in_float32()).guide.moments().values()
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
        fit = bnn.fit(model_in_float32(), (x, y), bnn.SWAG(**settings), seed=seed, progress=False)
        found = fit.draw(2000)["weight"]
        ratios.append((found[:, 0].var(0).sum() / exact.trace()).sqrt())
    assert 0.8 < float(torch.stack(ratios).mean()) < 1.25


@pytest.mark.slow
def test_a_row_of_weight_two_counts_twice():
    x, y = in_float32(50)
    data = bnn.Data(x, y, weights=torch.full((50,), 2.0)), (x.repeat(2, 1), y.repeat(2))
    spreads = [quick(model_in_float32(), bnn.SWAG(), one).guide.moments()["weight"][1].mean() for one in data]
    assert float(spreads[0] / spreads[1]) == pytest.approx(1, abs=0.25)


def test_members_of_a_multi_swag_start_apart():
    method = bnn.SWAG(bnn.SVI(guide="map", steps=30, lr=0.05, batch_size=20), steps=40, every=10, rank=2)
    model = bnn.BNN(bnn.MLP(2, [4], 1), prior=bnn.priors.Normal(1.0))
    mixture = quick(model, bnn.Ensemble(method, members=2, bootstrap=True), in_float32())
    first, second = (member.mean()["0.weight"] for member in mixture.members)
    assert not torch.allclose(first, second, atol=0.1)
    assert mixture.record.method["type"] == "ensemble"
    assert mixture.predict(in_float32()[0], num_draws=10).mean.shape == (60,)


def test_swag_refuses_other_guides_and_paths_that_are_too_short():
    with pytest.raises(InputError, match="needs guide='map'"):
        bnn.SWAG(bnn.SVI())
    with pytest.raises(InputError, match="fewer than the rank 20"):
        bnn.SWAG(steps=100, every=10)


def test_a_path_that_leaves_the_mode_is_refused_with_its_rate():
    """Noise of 0.01 makes the loss 2500 times as steep as that of 0.5."""
    method = bnn.SWAG(bnn.SVI(guide="map", steps=20, lr=0.05, batch_size=10), lr=0.05, steps=60, every=10, rank=3)
    with pytest.raises(FloatingPointError, match=r"SWAG left the mode .* lr=0\.05: try 0\.005\. The ELBO became"):
        quick(model_in_float32(0.01), method, in_float32())


def test_the_rate_of_one_row_is_that_of_stability():
    x = torch.ones(1, 2)
    model = bnn.BNN(nn.Linear(2, 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.5))
    method = bnn.SWAG(bnn.SVI(guide="map", steps=5), steps=20, every=2, rank=4)
    assert bool(bnn.fit(model, (x, x[:, 0]), method, seed=0, progress=False).predict(x).mean.isfinite().all())
