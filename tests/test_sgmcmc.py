"""SGLD and SGHMC against the exact stationary distribution of their discretised chains, and what they refuse."""

import dataclasses
import sys

import numpy as np
import pytest
import torch
from exact import linear_posterior
from helpers import Branching
from scipy import linalg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pyrobnn as bnn
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.curvature.hessian import largest_curvature
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.mcmc.chains import LogJoint, eager_potential, potential_of_chains

NOISE, SCALE, F64 = 0.5, 0.8, torch.float64
DRAWN = [torch.randn(20, 2 - seed, generator=torch.Generator().manual_seed(seed), dtype=F64) for seed in (0, 1)]
X = DRAWN[0] @ torch.tensor([[1.0, 0.3], [0.0, 1.0]], dtype=F64)
Y = X @ torch.tensor([1.0, -0.5], dtype=F64) + NOISE * DRAWN[1][:, 0]
MEAN, COVARIANCE = linear_posterior(X, Y, NOISE, SCALE)
PRECISION = np.linalg.inv(COVARIANCE)
LARGEST_Z = 4.0
CHAINS = 400


def linear_model():
    net = nn.Linear(2, 1, bias=False).double()
    return bnn.BNN(net, prior=bnn.priors.Normal(SCALE), likelihood=bnn.likelihoods.Gaussian(NOISE))


def run(setting, model=None, data=(X, Y), **arguments):
    return bnn.fit(model or linear_model(), data, setting, **({"seed": 0, "progress": False} | arguments))


def stationary_covariance(setting):
    """Covariance of the discretised chain on the Gaussian posterior, from its Lyapunov equation."""
    step, temperature, one = setting.step_size, setting.temperature, np.eye(2)
    if isinstance(setting, bnn.SGLD):
        return linalg.solve_discrete_lyapunov(one - step * PRECISION, 2 * step * temperature * one)
    move = np.block([[one, step * one], [-step * PRECISION, (1 - step * setting.friction) * one]])
    noise = linalg.block_diag(0 * one, 2 * step * setting.friction * temperature * one)
    return linalg.solve_discrete_lyapunov(move, noise)[:2, :2]


def z_scores(posterior, mean, covariance):
    """Distances of means and covariances from exact ones, in standard errors over independent chains."""
    centred = posterior.guide.draws.numpy() - mean
    series = [centred[..., 0], centred[..., 1]]
    series += [centred[..., i] * centred[..., j] - covariance[i, j] for i, j in ((0, 0), (1, 0), (1, 1))]
    by_chain = np.stack([values.mean(1) for values in series])
    return by_chain.mean(1) / (by_chain.std(1, ddof=1) / by_chain.shape[1] ** 0.5)


LANGEVIN = bnn.SGLD(step_size=1e-3, num_draws=10, burn_in=130, thinning=18, num_chains=CHAINS)
HAMILTONIAN = bnn.SGHMC(step_size=8e-3, friction=16.0, num_draws=10, burn_in=175, thinning=15, num_chains=CHAINS)
COLD = [dataclasses.replace(setting, temperature=0.25, num_chains=200) for setting in (LANGEVIN, HAMILTONIAN)]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("setting", [LANGEVIN, HAMILTONIAN, *COLD], ids=["SGLD", "SGHMC", "cold SGLD", "cold SGHMC"])
def test_chains_recover_a_gaussian_posterior(setting):
    """Independent chains, seed 0: mean and covariance within Monte Carlo error of the discretised chain's.

    Its covariance is 4 to 5 % above that of the posterior at the temperature, the price of the step size.
    """
    discretised = stationary_covariance(setting)
    assert 0.03 < np.abs(discretised / (setting.temperature * COVARIANCE) - 1).max() < 0.05
    z = z_scores(run(setting), MEAN, discretised)
    assert np.abs(z).max() < LARGEST_Z, z


@pytest.mark.slow
def test_the_noise_of_reshuffled_batches_nearly_cancels():
    """One of 20 examples a step, 400 chains, seed 0, draws at ten places of an epoch.

    A batch at place p of an epoch of M leaves p (M - p) / (M - 1) times e^2 G in the variance, with G the variance of
    the gradient's noise, N^2 (1 - 1 / N) times that of single gradients. The variance is known to 2.6 % here (one
    standard error, 4000 draws), and independent batches would add 13 to 19 % where these add some 3 %.
    """
    step, epoch, places = 2.5e-4, 20, [3 * k % 20 for k in range(1, 11)]
    setting = bnn.SGLD(step, num_draws=10, burn_in=300, thinning=43, num_chains=CHAINS, batch_size=1)
    posterior = run(setting)
    discretised = stationary_covariance(setting)
    x, residuals = X.numpy(), (Y - X @ torch.from_numpy(MEAN)).numpy()
    squares = residuals**2 + np.einsum("ni,ij,nj->n", x, COVARIANCE, x)
    mean_of_squares = (x.T * squares) @ x / epoch / NOISE**4
    mean = x.T @ residuals / epoch / NOISE**2
    spread = mean_of_squares - np.outer(mean, mean) - x.T @ x @ COVARIANCE @ x.T @ x / (epoch * NOISE**2) ** 2
    noise = epoch**2 * spread
    added = step**2 * noise * np.mean([p * (epoch - p) / (epoch - 1) for p in places])
    assert np.abs(z_scores(posterior, MEAN, discretised)[:2]).max() < LARGEST_Z
    variances = posterior.guide.draws.flatten(0, 1).numpy().var(0)
    error = 0.026
    assert (np.abs(variances / np.diag(discretised + added) - 1) < 3 * error).all()
    one = np.eye(2)
    independent = linalg.solve_discrete_lyapunov(one - step * PRECISION, 2 * step * one + step**2 * noise)
    assert (np.diag(independent) / variances > 1 + 3 * error).all()


@pytest.mark.parametrize("own_batches", [False, True])
def test_density_of_all_chains_has_the_gradient_of_each(own_batches):
    model = linear_model()
    with fast_pyro():
        log_joint = LogJoint(model, latent_sites(model, X[:1], Y[:1]), len(X))
    points = torch.tensor([[0.1, -0.4], [1.0, 2.0], [0.3, 0.0]], dtype=F64)
    batch = (X[:15].view(3, 5, 2), Y[:15].view(3, 5)) if own_batches else (X, Y)
    with fast_pyro():
        together, is_batched = potential_of_chains(log_joint, points, batch, own_batches=own_batches)
        potentials, gradients = together(points, *batch)
        assert is_batched
        for chain in range(3):
            own = (batch[0][chain], batch[1][chain]) if own_batches else batch
            alone, value = torch.func.grad_and_value(log_joint)(points[chain], *own)
            torch.testing.assert_close(gradients[chain], -alone)
            torch.testing.assert_close(potentials[chain], -value)


@pytest.mark.filterwarnings("ignore:torch.func.vmap does not take the model")
@pytest.mark.parametrize("batch_size", ["all", 5])
def test_network_that_vmap_cannot_take_runs_chain_by_chain(batch_size):
    draws = {"num_draws": 3, "burn_in": 0, "thinning": 1, "num_chains": 2}
    setting = bnn.SGLD(step_size=1e-4, batch_size=batch_size, init="prior", **draws)
    model = linear_model()
    plain = run(setting, model).guide.draws
    net = Branching(nn.Linear(2, 1, bias=False).double())
    net.least = -1e9
    other = bnn.BNN(net, prior=bnn.priors.Normal(SCALE), likelihood=bnn.likelihoods.Gaussian(NOISE))
    torch.testing.assert_close(run(setting, other).guide.draws, plain)


def test_draws_are_thinned_after_the_burn_in():
    """Every second draw of a chain with thinning 1 is a draw of the same chain with thinning 2."""
    model = linear_model()
    dense = run(bnn.SGLD(step_size=1e-4, num_draws=9, burn_in=0, thinning=1, num_chains=2), model).guide.draws
    thin = run(bnn.SGLD(step_size=1e-4, num_draws=3, burn_in=3, thinning=2, num_chains=2), model).guide.draws
    assert torch.equal(thin, dense[:, [4, 6, 8]])
    half = bnn.SGLD(step_size=1e-4, num_draws=3, thinning=2, num_chains=2)
    assert run(half, model).record.num_steps == 12


def test_schedule_lowers_the_step_size():
    halves = {"type": "exponential_lr", "gamma": 0.5}
    setting = bnn.SGLD(step_size=0.1, num_draws=10, burn_in=0, thinning=1, schedule=halves)
    np.testing.assert_allclose(setting._rates(10), 0.1 * 0.5 ** np.arange(10))
    moved = run(bnn.SGLD(step_size=1e-3, num_draws=40, burn_in=0, thinning=1, schedule=setting.schedule)).guide.draws
    steps = moved.diff(dim=1).abs().mean((0, 2))
    assert float(steps[-1]) < 1e-4 * float(steps[0])


def test_loaders_are_taken():
    loader = DataLoader(TensorDataset(X, Y), batch_size=5, shuffle=True)
    setting = bnn.SGLD(step_size=1e-4, num_draws=3, burn_in=2, thinning=2, num_chains=2)
    model = linear_model()
    first, again = (run(setting, model, loader).guide.draws for _ in range(2))
    assert torch.equal(first, again)
    assert first.shape == (2, 3, 2)


def test_engine_is_eager_and_says_so(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    short = bnn.SGHMC(step_size=1e-3, num_draws=4, burn_in=3, thinning=2, num_chains=2, batch_size=8)
    with pytest.warns(UserWarning, match="SGHMC has no captured form"):
        posterior = run(short, engine="captured", progress=True)
    assert posterior.record.engine.used == "eager"
    assert "11/11" in capsys.readouterr().err


def test_the_largest_curvature_is_that_of_the_posterior():
    """The largest eigenvalue of the precision, to the four digits of ten power steps."""
    made = run(bnn.SGLD(step_size=1e-4, num_draws=1, burn_in=0, num_chains=1)).bnn
    with fast_pyro():
        evaluate = eager_potential(LogJoint(made, latent_sites(made, X, Y), len(X)), (X, Y))
        found = largest_curvature(lambda z: evaluate(z)[1], torch.zeros(2, 2, dtype=F64))
    assert found == pytest.approx(np.linalg.eigvalsh(PRECISION).max(), rel=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "setting",
    [
        bnn.SGLD(num_draws=10, burn_in=200, thinning=15, num_chains=200),
        bnn.SGHMC(friction=16.0, num_draws=10, burn_in=400, thinning=30, num_chains=200),
        bnn.SGHMC(num_draws=10, burn_in=3000, thinning=100, num_chains=100),
    ],
)
def test_without_a_step_size_chains_have_one_that_suits(setting):
    """A fifth of the smallest variance; 200 chains, seed 0, against the distribution of a chain with such steps."""
    posterior, largest = run(setting), np.linalg.eigvalsh(PRECISION).max()
    if isinstance(setting, bnn.SGHMC):
        setting = dataclasses.replace(setting, friction=setting.friction or 0.1 * largest**0.5)
    step_size = 0.2 / largest * getattr(setting, "friction", 1.0)
    assert np.allclose(posterior.guide.sample_stats()["step_size"], step_size, rtol=1e-3)
    exact = stationary_covariance(dataclasses.replace(setting, step_size=step_size))
    z = z_scores(posterior, MEAN, exact)
    assert np.abs(z).max() < LARGEST_Z, z


def test_without_a_friction_it_is_a_tenth_of_the_fastest_frequency():
    """The same chains as with that number; the curvature is measured to 1e-4 or so."""
    friction, short = 0.1 * np.linalg.eigvalsh(PRECISION).max() ** 0.5, {"num_draws": 5, "burn_in": 20, "num_chains": 2}
    model = linear_model()
    found, expected = run(bnn.SGHMC(**short), model), run(bnn.SGHMC(friction=friction, **short), model)
    torch.testing.assert_close(found.guide.draws, expected.guide.draws, rtol=1e-3, atol=1e-3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [bnn.SGLD, bnn.SGHMC])
def test_without_a_step_size_a_narrow_posterior_does_not_diverge(kind):
    model = bnn.BNN(bnn.MLP(2, [20], 1), likelihood=bnn.likelihoods.Gaussian(0.01), prior=bnn.priors.Normal(1.0))
    posterior = run(kind(num_draws=5, burn_in=300, thinning=2, num_chains=2), model, (X, Y))
    assert float(posterior.guide.draws.abs().max()) < 10


def test_a_step_size_that_diverges_is_named():
    with pytest.raises(FloatingPointError, match="of SGLD is no longer finite at step .*: give a smaller `step_size`"):
        run(bnn.SGLD(step_size=1.0, num_draws=100, burn_in=300, num_chains=2))
