"""The table of a scale mixture's spike against quadrature: values, gradients, edges, replicates, and a fit.

The reference is the trapezoidal rule of 600 nodes in float64; that of 48 is tested in test_quadrature.py. Means and
scales are drawn over everything that matters: from a hundredth of the spike's width to far beyond the slab, half of
them along the flank of the bump, where it bends most. Measured errors in units of the spike, for a = 10, the worst:
1.0e-6 for values, 1.3e-5 for gradients up to 5 in float64; 2.4e-6 and 1.5e-4 in float32, in which the values of the
table, up to 10, have errors of 5e-7.
"""

import math

import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import softplus

import pyrobnn as bnn
from pyrobnn import priors
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.distributions import spike
from pyrobnn.distributions.latents import ScaleMixtureNormal
from pyrobnn.guides.divergence import quadrature_kl
from pyrobnn.priors.scale_mixture import tabulate

F64 = torch.float64
MIXTURES = {
    "1 and e^-6": (0.5, 1.0, math.exp(-6)),
    "1 and e^-10": (0.5, 1.0, math.exp(-10)),
    "1.5 and 0.1": (0.25, 1.5, 0.1),
    "swapped": (0.75, math.exp(-7), math.exp(-1)),
    "hardly a spike": (0.999, 1.0, 0.999),
    "equal": (0.25, 1.0, 1.0),
}
every_mixture = pytest.mark.parametrize("parameters", MIXTURES.values(), ids=MIXTURES)


def mixture(parameters, dtype=F64):
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
@every_mixture
@pytest.mark.parametrize(("dtype", "bounds"), [(F64, (1.2e-6, 2e-5)), (torch.float32, (3e-6, 2e-4))], ids=str)
def test_the_table_agrees_with_a_fine_rule(parameters, dtype, bounds):
    exact_mixture = mixture(parameters)
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
    mixtures = [mixture(parameters) for parameters in list(MIXTURES.values())[:3]]
    tables = torch.stack([one.tabulated() for one in mixtures])
    numbers = torch.stack([torch.stack([one.pi, one.sigma1, one.sigma2]) for one in mixtures])
    loc, scale = torch.tensor([0.01, -0.3], dtype=F64), torch.tensor([0.02, 0.1], dtype=F64)

    def total(loc, table, numbers):
        return ScaleMixtureNormal(*numbers, table=table, validate_args=False).expected_log_prob(loc, scale).sum()

    together = vmap(grad(total), in_dims=(None, 0, 0))(loc, tables, numbers)
    alone = torch.stack([grad(total)(loc, *pair) for pair in zip(tables, numbers, strict=True)])
    torch.testing.assert_close(together, alone)


def model(prior=None):
    prior = prior or priors.ScaleMixture(0.3, 1.0, 0.05)
    return bnn.BNN(torch.nn.Linear(2, 1), prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=0.5))


def test_the_kl_of_a_site_is_read_from_the_table():
    one, q = model(), bnn.guides.MeanField()
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
    learned, fixed = model(priors.ScaleMixture(learnable=True)), model()
    for one in (learned, fixed):
        tabulate(one)
    assert learned.prior.table is None
    assert "prior.table" not in fixed.state_dict()
