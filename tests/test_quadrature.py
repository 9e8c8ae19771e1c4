"""KL by quadrature: the expectation under a scale mixture, the divergence of a site, fits, and the table of the spike.

The references are panels of Gauss-Legendre and scipy's adaptive quadrature in float64, split at the scales of guide
and prior. Measured errors on the grid, relative to max(1, |value|): 2e-8 in float64, 1e-6 in float32; the bounds below
leave room of 5 and 3 times. Monte Carlo comparisons are z-tests at 4 standard errors with the seeds given.

That of the table is the trapezoidal rule of 600 nodes in float64. Means and scales are drawn over everything that
matters: from a hundredth of the spike's width to far beyond the slab, half of them along the flank of the bump, where
it bends most. Measured errors in units of the spike, for a = 10, the worst: 1.0e-6 for values, 1.3e-5 for gradients up
to 5 in float64; 2.4e-6 and 1.5e-4 in float32, in which the values of the table, up to 10, have errors of 5e-7.
"""

import math
from itertools import pairwise, product

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from scipy import integrate, stats
from torch import nn
from torch.distributions import kl_divergence
from torch.func import grad, vmap
from torch.nn.functional import softplus

import pyrobnn as bnn
from pyrobnn import priors
from pyrobnn._core.random import seeded
from pyrobnn._core.settings import setting
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.distributions import spike
from pyrobnn.distributions.latents import ReparameterizedNormal, ScaleMixtureNormal
from pyrobnn.guides.divergence import quadrature_kl
from pyrobnn.inference.capture.objective import ELBO, Objective, WeightLatents
from pyrobnn.priors.scale_mixture import tabulate
from pyrobnn.testing.checks import require_capturable

F64 = torch.float64
GRID = list(product([0.0, 0.003, 0.05, -0.5, 3.0, 10.0], [1e-4, 1e-3, 0.01, 0.1, 1.0, 5.0]))
"""Mean and standard deviation of q."""
MIXTURES = {
    **{
        f"pi {pi}, {wide:.2f} and {narrow:.4f}": (pi, wide, narrow)
        for pi in (0.25, 0.5, 0.75)
        for wide in (1.5, math.exp(-1))
        for narrow in (0.1, math.exp(-7))
    },
    "equal": (0.25, 1.0, 1.0),
    "equal and narrow": (0.6, 0.1, 0.1),
    "nearly equal": (0.5, 1.0, 0.999),
    "swapped": (0.5, 0.1, 1.5),
    "swapped and far apart": (0.75, math.exp(-7), 1.5),
}
every_mixture = pytest.mark.parametrize("parameters", MIXTURES.values(), ids=MIXTURES)


def by_quad(log_p, loc, scale, width=1.0):
    """E[log_p(w)] for w ~ N(loc, scale^2) by adaptive quadrature, split at the scales of q and of log_p."""
    low, high = loc - 12 * scale, loc + 12 * scale
    cuts = {loc + k * scale for k in (-12, -6, -3, -1, 0, 1, 3, 6, 12)} | {k * width for k in (-12, -5, 0, 5, 12)}
    edges = sorted(cut for cut in cuts if low <= cut <= high)
    integrand = lambda w: math.exp(-0.5 * ((w - loc) / scale) ** 2) * float(log_p(w))  # noqa: E731
    pieces = [integrate.quad(integrand, *ends, epsabs=1e-12 * scale, limit=200)[0] for ends in pairwise(edges)]
    return sum(pieces) / (scale * math.sqrt(2 * math.pi))


def by_panels(loc, scale, pi, sigma1, sigma2):
    """E[log p(w)] by Gauss-Legendre on panels fixed in w, a standard deviation of q or of the narrow component long."""
    steps, narrow = torch.arange(-12.0, 13.0, dtype=F64)[:, None], torch.minimum(sigma1, sigma2).detach()
    centre, width = loc.detach(), scale.detach()
    edges = torch.cat([centre + width * steps, (narrow + 0 * centre) * steps])
    edges = torch.maximum(torch.minimum(edges, centre + 12 * width), centre - 12 * width).sort(0).values
    nodes, weights = (torch.tensor(v, dtype=F64)[:, None, None] for v in np.polynomial.legendre.leggauss(30))
    half = 0.5 * edges.diff(dim=0)
    w = edges[:-1] + half * (1 + nodes)
    first, second = (dist.Normal(0.0, sigma).log_prob(w) for sigma in (sigma1, sigma2))
    log_p = torch.logaddexp(pi.log() + first, torch.log1p(-pi) + second)
    return (half * weights * log_p * dist.Normal(loc, scale).log_prob(w).exp()).sum((0, 1))


@every_mixture
@pytest.mark.parametrize(("dtype", "bounds"), [(F64, (1e-7, 1e-5)), (torch.float32, (3e-6, 2e-5))], ids=str)
def test_the_expectation_and_its_gradients_agree_with_a_fine_grid(parameters, dtype, bounds):
    """Gradients relative to their size, or to 1 over the parameter: that is how large that of the entropy is."""
    loc, scale = torch.tensor(GRID, dtype=F64).unbind(1)

    def with_gradients(function, dtype):
        """Values (entries,), and their gradients by loc, scale, pi, sigma1 and sigma2, (5, entries)."""
        arguments = [loc, scale, *(torch.full_like(loc, value) for value in parameters)]
        arguments = [value.to(dtype).clone().requires_grad_() for value in arguments]
        values = function(*arguments)
        return values.detach().double(), torch.stack(torch.autograd.grad(values.sum(), arguments)).double()

    found = with_gradients(lambda loc, scale, *rest: ScaleMixtureNormal(*rest).expected_log_prob(loc, scale), dtype)
    exact = with_gradients(by_panels, F64)
    assert float(((found[0] - exact[0]).abs() / exact[0].abs().clamp_min(1.0)).max()) < bounds[0]
    sizes = torch.stack([1 / scale, 1 / scale, *(torch.full_like(scale, 1 / value) for value in parameters)])
    assert found[1].isfinite().all()
    assert float(((found[1] - exact[1]).abs() / (exact[1].abs() + sizes)).max()) < bounds[1]
    assert all(bool(row.any()) for row in exact[1])


def normal(loc, scale, event_dim=1):
    return dist.Normal(loc, scale).to_event(event_dim)


def test_divergence_is_the_closed_form_where_there_is_one():
    q, p = normal(torch.tensor([0.3, -1.0]), torch.tensor([0.5, 2.0])), normal(torch.zeros(2), torch.ones(2))
    assert torch.equal(quadrature_kl(q, p), kl_divergence(q, p))
    point = dist.Delta(torch.tensor([0.3, 0.1]), event_dim=1)
    mixture = ScaleMixtureNormal(0.5, 1.0, 0.1).expand([2]).to_event(1)
    assert torch.equal(quadrature_kl(point, mixture), kl_divergence(point, mixture))


def test_divergence_has_the_batch_shape_of_the_guide():
    loc, scale = torch.randn(4, 3), torch.full((4, 3), 0.2)
    p = ScaleMixtureNormal(0.5, 1.0, 0.1).expand([4, 3])
    entries = quadrature_kl(dist.Normal(loc, scale), p)
    assert entries.shape == (4, 3)
    torch.testing.assert_close(quadrature_kl(normal(loc, scale), p.to_event(1)), entries.sum(1))
    torch.testing.assert_close(quadrature_kl(normal(loc, scale, 2), p.to_event(2)), entries.sum())
    drawn = ReparameterizedNormal(loc, scale, loc)
    torch.testing.assert_close(quadrature_kl(drawn.to_event(2), p.to_event(2)), entries.sum())


@pytest.mark.parametrize(("df", "width"), [(3.0, 1.0), (10.0, 0.5)])
@pytest.mark.parametrize(("loc", "scale"), [(0.0, 0.01), (0.4, 0.3), (-3.0, 1.0)])
def test_divergence_from_a_student_t_agrees_with_adaptive_quadrature(df, width, loc, scale):
    """Gauss-Hermite with 32 nodes; its error grows with scale / (width sqrt(df)): 1e-7 at 0.6, the largest here."""
    q = dist.Normal(torch.tensor(loc, dtype=F64), torch.tensor(scale, dtype=F64))
    p = dist.StudentT(*torch.tensor([df, 0.0, width], dtype=F64))
    exact = -stats.norm(loc, scale).entropy() - by_quad(stats.t(df, scale=width).logpdf, loc, scale, width)
    assert float(quadrature_kl(q, p)) == pytest.approx(float(exact), abs=1e-6)


class Tilted(dist.Normal):
    """Drawn as a normal, of another density."""

    def log_prob(self, value):
        return super().log_prob(value) - value.abs()


def mixture(shape, event_dim):
    return ScaleMixtureNormal(0.5, 1.0, 0.1).expand(shape).to_event(event_dim)


WITHOUT = {
    "a guide that is not normal": (dist.Laplace(torch.zeros(2), 1.0).to_event(1), mixture([2], 1)),
    "a correlated guide": (dist.MultivariateNormal(torch.zeros(2), torch.eye(2)), mixture([2], 1)),
    "a normal with a density of its own": (Tilted(torch.zeros(2), 1.0).to_event(1), mixture([2], 1)),
    "a correlated prior": (normal(torch.zeros(2), 1.0), dist.MultivariateStudentT(4.0, torch.zeros(2), torch.eye(2))),
    "another event shape": (normal(torch.zeros(2), 1.0), mixture([2], 0)),
    "a prior on positive numbers": (normal(torch.zeros(2), 1.0), dist.HalfCauchy(torch.ones(2)).to_event(1)),
}


@pytest.mark.parametrize("pair", WITHOUT.values(), ids=WITHOUT)
def test_pairs_without_a_divergence_are_refused(pair):
    with pytest.raises(NotImplementedError):
        quadrature_kl(*pair)
    with pytest.raises(NotImplementedError):  # what has a quadrature is not registered as if it had a closed form
        kl_divergence(normal(torch.zeros(2), 1.0), mixture([2], 1))


NOISE, NUM = 0.5, 20


def data(dtype=F64):
    x = torch.randn(NUM, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    y = 0.8 * x[:, 0] + NOISE * torch.randn(NUM, generator=torch.Generator().manual_seed(2), dtype=F64)
    return x.to(dtype), y.to(dtype)


@setting
class StudentT(priors.SitePrior):
    """A prior that users might write."""

    df: float = 4.0

    def site(self, name, value):
        return dist.StudentT(priors.base.constant(self.df, value), priors.base.constant(0.0, value), 0.5)


PRIORS = {
    "mixture": priors.ScaleMixture(pi=0.3, sigma1=1.0, sigma2=0.05),
    "learned mixture": priors.ScaleMixture(pi=0.3, sigma1=1.0, sigma2=0.05, learnable=True),
    "student": StudentT(),
    "mixture and student": priors.resolve({"bias": priors.ScaleMixture(), "*": StudentT()}),
    "normal": priors.Normal(0.7),
}


def model(prior="mixture", dtype=F64):
    with seeded(0):
        net = nn.Linear(2, 1).to(dtype)
    return bnn.BNN(net, prior=PRIORS.get(prior, prior), likelihood=bnn.likelihoods.Gaussian(scale=NOISE))


def built(model, x, y, guide=None):
    with fast_pyro():
        return (guide or bnn.guides.MeanField(init_rho=-1.5)).build(model, x, y)


def by_pyro(model, guide, *batch, kl="quadrature", weight=1.0, seed=7, **settings):
    """Gradients of the loss by every parameter, the loss and the terms, from Pyro's ELBO."""
    elbo = ELBO(kl, 1)
    parameters = [*model.parameters(), *guide.parameters()]
    with seeded(seed), fast_pyro(), WeightLatents(weight):
        loss = elbo.differentiable_loss(model, guide, *batch, **settings)
    found = torch.autograd.grad(loss, parameters)
    return torch.cat([value.reshape(-1) for value in found]), loss.detach(), torch.stack([elbo.log_likelihood, elbo.kl])


def test_the_kl_does_not_depend_on_the_draw_and_is_weighted_once():
    one, batch = model("learned mixture"), data()
    guide = built(one, *batch)
    (gradient, loss, terms), *others = (by_pyro(one, guide, *batch, weight=weight) for weight in (1.0, 0.25, 2.0))
    assert float(loss) == pytest.approx(float(terms[1] - terms[0]), rel=1e-12)
    assert float(terms[1]) == float(by_pyro(one, guide, *batch, seed=8)[2][1])
    for weight, (other_gradient, other_loss, other_terms) in zip((0.25, 2.0), others, strict=True):
        assert torch.equal(other_terms, terms)  # noted without the weight
        assert float(other_loss) == pytest.approx(float(weight * terms[1] - terms[0]), rel=1e-12)
        (others_mean, _, _) = by_pyro(one, guide, *batch, weight=(1.0 + weight) / 2)
        torch.testing.assert_close(others_mean, (gradient + other_gradient) / 2)
        assert float((other_gradient - gradient).abs().max()) > 0.1


@pytest.mark.parametrize(("dtype", "bound"), [(F64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("prior", PRIORS)
def test_objective_is_that_of_pyro(prior, dtype, bound):
    one, batch = model(prior, dtype), data(dtype)
    guide = built(one, *batch)
    gradient, _, terms = by_pyro(one, guide, *batch, weight=0.7, num_data=50)
    with seeded(7), fast_pyro():
        found = Objective(one, guide, num_data=50, kl="quadrature")(*batch)
        parameters = [*one.parameters(), *guide.parameters()]
        found_gradient = torch.autograd.grad(0.7 * found[1] - found[0], parameters)
    torch.testing.assert_close(torch.stack(found).detach(), terms, rtol=bound, atol=0)
    flat = torch.cat([value.reshape(-1) for value in found_gradient])
    torch.testing.assert_close(flat, gradient, rtol=bound, atol=bound * float(gradient.abs().max()))


ALL_ON = {"num_particles": 2, "batch_size": 5, "temperature": 0.5, "kl_warmup": 5}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("prior", ["mixture", "learned mixture", "student"])
@pytest.mark.parametrize(
    "settings", [{}, ALL_ON | {"guide": bnn.guides.MeanField(noise="shared")}], ids=["plain", "all on"]
)
def test_captured_steps_are_the_eager_ones_alone_and_side_by_side(prior, settings):
    require_capturable(model(prior, torch.float32), bnn.Data(*data(torch.float32)), kl="quadrature", **settings)


def fit(prior="mixture", *, kl, seed=0, steps=1500, engine="captured", **settings):
    decay = {"type": "exponential_lr", "gamma": 1e-3 ** (1 / steps)}
    method = bnn.SVI(steps=steps, lr=0.05, kl=kl, schedule=decay, **settings)
    return bnn.fit(model(prior), bnn.Data(*data()), method, seed=seed, engine=engine, progress=False)


def test_history_holds_the_kl_without_temperature_and_warmup():
    one = model()
    for settings in ({}, {"temperature": 0.1}, {"kl_warmup": 50}):
        method = bnn.SVI(steps=3, lr=1e-12, kl="quadrature", **settings)
        posterior = bnn.fit(one, bnn.Data(*data()), method, seed=0, engine="eager", progress=False)
        loc, scale = posterior.guide.loc.detach(), nn.functional.softplus(posterior.guide.rho).detach()
        log_p = by_panels(loc, scale, *torch.tensor([0.3, 1.0, 0.05], dtype=F64))
        exact = float(-(dist.Normal(loc, scale).entropy() + log_p).sum())
        np.testing.assert_allclose(posterior.history.kl, exact, rtol=1e-6)


class Positive(priors.SitePrior):
    def site(self, name, value):
        return dist.HalfCauchy(torch.ones_like(value))


class Correlated:
    """The mean of all weights is drawn first, as an auxiliary site."""

    def build(self, model, *args):
        guide = PyroModule()
        guide.loc = nn.Parameter(torch.zeros((), dtype=F64))

        def forward(*args, **kwargs):
            centre = pyro.sample("centre", dist.Normal(guide.loc, 1.0), infer={"is_auxiliary": True})
            for name, value in model.initial_values.items():
                pyro.sample(name, normal(centre + torch.zeros_like(value), 1.0, value.ndim))

        guide.forward = forward
        return guide


REFUSED = {
    "low rank": (bnn.guides.Auto("AutoLowRankMultivariateNormal", {"rank": 1}), "mixture", "'_AutoLowRank"),
    "auxiliary site": (Correlated(), "mixture", "'centre'"),
    "positive prior": (bnn.guides.MeanField(), Positive(), "'weight'"),
}


@pytest.mark.parametrize(("guide", "prior", "site"), REFUSED.values(), ids=REFUSED)
def test_fits_without_a_divergence_are_refused_before_training(guide, prior, site):
    message = f"kl='quadrature' needs a closed form, or a normal guide .* at {site}.*use kl='mc'"
    for engine in ("eager", "captured"):
        with pytest.raises(bnn.InputError, match=message):
            fit(prior, kl="quadrature", steps=1, guide=guide, engine=engine)
    with pytest.raises(bnn.InputError, match="kl='analytic' needs a closed form at every site, and there is none"):
        fit(kl="analytic", steps=1)


SPIKES = {
    "1 and e^-6": (0.5, 1.0, math.exp(-6)),
    "1 and e^-10": (0.5, 1.0, math.exp(-10)),
    "1.5 and 0.1": (0.25, 1.5, 0.1),
    "swapped": (0.75, math.exp(-7), math.exp(-1)),
    "hardly a spike": (0.999, 1.0, 0.999),
    "equal": (0.25, 1.0, 1.0),
}
every_spike = pytest.mark.parametrize("parameters", SPIKES.values(), ids=SPIKES)


def spiked(parameters, dtype=F64):
    return ScaleMixtureNormal(*(torch.tensor(value, dtype=dtype) for value in parameters))


def places(a, b, num=4000):
    """Means and scales of q, (num,)."""
    generator = torch.Generator().manual_seed(0)
    uniform = lambda: torch.rand(num // 2, generator=generator, dtype=F64)  # noqa: E731
    unit = b.clamp_min(1e-6).rsqrt()
    scale = unit * 10 ** (7 * torch.cat([uniform(), uniform()]) - 3)
    wide = unit * 10 ** (7 * uniform() - 3)
    flank = ((a + 17).clamp_min(1) * uniform() * (unit**2 + 2 * scale[num // 2 :] ** 2)).sqrt()
    return torch.cat([wide, flank]) * torch.where(torch.arange(num) % 2 == 0, 1, -1), scale


def with_gradients(function, loc, scale):
    """Value and derivatives by loc and scale of each entry, (3, entries), in float64."""
    loc, scale = loc.clone().requires_grad_(), scale.clone().requires_grad_()
    value = function(loc, scale)
    return torch.stack([value.detach(), *torch.autograd.grad(value.sum(), [loc, scale])]).double()


@pytest.mark.one_in(4)
@every_spike
@pytest.mark.parametrize(("dtype", "bounds"), [(F64, (1.2e-6, 2e-5)), (torch.float32, (3e-6, 2e-4))], ids=str)
def test_the_table_agrees_with_a_fine_rule(parameters, dtype, bounds):
    exact_mixture = spiked(parameters)
    a, b = exact_mixture._slab_and_odds()[2:]
    table, (loc, scale) = exact_mixture.tabulated().to(dtype), places(a, b)

    def fine(loc, scale):
        distance = loc.abs()
        w, z, weights = spike.rule(a, b, distance.detach(), scale.detach(), 600)
        w = w + (distance - distance.detach()) + (scale - scale.detach()) * z
        return (weights * softplus(a - b * w.square())).sum(0)

    def found(loc, scale):
        return spike.interpolate(table, a.to(dtype), b.to(dtype), loc, scale)

    errors = (with_gradients(found, loc.to(dtype), scale.to(dtype)) - with_gradients(fine, loc, scale)).abs()
    assert float(errors[0].max()) < bounds[0]
    assert float(errors[1:].max() * b.clamp_min(1e-6).rsqrt()) < bounds[1]


def test_places_beyond_the_grid_and_no_places_at_all():
    table, one = spike.table(3.0).float(), torch.ones(())
    loc = torch.tensor([0.0, 1e18, 5.0, math.nan, 0.0, 1.0])
    scale = torch.tensor([1e-30, 1.0, 1e-20, 1.0, math.nan, 1e18])
    found = spike.interpolate(table, 3 * one, one, loc, scale)
    assert float(found[0]) == pytest.approx(math.log1p(math.exp(3)), rel=1e-6)
    assert found[[1, 2, 5]].abs().max() < 1e-6
    assert found[3:5].isnan().all()


def test_replicates_have_tables_of_their_own():
    mixtures = [spiked(parameters) for parameters in list(SPIKES.values())[:3]]
    tables = torch.stack([one.tabulated() for one in mixtures])
    numbers = torch.stack([torch.stack([one.pi, one.sigma1, one.sigma2]) for one in mixtures])
    loc, scale = torch.tensor([0.01, -0.3], dtype=F64), torch.tensor([0.02, 0.1], dtype=F64)

    def total(loc, table, numbers):
        return ScaleMixtureNormal(*numbers, table=table, validate_args=False).expected_log_prob(loc, scale).sum()

    together = vmap(grad(total), in_dims=(None, 0, 0))(loc, tables, numbers)
    alone = torch.stack([grad(total)(loc, *pair) for pair in zip(tables, numbers, strict=True)])
    torch.testing.assert_close(together, alone)


def with_spike(prior=None):
    prior = prior or priors.ScaleMixture(0.3, 1.0, 0.05)
    return bnn.BNN(torch.nn.Linear(2, 1), prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=0.5))


def test_the_kl_of_a_site_is_read_from_the_table():
    one, q = with_spike(), bnn.guides.MeanField()
    x, y = torch.randn(5, 2), torch.randn(5)
    with fast_pyro():
        site = q.build(one, x, y)._distribution(*torch.tensor([[0.1, 0.2], [0.02, 0.3], [0.0, 0.0]]), None)
        by_nodes = quadrature_kl(site, one.prior("weight", torch.zeros(2)))
        tabulate(one)
        prior = one.prior("weight", torch.zeros(2))
    assert prior.base_dist.table.shape[-1] == 4
    torch.testing.assert_close(quadrature_kl(site, prior), by_nodes, rtol=1e-5, atol=0)
    assert not torch.equal(quadrature_kl(site, prior), by_nodes)


def test_learned_mixtures_and_saved_states_have_no_table():
    learned, fixed = with_spike(priors.ScaleMixture(learnable=True)), with_spike()
    for one in (learned, fixed):
        tabulate(one)
    assert learned.prior.table is None
    assert "prior.table" not in fixed.state_dict()
