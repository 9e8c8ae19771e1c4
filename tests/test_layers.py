"""Layers of torch under every registered guide: trained, predicted with, saved and loaded, or refused by name."""

import pytest
import torch
from helpers import Branching, Net
from test_conformance import FILLED_BY_METHODS, registered
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

import pyrobnn as bnn
from pyrobnn import guides
from pyrobnn._core.random import seeded
from pyrobnn._torch.kernels import plain_kernels

N, STEPS, F64 = 12, 8, torch.float64

UNIT = bnn.priors.Normal(1.0)


def residual():
    run = lambda net, x: net.head(x + torch.tanh(net.norm(net.inner(x))))  # noqa: E731
    return Net(run, inner=nn.Linear(3, 3), norm=nn.BatchNorm1d(3), head=nn.Linear(3, 1))


class Sequences(nn.Module):
    """A layer that maps sequences (B, T, 2), or (T, B, 2), to outputs whose last step is read."""

    def __init__(self, layer, width, *, time_first=False):
        super().__init__()
        self.layer, self.head, self.time_first = layer, nn.Linear(width, 1), time_first

    def forward(self, x):
        out = self.layer(x.transpose(0, 1) if self.time_first else x)
        out = out[0] if isinstance(out, tuple) else out
        return self.head(out[-1] if self.time_first else out[:, -1])


def encoder(dropout=0.0, *, batch_first=True, norm_first=True, **options):
    options |= {"dropout": dropout, "batch_first": batch_first, "norm_first": norm_first}
    layer = nn.TransformerEncoderLayer(2, 1, 4, **options)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def convolutions():
    return nn.Sequential(
        nn.Conv3d(1, 2, 2, bias=False),
        nn.Flatten(2, 3),
        nn.Conv2d(2, 2, (1, 2), bias=False),
        nn.BatchNorm2d(2),
        nn.Flatten(2),
        nn.Conv1d(2, 2, 2, groups=2, bias=False),
        nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
        nn.ConvTranspose1d(2, 2, 2, bias=False),
        nn.GroupNorm(2, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 1),
    )


WORDS = "words"
NETS = {
    "linear, dropout": (lambda: nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.2), nn.Tanh(), nn.Linear(2, 1)), (3,)),
    "residual, batch norm": (residual, (3,)),
    "convolutions, their norms": (convolutions, (1, 2, 3, 4)),
    "embedding, layer norm": (
        lambda: nn.Sequential(nn.Embedding(4, 2, padding_idx=0), nn.LayerNorm(2), nn.Flatten(), nn.Linear(6, 1)),
        WORDS,
    ),
    "lstm": (lambda: Sequences(nn.LSTM(2, 2, batch_first=True), 2), (3, 2)),
    "transformer": (lambda: Sequences(encoder(bias=False), 2), (3, 2)),
}
GUIDES = registered(
    guides.registry,
    [
        guides.Auto("AutoNormal"),
        *(guides.MeanField(noise=noise) for noise in ("local", "flipout")),
        guides.Dropout(0.3, learned=True, per_example=True),
    ],
)


def make_net(name):
    with seeded(0):
        return NETS[name][0]()


def make_data(name, num=N):
    shape, generator = NETS[name][1], torch.Generator().manual_seed(1)
    words = torch.randint(4, (num, 3), generator=generator)
    x = words if shape is WORDS else torch.randn(num, *shape, generator=generator)
    return bnn.Data(x, x.flatten(1).float().mean(1))


def make_model(net, prior=UNIT):
    return bnn.BNN(net, prior=prior, likelihood=bnn.likelihoods.Gaussian(scale=0.3))


def fit(net, data, *, prior=UNIT, engine="eager", **settings):
    method = bnn.SVI(**{"steps": STEPS} | settings)
    return bnn.fit(make_model(net, prior), data, method, seed=0, engine=engine, device="cpu", progress=False)


def running(net):
    """Running statistics by name."""
    return {name: value.clone() for name, value in net.named_buffers() if "running" in name}


def by_hand(posterior, draws, x):
    """Outputs for each draw, one after the other through torch alone, (S, N)."""
    singles = [dict(zip(draws, values, strict=True)) for values in zip(*draws.values(), strict=True)]
    return torch.stack([functional_call(posterior.bnn.net, one, (x,))[:, 0] for one in singles]).detach()


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.one_in(11, 3)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore:Laplace. .* belong to layers of unknown structure, and took a slower path")
@pytest.mark.parametrize("guide", [guide for guide in GUIDES if type(guide) not in FILLED_BY_METHODS], ids=repr)
def test_every_guide_takes_every_layer(guide, name, tmp_path):
    data = make_data(name)
    if type(guide) is guides.Dropout and name == "linear, dropout":
        with pytest.raises(bnn.InputError, match="Dropout.*Dropout"):
            fit(make_net(name), data, guide=guide)
        return
    posterior = fit(make_net(name), data, guide=guide)
    assert torch.as_tensor(posterior.history.elbo).isfinite().all()
    assert posterior.bnn.num_weights == sum(p.numel() for p in make_net(name).parameters())
    trained, start = running(posterior.bnn.net), running(make_net(name))
    assert all((value != start[key]).any() for key, value in trained.items())
    mean = posterior.predict(data.x, num_draws=3).mean
    assert mean.isfinite().all()
    torch.testing.assert_close(posterior.predict(data.x[:1], num_draws=3).mean, mean[:1])
    assert equal(running(posterior.bnn.net), trained)

    loaded = bnn.load(bnn.save(posterior, tmp_path / "p"), net=make_net(name))
    assert torch.equal(loaded.predict(data.x, num_draws=3).mean, mean)
    assert equal(running(loaded.bnn.net), trained)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout1d(0.2)), "'layer.1' with p=0.2 (Dropout1d)"),
        (nn.LSTM(2, 2, 2, dropout=0.3, batch_first=True), "'layer' with p=0.3 (LSTM)"),
        (encoder(0.1), "'layer.layers.0.self_attn' with p=0.1 (MultiheadAttention)"),
    ],
    ids=["dropout", "lstm", "attention"],
)
def test_the_dropout_guide_refuses_layers_that_drop_units_themselves(layer, named):
    with pytest.raises(bnn.InputError) as raised:
        fit(Sequences(layer, 2), make_data("lstm"), guide="dropout")
    assert named in str(raised.value)
    assert "of the guide Dropout" in str(raised.value)


def normalised():
    """Batch normalisation of the inputs themselves, whose running statistics are known, before a linear layer."""
    with seeded(0):
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double()


def linear_data(seed=2):
    x = 1.0 + 2.0 * torch.randn(N, 3, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return bnn.Data(x, x.sum(1))


def assert_exact_statistics(posterior, data, updates=STEPS):
    """m <- 0.9 m + 0.1 batch mean from 0, and likewise the unbiased variance from 1, in every step."""
    left, layer = 0.9**updates, posterior.bnn.net[0]
    torch.testing.assert_close(layer.running_mean, (1 - left) * data.x.mean(0))
    torch.testing.assert_close(layer.running_var, left + (1 - left) * data.x.var(0))
    assert layer.num_batches_tracked == updates


@pytest.mark.parametrize("engine", ["eager", "captured"])
def test_running_statistics_follow_the_batches(engine):
    data = linear_data()
    posterior = fit(normalised(), data, engine=engine)
    assert posterior.history.engine.used == engine
    assert_exact_statistics(posterior, data)

    trained = running(posterior.bnn.net)
    draws = posterior.draw(3)
    mean, var = trained["0.running_mean"], trained["0.running_var"]
    inputs = (data.x - mean) / (var + 1e-5).sqrt() * draws["0.weight"][:, None] + draws["0.bias"][:, None]
    expected = (inputs @ draws["1.weight"].mT + draws["1.bias"][:, None])[..., 0]
    torch.testing.assert_close(posterior.predict(data.x, draws=draws).draw_means, expected)
    first = bnn.elbo_report(posterior, data, num_draws=4).elbo.mean
    assert bnn.elbo_report(posterior, data, num_draws=4).elbo.mean == first
    posterior.bnn.sample_prior_predictive(data.x, num_draws=2, seed=0)
    assert equal(running(posterior.bnn.net), trained)
    point = fit(normalised(), data, guide="map")
    expected = torch.distributions.Normal(by_hand(point, point.draw(1), data.x)[0], 0.3).log_prob(data.y).sum()
    assert bnn.elbo_report(point, data, num_draws=2).log_likelihood.mean == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("engine", ["eager", "captured"])
def test_replicates_have_running_statistics_of_their_own(engine):
    sets = [linear_data(2), linear_data(3)]
    model, method = make_model(normalised()), bnn.SVI(steps=STEPS)
    posteriors = bnn.fit_replicates(model, sets, method, seed=0, engine=engine, device="cpu", progress=False)
    for posterior, data in zip(posteriors, sets, strict=True):
        assert posterior.history.engine.used == engine
        assert_exact_statistics(posterior, data)


def test_particles_with_statistics_of_their_own_cannot_be_captured():
    name = "residual, batch norm"
    with pytest.warns(UserWarning, match="The fit runs eagerly, since .*Batch norm"):
        posterior = fit(make_net(name), make_data(name), num_particles=2, engine="captured")
    assert posterior.bnn.net.norm.num_batches_tracked == 2 * STEPS


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2), nn.LayerNorm(2), nn.GroupNorm(1, 2)], ids=repr)
def test_affine_weights_without_a_prior_are_trained_or_left_frozen(layer, tmp_path):
    def make(*, frozen=False):
        with seeded(0):
            net = nn.Sequential(nn.Linear(3, 2), layer, nn.Tanh(), nn.Linear(2, 1))
        net[1].bias.requires_grad_(not frozen)
        return net

    data, prior = make_data("residual, batch norm"), {"1.*": None, "*": bnn.priors.Normal(1.0)}
    posterior = fit(make(), data, prior=prior)
    assert posterior.bnn.site_names == ("0.weight", "0.bias", "3.weight", "3.bias")
    trained = posterior.bnn.net[1]
    assert (trained.weight != 1).all()
    assert (trained.bias != 0).all()
    draws = posterior.draw(3)
    prediction = posterior.predict(data.x, draws=draws)
    torch.testing.assert_close(prediction.draw_means, by_hand(posterior, draws, data.x))
    loaded = bnn.load(bnn.save(posterior, tmp_path / "p"), net=make())
    assert torch.equal(loaded.predict(data.x, draws=draws).mean, prediction.mean)

    frozen = fit(make(frozen=True), data, prior=prior).bnn.net[1]
    assert (frozen.weight != 1).all()
    assert (frozen.bias == 0).all()


RECURRENT = {
    "LSTM": lambda: nn.LSTM(2, 3, 2, batch_first=True, bidirectional=True),
    "LSTM without biases": lambda: nn.LSTM(2, 3, bias=False, batch_first=True),
    "GRU": lambda: nn.GRU(2, 3, 2, batch_first=True, bidirectional=True),
    "RNN": lambda: nn.RNN(2, 3, batch_first=True),
    "RNN with ReLU": lambda: nn.RNN(2, 3, bias=False, nonlinearity="relu", batch_first=True),
    "transformer": encoder,
    "transformer, GELU, norm last": lambda: encoder(activation="gelu", norm_first=False),
}


def model_and_draws(make, dtype):
    """A model in evaluation, three draws of its weights, and inputs."""
    x = torch.randn(4, 5, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    with seeded(0):
        layer = make().to(dtype)
        width = layer(x)[0].shape[-1] if isinstance(layer, nn.RNNBase) else 2
        model = make_model(Sequences(layer, width).to(dtype)).eval()
        return model, {name: torch.randn(3, *v.shape, dtype=dtype) for name, v in model.initial_values.items()}, x


@pytest.mark.parametrize("make", RECURRENT.values(), ids=RECURRENT)
@pytest.mark.parametrize("dtype", [F64, torch.float32], ids=str)
def test_draws_side_by_side_and_their_gradients_equal_the_fused_kernels_one_by_one(make, dtype):
    model, draws, x = model_and_draws(make, dtype)
    side_by_side = vmap(model.outputs, in_dims=(0, None))(draws, x)
    with torch.no_grad():
        fused = torch.stack([model.outputs({name: v[s] for name, v in draws.items()}, x) for s in range(3)])
    tolerance = 1e-10 if dtype is F64 else 1e-4
    torch.testing.assert_close(side_by_side, fused, rtol=tolerance, atol=tolerance)
    assert torch.backends.mkldnn.enabled
    assert torch.backends.cuda.flash_sdp_enabled()
    if dtype is F64:  # and so are gradients inside torch.func
        weights = {name: value[0].requires_grad_() for name, value in draws.items()}
        loss = lambda weights: model.outputs(weights, x).square().sum()  # noqa: E731
        expected = torch.autograd.grad(loss(weights), list(weights.values()))
        found = grad(loss)({name: value.detach() for name, value in weights.items()})
        torch.testing.assert_close([*found.values()], [*expected])


WITH_DROPOUT = {
    "LSTM": lambda: nn.LSTM(2, 3, 3, dropout=0.4, batch_first=True),
    "LSTM with a projection": lambda: nn.LSTM(2, 3, 2, dropout=0.4, proj_size=2, bidirectional=True),
    "GRU": lambda: nn.GRU(2, 3, 2, dropout=0.4, bidirectional=True),
    "RNN": lambda: nn.RNN(2, 3, 2, dropout=0.4, bias=False, batch_first=True),
}


@pytest.mark.parametrize("make", WITH_DROPOUT.values(), ids=WITH_DROPOUT)
def test_recurrent_layers_inside_torch_func_drop_as_outside(make):
    """Torch's own decompositions drop nothing."""
    x = torch.randn(4, 5, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    with seeded(0):
        layer = make().to(F64)

    def total(x):
        with plain_kernels():
            found, end = layer(x)
        return found.square().sum() + sum(state.sum() for state in (end if isinstance(end, tuple) else [end]))

    with seeded(1):
        inside, value = torch.func.grad_and_value(total)(x)
    with seeded(1):
        x.requires_grad_()
        outside = total(x)
        outside.backward()
    torch.testing.assert_close(value, outside.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(inside, x.grad, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:torch.func.vmap does not take the model")
def test_networks_that_branch_on_weights_predict_draw_by_draw():
    data = make_data("residual, batch norm")
    posterior = fit(Branching(nn.Linear(3, 1)), data, steps=2, guide=guides.MeanField(init_rho=1.0))
    draws = posterior.draw(6)
    sums = torch.stack([(data.x @ w.T + b).sum() for w, b in zip(*draws.values(), strict=True)])
    assert len(sums.sign().unique()) == 2
    torch.testing.assert_close(posterior.predict(data.x, draws=draws).draw_means, by_hand(posterior, draws, data.x))


@pytest.mark.parametrize("noise", ["local", "flipout"])
def test_as_many_steps_as_examples_are_not_taken_for_examples(noise):
    with seeded(0):
        model = make_model(Sequences(encoder(batch_first=False), 2, time_first=True)).train()
        x, y = torch.randn(4, 4, 2), torch.randn(4)
        values = guides.MeanField(noise=noise).build(model, x, y)()
        plain = {name: v for name, v in values.items() if not name.startswith("head")}
        weights = {name.removeprefix("layer."): v for name, v in plain.items()}
        shared = functional_call(model.net.layer, weights, (x.transpose(0, 1),))
        seen = []
        model.net.head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model.outputs(values, x)
    torch.testing.assert_close(seen[0], shared[-1])


def checkpointed(where, use_reentrant):
    """Gradient checkpointing of the inputs, in all calls or in training alone, or of activations of a frozen layer."""

    def run(net, x):
        if where == "activations with gradients":  # as networks of Hugging Face ask for
            x = net.first(x).requires_grad_(requires_grad=True)
        if net.training or where == "all calls":
            return net.last(checkpoint(net.inner, x, use_reentrant=use_reentrant))
        return net.last(net.inner(x))

    inner = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    return Net(run, first=nn.Linear(2, 2).requires_grad_(requires_grad=False), last=nn.Linear(4, 1), inner=inner)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("where", ["all calls", "training", "activations with gradients"])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_is_refused(use_reentrant, where):
    """SVI runs the network as in training, chains run it as predictions do."""
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    message = "checkpoints its activations .*: fit without it, with a smaller `batch_size`"
    chains = [bnn.NUTS(num_draws=2, warmup=2)] if where == "all calls" else []
    for method in (bnn.SVI(steps=3), *chains):
        model = make_model(checkpointed(where, use_reentrant))
        with pytest.raises(bnn.InputError, match=message):
            bnn.fit(model, (x, x[:, 0]), method, seed=0, progress=False)


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_change_their_weights_and_numbers_that_are_no_row_are_refused(layer):
    net = nn.Sequential(layer(4, 2, max_norm=1.0), nn.Flatten(), nn.LazyLinear(1))
    net(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(bnn.InputError, match=rf"The layer '0', {layer.__name__}\(max_norm=1.0\), changes its weights"):
        make_model(net)
    model = make_model(net, {"0.*": None, "*": UNIT})
    assert model.site_names == ("2.weight", "2.bias")
    if layer is nn.Embedding:
        model = make_model(nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 1)))
        x, y = torch.arange(12).remainder(4).view(4, 3), torch.linspace(-1, 1, 4)
        settings = {"steps": 2, "seed": 0, "engine": "eager", "progress": False}
        with pytest.raises(bnn.InputError, match="no row of an embedding: '0' has rows 0 to 3"):
            model.fit(x, y, **settings).predict([[0, 4, 0]])
        with pytest.raises(bnn.InputError, match="no row of an embedding"):
            model.fit(x + 1, y, **settings)


def test_padding_stays_at_its_starting_value():
    model = make_model(nn.Sequential(nn.Embedding(4, 2, padding_idx=-2), nn.Flatten()))
    start, table, words = model.initial_values["0.weight"], torch.randn(4, 2), torch.tensor([[0, 2], [3, 1]])
    expected = torch.stack([torch.cat([table[0], start[2]]), torch.cat([table[3], table[1]])])
    assert torch.equal(model.outputs({"0.weight": table}, words), expected)
