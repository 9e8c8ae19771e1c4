"""Trained networks: adapters in a frozen body, posteriors around points, files without the body, dropout inside."""

import math
import warnings

import numpy as np
import pytest
import torch
from helpers import Net
from torch import nn
from torch.nn import functional as F

import pyrobnn as bnn
from pyrobnn._core.tree_files import read_tree
from pyrobnn.guides import Laplace, Map, built

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=G)
Y = X[:, 0].sin() + 0.1 * torch.randn(40, generator=G)
LABELS = torch.randint(3, (40,), generator=G)
UNIT, GAUSSIAN = bnn.priors.Normal(1.0), bnn.likelihoods.Gaussian(0.2)


def adapter(layer):
    """A frozen layer W, and beside it B A of rank 2."""
    down, up = nn.Linear(layer.in_features, 2, bias=False), nn.Linear(2, layer.out_features, bias=False)
    return Net(lambda net, x: net.layer(x) + net.up(net.down(x)), layer=layer, down=down, up=up)


class Plus(nn.Module):
    """The same as a parametrisation of W."""

    def __init__(self, out_features, in_features):
        super().__init__()
        self.A = nn.Parameter(0.3 * torch.randn(2, in_features))
        self.B = nn.Parameter(0.1 * torch.randn(out_features, 2))

    def forward(self, weight):
        return weight + self.B @ self.A


def adapted(kind="module", outputs=1, rate=0.0, dtype=torch.float32):
    """A network of three layers whose second has an adapter; the last is trained, too."""
    torch.manual_seed(0)
    parts = [nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(rate), nn.Tanh(), nn.Linear(8, outputs)]
    net = nn.Sequential(*parts).to(dtype).requires_grad_(requires_grad=False)
    if kind == "module":
        net[2] = adapter(net[2])
    else:
        nn.utils.parametrize.register_parametrization(net[2], "weight", Plus(8, 8).to(dtype))
    net[5].requires_grad_(requires_grad=True)
    return net


NAMES = {
    "module": ("2.down.weight", "2.up.weight", "5.weight", "5.bias"),
    "parametrization": ("2.parametrizations.weight.0.A", "2.parametrizations.weight.0.B", "5.weight", "5.bias"),
}


def fit(net, guide, y=Y, likelihood=GAUSSIAN, **settings):
    arguments = {"steps": 30, "seed": 0, "progress": False, "device": "cpu"} | settings
    return bnn.BNN(net, prior=UNIT, likelihood=likelihood).fit(X, y, guide=guide, **arguments)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("guide", ["mean_field", Laplace(), Laplace(structure="full"), Laplace(sites="last_layer")])
@pytest.mark.filterwarnings("ignore:Laplace. .*belong to layers of unknown structure:UserWarning")
def test_adapters_alone_are_inferred_and_the_body_stays(guide, kind):
    net = adapted(kind)
    fits = [fit(net, guide, engine=engine) for engine in ("eager", "captured")]
    for posterior in fits:
        assert posterior.bnn.site_names == NAMES[kind]
        assert set(posterior.mean()) == set(NAMES[kind])
        frozen = {name for name, value in net.named_parameters() if not value.requires_grad}
        assert set(posterior.bnn.frozen_names) == frozen
        state, given = posterior.bnn.net.state_dict(), net.state_dict()
        assert all(torch.equal(state[name], given[name]) for name in frozen)
    means = [posterior.mean() for posterior in fits]
    for name in NAMES[kind]:
        torch.testing.assert_close(means[0][name], means[1][name], rtol=1e-3, atol=1e-4)


def test_adapters_of_linear_layers_have_kronecker_factors_and_others_a_diagonal():
    with warnings.catch_warnings(action="error"):
        blocks = built(fit(adapted(), Laplace(structure="kron")).guide).gaussian_blocks()
    assert [(type(block).__name__, list(block.shapes)) for block in blocks] == [
        ("KroneckerBlock", ["2.down.weight"]),
        ("KroneckerBlock", ["2.up.weight"]),
        ("KroneckerBlock", ["5.weight", "5.bias"]),
    ]
    with pytest.warns(UserWarning, match="belong to layers of unknown structure"):
        blocks = built(fit(adapted("parametrization"), Laplace(structure="kron")).guide).gaussian_blocks()
    assert {type(block).__name__ for block in blocks} == {"KroneckerBlock", "DiagonalBlock"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("engine", ["eager", "captured"])
def test_a_half_precision_network_without_casts_works_with_a_frozen_body(engine, kind):
    """Each layer takes its inputs in its precision, so what the body makes is what it makes alone."""
    net = adapted(kind, dtype=torch.bfloat16)
    seen = []
    model = bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN)
    model.net[0].register_forward_hook(lambda module, args, output: seen.append((args[0].dtype, output)))
    model.outputs(model.initial_values, model.cast_inputs(X))
    assert seen[0][0] == torch.bfloat16
    assert torch.equal(seen[0][1], net[0](X.bfloat16()))
    assert {value.dtype for value in model.initial_values.values()} == {torch.float32}
    posterior = fit(net, "mean_field", engine=engine)
    wide = fit(adapted(kind, dtype=torch.bfloat16).float(), "mean_field", engine=engine)
    assert posterior.record.engine.used == engine
    # bfloat16 has eight bits: outputs of size 1 move by less than a hundredth or so
    torch.testing.assert_close(posterior.predict(X).mean, wide.predict(X).mean, rtol=0, atol=0.05)


def wide_body(seed=0):
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(3, 256), nn.BatchNorm1d(256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
    body[1].running_mean.normal_()
    return nn.Sequential(body.requires_grad_(requires_grad=False), nn.Linear(256, 1))


def kept_of_net(folder):
    names = read_tree(folder)["model_state"]
    return {name.removeprefix("net.") for name in names if name.startswith("net.")}


@pytest.mark.parametrize("guide", ["mean_field", Laplace()])
def test_a_file_without_the_body_is_small_and_comes_back(guide, tmp_path):
    posterior = fit(wide_body(), guide)
    body = sum(value.numel() * value.element_size() for value in wide_body()[0].state_dict().values())
    with_body, without = posterior.save(tmp_path / "whole"), posterior.save(tmp_path / "saved", body=False)
    assert kept_of_net(without) == {"1.weight", "1.bias"}
    assert 0 <= with_body.stat().st_size - without.stat().st_size - body < 2500  # names of the tensors
    for net in (wide_body, wide_body()):
        loaded = bnn.load(without, net=net)
        assert torch.equal(loaded.predict(X, num_draws=7).draw_means, posterior.predict(X, num_draws=7).draw_means)
    assert loaded.save(tmp_path / "again", body=False).exists()
    posterior = fit(adapted("parametrization"), "mean_field")
    folder = posterior.save(tmp_path / "adapters", body=False)
    assert kept_of_net(folder) == {*NAMES["parametrization"]}
    assert torch.equal(bnn.load(folder, net=adapted("parametrization")).predict(X).mean, posterior.predict(X).mean)


def changed(change):
    net = wide_body()
    with torch.no_grad():
        change(net)
    return net


OTHER_BODIES = {
    "other weights": lambda: wide_body(1),
    "one bit": lambda: changed(lambda net: net[0][3].bias[0].mul_(1 + 2**-23)),
    "another statistic of batches": lambda: changed(lambda net: net[0][1].running_var.mul_(2)),
    "nothing frozen": lambda: wide_body().requires_grad_(requires_grad=True),
    "more frozen": lambda: changed(lambda net: net[1].bias.requires_grad_(requires_grad=False)),
}


@pytest.mark.parametrize("name", OTHER_BODIES)
def test_another_body_is_refused(name, tmp_path):
    folder = fit(wide_body(), "mean_field").save(tmp_path / "saved", body=False)
    with pytest.raises(bnn.InputError, match="saved without its frozen body, and this `net` has another"):
        bnn.load(folder, net=OTHER_BODIES[name]())
    with pytest.raises(bnn.InputError, match="your own network, Sequential: pass it"):
        bnn.load(folder)


def test_a_body_must_be_frozen_to_be_left_out(tmp_path):
    for net in (bnn.MLP(3, [4], 1), nn.Linear(3, 1)):
        with pytest.raises(bnn.InputError, match="no frozen parameters to leave out"):
            fit(net, "mean_field").save(tmp_path / "saved", body=False)
    assert not list(tmp_path.iterdir())


def mixed(nets, data):
    """Points around trained networks as one mixture."""
    return bnn.Mixture([Map().around(net, data, progress=False) for net in nets])


def test_members_share_a_body_that_is_left_out(tmp_path):
    data = bnn.Data(X, Y)
    one, same, other = wide_body(), wide_body(), wide_body(1)
    nn.init.normal_(same[1].weight)
    mixture = mixed([one, same], data)
    loaded = bnn.load(mixture.save(tmp_path / "saved", body=False), net=wide_body())
    assert torch.equal(loaded.predict(X).mean, mixture.predict(X).mean)
    mixture = mixed([one, other], data)
    expected = torch.stack([net.eval()(X)[:, 0] for net in (one, other)]).mean(0).detach()
    torch.testing.assert_close(mixture.predict(X).mean, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(bnn.InputError, match="Members have different frozen bodies"):
        mixture.save(tmp_path / "two", body=False)
    assert torch.equal(bnn.load(mixture.save(tmp_path / "two"), net=one).predict(X).mean, mixture.predict(X).mean)


def trained(seed, outputs=1, width=8):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, outputs))


def test_a_point_is_the_network_itself(tmp_path):
    net = trained(0)
    posterior = Map().around(net, bnn.Data(X, Y), progress=False)
    expected = net(X)[:, 0].detach()
    prediction = posterior.predict(X, num_draws=3)
    torch.testing.assert_close(prediction.mean, expected, rtol=1e-5, atol=1e-6)
    noise = float((expected - Y).square().mean().sqrt())
    torch.testing.assert_close(prediction.std, torch.full_like(expected, noise), rtol=1e-4, atol=1e-5)
    assert posterior.record.guide == {"type": "map"}
    loaded = bnn.load(posterior.save(tmp_path / "saved"), net=trained(1))
    assert torch.equal(loaded.predict(X, num_draws=3).mean, prediction.mean)


def test_a_point_takes_weights_and_scaled_data():
    net, data = trained(0), bnn.Data(100 + 7 * X, 50 + 3 * Y, standardize=True)
    model = bnn.BNN(trained(1), prior=UNIT, likelihood=GAUSSIAN)
    posterior = Map().around(model, data, weights=net.state_dict(), progress=False)
    inputs = posterior.x_scaler.transform(100 + 7 * X).float()
    expected = posterior.y_scaler.inverse(net(inputs)[:, 0].detach())
    torch.testing.assert_close(posterior.predict(100 + 7 * X).mean, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("draws", [3, 100, 500])
def test_an_ensemble_around_classifiers_averages_their_probabilities(draws, tmp_path):
    nets = [trained(seed, 3) for seed in range(3)]
    mixture = mixed(nets, bnn.Data(X, LABELS))
    expected = torch.stack([net(X).softmax(-1) for net in nets]).mean(0).detach()
    for found in (mixture.predict(X, num_draws=draws).class_probs, mixture.predictor(draws)(X)):
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-6)
    assert mixture.predict(X, num_draws=draws).num_draws == 3
    loaded = bnn.load(mixture.save(tmp_path / "saved"), net=trained(9, 3))
    assert torch.equal(loaded.predict(X).class_probs, mixture.predict(X).class_probs)


RATE, STEPS, ROWS, SIZE = 0.3, 400, 20, 1.5


def dropping(functional):
    """f(x) = w x, where x is dropped with probability 0.3 in training; w is 1.5."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, SIZE)
    drop = (lambda net, x: F.dropout(x, RATE, training=net.training)) if functional else (lambda net, x: net.drop(x))
    return Net(lambda net, x: net.layer(drop(net, x)), layer=layer, drop=nn.Dropout(RATE))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("functional", [True, False])
@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("particles", [1, 2])
def test_each_example_of_each_step_has_its_mask(particles, engine, functional):
    """With y = 0 and noise 1, log p is -(log 2 pi + f^2) / 2, for f = w / (1 - p) with probability 1 - p, else 0."""
    x, y = torch.ones(ROWS, 1), torch.zeros(ROWS)
    model = bnn.BNN(dropping(functional), prior=UNIT, likelihood=bnn.likelihoods.Gaussian(1.0))
    method = bnn.SVI(guide="map", steps=STEPS, lr=1e-12, num_particles=particles, optimizer="sgd")
    posterior = bnn.fit(model, (x, y), method, seed=0, engine=engine, device="cpu", progress=False)
    assert posterior.record.engine.used == engine
    terms = np.asarray(posterior.history.log_likelihood)
    square = (SIZE / (1 - RATE)) ** 2 / 2
    mean = -ROWS * (math.log(2 * math.pi) / 2 + (1 - RATE) * square)
    variance = ROWS * square**2 * RATE * (1 - RATE) / particles
    assert terms.mean() == pytest.approx(mean, abs=4 * math.sqrt(variance / STEPS))
    assert terms.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / STEPS))
    torch.testing.assert_close(posterior.predict(x).mean, torch.full((ROWS,), SIZE), rtol=1e-5, atol=1e-5)
