"""Isokinetic Langevin chains: their steps against the equations of motion, and their draws against exact posteriors."""

import dataclasses
import math

import arviz as az
import numpy as np
import pytest
import torch
from exact import linear_posterior, z_scores
from scipy.integrate import solve_ivp
from test_mcmc import X as INPUTS
from test_mcmc import Y as OUTPUTS
from test_mcmc import exact_posterior, linear_model
from test_mcmc import flat_chains as flat
from torch import nn

import pyrobnn as bnn
from pyrobnn._core.errors import InputError
from pyrobnn.inference.data import make_source
from pyrobnn.inference.mcmc import mclmc
from pyrobnn.inference.mcmc.chains import Target
from pyrobnn.inference.mcmc.mclmc import IsokineticState, Walk, stepped, turned, unit, warm_up

F64 = torch.float64
LARGEST_Z = 5.0
"""Largest z-score that is let pass; the seeds are fixed, so that a test passes always or never."""
NET = bnn.MLP(1, [5], 1, activation="tanh")
SMALL = bnn.BNN(NET, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.3))
DATA = bnn.Data((X := torch.linspace(-1, 1, 24)[:, None]), torch.sin(3 * X[:, 0]))


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize("size", [0.01, 0.7, 5.0])
def test_directions_turn_as_the_differential_equation_says(size):
    """du/dt = -(1 - u u^T) g / (P - 1), and the energy changes by the integral of -u g; relative tolerance 1e-8."""
    direction, gradient = unit(numbers(1, 6)), numbers(1, 6, seed=1)

    def motion(_, now):
        u = now[:6]
        g = gradient[0].numpy()
        return np.append(-(g - u * (u @ g)) / 5, -u @ g)

    start = np.append(direction[0].numpy(), 0.0)
    end = solve_ivp(motion, (0, size), start, rtol=1e-11, atol=1e-12).y[:, -1]
    found, change = turned(direction, gradient, torch.tensor([size], dtype=F64))
    np.testing.assert_allclose(found[0], end[:6], rtol=1e-8, atol=1e-9)
    assert float(change) == pytest.approx(end[6], rel=1e-8)


def test_turns_of_extreme_gradients_are_finite():
    """Next to no gradient, one of 1e12, and directions straight up and straight down; float32."""
    gradient = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1e12, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    direction = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    found, change = turned(direction, gradient, torch.full((4,), 0.1))
    assert torch.equal(found[0], direction[0])
    assert torch.equal(found[1:, 1].sign(), torch.tensor([-1.0, 1.0, -1.0]))
    assert bool(found.isfinite().all() & change.isfinite().all())
    assert abs(float(change[0])) < 1e-30
    assert change[2] < 0 < change[3]


def quartic(place):
    """U of a double well along each latent, with a coupling."""
    value = (place.square() - 1).square().sum(-1) + 0.3 * place.sum(-1).square()
    return value, 4 * place * (place.square() - 1) + 0.6 * place.sum(-1, keepdim=True)


def moved(state, size):
    """A state after a step without noise, from a direction that may be any."""
    new = IsokineticState(*(tensor.clone() for tensor in state.tensors))
    new.size.fill_(size)
    new.squares.zero_()
    stepped(new, quartic)
    return new


def at(place, direction):
    state = IsokineticState.at(place, *quartic(place))
    state.direction.copy_(unit(direction))
    state.root.copy_(torch.linspace(0.5, 2.0, place.shape[-1], dtype=F64).expand_as(place))
    return state


def test_a_step_is_undone_from_the_opposite_direction():
    there = moved(at(numbers(3, 4), numbers(3, 4, seed=1)), 0.3)
    there.direction.neg_()
    back = moved(there, 0.3)
    start = at(numbers(3, 4), numbers(3, 4, seed=1))
    torch.testing.assert_close(back.place, start.place)
    torch.testing.assert_close(back.direction, -start.direction)
    torch.testing.assert_close(back.squares, there.squares)
    assert there.squares.min() > 1e-7


def test_a_step_is_of_second_order():
    """At half the step the error beside the equations of motion is an eighth, and so is that of the energy."""

    def motion(_, now):
        g = root * quartic(torch.from_numpy(now[:4])[None])[1][0].numpy()
        u = now[4:]
        return np.concatenate([root * u, -(g - u * (u @ g)) / 3])

    errors = []
    for size in (0.008, 0.004):
        for seed in range(8):
            start = at(numbers(1, 4, seed=seed), numbers(1, 4, seed=seed + 8))
            root, begin = start.root[0].numpy(), np.append(start.place, start.direction)
            exact = solve_ivp(motion, (0, size), begin, rtol=1e-12, atol=1e-13).y[:, -1]
            end = moved(start, size)
            errors.append([np.linalg.norm(np.append(end.place, end.direction) - exact), float(end.squares * 4) ** 0.5])
    large, small = np.square(errors).reshape(2, 8, 2).mean(1) ** 0.5
    ratios = large / small
    assert np.all((ratios > 7.0) & (ratios < 9.0)), ratios


def test_noise_keeps_directions_of_length_one_and_makes_them_forget():
    """Without a gradient the mean cosine falls as exp(-t / L); 4000 chains, seed 0, 5 standard errors."""
    place = torch.zeros(4000, 5, dtype=F64)
    walk = Walk(lambda z: (torch.zeros(len(z), dtype=F64), torch.zeros_like(z)), place)
    torch.manual_seed(0)
    walk.state.direction.copy_(unit(torch.randn_like(walk.state.direction)))
    before = walk.state.direction.clone()
    walk.set(0.05, 2.0)
    walk.run(20)
    torch.testing.assert_close(walk.state.direction.norm(dim=1), torch.ones(4000, dtype=F64))
    cosines = (walk.state.direction * before).sum(1)
    assert abs(float(cosines.mean()) - math.exp(-1.0 / 2.0)) < 5 * float(cosines.std()) / 4000**0.5
    assert walk.num_steps == 20


def test_a_step_that_changes_the_energy_by_far_is_not_taken():
    """The first chain jumps into a wall, the second stays where the density is; all stays finite."""

    def walled(place):
        wall = torch.where(place[:, 0] > 1, torch.nan, 0.0)
        return wall + 0.5 * place.square().sum(1), place + wall[:, None]

    walk = Walk(walled, torch.tensor([[0.9, 0.0], [-3.0, 0.0]], dtype=F64))
    walk.state.direction.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    walk.set(0.3, 1.0)
    walk.run(1)
    assert walk.state.refused.tolist() == [1, 0]
    assert walk.state.place[0].tolist() == [0.9, 0.0]
    assert walk.state.squares[0] == 1
    walk.run(50)
    assert all(bool(t.isfinite().all()) for t in (walk.state.place, walk.state.direction, walk.state.gradient))


def gaussian_model(covariance, dtype=F64):
    """A linear model whose posterior has a covariance and mean 1, but for a prior of standard deviation 1000."""
    precision = torch.linalg.inv(covariance.to(F64)) - 1e-6 * torch.eye(len(covariance), dtype=F64)
    x = torch.linalg.cholesky(precision).T.contiguous()
    net, prior = nn.Linear(len(x), 1, bias=False).to(dtype), bnn.priors.Normal(1000.0)
    model = bnn.BNN(net, prior=prior, likelihood=bnn.likelihoods.Gaussian(1.0))
    return model, bnn.Data(x.to(dtype), x.sum(1).to(dtype))


def rotated(ratio, size=10):
    """A covariance with variances from 1 to 1 / ratio along directions at random."""
    basis = torch.linalg.qr(numbers(size, size))[0]
    return basis @ torch.logspace(0, -math.log10(ratio), size, dtype=F64).diag() @ basis.T


def run(setting, model=None, data=None, **arguments):
    given = {"seed": 0, "progress": False, "device": "cpu", "engine": "captured"} | arguments
    return bnn.fit(model or SMALL, data or DATA, setting, **given)


TARGETS = {
    "1:100, along any direction": rotated(100.0),
    "1:10,000, along the axes": torch.logspace(0, -4, 10, dtype=F64).diag(),
    "two latents": rotated(4.0, size=2),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TARGETS)
def test_chains_recover_a_gaussian(name):
    """All means and covariances within 5 standard errors by effective sample sizes; ratios of variances, seed 0."""
    model, data = gaussian_model(TARGETS[name])
    posterior = run(bnn.MCLMC(num_draws=500, warmup=4000), model, data)
    z = z_scores(flat(posterior), *linear_posterior(data.x, data.y, 1.0, 1000.0))
    assert np.abs(z).max() < LARGEST_Z, z
    assert posterior.record.engine.used == "captured"
    assert posterior.record.num_diverging == 0


@pytest.mark.slow
def test_the_bias_of_chains_is_small_and_grows_with_the_step(monkeypatch):
    """Mean ratio of variances, 10 latents, some 4000 independent draws: standard error sqrt(2 / 40,000) = 0.7 %."""
    covariance = rotated(100.0)
    model, data = gaussian_model(covariance)

    def bias():
        draws = flat(run(bnn.MCLMC(num_draws=2000), model, data)).reshape(-1, 10)
        return np.trace(np.linalg.solve(covariance.numpy(), np.cov(draws.T))) / 10 - 1

    assert abs(bias()) < 0.01 + 3 * 0.007
    monkeypatch.setattr(mclmc, "ERROR", 64 * mclmc.ERROR)
    assert bias() < -0.05


REGRESSION = bnn.Data(INPUTS, OUTPUTS)


@pytest.mark.slow
def test_chains_agree_with_nuts_in_the_functions_of_a_network():
    """Mean and second moment of the curve at 9 inputs, 5 standard errors by effective sample sizes of both, seed 0."""
    probes = torch.linspace(-1.5, 1.5, 9)[:, None]
    methods = bnn.NUTS(num_draws=1000, warmup=500, num_chains=4), bnn.MCLMC()
    curves = []
    for method in methods:
        posterior = run(method)
        found = bnn.function_rhat(posterior, probes)
        assert found.rhat.max() < 1.02
        chains = posterior.guide.chains()
        stacked = {name: values.flatten(0, 1) for name, values in chains.items()}
        curve = posterior.predict(probes, draws=stacked).draw_means
        curves.append(curve.reshape(*chains["0.weight"].shape[:2], 9).double().numpy())
    for power in (1, 2):
        means = [(curve**power).mean((0, 1)) for curve in curves]
        errors = [[float(az.mcse(c[..., i] ** power, method="mean")) for i in range(9)] for c in curves]
        z = (means[0] - means[1]) / np.hypot(*errors)
        assert np.abs(z).max() < LARGEST_Z, z


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_warm_up_finds_units_step_size_and_length(dtype):
    """A Gaussian of deviations 0.01 to 10: units within a factor of 1.5, and the change of the energy near its aim."""
    scales = torch.logspace(-2, 1, 12, dtype=dtype)
    torch.manual_seed(0)
    start = scales * torch.randn(3, 12).to(dtype)
    walk = Walk(lambda z: (0.5 * (z / scales).square().sum(1), z / scales.square()), start)
    tuned = warm_up(walk, 2400)
    ratios = walk.state.root / scales
    assert float(ratios.min()) > 1 / 1.5
    assert float(ratios.max()) < 1.5
    assert 0.3 * 12**0.5 < tuned[1] < 3 * 12**0.5
    walk.set(*tuned)
    walk.run(1000)
    assert 0.4 * mclmc.ERROR < float(walk.state.squares.mean() / 1000) < 2 * mclmc.ERROR
    assert walk.num_steps == 3400


def test_a_warm_up_recovers_from_steps_that_are_far_too_large():
    """Deviations of 1e-4 and first steps of 0.4; none is refused in the end."""
    walk = Walk(lambda z: (0.5e8 * z.square().sum(1), 1e8 * z), 1e-4 * numbers(2, 3))
    torch.manual_seed(0)
    tuned = warm_up(walk, 2000)
    assert walk.state.refused.tolist() == [0, 0]
    assert float(walk.state.root.mean()) * tuned[0] < 1e-3


def test_starts_descend_to_the_bulk():
    """From 1000 standard deviations away to within P / 2 + 10 nats of the least energy."""
    scales = torch.logspace(-0.5, 0.5, 50, dtype=F64)

    def evaluate(z):
        return 0.5 * (z / scales).square().sum(), z / scales.square()

    start = 1000 * scales * numbers(50)
    point = mclmc.descended(start, evaluate)
    assert float(evaluate(point)[0]) < 35
    assert float(evaluate(start)[0]) > 1e7


def test_recorded_steps_equal_eager_ones():
    """400 draws of both engines from the same noise; rounding grows along a chain, so the first ones are compared."""
    method = bnn.MCLMC(num_draws=3, warmup=40, num_chains=2, thinning=2)
    eager, captured = (run(method, linear_model(), REGRESSION, engine=engine) for engine in ("eager", "captured"))
    assert [posterior.record.engine.used for posterior in (eager, captured)] == ["eager", "captured"]
    np.testing.assert_allclose(flat(captured), flat(eager), rtol=1e-6, atol=1e-6)


SHORT = bnn.MCLMC(num_draws=4, warmup=40, num_chains=2)


def test_statistics_of_draws_and_the_record():
    posterior = run(bnn.MCLMC(num_draws=400, warmup=2000), linear_model(), REGRESSION)
    numbers = posterior.guide.sample_stats()
    assert list(numbers) == ["diverging", "energy_error", "step_size", "n_steps"]
    error = float(numbers["energy_error"].square().mean())
    assert 0.3 * mclmc.ERROR < error < 3 * mclmc.ERROR
    taken = int(numbers["n_steps"][0, 0])
    assert posterior.record.num_steps == 2000 + 400 * taken
    tree = bnn.to_datatree(posterior, REGRESSION)
    assert tree.sample_stats["diverging"].dtype == bool
    assert tree.attrs["inference_method"] == "MCLMC"
    assert posterior.record.method["warmup"] == 2000


def test_divergences_are_counted_and_said(monkeypatch):
    monkeypatch.setattr(mclmc, "warm_up", lambda walk, num_steps: (1e4, 1e4))
    with pytest.warns(UserWarning, match="8 of 8 draws diverged"):
        posterior = run(dataclasses.replace(SHORT, thinning=2), linear_model(), REGRESSION)
    assert posterior.record.num_diverging == 8


def test_a_single_latent_is_refused():
    model = bnn.BNN(nn.Linear(1, 1, bias=False), likelihood=bnn.likelihoods.Gaussian(1.0), prior=bnn.priors.Normal(1.0))
    with pytest.raises(InputError, match="MCLMC turns directions, and a single latent has none: use NUTS"):
        run(SHORT, model, bnn.Data(numbers(5, 1).float(), numbers(5).float()))


def test_chains_start_at_the_members():
    """The start of each chain is the point of the member of that number, in the unconstrained latents of the model."""
    members = run(bnn.Ensemble(bnn.SVI(guide="map", steps=50, lr=0.05), members=3)).members
    target = Target(SMALL, make_source(DATA, SMALL, None, seed=0), "cpu", 0, members)
    starts = target.starts(3)
    for start, member in zip(starts, members, strict=True):
        values = member.draw(1)
        assert torch.equal(start, torch.cat([values[site.name].flatten() for site in target.sites]))
    assert not torch.equal(starts[0], starts[1])


def test_chains_from_members_recover_a_linear_regression():
    """Means and deviations of two weights and the bias; 1600 draws, at least 400 independent: 5 standard errors."""
    model, (mean, covariance) = linear_model(dtype=torch.float32), exact_posterior()
    data = bnn.Data(INPUTS.float(), OUTPUTS.float())
    # members of a network that is given start together; the noise of their batches is what tells them apart
    method = bnn.MILE(num_chains=4, num_draws=400, method=bnn.SVI(guide="map", steps=50, batch_size=10))
    posterior = run(method, model, data)
    draws = flat(posterior).reshape(-1, 3)
    scales = np.sqrt(np.diag(covariance))
    assert np.abs((draws.mean(0) - mean) / scales).max() < 5 / 400**0.5
    assert np.abs(draws.std(0) / scales - 1).max() < 5 / 800**0.5
    assert bnn.function_rhat(posterior, data.x[:5]).rhat.max() < 1.02


def test_methods_that_cannot_run_side_by_side_are_refused():
    with pytest.raises(InputError, match="MILE: `method` must fit several posteriors at once"):
        bnn.MILE(method=bnn.NUTS())
    with pytest.raises(InputError, match="leave `patience` out"):
        bnn.MILE(method=bnn.SVI(guide="map", steps=10, patience=2))
