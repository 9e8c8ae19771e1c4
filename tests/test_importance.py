"""Importance weights: k-hat of Gaussians in closed form, Pyro's diagnostic, and exact evidence."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from helpers import Net, at_normal
from pyro.infer import RenyiELBO, Trace_ELBO
from pyro.infer.importance import psis_diagnostic, vectorized_importance_weights
from scipy import stats
from torch import nn

import pyrobnn as bnn
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.diagnostics.importance import _log_mean, pareto_smooth

# The weights


def log_ratios(scale, num_draws, size=1, seed=0):
    """Log p / q of draws from q = N(0, scale^2) for the target N(0, 1)."""
    draws = np.random.default_rng(seed).normal(0, scale, (num_draws, size))
    return (stats.norm.logpdf(draws) - stats.norm(0, scale).logpdf(draws)).sum(1)


@pytest.mark.parametrize("scale", [0.9, 0.7, 0.5])
def test_khat_of_a_narrow_normal_is_one_less_its_variance(scale):
    """The tail of p / q has the shape 1 - s^2. A tail of 3 sqrt(S) = 948 leaves an error of (1 + k) / sqrt(948).

    Four standard errors, and 0.05 for what the tail of 100,000 draws is not yet a Pareto one (seed 0).
    """
    exact = 1 - scale**2
    _, khat = pareto_smooth(log_ratios(scale, 100_000))
    assert abs(khat - exact) < 4 * (1 + exact) / math.sqrt(948) + 0.05


def test_khat_is_that_of_pyro():
    """Both fit a Pareto tail to the same weights; they differ in its length and in its prior, by less than 0.1."""
    zero = torch.zeros(5, dtype=torch.double)
    pair = [lambda s=scale: pyro.sample("w", dist.Normal(zero, s).to_event(1)) for scale in (1.0, 0.7)]
    pyro.set_rng_seed(1)
    theirs = psis_diagnostic(*pair, num_particles=10_000, max_plate_nesting=0)
    pyro.set_rng_seed(1)
    log_weights, _, _ = vectorized_importance_weights(*pair, num_samples=10_000, max_plate_nesting=0)
    assert abs(pareto_smooth(log_weights.detach().numpy().ravel())[1] - theirs) < 0.1


def test_edge_cases_of_the_weights():
    constant = np.full(100, 1e5)
    log_weights, khat = pareto_smooth(constant)
    assert khat == -math.inf
    np.testing.assert_allclose(log_weights, -math.log(100))
    assert pareto_smooth(constant + 1e-9 * np.random.default_rng(0).standard_normal(100))[1] == -math.inf
    some = log_ratios(0.7, 1000)
    some[:300] = -np.inf
    log_weights, khat = pareto_smooth(some)
    assert math.isfinite(khat)
    assert (np.exp(log_weights[:300]) == 0).all()
    np.testing.assert_allclose(pareto_smooth(some[300:] + 1e5)[1], pareto_smooth(some[300:])[1], rtol=1e-6)
    for factor in (1e3, 1e6):  # all but a few of the tail are 0 beside the largest, in floating point
        far, khat = pareto_smooth(factor * np.random.default_rng(0).standard_normal(1000))
        assert khat == math.inf
        np.testing.assert_allclose(np.exp(far).sum(), 1.0)
    for bad, value in ((np.nan, "nan"), (np.inf, "inf")):
        some[7] = bad
        with pytest.raises(bnn.InputError, match=f"importance ratios must be numbers, but draw 7 has {value}"):
            pareto_smooth(some)
    with pytest.raises(bnn.InputError, match="but every draw has -inf"):
        pareto_smooth(np.full(100, -np.inf))


NOISE, UNIT = 0.3, bnn.priors.Normal(1.0)
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(20, 2, dtype=torch.double, generator=GENERATOR)
Y = X @ torch.tensor([1.0, -2.0], dtype=torch.double) + NOISE * torch.randn(20, dtype=torch.double, generator=GENERATOR)
DATA = bnn.Data(X, Y)
PRECISION = np.eye(2) + X.numpy().T @ X.numpy() / NOISE**2
MEAN = np.linalg.solve(PRECISION, X.numpy().T @ Y.numpy()) / NOISE**2
EVIDENCE = stats.multivariate_normal(np.zeros(20), X.numpy() @ X.numpy().T + NOISE**2 * np.eye(20)).logpdf(Y.numpy())


def line(**options):
    net = nn.Linear(2, 1, bias=False).double()
    return bnn.BNN(net, **{"likelihood": bnn.likelihoods.Gaussian(scale=NOISE)} | options)


def fit(guide, seed=0, steps=2, data=DATA, **options):
    return line(**options).fit(data, guide=guide, steps=steps, lr=0.02, seed=seed, engine="eager", progress=False)


def at_the_posterior(inflation=1.0):
    """A full-rank guide put at the exact posterior, its standard deviations times `inflation`."""
    root = np.linalg.cholesky(np.linalg.inv(PRECISION)) * inflation
    return at_normal(line(), DATA, torch.from_numpy(MEAN), torch.from_numpy(root))


@pytest.fixture(scope="module")
def wide():
    return bnn.importance_weights(at_the_posterior(1.3), DATA, num_draws=4000, seed=1)


def test_evidence_is_exact(wide):
    """Within 4 of its standard errors, which are small (seed 1)."""
    assert abs(wide.log_evidence.mean - EVIDENCE) < 4 * wide.log_evidence.stderr
    assert wide.log_evidence.stderr < 0.02
    assert wide.is_reliable


def test_losses_of_pyro_are_the_evidence_at_the_posterior_and_bounds_in_the_order_of_alpha_elsewhere():
    """All draws of the posterior have the ratio p(D); power means of others fall with alpha (Li & Turner 2016)."""
    losses = [RenyiELBO(0.0, 5), RenyiELBO(0.5, 5), Trace_ELBO(5), RenyiELBO(2.0, 5)]
    methods = [bnn.SVI("full_rank", steps=2, lr=1e-9, loss=loss) for loss in losses]
    found = {1.0: [], 1.3: []}
    for inflation, start in ((width, at_the_posterior(width)) for width in found):
        for method in methods:
            posterior = bnn.fit(start.bnn, DATA, method, seed=0, start=start, progress=False)
            found[inflation].append(posterior.history.elbo)
            assert not torch.equal(posterior.guide.loc, start.guide.loc)
    np.testing.assert_allclose(found[1.0], EVIDENCE, rtol=1e-6)
    assert (np.diff(found[1.3], axis=0) < -0.01).all()
    assert posterior.record.kl == "RenyiELBO(alpha=2.0, num_particles=5)"


def test_standard_error_of_the_evidence_is_its_spread():
    """Over 60 seeds the estimates spread as one says: the ratio is within 4 / sqrt(2 * 59) of 1."""
    posterior = at_the_posterior(1.3)
    found = [bnn.importance_weights(posterior, DATA, num_draws=400, seed=s).log_evidence for s in range(60)]
    ratio = np.std([one.mean for one in found], ddof=1) / np.mean([one.stderr for one in found])
    assert abs(ratio - 1) < 4 / math.sqrt(2 * 59)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_evidence_of_a_tail_is_within_its_wider_error(seed):
    """w2 tanh(w1 x) by quadrature over one of its two mirror images, within 3 standard errors."""
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    y = x[:, 0].tanh() + 0.3 * torch.randn(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    grid = torch.linspace(-6, 6, 601, dtype=torch.float64)
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    log_p = -(first.square() + second.square()) / 2 - math.log(2 * math.pi)
    for row, target in zip(x[:, 0], y, strict=True):
        log_p = log_p + torch.distributions.Normal(second * (first * row).tanh(), 0.3).log_prob(target)
    one = float(log_p.flatten().logsumexp(0)) + 2 * math.log(12 / 600) - math.log(2)
    net = bnn.MLP(1, [1], 1, activation="tanh", bias=False, dtype="float64")
    model = bnn.BNN(net, prior=UNIT, likelihood=bnn.likelihoods.Gaussian(0.3))
    posterior = bnn.fit(model, (x, y), bnn.SVI(guide="mean_field", steps=1000, lr=0.02), seed=seed, progress=False)
    weights = bnn.importance_weights(posterior, (x, y))
    assert abs(weights.log_evidence.mean - one) < 3 * weights.log_evidence.stderr
    assert "(reliable" not in str(weights) or weights.khat < 0.5


@pytest.mark.slow
def test_errors_of_a_mean_cover_it_where_ratios_have_no_variance():
    """The mean of u^-k is 1 / (1 - k): 200 intervals of two errors hold it in .965 +- .013, without widening in .82."""
    generator, index = np.random.default_rng(0), 0.65
    logs = -index * np.log(generator.uniform(size=(200, 1000)))
    found = [_log_mean(row, pareto_smooth(row)[1]) for row in logs]
    assert np.mean([abs(one.mean + math.log(1 - index)) < 2 * one.stderr for one in found]) > 0.9


def test_an_exact_guide_has_constant_weights():
    weights = bnn.importance_weights(at_the_posterior(), DATA, num_draws=1000)
    assert weights.ess == pytest.approx(1000, rel=1e-6)
    assert weights.log_evidence.mean == pytest.approx(EVIDENCE, abs=1e-6)
    assert weights.log_evidence.stderr < 1e-6
    assert weights.khat == -math.inf


def test_evidence_is_in_the_units_of_the_targets():
    """Log p(y) of standardised targets is that in their units less N log scale (4 standard errors)."""
    data = bnn.Data(X, Y, standardize=True)
    posterior = fit("full_rank", data=data, steps=300)
    weights = bnn.importance_weights(posterior, data, num_draws=4000)
    x, y = ((v - v.mean(0)) / v.std(0) for v in (X.numpy(), Y.numpy()))
    unit = Y.numpy().std()
    law = stats.multivariate_normal(np.zeros(20), x @ x.T + (NOISE / unit) ** 2 * np.eye(20))
    exact = law.logpdf(y) - 20 * np.log(unit)
    assert abs(weights.log_evidence.mean - exact) < 4 * weights.log_evidence.stderr


def test_expectation_is_that_of_the_posterior(wide):
    draws = wide.draws()["weight"][:, 0]
    mean = wide.expectation(draws)
    spread = wide.expectation((draws - torch.from_numpy(mean)).square())
    variance = np.diag(np.linalg.inv(PRECISION))
    assert (np.abs(mean - MEAN) < 4 * np.sqrt(variance / wide.ess)).all()
    assert (np.abs(spread - variance) < 4 * variance * math.sqrt(2 / wide.ess)).all()
    uncorrected = draws.var(0).numpy()
    assert (uncorrected > 1.5 * variance).all()
    prediction = wide.posterior.predict(X, draws=wide.draws())
    np.testing.assert_allclose(wide.expectation(prediction.draw_means), X.numpy() @ mean, rtol=1e-9)


def test_uses_are_checked(wide):
    weights = bnn.importance_weights(at_the_posterior(0.3), DATA, num_draws=1000)
    assert not weights.is_reliable
    for use, message in (
        (lambda: weights.expectation(np.ones(1000)), "the guide misses much of the posterior"),
        (lambda: wide.expectation(np.ones(3)), "`values` must have one row for each of 4000 draws, got shape .3,."),
        (lambda: bnn.importance_weights(wide.posterior, DATA, num_draws=29), "at least 30 for a k-hat, got 29"),
    ):
        with pytest.raises(bnn.InputError, match=message):
            use()
    assert wide.good_khat == pytest.approx(0.7)


GUIDES = ["mean_field", "full_rank", "low_rank", "matrix_normal", "laplace", "AutoNormal", "AutoMultivariateNormal"]
GUIDES += [{"*.weight": "full_rank", "*": "mean_field"}]


@pytest.mark.parametrize("guide", GUIDES, ids=str)
def test_density_anywhere_is_the_guides_own_at_its_draws(guide):
    """Of a network with a constrained latent; Laplace has none there, as it holds such a site at a point."""
    scale = 0.3 if guide == "laplace" else {"type": "half_normal", "scale": 1.0}
    model = bnn.BNN(bnn.MLP(2, [3], 1, dtype="float64"), likelihood=bnn.likelihoods.Gaussian(scale=scale), prior=UNIT)
    posterior = model.fit(DATA, guide=guide, steps=5, lr=0.05, seed=0, engine="eager", progress=False)
    ((draws, log_q),) = posterior.map_draws(lambda draws, log_q: (draws, log_q), 20)
    with fast_pyro(), torch.no_grad():
        found = bnn.guides.built(posterior.guide).log_density(draws)
    torch.testing.assert_close(found, log_q.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_laplace_weighs_the_model_that_predicts():
    """A linear network is its own linearisation and the posterior is normal: constant weights and the evidence."""
    posterior = fit("laplace", steps=400)
    weights = bnn.importance_weights(posterior, DATA, num_draws=500)
    assert weights.log_evidence.mean == pytest.approx(EVIDENCE, abs=0.05)
    net = bnn.MLP(2, [3], 1, activation="tanh", dtype="float64")
    model = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(scale=0.3), prior=UNIT)
    bent = model.fit(DATA, guide="laplace", steps=200, lr=0.05, seed=0, engine="eager", progress=False)
    linear = bnn.importance_weights(bent, DATA, num_draws=500)
    network = bnn.importance_weights(bent, DATA, num_draws=500, linearized=False)
    assert linear.khat < network.khat
    assert linear.ess > 2 * network.ess


def sampled():
    method = bnn.HMC(step_size=0.05, trajectory_length=0.2, num_draws=5, warmup=2)
    return bnn.fit(line(), DATA, method, seed=0, progress=False, engine="eager")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: fit("map"), "MapGuide is a point, which has no density"),
        (lambda: fit(bnn.guides.Dropout(0.0, input_rate=0.5)), "on finitely many or pruned values"),
        (lambda: bnn.prune(fit("mean_field"), 0.5), "or take the posterior before pruning"),
        (sampled, "Stored draws of Markov chains have no density"),
        (lambda: bnn.Mixture([fit("mean_field", seed=s) for s in (0, 1)]), "importance_weights"),
    ],
)
def test_guides_without_density_and_mixtures_are_refused(made, message):
    with pytest.raises(bnn.InputError, match=message):
        bnn.importance_weights(made(), DATA, num_draws=60)


def test_points_among_the_sites_are_given():
    """With w_2 at a point v, the normaliser is log p(D, v), in closed form (4 standard errors, seed 0)."""
    parts = {name: nn.Linear(1, 1, bias=False).double() for name in "ab"}
    net = Net(lambda net, x: net.a(x[:, :1]) + net.b(x[:, 1:]), **parts)
    model = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(scale=NOISE), prior=UNIT)
    guide = {"a.*": "mean_field", "b.*": "map"}
    posterior = model.fit(DATA, guide=guide, steps=300, lr=0.05, seed=0, engine="eager", progress=False)
    weights = bnn.importance_weights(posterior, DATA, num_draws=2000, seed=0)
    point = float(posterior.mean()["b.weight"])
    first, second = X.numpy().T
    law = stats.multivariate_normal(second * point, np.outer(first, first) + NOISE**2 * np.eye(20))
    exact = law.logpdf(Y.numpy()) + stats.norm.logpdf(point)
    assert abs(weights.log_evidence.mean - exact) < 4 * weights.log_evidence.stderr + 1e-6
