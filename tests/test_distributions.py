"""The distributions against float64, closed forms and quadrature."""

import math

import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch.distributions import kl_divergence

import pyrobnn as bnn
from pyrobnn.distributions.latents import NormalOfMany, ReparameterizedNormal, ScaleMixtureNormal
from pyrobnn.guides.map import PointMass

WIDE = torch.cat([torch.linspace(-100, 100, 401), torch.linspace(-1e-2, 1e-2, 41)])


def reference(w, pi, sigma1, sigma2):
    w = w.double()
    components = [
        math.log(weight) + dist.Normal(torch.zeros(1, dtype=torch.float64), scale).log_prob(w)
        for weight, scale in ((pi, sigma1), (1 - pi, sigma2))
    ]
    return torch.logaddexp(*components)


@pytest.mark.parametrize("parameters", [(0.25, math.exp(-1), math.exp(-7)), (0.2, 1.0, 0.1)])  # Blundell, Krasser
def test_scale_mixture_log_prob_and_gradient_agree_with_float64_up_to_100(parameters):
    single = WIDE.clone().requires_grad_()
    double = WIDE.double().requires_grad_()
    log_prob = ScaleMixtureNormal(*(torch.tensor(p) for p in parameters)).expand(WIDE.shape).log_prob(single)
    exact = reference(double, *parameters)
    torch.testing.assert_close(log_prob.double(), exact, rtol=2e-6, atol=2e-6)
    (gradient,) = torch.autograd.grad(log_prob.sum(), single)
    (exact_gradient,) = torch.autograd.grad(exact.sum(), double)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(gradient).all()


def test_scale_mixture_has_its_variance_and_its_draws_follow_it():
    torch.manual_seed(0)
    mixture = ScaleMixtureNormal(0.3, 2.0, 0.1)
    draws = mixture.expand([20_000]).sample().numpy()
    assert float(mixture.variance) == pytest.approx(0.3 * 4 + 0.7 * 0.01)
    assert stats.kstest(draws, lambda w: 0.3 * stats.norm.cdf(w / 2) + 0.7 * stats.norm.cdf(w / 0.1)).pvalue > 0.01


@pytest.mark.parametrize("size", [None, 0.0, 1e-4, 50.0], ids=["starts", "all at zero", "tiny", "huge"])
def test_learned_mixture_is_shared_by_all_layers_and_stays_in_range_under_weights_that_push_it_out(size):
    prior = bnn.priors.ScaleMixture(pi=0.2, sigma1=1.0, sigma2=0.1, learnable=True)
    model = bnn.BNN(bnn.MLP(1, [5, 5], 1), prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=1.0))
    if size is None:
        assert list(bnn.BNN(bnn.MLP(1, [5], 1), prior="scale_mixture").prior.parameters()) == []
        for name, weights in model.initial_values.items():
            model.zero_grad()
            model.prior(name, weights).log_prob(weights).backward()
            assert model.prior.pi_unconstrained.grad != 0
        return
    weights, optimizer = torch.full((5, 5), size), torch.optim.Adam(model.parameters(), lr=1.0)
    for _ in range(300):
        optimizer.zero_grad()
        loss = -model.prior("2.weight", weights).log_prob(weights)
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
        assert 0 < model.prior.pi < 1
        assert min(model.prior.sigma1, model.prior.sigma2) > 0


def test_reparameterized_normal_is_a_normal_with_one_given_draw():
    loc, scale = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 2.0])
    noise = torch.tensor([0.3, -1.0])
    q = ReparameterizedNormal(loc, scale, loc + scale * noise)
    torch.testing.assert_close(q.rsample(), loc + scale * noise)
    p = dist.Normal(0.0, 1.0).expand([2])
    torch.testing.assert_close(kl_divergence(q, p), kl_divergence(dist.Normal(loc, scale), p))
    torch.testing.assert_close(q.log_prob(loc), dist.Normal(loc, scale).log_prob(loc))
    with pytest.raises(NotImplementedError, match="ask for one"):
        q.rsample((3,))
    with pytest.raises(NotImplementedError, match="has one draw"):
        q.expand([3, 2])


@pytest.mark.parametrize(("loc", "scale"), [(0.3, 0.7), ([0.3, 1.0, 2.0], 0.7), (0.0, [0.1, 2.0, 3.0])])
def test_normal_of_many_entries_has_the_bits_of_a_normal(loc, scale):
    loc, scale, value = torch.tensor(loc), torch.tensor(scale), torch.randn(4, 3)
    found = NormalOfMany(loc, scale).expand((4, 3)).to_event(2)
    expected = dist.Normal(loc, scale).expand((4, 3)).to_event(2)
    assert isinstance(found.base_dist, NormalOfMany)
    assert torch.equal(found.base_dist.log_prob(value), expected.base_dist.log_prob(value))
    assert torch.equal(found.log_prob(value), expected.log_prob(value))


def test_a_point_has_the_density_of_a_delta():
    value = torch.randn(4, 3, requires_grad=True)
    point, delta = PointMass(value, event_dim=2), dist.Delta(value, event_dim=2)
    assert point.rsample() is value
    assert torch.equal(point.rsample((5,)), delta.rsample((5,)))
    for other in (value, value.clone(), value + 1):
        assert torch.equal(point.log_prob(other), delta.log_prob(other))


@pytest.mark.parametrize("df", [1.0, 3.0, 1e2, 1e4, 1e6, 1e8])
def test_student_t_has_its_density_for_any_degrees_of_freedom(df):
    """Two log gammas in single precision nearly cancel: -2.13 came where -1.96 is exact."""
    values = torch.tensor([[0.3, -4.0, 0.4]])
    law = bnn.priors.StudentT(df, 0.5).build({"weight": torch.zeros(1, 3)})("weight", torch.zeros(1, 3))
    assert float(law.log_prob(values)) == pytest.approx(stats.t(df, scale=0.5).logpdf(values.numpy()).sum(), rel=2e-6)
