"""Guides over all weights at once: densities, moments, divergences, each at its exact optimum, and fits that reach it.

Bayesian linear regression, where everything is known exactly: n = 40, d = 3, float64, and correlated inputs, so that
the best diagonal Gaussian is far from the exact posterior.
"""

import math

import pyro.distributions as dist
import pytest
import torch
from exact import linear_evidence
from helpers import Fixed
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn.functional import softplus

import pyrobnn as bnn
from pyrobnn import guides, priors
from pyrobnn.distributions.units import Scaler
from pyrobnn.guides.divergence import quadrature_kl
from pyrobnn.inference.capture.objective import Objective
from pyrobnn.posterior.posterior import Posterior

UNIT = bnn.priors.Normal(1.0)
X = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(1)
NORMALS = {
    "full_rank": guides.FullRank(),
    "low_rank": guides.LowRank(rank=3),
    "matrix_normal": guides.MatrixNormal(),
    "diagonal matrix_normal": guides.MatrixNormal(factors="diagonal"),
}
JOINT = NORMALS | {"radial": guides.Radial()}
ALL = JOINT | {"flow": guides.Flow()}
pytestmark = pytest.mark.usefixtures("local")


def make(prior=UNIT):
    return bnn.BNN(bnn.MLP(2, [3], 1).build().double(), prior=prior, likelihood=bnn.likelihoods.Gaussian(1.0))


def build(setting, model=None, *, spread=0.4):
    """A guide away from its start: all parameters moved by normal noise."""
    guide = setting.build(model or make(), X, Y)
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return guide


def trace_of(guide):
    trace = poutine.trace(guide).get_trace(X, Y)
    trace.compute_log_prob()
    return trace


def flat(trace):
    return torch.cat([node["value"].reshape(-1) for node in samples(trace)])


def samples(trace):
    return [node for node in trace.nodes.values() if node["type"] == "sample"]


def covariance(guide):
    """The covariance of all entries, from the parameters of the guide and nothing else of it."""
    if isinstance(guide, guides.matrix_normal.MatrixNormalGuide):
        return torch.block_diag(*map(block, guide.factors))
    scale = torch.diag(softplus(guide.rho))
    if isinstance(guide, guides.correlated.LowRankGuide):
        inner = torch.eye(len(scale)).double() + guide.factor @ guide.factor.T
    else:
        root = torch.eye(len(scale)).double() + guide.factor.tril(-1)
        inner = root @ root.T
    return scale @ inner @ scale


def block(factor):
    if isinstance(factor, guides.matrix_normal.Sides):
        return torch.kron(side(factor.rows), side(factor.columns))
    return torch.diag(softplus(factor.rho).square())


def side(factor):
    root = torch.eye(len(factor.rho)).double()
    root = torch.diag(softplus(factor.rho)) @ (root if factor.below is None else root + factor.below.tril(-1))
    return root @ root.T


def exact(guide):
    return MultivariateNormal(guide.loc, covariance(guide))


@pytest.mark.parametrize("name", NORMALS)
def test_log_density_of_each_site_is_the_one_given_those_before(name):
    guide = build(NORMALS[name])
    trace, total, seen = trace_of(guide), 0.0, 0
    for node in samples(trace):
        total, seen = total + node["log_prob_sum"], seen + node["value"].numel()
        first = MultivariateNormal(guide.loc[:seen], covariance(guide)[:seen, :seen])
        torch.testing.assert_close(total, first.log_prob(flat(trace)[:seen]), rtol=1e-9, atol=1e-9)


def test_radial_density_measures_volumes():
    """E[1(w in A) / q(w)] is the volume of A; 4 standard errors of 40,000 draws."""
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    noises, lengths = torch.randn(40_000, 3).double(), torch.randn(40_000).double()
    draw = torch.vmap(lambda eps, r: guides.radial._radial(torch.zeros(3).double(), scale, eps, r).log_density)
    inside = (lengths.abs() > 0.5) & (lengths.abs() < 1.5)
    shares = torch.where(inside, (-draw(noises, lengths)).exp(), 0.0)
    volume = 4 / 3 * math.pi * (1.5**3 - 0.5**3) * float(scale.prod())
    assert float(shares.mean()) == pytest.approx(volume, abs=4 * float(shares.std()) / 200)
    loc, scale, noise = (torch.tensor([value]).double() for value in (0.3, 0.7, -1.2))  # of one entry it is normal
    part = guides.radial._radial(loc, scale, noise, torch.tensor(0.8).double())
    normal = torch.distributions.Normal(loc, scale)
    torch.testing.assert_close(part.log_density, normal.log_prob(part.value).sum())
    torch.testing.assert_close(part.entropy(), normal.entropy().sum())


def test_flow_density_follows_from_its_jacobian():
    guide = build(guides.Flow(num_transforms=3), spread=0.2)
    size = len(guide.loc)

    def run(noise):
        with Fixed(noise):
            trace = trace_of(guide)
        return flat(trace), trace.log_prob_sum()

    noise = torch.randn(size).double()
    jacobian = torch.autograd.functional.jacobian(lambda eps: run(eps)[0], noise)
    expected = -0.5 * noise.square().sum() - 0.5 * size * math.log(2 * math.pi) - torch.linalg.slogdet(jacobian)[1]
    torch.testing.assert_close(run(noise)[1], expected, rtol=1e-9, atol=1e-9)
    off_diagonal = jacobian - torch.diag(jacobian.diagonal())
    assert (off_diagonal.tril() != 0).any()
    assert (off_diagonal.triu() != 0).any(), "the order alternates"


@pytest.mark.parametrize("name", JOINT)
def test_draws_have_the_moments(name):
    """20,000 draws, 5 standard errors for each of 13 entries, and of 169 covariances."""
    model = make()
    guide = build(JOINT[name], model)
    one = Scaler.identity()
    draws = Posterior(model, guide, example=(X, Y), x_scaler=one, y_scaler=one, seed=0).draw(20_000)
    values = torch.cat([value.flatten(1) for value in draws.values()], 1)
    loc, scale = (torch.cat([pair[k].reshape(-1) for pair in guide.moments().values()]) for k in (0, 1))
    assert ((values.mean(0) - loc).abs() < 5 * scale / 20_000**0.5).all()
    deviations = (values - loc) / scale
    products = deviations[:, :, None] * deviations[:, None, :]
    expected = torch.eye(13).double()
    if name in NORMALS:
        expected = covariance(guide) / (scale[:, None] * scale)
    assert ((products.mean(0) - expected).abs() < 5 * products.std(0) / 20_000**0.5).all()


@pytest.mark.parametrize("name", ALL)
def test_guide_starts_at_the_network(name):
    """The spread of low rank, half of it in its factor, is a mean of 13 chi-squares of 3000: 0.7 % of error."""
    model, low_rank = make(), guides.LowRank(rank=3000)
    guide = (low_rank if name == "low_rank" else ALL[name]).build(model, X, Y)
    assert torch.equal(guide.loc, torch.cat([value.reshape(-1) for value in model.initial_values.values()]))
    start = torch.full_like(guide.loc, math.log1p(math.exp(-5.0)))
    if name == "low_rank":
        torch.testing.assert_close(softplus(guide.rho).square(), start.square() / 2)
        assert guide.spread().square().mean().item() == pytest.approx(float(start[0] ** 2), rel=0.02)
    elif name not in ("radial", "flow"):
        torch.testing.assert_close(guide.spread(), start)


def pairs(guide, model):
    trace = trace_of(guide)
    prior = poutine.trace(poutine.replay(model, trace=trace)).get_trace(X, Y)
    return [(node["fn"], prior.nodes[node["name"]]["fn"]) for node in samples(trace)]


@pytest.mark.parametrize("name", NORMALS)
def test_kl_to_a_normal_prior_is_exact(name):
    model = make(priors.Normal(0.7, loc=0.2))
    guide = build(NORMALS[name], model)
    prior = MultivariateNormal(torch.full((13,), 0.2).double(), 0.49 * torch.eye(13).double())
    expected = kl_divergence(exact(guide), prior)
    torch.testing.assert_close(sum(kl_divergence(q, p) for q, p in pairs(guide, model)), expected)
    torch.testing.assert_close(sum(quadrature_kl(q, p) for q, p in pairs(guide, model)), expected)


@pytest.mark.parametrize("name", JOINT)
def test_entropy_is_exact_or_that_of_draws(name):
    """4 standard errors of 400 draws for the radial guide."""
    guide = build(JOINT[name])
    entropy = sum(node["fn"].entropy() for node in samples(trace_of(guide)))
    if name in NORMALS:
        torch.testing.assert_close(entropy, exact(guide).entropy())
        return
    log_q = torch.stack([trace_of(guide).log_prob_sum().detach() for _ in range(400)])
    assert entropy.item() == pytest.approx(-float(log_q.mean()), abs=4 * float(log_q.std()) / 20)


class InferredMean:
    """Normal weights whose common mean is a latent on the real line."""

    def build(self, values):
        module = PyroModule()
        module.centre = PyroSample(dist.Normal(torch.zeros(()).double(), 1.0))
        module.forward = lambda name, value: dist.Normal(module.centre.expand(value.shape), 1.0).to_event(value.ndim)
        return module


BY_NAME = "the guide {}\\(.* with the prior ScaleMixture"
WITHOUT_KL = [
    *((name, "scale_mixture", kl, BY_NAME) for name in ("flow", "radial") for kl in ("analytic", "quadrature")),
    ("full_rank", InferredMean(), "analytic", "kl='analytic' needs a closed form at every site"),
]


@pytest.mark.parametrize(("name", "prior", "kl", "message"), WITHOUT_KL)
def test_kl_without_draws_is_refused_by_name_and_where_the_prior_depends_on_a_draw(name, prior, kl, message):
    """A joint guide ties weights to their inferred mean, and a KL site by site would leave that out."""
    settings, guide = {"steps": 1, "seed": 0, "progress": False}, ALL[name]
    with pytest.raises(bnn.InputError, match=message.format(type(guide).__name__)):
        make(prior).fit(X, Y, guide=guide, kl=kl, **settings)
    assert make(prior).fit(X, Y, guide=guide, **settings)
    if name == "full_rank":
        assert make(prior).fit(X, Y, guide=guides.MeanField(), kl=kl, **settings)


@pytest.mark.parametrize(
    ("setting", "hidden", "needed"),
    [
        (guides.FullRank(), [1000], "FullRank\\(.* would have 10,2.*and need 190 GiB .*, more than 32: use LowR"),
        (guides.Flow(), [1000], "Flow\\(.* parameters for this network and need 1,1.*: use LowRank"),
        (guides.LowRank(rank=100_000), [1000], "LowRank\\(.*: use a lower rank"),
        (guides.MatrixNormal(), [50_000], "use MatrixNormal\\(factors='diagonal'\\)"),
    ],
    ids=["full_rank", "flow", "low_rank", "matrix_normal"],
)
def test_guide_that_does_not_fit_is_refused(setting, hidden, needed):
    model, x, y = bnn.BNN(bnn.MLP(99, hidden, 1), prior=UNIT), torch.zeros(2, 99), torch.zeros(2)
    with pytest.raises(bnn.InputError, match=needed):
        setting.build(model, x, y)
    assert guides.MatrixNormal("diagonal").build(model, x, y)


NUM, DIM, NOISE = 40, 3, 0.5


def regression(columns):
    generator = torch.Generator().manual_seed(1)
    mixing = torch.tensor([[1.0, 0.8, 0.0], [0.0, 0.6, 0.5], [0.0, 0.0, 0.7]], dtype=torch.float64)
    x = torch.randn(NUM, DIM, generator=generator, dtype=torch.float64) @ mixing
    weights = torch.tensor([[1.0, -0.5, 2.0], [0.0, 1.0, -1.0]], dtype=torch.float64)[:columns]
    y = x @ weights.T + NOISE * torch.randn(NUM, columns, generator=generator, dtype=torch.float64)
    precision = torch.eye(DIM, dtype=torch.float64) + x.T @ x / NOISE**2
    mean = torch.linalg.solve(precision, x.T @ y / NOISE**2).T
    posterior = MultivariateNormal(mean.reshape(-1), torch.block_diag(*[torch.linalg.inv(precision)] * columns))
    return bnn.Data(x, y), posterior


def linear_model(columns):
    net = nn.Linear(DIM, columns, bias=False).double()
    return bnn.BNN(net, prior=priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=NOISE))


def mean_elbo(objective, data, points):
    """The mean over points of the ELBO for their noise."""

    def elbo(point):
        with Fixed(point):
            log_likelihood, kl = objective(data.x, data.y)
        return log_likelihood - kl

    return torch.vmap(elbo)(points).mean()


def sigma_points(size):
    """Points with mean 0 and covariance 1: the mean over them is exact for a linear model, quadratic in the noise."""
    axes = size**0.5 * torch.eye(size).double()
    return torch.cat([axes, -axes])


def maximise(guide, elbo, *, rounds=8):
    optimizer = torch.optim.LBFGS(guide.parameters(), line_search_fn="strong_wolfe", history_size=30)

    def closure():
        optimizer.zero_grad()
        loss = -elbo()
        loss.backward()
        return loss

    for _ in range(rounds):
        optimizer.step(closure)


@pytest.mark.parametrize(
    ("setting", "columns", "num_noises"),
    [(guides.FullRank(), 1, 3), (guides.FullRank(), 2, 6), (guides.LowRank(2), 1, 5), (guides.MatrixNormal(), 2, 6)],
    ids=["full_rank", "full_rank of two outputs", "low_rank", "matrix_normal"],
)
def test_best_guide_of_the_family_is_the_exact_posterior(setting, columns, num_noises):
    data, posterior = regression(columns)
    model = linear_model(columns)
    guide = setting.build(model, data.x, data.y)
    objective, points = Objective(model, guide, num_data=NUM, kl="mc"), sigma_points(num_noises)
    maximise(guide, lambda: mean_elbo(objective, data, points))
    assert kl_divergence(exact(guide), posterior).item() < 1e-6
    torch.testing.assert_close(covariance(guide), posterior.covariance_matrix, atol=1e-4, rtol=1e-3)
    if columns == 1:
        exact_evidence = linear_evidence(data.x, data.y, NOISE)
        assert mean_elbo(objective, data, points).item() == pytest.approx(exact_evidence, abs=1e-6)


DATA, EXACT = regression(1)
LOG_EVIDENCE, PRECISION = linear_evidence(DATA.x, DATA.y, NOISE), EXACT.precision_matrix
KL_OF_BEST_DIAGONAL = 0.5 * float(PRECISION.diagonal().log().sum() - torch.logdet(PRECISION))


def fit(guide, *, steps, lr, engine="eager", **settings):
    decay = {"type": "exponential_lr", "gamma": 1e-3 ** (1 / steps)}
    method = bnn.SVI(guide=guide, steps=steps, lr=lr, schedule=decay, **{"num_particles": 2} | settings)
    return bnn.fit(linear_model(1), DATA, method, seed=0, engine=engine, progress=False)


@pytest.fixture(scope="module")
def posterior():
    return fit(bnn.guides.MeanField(), steps=800, lr=0.2, engine="captured")


def test_mean_field_reaches_the_best_diagonal_gaussian(posterior):
    loc, scale = (moment[0] for moment in posterior.guide.moments()["weight"])
    gap = float(kl_divergence(MultivariateNormal(loc, torch.diag(scale.square())), EXACT)) - KL_OF_BEST_DIAGONAL
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
    mode = torch.linalg.solve(precision, 4 * DATA.x.T @ DATA.y / NOISE**2)
    torch.testing.assert_close(loc[0], mode, atol=0.02, rtol=0)
    torch.testing.assert_close(scale[0], precision.diagonal().rsqrt(), atol=0, rtol=0.05)
