"""Estimators of the same gradient that vary less: noise for each example, and the path derivative."""

import pyro.distributions as dist
import pytest
import torch
from helpers import Net
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

import pyrobnn as bnn
from pyrobnn import guides, priors
from pyrobnn._core.random import seeded
from pyrobnn._torch import per_example
from pyrobnn._torch.per_example import NormalNoise, perturbation_of
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.inference.capture.objective import ELBO, FreshNoise, Objective

LOCAL, FLIPOUT = guides.MeanField(noise="local"), guides.MeanField(noise="flipout")
PER_EXAMPLE = {"local": LOCAL, "flipout": FLIPOUT}


def sequences():
    """Linear maps along a sequence (B, T, in), then over all of it."""
    run = lambda net, x: net.all(net.each(x).tanh().flatten(1))  # noqa: E731
    return Net(run, each=nn.Linear(2, 3), all=nn.Linear(12, 1))


def tied():
    """The same weights in an embedding and a linear layer."""
    net = Net(lambda net, x: net.out(net.words(x).sum(1)), words=nn.Embedding(6, 3), out=nn.Linear(3, 6, bias=False))
    net.out.weight = net.words.weight
    return net


def recurrent():
    parts = {"words": nn.Embedding(6, 3), "norm": nn.LayerNorm(3), "steps": nn.LSTM(3, 2, batch_first=True)}
    return Net(lambda net, x: net.steps(net.norm(net.words(x)))[0][:, -1], **parts)


def time_first():
    run = lambda net, x: net.each(functional.one_hot(x.long(), 6).float()[..., :3].transpose(0, 1)).sum(0)  # noqa: E731
    return Net(run, each=nn.Linear(3, 2))


pytestmark = pytest.mark.usefixtures("local")
NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), (3,)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(2, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 1)), (2, 4)),
    "conv2d": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(8, 1)),
        (1, 3, 3),
    ),
    "grouped": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(4, 1)),
        (2, 2, 2),
    ),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(2, 1)), (1, 2, 2, 2)),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(9, 1)),
        (2, 2),
    ),
    "sequences": (sequences, (4, 2)),
}
NUM = 5


def make(name="mlp", guide=FLIPOUT, num=NUM, init_rho=0.0):
    """A model in training, a guide with wide scales, and a batch, in double precision."""
    net, shape = NETS[name]
    with seeded(0):
        model = bnn.BNN(net().double(), prior=priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(1.0))
        x = torch.randn(num, *shape).double()
        y = torch.randn(num).double()
        built = guide.build(model, x, y)
        with torch.no_grad():
            built.rho.add_(init_rho + 3.0 - 0.5 * torch.rand_like(built.rho))
    return model.train(), built, x, y


def outputs(model, guide, x):
    """The outputs for a draw of the guide, and the draw."""
    values = {name: value for name, value in guide().items() if name in model.site_names}
    return model.outputs(values, x), values


@pytest.mark.parametrize("name", NETS)
def test_flipout_gives_each_example_weights_of_its_own(name, monkeypatch):
    """Against one pass for each example, with its signs multiplied into the weights."""
    model, guide, x, _ = make(name)
    drawn, signs = [], per_example._signs
    monkeypatch.setattr(per_example, "_signs", lambda *args: drawn.append(signs(*args)) or drawn[-1])
    f, values = outputs(model, guide, x)
    layers = list(dict.fromkeys(site.rpartition(".")[0] for site in values))
    assert len(drawn) == 2 * len(layers)
    means = guide.mean()
    for n in range(len(x)):
        own = {}
        for layer, (s, r) in zip(layers, zip(drawn[::2], drawn[1::2], strict=True), strict=True):
            weight, bias = f"{layer}.weight", f"{layer}.bias"
            flips = flip_of(model.net.get_submodule(layer), s[n], r[n], values[weight])
            own[weight] = means[weight] + (values[weight] - means[weight]) * flips
            own[bias] = means[bias] + (values[bias] - means[bias]) * r[n]
        torch.testing.assert_close(f[n : n + 1], functional_call(model.net, own, (x[n : n + 1],)))


def flip_of(layer, s, r, weight):
    """The signs of a weight's entries, in the layout of the layer."""
    if isinstance(layer, nn.ConvTranspose1d):
        signs = s[:, None] * r
    else:
        groups = getattr(layer, "groups", 1)
        per_group = s.view(groups, -1).repeat_interleave(len(r) // groups, 0)
        signs = r[:, None] * per_group
    return signs.view(*signs.shape, *[1] * (weight.ndim - 2))


def test_local_noise_is_on_the_outputs_of_a_layer(monkeypatch):
    model, guide, x, _ = make("mlp", LOCAL)
    eps, randn_like = [], torch.randn_like
    monkeypatch.setattr(torch, "randn_like", lambda like: eps.append(randn_like(like)) or eps[-1])
    f, values = outputs(model, guide, x)
    moments = guide.moments()
    h = x
    for layer, noise in zip(("0", "2"), eps[1:], strict=True):
        (m, s), (b, t) = moments[f"{layer}.weight"], moments[f"{layer}.bias"]
        h = h @ m.T + b + ((h**2) @ (s**2).T + t**2).sqrt() * noise
        h = h.tanh() if layer == "0" else h
    torch.testing.assert_close(f, h)
    assert [tuple(noise.shape) for noise in eps[1:]] == [(NUM, 4), (NUM, 1)]
    assert perturbation_of(values["0.weight"]) is not None


@pytest.mark.parametrize("noise", PER_EXAMPLE)
def test_functions_of_the_posterior_are_shared(noise):
    """Outside training a draw is one function, and what `Posterior` returns carries nothing."""
    model, guide, x, y = make("mlp", PER_EXAMPLE[noise])
    model.eval()
    f, values = outputs(model, guide, x)
    torch.testing.assert_close(f, functional_call(model.net, values, (x,)))
    posterior = make("mlp")[0].fit(x, y, guide=PER_EXAMPLE[noise], steps=2, seed=0, device="cpu", progress=False)
    assert all(perturbation_of(value) is None for value in posterior.draw(2).values())
    assert not posterior.bnn.training


@pytest.mark.parametrize("net", [tied, recurrent, time_first], ids=lambda net: net.__name__)
@pytest.mark.parametrize("noise", PER_EXAMPLE)
def test_other_layers_keep_the_shared_draw(net, noise):
    with seeded(0):
        model = bnn.BNN(nn.Sequential(net()), likelihood="categorical", prior=bnn.priors.Normal(1.0)).train()
        x = torch.randint(6, (5, 4))
        guide = PER_EXAMPLE[noise].build(model, x, torch.zeros(5).long())
    f, values = outputs(model, guide, x)
    assert perturbation_of(next(iter(values.values()))) is not None
    names = {alias: values[name] for name, aliases in model._aliases.items() for alias in aliases}
    torch.testing.assert_close(f, functional_call(model.net, names, (x,), tie_weights=False))


def test_weights_with_a_constrained_support_keep_the_shared_draw():
    model = bnn.BNN(nn.Sequential(nn.Linear(2, 1)), prior=lambda name, value: dist.HalfNormal(1.0)).train()
    x = torch.randn(3, 2)
    guide = FLIPOUT.build(model, x, torch.zeros(3))
    f, values = outputs(model, guide, x)
    assert perturbation_of(values["0.weight"]) is None
    torch.testing.assert_close(f, functional_call(model.net, values, (x,)))


def twice(net, x):
    return net.layer(net.layer(x).tanh())


def transposed(net, x):
    return functional.linear(net.layer(x), net.layer.weight.t())


def draw_twice(guide, run=twice):
    """Outputs of a network that applies a layer twice, or uses its weight once more."""
    net = nn.Sequential(Net(run, layer=nn.Linear(3, 3)))
    model = bnn.BNN(net, likelihood=bnn.likelihoods.Gaussian(1.0), prior=bnn.priors.Normal(1.0)).train()
    x = torch.randn(4, 3)
    built = guide.build(model, x, torch.zeros(4, 3))
    return outputs(model, built, x), x, built


def test_flipout_repeats_the_signs_of_a_layer_applied_again(monkeypatch):
    drawn, signs = [], per_example._signs
    monkeypatch.setattr(per_example, "_signs", lambda *args: drawn.append(signs(*args)) or drawn[-1])
    (f, values), x, guide = draw_twice(FLIPOUT)
    s, r = drawn
    weight, bias = values["0.layer.weight"], values["0.layer.bias"]
    mean = guide.mean()
    for n in range(4):
        w = mean["0.layer.weight"] + (weight - mean["0.layer.weight"]) * torch.outer(r[n], s[n])
        b = mean["0.layer.bias"] + (bias - mean["0.layer.bias"]) * r[n]
        torch.testing.assert_close(f[n], w @ (w @ x[n] + b).tanh() + b)


@pytest.mark.parametrize("noise", PER_EXAMPLE)
def test_noise_of_a_weight_used_in_two_ways_and_local_noise_used_twice_are_refused(noise):
    with pytest.raises(bnn.InputError, match="uses '0.layer.weight' in more than one way.*give it a shared draw"):
        draw_twice(PER_EXAMPLE[noise], transposed)
    draw_twice(guides.MeanField(), transposed)
    if noise == "local":
        with pytest.raises(bnn.InputError, match="applied more than once in a pass.*Use noise='flipout'"):
            draw_twice(LOCAL)


def test_local_noise_has_a_gradient_where_all_inputs_are_zero():
    noise = NormalNoise(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3), local=True)
    x = torch.zeros(4, 3, requires_grad=True)
    layer = per_example.Layer(functional.linear, x, None, -1, {})
    (gradient,) = torch.autograd.grad(noise.outputs(layer).sum(), x)
    assert gradient.isfinite().all()


ESTIMATORS = {
    "local": (LOCAL, {}),
    "flipout": (FLIPOUT, {}),
    "path derivative": (guides.MeanField(path_derivative=True), {}),
    "local, analytic": (LOCAL, {"kl": "analytic"}),
}


def gradients(name, setting, *, kl="mc", num=NUM, draws=5000, init_rho=-1.0):
    """Independent estimates of the gradient of -ELBO, (draws, parameters), loc first."""
    model, guide, x, y = make(name, setting, num=num, init_rho=init_rho)
    objective = Objective(model, guide, num_data=3 * num, kl=kl)
    fixed = {k: v.detach() for k, v in [*objective.named_buffers(), *model.named_parameters()]}

    def loss(trained):
        log_likelihood, divergence = functional_call(objective, fixed | trained, (x, y))
        return divergence - log_likelihood

    trained = {f"guide.{k}": v.detach() for k, v in guide.named_parameters()}
    with seeded(7), FreshNoise():
        found = vmap(lambda _: grad(loss)(trained), randomness="different")(torch.empty(draws, 0))
    return torch.cat([values.flatten(1) for values in (found[f"guide.{k}"] for k, _ in guide.named_parameters())], 1)


@pytest.fixture(scope="module")
def shared():
    with fast_pyro():
        return {name: gradients(name, guides.MeanField()) for name in NETS}


CASES = [(name, estimator) for name in ("mlp", "conv1d") for estimator in ESTIMATORS]
CASES += [(name, noise) for name in NETS for noise in PER_EXAMPLE if (name, noise) not in CASES]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "estimator"), CASES)
def test_estimator_has_the_same_mean(name, estimator, shared):
    """5000 draws each, seed 7; 5 standard errors for each of up to 60 means."""
    setting, options = ESTIMATORS[estimator]
    with torch.random.fork_rng():
        found = gradients(name, setting, **options)
    assert z_scores(found, shared[name]).max() < 5


def z_scores(first, second):
    errors = (first.var(0) / len(first) + second.var(0) / len(second)).sqrt()
    return (first.mean(0) - second.mean(0)).abs() / errors


def total_variance(values, part):
    columns = values.chunk(2, 1)[part]
    return float(columns.var(0).sum())


@pytest.mark.parametrize("noise", PER_EXAMPLE)
def test_noise_for_each_example_varies_less(noise):
    """64 examples, so that most of the noise with a shared draw is that of their mean; of mu at least 4 times less."""
    options = {"kl": "analytic", "num": 64, "draws": 2000, "init_rho": -3.0}
    own, one = (gradients("mlp", setting, **options) for setting in (PER_EXAMPLE[noise], guides.MeanField()))
    assert total_variance(own, 0) < total_variance(one, 0) / 4
    assert total_variance(own, 1) < total_variance(one, 1)


@pytest.mark.parametrize(("noise", "name"), [("local", "mlp"), ("flipout", "conv1d")])
def test_the_low_rank_guide_has_the_same_mean_and_varies_less(noise, name):
    """5000 draws each, seed 7; 5 standard errors for each of up to 90 means of loc, rho and the factor."""
    options = {"num": 20, "init_rho": -2.0, "kl": "analytic"}
    settings = (guides.LowRank(rank=2, noise=kind) for kind in (noise, "shared"))
    own, one = (gradients(name, setting, **options) for setting in settings)
    assert z_scores(own, one).max() < 5
    assert own.var(0).sum() < 0.9 * one.var(0).sum()


def orthogonal_regression():
    """Inputs for which the exact posterior of a linear model has independent weights."""
    x = torch.linalg.qr(torch.randn(20, 3).double())[0] * 3
    data = bnn.Data(x, x @ torch.tensor([1.0, -1.0, 0.5]).double() + 0.1 * torch.randn(20).double())
    net = nn.Linear(3, 1, bias=False).double()
    model = bnn.BNN(net, prior=priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(1.0))
    return model, data, 10.0**-0.5 * torch.ones(3).double(), x.T @ data.y / 10.0


@pytest.mark.parametrize(("path_derivative", "spread"), [(True, 0.0), (False, 1.0)])
def test_path_derivative_has_no_variance_at_the_exact_posterior(path_derivative, spread):
    model, data, scale, mean = orthogonal_regression()
    guide = guides.MeanField(path_derivative=path_derivative).build(model, data.x, data.y)
    with torch.no_grad():
        guide.loc.copy_(mean)
        guide.rho.copy_(scale.expm1().log())
    estimates = []
    for _ in range(5):
        guide.zero_grad()
        ELBO("mc", 1).differentiable_loss(model, guide, data.x, data.y).backward()
        estimates.append(torch.cat([guide.loc.grad, guide.rho.grad]))
    found = torch.stack(estimates).abs().max()
    assert found < 1e-9 if spread == 0 else found > 0.1


@pytest.mark.parametrize("kl", ["analytic", "quadrature"])
@pytest.mark.parametrize("by_name", [False, True])
def test_path_derivative_without_draws_is_refused(kl, by_name):
    model, data, _, _ = orthogonal_regression()
    guide = guides.MeanField(path_derivative=True)
    with pytest.raises(bnn.InputError, match="follows log q along its draws, which kl=.* has none of: use kl='mc'"):
        model.fit(data, guide={"*": guide} if by_name else guide, kl=kl, steps=1, seed=0, progress=False)
