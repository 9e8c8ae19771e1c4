"""Densities of the priors against scipy in float64, the sites that they add, and priors that are no settings."""

from itertools import pairwise

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from helpers import without_tapes
from pyro import poutine
from scipy import integrate, stats
from torch import nn
from torch.distributions import kl_divergence

import pyrobnn as bnn
from pyrobnn import InputError, priors
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro, local_parameters
from pyrobnn.guides.divergence import quadrature_kl
from pyrobnn.guides.sites import latent_sites
from pyrobnn.inference.training.captured import Captured
from pyrobnn.testing import checks
from pyrobnn.testing.checks import make_data

F64 = torch.float64
X = torch.linspace(-1, 1, 24, dtype=F64).reshape(8, 3)
Y = X.sum(1)


def network(dtype=F64):
    with seeded(0):
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)


def model(prior, net=None):
    return bnn.BNN(net or network(), prior=prior, likelihood=bnn.likelihoods.Gaussian(0.3))


def log_densities(prior, net=None, seed=1):
    """The value of each latent site at a draw of the model, and its log density there."""
    with seeded(seed), local_parameters():
        trace = poutine.trace(model(prior, net)).get_trace(X, Y)
    trace.compute_log_prob()
    latents = [name for name in trace.stochastic_nodes if name != "data"]
    assert all(not trace.nodes[name]["cond_indep_stack"] for name in latents)
    return {name: (trace.nodes[name]["value"], float(trace.nodes[name]["log_prob_sum"])) for name in latents}


def normal(value, scale, loc=0.0):
    return stats.norm(loc, scale).logpdf(value).sum()


MIXTURE = dist.MixtureSameFamily(
    dist.Categorical(torch.tensor([0.25, 0.75], dtype=F64)),
    dist.Normal(torch.tensor([-1.0, 1.0], dtype=F64), torch.tensor([0.5, 0.1], dtype=F64)),
)
IN_SCIPY = stats.Mixture([stats.Normal(mu=-1, sigma=0.5), stats.Normal(mu=1, sigma=0.1)], weights=[0.25, 0.75])
INDEPENDENT = {
    "mixture": (MIXTURE, lambda fan_in: IN_SCIPY),
    "mixtures by name": ({"*.bias": MIXTURE, "*": MIXTURE}, lambda fan_in: IN_SCIPY),
    "student": (priors.StudentT(3.5, 0.7), lambda fan_in: stats.t(3.5, scale=0.7)),
    "student by fan-in": (priors.StudentT(4.0, "fan_in"), lambda fan_in: stats.t(4.0, scale=fan_in**-0.5)),
    "laplace": (priors.Laplace(0.4), lambda fan_in: stats.laplace(scale=0.4)),
    "laplace by he": (priors.Laplace("he"), lambda n: stats.laplace(scale=(2 / n) ** 0.5 if n > 1 else 1)),
    "normal": (priors.Normal(0.7, loc=0.2), lambda fan_in: stats.norm(0.2, 0.7)),
    "cauchy": (dist.Cauchy(0.25, 2.0), lambda fan_in: stats.cauchy(0.25, 2.0)),
    "function": (
        lambda name, value: dist.Normal(0.0, 1.0 if "bias" in name else 0.5),
        lambda fan_in: stats.norm(0.0, 1.0 if fan_in == 1 else 0.5),
    ),
}


@pytest.mark.parametrize(("prior", "law"), INDEPENDENT.values(), ids=INDEPENDENT)
def test_density_of_independent_weights(prior, law):
    found = log_densities(prior)
    assert list(found) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    for value, log_density in found.values():
        fan_in = value.shape[1] if value.ndim > 1 else 1
        assert log_density == pytest.approx(law(fan_in).logpdf(value).sum(), rel=1e-10)


KINDS = {
    "half_cauchy": lambda scale: stats.halfcauchy(scale=scale),
    "half_normal": lambda scale: stats.halfnorm(scale=scale),
    "gamma": lambda scale: stats.gamma(2, scale=scale / 2),
    "log_normal": lambda scale: stats.lognorm(0.5, scale=scale),
}
ONE, ROW, ENTRIES = (lambda shape: ()), (lambda shape: shape[1:]), (lambda shape: shape)


def regularized(tau, lam, c2):
    return tau * (c2 * lam**2 / (c2 + tau**2 * lam**2)).sqrt()


def latents():
    """Priors by name, and shape and law, by fan-in, of each latent of a weight; biases have some in a hierarchy."""
    cauchy = {fan_in: stats.halfcauchy(scale=fan_in**-0.5) for fan_in in (3, 4)}
    slab = stats.invgamma(1.5, scale=1.5 * 1.5**2)
    for kind, law in KINDS.items():
        by_fan_in = {fan_in: law(fan_in**-0.5) for fan_in in (1, 3, 4)}
        yield f"hierarchical, {kind}", priors.Hierarchical(kind, 0.6), {"scale": (ONE, law(0.6))}
        yield f"hierarchical by fan-in, {kind}", priors.Hierarchical(kind, "fan_in"), {"scale": (ONE, by_fan_in)}
        yield f"relevance, {kind}", priors.ARD(kind, 0.6), {"scale": (ROW, law(0.6))}
    for local, shape in (("unit", ROW), ("weight", ENTRIES)):
        scales = {"global_scale": (ONE, stats.halfcauchy(scale=0.2)), "local_scale": (shape, stats.halfcauchy())}
        yield f"horseshoe, {local}", priors.Horseshoe(0.2, local), scales
        scales = scales | {"global_scale": (ONE, cauchy), "slab_variance": (ONE, slab)}
        yield f"regularized, {local}", priors.RegularizedHorseshoe("fan_in", 1.5, 3.0, local), scales


LATENTS = {name: parts for name, *parts in latents()}
SCALES = {1: lambda scale: scale, 2: lambda tau, lam: tau * lam, 3: regularized}
"""The scale of the weights given so many latents."""


@pytest.mark.parametrize("name", LATENTS)
def test_density_of_weights_with_latent_scales(name):
    prior, sites = LATENTS[name]
    found = log_densities(prior)
    for weight in ("0.weight", "0.bias", "2.weight", "2.bias"):
        value, log_density = found[weight]
        added = {site for site in found if site.startswith(f"prior.{weight}.")}
        if "bias" in weight and "hierarchical" not in name:
            assert not added
            assert log_density == pytest.approx(normal(value, 1.0), rel=1e-10)
            continue
        assert added == {f"prior.{weight}.{site}" for site in sites}
        drawn = []
        for site, (shape, law) in sites.items():
            latent, of_latent = found[f"prior.{weight}.{site}"]
            law = law[value.shape[1] if value.ndim > 1 else 1] if isinstance(law, dict) else law  # noqa: PLW2901
            assert latent.shape == shape(value.shape)
            assert of_latent == pytest.approx(law.logpdf(latent).sum(), rel=1e-10)
            drawn.append(latent)
        expected = normal(value, SCALES[len(drawn)](*drawn))
        assert log_density == pytest.approx(expected, rel=1e-9 if len(drawn) == 3 else 1e-10)


def test_a_convolution_has_a_scale_for_each_input_channel():
    net = nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv1d(3, 5, 1), nn.Flatten(), nn.Linear(5, 1)).double()
    found = log_densities(priors.Horseshoe(), net)
    value, log_density = found["1.weight"]
    (tau, _), (lam, _) = (found[f"prior.1.weight.{scale}_scale"] for scale in ("global", "local"))
    assert lam.shape == (3,)
    assert log_density == pytest.approx(normal(value, (tau * lam)[None, :, None]), rel=1e-10)


def test_density_of_spike_and_slab():
    found = log_densities(priors.SpikeAndSlab(0.2, 5.0, 2.0, 0.05))
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        value, log_density = found[name]
        inclusion, of_inclusion = found[f"prior.{name}.inclusion"]
        assert of_inclusion == pytest.approx(stats.beta(1.0, 4.0).logpdf(inclusion), rel=1e-10)
        share, value = float(inclusion), value.numpy()
        density = share * stats.norm(0, 2.0).pdf(value) + (1 - share) * stats.norm(0, 0.05).pdf(value)
        assert log_density == pytest.approx(np.log(density).sum(), rel=1e-10)


def test_density_around_trained_weights():
    net = network()
    with torch.no_grad():
        net[0].weight[0, 0] = 0.0
    found = log_densities(priors.Moped(delta=0.2, floor=0.01), net)
    for name, trained in net.named_parameters():
        scale = (0.2 * trained.detach().abs()).clamp_min(0.01)
        assert found[name][1] == pytest.approx(normal(found[name][0], scale, trained.detach()), rel=1e-10)


def test_each_fit_takes_the_weights_that_were_given():
    net = network()
    posterior = fitted(priors.Moped(delta=1e-3, floor=1e-4), "mc", net=net)
    for name, trained in net.named_parameters():
        with local_parameters():
            law = posterior.bnn.prior(name, posterior.bnn.net.get_buffer(name))
        assert torch.equal(law.mean, trained.detach())


GRID = [(loc, scale) for loc in (0.0, 0.3, -2.0) for scale in (0.01, 0.2, 1.0)]


@pytest.mark.parametrize("width", [0.4, 1.5])
@pytest.mark.parametrize(("loc", "scale"), GRID)
def test_kl_to_a_laplace_prior_is_the_closed_form(loc, scale, width):
    q = dist.Normal(torch.tensor(loc, dtype=F64), torch.tensor(scale, dtype=F64))
    p = priors.Laplace(width).site("w", torch.zeros((), dtype=F64))
    cuts = sorted({loc - 12 * scale, min(max(0.0, loc - 12 * scale), loc + 12 * scale), loc, loc + 12 * scale})
    law, prior = stats.norm(loc, scale), stats.laplace(scale=width)
    exact = sum(
        integrate.quad(lambda w: law.pdf(w) * (law.logpdf(w) - prior.logpdf(w)), *ends, epsabs=1e-12)[0]
        for ends in pairwise(cuts)
    )
    assert float(kl_divergence(q, p)) == pytest.approx(exact, abs=1e-9)
    assert torch.equal(quadrature_kl(q, p), kl_divergence(q, p))


def fitted(prior, kl, net=None):
    return model(prior, net).fit(X, Y, kl=kl, steps=5, seed=0, progress=False, engine="eager")


REFUSED = {
    "StudentT: `df`": lambda: priors.StudentT(df=0.0),
    "Laplace: `scale`": lambda: priors.Laplace("fan_out"),
    "Hierarchical: `scale_prior`": lambda: priors.Hierarchical("cauchy"),
    "Horseshoe: `local`": lambda: priors.Horseshoe(local="layer"),
    "RegularizedHorseshoe: `slab_scale`": lambda: priors.RegularizedHorseshoe(slab_scale=-1.0),
    "SpikeAndSlab: `inclusion`": lambda: priors.SpikeAndSlab(inclusion=1.0),
    "Moped: `delta`": lambda: priors.Moped(delta=0.0),
    "at '0.weight' for the guide MeanField": lambda: fitted(priors.StudentT(), "analytic"),
    "at 'prior.0.weight.scale' for": lambda: fitted(priors.Hierarchical(), "analytic"),
    "at 'prior.0.weight.global_scale' for": lambda: fitted(priors.Horseshoe(), "quadrature"),
    "at 'prior.0.weight.inclusion' for": lambda: fitted(priors.SpikeAndSlab(), "quadrature"),
    "must be one of pyro.distributions, got Normal": lambda: model(torch.distributions.Normal(0.0, 1.0)),
    "that expands to \\(4, 3\\)": lambda: model(dist.Normal(torch.zeros(7), 1.0)),
    "event shape \\(3,\\)": lambda: model(dist.Normal(torch.zeros(3), 1.0).to_event(1)),
    "The prior of '0.weight' must be one of": lambda: model(lambda name, value: None),
    "Expected a prior": lambda: model(dist.Normal),
    "the means of 'weight' must be finite": lambda: priors.FromPosterior({"weight": (torch.zeros(2), torch.zeros(2))}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    with pytest.raises(InputError, match=message):
        REFUSED[message]()


@pytest.mark.slow
def test_replicates_have_numbers_of_their_own(monkeypatch):
    """Two horseshoes of different scales in one vmapped graph do what each does alone, with the same noise."""
    both = [priors.RegularizedHorseshoe(scale, slab_df=df) for scale, df in ((0.01, 3.0), (2.0, 9.0))]
    method, data = bnn.SVI(steps=10), bnn.Data(X, Y)
    with seeded(0):
        net = nn.Linear(3, 1).double()

    def begin(prior):
        return checks._begin(model(prior, net), method, data, seed=0)

    without_tapes(monkeypatch)
    with seeded(0), fast_pyro():
        alone = [Captured([begin(prior)]) for prior in both]
        together = Captured([begin(prior) for prior in both])
    terms = torch.stack([checks._run(one) for one in alone], 1)
    for table, column in zip(together.noise.inputs, alone[0].noise.inputs, strict=True):
        table.copy_(torch.stack([column, column], 1))
    together.noise.draw = lambda num_steps: None
    torch.testing.assert_close(checks._run(together), terms)
    assert float((terms[:, 0, 1] - terms[:, 1, 1]).abs().min()) > 1


def scaled_normal(name, value):
    return dist.Normal(torch.zeros_like(value), 0.5).to_event(value.ndim)


GIVEN = {
    "a distribution": dist.Normal(0.5, 2.0),
    "a transformed one": dist.LogNormal(torch.tensor(0.5), torch.tensor(2.0)),
    "a mixture": MIXTURE,
    "a function": scaled_normal,
    "a function without tensors": lambda name, value: dist.Laplace(0.0, 1.0),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_given_distributions_take_the_precision_of_the_network(given, dtype):
    prior = model(given, network(dtype)).prior
    for name, value in network(dtype).named_parameters():
        law = prior(name, value)
        assert (law.batch_shape, law.event_shape) == ((), value.shape)
        assert law.sample().dtype == dtype
        assert law.log_prob(law.sample()).dtype == dtype


@pytest.mark.parametrize("method", [bnn.SVI("AutoDelta", steps=2), bnn.HMC(0.01, 0.1, num_draws=2, warmup=2)])
def test_a_mixture_is_inferred_on_the_whole_real_line(method):
    posterior = bnn.fit(model(MIXTURE), (X, Y), method, seed=0, progress=False)
    assert latent_sites(posterior.bnn, X, Y)[0].transform is None
    assert posterior.draw(2)["0.weight"].shape == (2, 4, 3)


def test_given_distributions_can_be_captured():
    prior = {"0.weight": GIVEN["a distribution"], "*": scaled_normal}
    checks.require_capturable(model(prior, network(torch.float32)), make_data())


def test_the_tensors_of_a_given_distribution_are_buffers_of_the_model():
    scale = torch.tensor(2.0)
    prior = model(dist.Normal(0.0, scale)).prior
    scale.fill_(7.0)
    assert sorted(float(buffer) for buffer in prior.buffers()) == [0.0, 2.0]
    for buffer in prior.buffers():
        buffer.fill_(3.0)
    assert float(prior("0.bias", torch.zeros(4, dtype=F64)).mean[0]) == 3.0


def test_a_given_distribution_may_be_that_of_a_whole_parameter():
    correlated = dist.MultivariateNormal(torch.zeros(4), 0.5 * torch.eye(4) + 0.5)
    found = log_densities({"0.bias": correlated, "*": dist.Laplace(0.0, 1.0)})
    value, log_density = found["0.bias"]
    exact = stats.multivariate_normal(cov=0.5 * torch.eye(4) + 0.5).logpdf(value)
    assert log_density == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("given", [dist.Normal(0.0, 1.0), scaled_normal], ids=["distribution", "function"])
def test_given_distributions_are_not_written_to_files(given, tmp_path):
    posterior = model(given, bnn.MLP(3, [2], 1)).fit(X, Y, steps=2, seed=0, progress=False)
    with pytest.raises(InputError, match="cannot be written to a file, since it is no setting"):
        bnn.save(posterior, tmp_path / "p")
