"""The BNN as a Pyro model: with Pyro's own tools, untouched; sites, scaling, copies."""

import copy

import pyro
import pytest
import torch
from helpers import Net
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, autoguide
from torch import nn

import pyrobnn as bnn

X = torch.linspace(-1, 1, 12)[:, None]
Y = torch.sin(3 * X[:, 0])
UNIT = bnn.priors.Normal(1.0)


def small_model(prior=UNIT, scale=0.3):
    return bnn.BNN(bnn.MLP(1, [4], 1, activation="tanh"), prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=scale))


def trace_of(model, *args, **kwargs):
    trace = poutine.trace(model).get_trace(*args, **kwargs)
    trace.compute_log_prob()
    return trace


def test_sites_are_named_as_the_parameters():
    trace = trace_of(small_model(), X, Y)
    sites = [*trace.stochastic_nodes, *trace.observation_nodes]
    assert sites == ["0.weight", "0.bias", "2.weight", "2.bias", "data", "y"]
    assert trace.nodes["y"]["is_observed"]


def test_plate_scales_the_log_likelihood_by_n_over_b():
    trace = trace_of(small_model(), X, Y, num_data=48)
    assert trace.nodes["y"]["scale"] == 4.0
    assert trace.nodes["0.weight"]["scale"] == 1.0
    assert trace_of(small_model(), X, Y).nodes["y"]["scale"] == 1.0


def test_pyro_predictive_draws_prior_and_posterior():
    model = small_model()
    prior = Predictive(model, num_samples=7)(X)
    assert prior["y"].shape == (7, 12)
    assert prior["0.weight"].shape[0] == 7
    guide = autoguide.AutoNormal(model)
    guide(X, Y)
    assert Predictive(model, guide=guide, num_samples=5)(X)["y"].shape == (5, 12)


def test_fit_neither_uses_the_global_store_nor_what_it_holds():
    model = small_model(prior=bnn.priors.ScaleMixture(learnable=True), scale="learned")
    alone = model.fit(X, Y, guide="AutoNormal", steps=5, seed=0, progress=False)
    alone.predict(X, num_draws=2)
    bnn.elbo_report(alone, bnn.Data(X, Y), num_draws=2)
    assert list(pyro.get_param_store().keys()) == []
    pyro.param("prior.pi", torch.tensor(0.9))
    model(X, Y)
    after = model.fit(X, Y, guide="AutoNormal", steps=5, seed=0, progress=False)
    assert alone.bnn.prior.pi == after.bnn.prior.pi


def test_two_models_share_nothing():
    prior = bnn.priors.ScaleMixture(learnable=True)
    first, second = small_model(prior), small_model(prior)
    start = second.prior.pi.item()
    arguments = {"steps": 30, "lr": 0.05, "seed": 0, "progress": False}
    alone = second.fit(X, Y, **arguments)
    first.fit(X, Y, **arguments)
    after = second.fit(X, Y, **arguments)
    torch.testing.assert_close(alone.guide.loc, after.guide.loc, rtol=0, atol=0)
    assert second.prior.pi.item() == start


def test_the_network_given_is_never_changed_and_later_changes_of_it_do_not_reach_the_model():
    net = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    before = copy.deepcopy(net.state_dict())
    model = bnn.BNN(net, likelihood="gaussian", prior=bnn.priors.Normal(1.0))
    model.fit(X, Y, steps=20, seed=0, progress=False)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(isinstance(p, nn.Parameter) for p in (net[0].weight, net[2].bias))
    nn.init.constant_(net[0].weight, 77.0)
    torch.testing.assert_close(model.fresh().initial_values["0.weight"], before["0.weight"])


def test_prior_none_leaves_parameters_deterministic_and_learned():
    model = small_model(prior={"2.*": bnn.priors.Normal(1.0), "*": None})
    assert model.site_names == ("2.weight", "2.bias")
    assert [name for name, _ in model.named_parameters()] == ["net.0.weight", "net.0.bias"]
    posterior = model.fit(X, Y, steps=60, lr=0.05, seed=0, progress=False)
    start = model.net.get_parameter("0.weight")
    assert not torch.allclose(posterior.bnn.net.get_parameter("0.weight"), start)
    assert set(posterior.draw(3)) == {"2.weight", "2.bias"}
    assert posterior.history.elbo[-10:].mean() > posterior.history.elbo[:10].mean()


def test_pyro_svi_takes_mini_batches_and_learns_deterministic_parameters_too():
    model = small_model(prior={"2.*": bnn.priors.Normal(1.0), "*": None})
    start = model.net.get_parameter("0.weight").detach().clone()
    svi = SVI(model, autoguide.AutoDiagonalNormal(model), pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    for _ in range(5):
        assert torch.isfinite(torch.tensor(svi.step(X[:4], Y[:4], num_data=12)))
    assert not torch.allclose(model.net.get_parameter("0.weight"), start)


@pytest.mark.parametrize("guide", ["mean_field", "AutoNormal"])
def test_pyro_takes_a_posterior_in_any_precision_and_draw_by_draw(guide):
    posterior = small_model().fit(X, Y, guide=guide, steps=2, seed=0, progress=False)
    parts, losses = (posterior.bnn, posterior.guide), []
    for dtype in (torch.float32, torch.float64):
        pyro.set_rng_seed(0)
        losses.append(Trace_ELBO().loss(*parts, X.to(dtype), Y.to(dtype)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    at_once = Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=1)
    draws_at_once = Predictive(posterior.bnn, guide=posterior.guide, num_samples=3, parallel=True)
    for call in (lambda: at_once.loss(*parts, X, Y), lambda: draws_at_once(X)):
        with pytest.raises((bnn.InputError, NotImplementedError), match="leave out `vectorize_particles=True`"):
            call()


def test_patterns_choose_priors_and_the_first_match_wins():
    prior = {"*.bias": bnn.priors.Normal(5.0), "0.*": bnn.priors.Normal(0.1), "*": bnn.priors.Normal(2.0)}
    trace = trace_of(small_model(prior=prior), X, Y)
    scales = {name: trace.nodes[name]["fn"].base_dist.scale.flatten()[0].item() for name in small_model().site_names}
    assert scales == pytest.approx({"0.weight": 0.1, "0.bias": 5.0, "2.weight": 2.0, "2.bias": 5.0})


@pytest.mark.parametrize(("scale", "expected"), [("fan_in", [1 / 8**0.5, 1.0]), ("he", [0.5, 1.0]), (3.0, [3.0, 3.0])])
def test_normal_scale_follows_the_layer(scale, expected):
    model = bnn.BNN(nn.Linear(8, 2), prior=bnn.priors.Normal(scale=scale))
    trace = trace_of(model, torch.zeros(3, 8))
    scales = [trace.nodes[name]["fn"].base_dist.scale.flatten()[0].item() for name in ("weight", "bias")]
    assert scales == pytest.approx(expected)


def test_tied_parameters_are_one_site():
    layers = {name: nn.Linear(2, 2, bias=False) for name in ("first", "second")}
    net = Net(lambda net, x: net.second(torch.tanh(net.first(x))), **layers)
    net.second.weight = net.first.weight
    model = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(scale=1.0), prior=bnn.priors.Normal(1.0)).double()
    assert model.site_names == ("first.weight",)
    weight = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    x = torch.tensor([[0.3, -0.2]], dtype=torch.float64)
    torch.testing.assert_close(model.outputs({"first.weight": weight}, x), torch.tanh(x @ weight.T) @ weight.T)


def test_a_single_target_column_does_not_broadcast():
    model = small_model()
    flat = poutine.trace(model).get_trace(X, Y)
    column = poutine.trace(poutine.replay(model, trace=flat)).get_trace(X, Y[:, None])
    torch.testing.assert_close(column.log_prob_sum(), flat.log_prob_sum())
    with pytest.raises(bnn.InputError, match="`y` must have shape"):
        model(X, torch.stack([Y, Y], 1))
