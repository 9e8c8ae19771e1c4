"""Networks as users have them: wrapped, hooked, not plain, and random in evaluation."""

import copy
import random
import re
import types
import warnings

import numpy as np
import pyro
import pytest
import torch
import torch.distributed as dist
from helpers import Net
from pyro import poutine
from pyro.distributions import Normal
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.functional import dropout, gumbel_softmax
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm
from torch.optim.swa_utils import AveragedModel

import pyrobnn as bnn
from pyrobnn.inference import data as network_checks
from pyrobnn.inference.data import make_source

X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, 0].sin() + 0.1 * torch.randn(24, generator=torch.Generator().manual_seed(1))
GAUSSIAN = bnn.likelihoods.Gaussian(scale=0.3)
UNIT = bnn.priors.Normal(1.0)


def plain(outputs=1, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).to(dtype)


def fit(net, **settings):
    model = bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN)
    return model.fit(X, Y, seed=0, progress=False, **({"guide": "mean_field", "steps": 20} | settings))


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def compiled(net):
    return torch.compile(net, backend="eager")


WRAPPERS = {
    "compile": compiled,
    "data parallel": nn.DataParallel,
    "distributed": DistributedDataParallel,
    "average": AveragedModel,
    "two of them": lambda net: compiled(nn.DataParallel(net)),
}
SLOW = ("compile", "two of them")  # torch imports its compiler
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in WRAPPERS]


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", NAMES)
def test_a_wrapped_network_is_the_one_inside(name, tmp_path):
    net = plain()
    wrapped = WRAPPERS[name](net)
    found, expected = fit(wrapped), fit(plain())
    assert found.bnn.site_names == expected.bnn.site_names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert torch.equal(found.predict(X).mean, expected.predict(X).mean)
    folder = found.save(tmp_path / "saved")
    for again in (net, wrapped):
        assert torch.equal(bnn.load(folder, net=again).predict(X).mean, expected.predict(X).mean)
    assert all(torch.equal(*pair) for pair in zip(net.parameters(), plain().parameters(), strict=True))


def residual(wrap):
    """A network that uses one inner network twice, under two names."""
    inner, run = wrap(plain(3)), lambda net, x: net.last(x + net.first(x) + net.again(x))
    return Net(run, first=inner, again=inner, last=nn.Linear(3, 1))


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", NAMES)
def test_a_wrapper_inside_a_network_comes_off_wherever_it_is_used(name):
    torch.manual_seed(3)
    wrapped = residual(WRAPPERS[name])
    torch.manual_seed(3)
    expected = residual(lambda net: net)
    pair = bnn.BNN(wrapped), bnn.BNN(expected)
    assert pair[0].site_names == pair[1].site_names
    assert pair[0].net.first is pair[0].net.again
    assert torch.equal(fit(wrapped).predict(X).mean, fit(expected).predict(X).mean)
    assert type(wrapped.first) is not nn.Sequential  # what was given stays as it is


def hooked(hook):
    net = plain()
    hook(net[0])
    net(X).sum().backward()  # it has been trained: the weight that the hook computed is in a graph
    return net


def spoiled(change):
    net = plain()
    change(net)
    return net


REFUSED = {
    "weight_norm": (lambda: hooked(weight_norm), "in a hook, by weight_norm"),
    "spectral_norm": (lambda: hooked(spectral_norm), "in a hook, by spectral_norm"),
    "pruning": (lambda: hooked(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)), "in a hook, by pruning"),
    "pruned twice": (
        lambda: hooked(lambda layer: [prune.random_unstructured(layer, "weight", 0.2) for _ in range(2)]),
        "in a hook, by pruning",
    ),
    "script": (lambda: torch.jit.script(plain()), "is compiled by torch.jit"),
    "trace": (lambda: torch.jit.trace(plain(), X), "is compiled by torch.jit"),
    "script inside": (lambda: nn.Sequential(torch.jit.script(plain()), nn.Linear(1, 1)), "The layer '0', Recursive"),
    "quantised": (lambda: torch.ao.quantization.quantize_dynamic(plain(), {nn.Linear}), "is quantised"),
    "program": (lambda: torch.export.export(plain(), (X,)), "comes from torch.export"),
    "exported": (lambda: torch.export.export(plain(), (X,)).module(), "comes from torch.export"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(1)), "'weight' that is lazy"),
    "lazy statistics": (lambda: nn.Sequential(nn.LazyBatchNorm1d(affine=False)), "'running_mean' that is lazy"),
    "meta": (lambda: plain().to("meta"), "'weight' that is on the meta device"),
    "meta layer": (lambda: spoiled(lambda net: net[2].to("meta")), "The layer '2', Linear, has a 'weight' that is"),
    "complex": (lambda: spoiled(lambda net: net.register_parameter("w", nn.Parameter(1j * torch.ones(3)))), "complex"),
    "sparse": (
        lambda: spoiled(lambda net: setattr(net[0], "weight", nn.Parameter(net[0].weight.detach().to_sparse()))),
        "is no plain dense tensor",
    ),
    "no copy": (lambda: spoiled(lambda net: setattr(net, "kept", [net(X)])), "cannot be copied"),
    "a function to a number": (lambda: lambda: 3, "must return a module, got int"),
    "a function to a lazy layer": (lambda: lambda: nn.LazyLinear(1), "is lazy, without a shape yet"),
    "a function to settings": (lambda: lambda: bnn.MLP(3, [4], 1), "must return a module, got MLP"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_whose_weights_cannot_be_put_in_is_refused_in_one_line(name):
    make, message = REFUSED[name]
    with warnings.catch_warnings(action="ignore"):  # of torch, on what is to be refused
        net = make()
    with pytest.raises(bnn.InputError) as caught:
        bnn.BNN(net)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")  # of torch, on a single process
@pytest.mark.usefixtures("one_process")
def test_shards_are_refused():
    with pytest.raises(bnn.InputError, match=r"FullyShardedDataParallel, holds its weights in shards \(FSDP\): pass"):
        bnn.BNN(FullyShardedDataParallel(plain(), device_id=torch.device("cpu")))


def closed():
    """A network that computes by a closure over the module that was copied."""
    inner = plain()
    return Net(lambda net, x: inner(x), net=inner)


def with_compiled_forward():
    net = plain()
    net.forward = torch.compile(net.forward, backend="eager")
    return net


FITS = {
    "svi": lambda model: model.fit(X, Y, guide="map", steps=1, seed=0, progress=False),
    "nuts": lambda model: bnn.fit(model, (X, Y), bnn.NUTS(num_draws=2, warmup=2), seed=0, progress=False),
    "evidence": lambda model: bnn.fit(model, (X, Y), bnn.EvidenceFramework(starts=1), seed=0, progress=False),
    "automatic": lambda model: bnn.fit(model, (X, Y), seed=0, progress=False),
    "replicates": lambda model: model.fit(X, Y, replicates=2, steps=1, seed=0, progress=False),
    "around": lambda model: bnn.guides.Laplace().around(model, (X, Y), progress=False),
    "estimator": lambda model: bnn.BNNRegressor(net=model.settings["net"], steps=1).fit(X.numpy(), Y.numpy()),
}


@pytest.mark.parametrize(
    "make",
    [
        closed,
        pytest.param(with_compiled_forward, marks=pytest.mark.slow),
        lambda: wrapped(plain(), torch.Tensor.detach),
        lambda: wrapped(plain(), torch.no_grad()(lambda f: f * 1)),
    ],
    ids=["closure", "compiled forward", "detach", "no_grad"],
)
def test_a_network_that_does_not_follow_its_weights_is_refused(make):
    with pytest.raises(bnn.InputError, match="gives outputs that do not follow from its parameters: `forward`"):
        fit(make())


def clamping(*, in_place, after):
    """A network whose hook holds weights in bounds, within which they start."""

    def hook(module, *_):
        with torch.no_grad():
            if in_place:
                module.weight.clamp_(-5, 5)
            else:
                module.weight.data = module.weight.data.clamp(-5, 5)

    net = plain()
    (net[0].register_forward_hook if after else net[0].register_forward_pre_hook)(hook)
    return net


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("way", ["svi", "nuts", "around"])
def test_a_hook_that_changes_weights_is_refused(way, in_place, after):
    model = bnn.BNN(clamping(in_place=in_place, after=after), prior=UNIT, likelihood=GAUSSIAN)
    start = copy.deepcopy(model.initial_values)
    with pytest.raises(bnn.InputError, match="The network changes its parameter '0.weight' when it is called"):
        FITS[way](model)
    assert all(torch.equal(value, start[name]) for name, value in model.initial_values.items())


def test_a_hook_on_activations_is_a_part_of_the_network():
    net = plain()
    net[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    doubled = plain()
    doubled[0].weight.data.mul_(2), doubled[0].bias.data.mul_(2)
    weights = bnn.BNN(net).initial_values
    torch.testing.assert_close(bnn.BNN(net).outputs(weights, X), doubled(X))
    assert fit(net).predict(X).epistemic_std.min() > 0


SLOWER = "ignore:Laplace. .* belong to layers of unknown structure"


@pytest.mark.filterwarnings(SLOWER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [0, 1])
def test_weight_normalisation_by_parametrisation_is_linearised_as_its_formula(dtype, dim):
    net = plain(dtype=dtype)
    parametrizations.weight_norm(net[0], dim=dim)
    posterior = fit(net, guide=bnn.guides.Laplace(structure="kron"), lr=0.01)  # draws near enough for differences
    (mean, draws), x = (posterior.mean(), posterior.draw(4)), X.to(dtype)

    def by_hand(w):
        length, direction = w["0.parametrizations.weight.original0"], w["0.parametrizations.weight.original1"]
        weight = length * direction / direction.square().sum(1 - dim, keepdim=True).sqrt()
        return torch.tanh(x @ weight.T + w["0.bias"]) @ w["2.weight"].T + w["2.bias"]

    found = posterior.predict(X, draws=draws, linearized=True).distribution.mean
    for s in range(4):
        change = {name: draws[name][s] - mean[name] for name in mean}
        step = 1e-6 if dtype == torch.float64 else 1e-2
        ahead, behind = (by_hand({n: mean[n] + sign * step * change[n] for n in mean}) for sign in (1, -1))
        expected = by_hand(mean) + (ahead - behind) / (2 * step)
        torch.testing.assert_close(found[s], expected[:, 0], rtol=2e-3, atol=2e-4)


class Doubled(nn.Module):
    """A parametrisation: twice the parameter."""

    def forward(self, value):
        return 2 * value


@pytest.mark.filterwarnings(SLOWER)
@pytest.mark.parametrize("guide", ["mean_field", "laplace"])
@pytest.mark.parametrize(
    "add",
    [
        lambda layer: parametrize.register_parametrization(layer, "weight", Doubled()),
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        parametrizations.weight_norm,
        lambda layer: parametrizations.weight_norm(layer, dim=None),
    ],
)
def test_parametrised_layers_fit_and_come_back(add, guide, tmp_path):
    def make():
        net = plain()
        add(net[0])
        return net

    posterior = fit(make(), guide=guide)
    assert any("parametrizations" in name for name in posterior.bnn.site_names)
    again = bnn.load(posterior.save(tmp_path / "saved"), net=make())
    assert torch.equal(again.predict(X).mean, posterior.predict(X).mean)


def keeping(net, x):
    """Keeps an activation, as code that looks at features does."""
    net.hidden = net.net[1](net.net[0](x))
    return net.net[2](net.hidden)


@pytest.mark.slow
def test_an_activation_that_a_network_keeps_is_in_nobodys_way():
    net = Net(keeping, net=plain())
    net(X).sum().backward()
    posterior, expected = fit(net), fit(plain())
    assert torch.equal(posterior.draw(3)["net.0.weight"], expected.draw(3)["0.weight"])
    model = bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN)
    model(X, Y)
    for _ in range(2):
        bnn.guides.Laplace().around(model, bnn.Data(X, Y), progress=False)


def test_the_look_at_a_network_leaves_it_as_it_was():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    model = bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN).train()
    model.net[1].eval()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    bnn.fit(model, (X, Y), bnn.SVI(steps=1), seed=0, progress=False)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


class Noisy(nn.Module):
    """Adds noise of some source to the hidden units; `off` silences it."""

    def __init__(self, draw):
        super().__init__()
        self.net, self.draw, self.off = plain(), draw, False

    def forward(self, x):
        hidden = self.net[1](self.net[0](x))
        return self.net[2](hidden if self.off else self.draw(hidden))


SOURCES = {
    "dropout": lambda h: dropout(h, 0.5),
    "rare dropout": lambda h: dropout(h, 1e-4),
    "randn": lambda h: h + torch.randn_like(h),
    "gumbel": lambda h: gumbel_softmax(h, tau=1.0),
    "numpy": lambda h: h + np.random.rand(),
    "python": lambda h: h + random.random(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_network_that_draws_in_evaluation_is_refused(source):
    with pytest.raises(bnn.InputError, match="The network draws random numbers in evaluation mode"):
        fit(Noisy(SOURCES[source]))


def padded():
    """A transformer whose fused kernel, in use without gradients, leaves other values at padding."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)

    def run(net, x):
        padding = torch.arange(3).expand(len(x), 3) >= 2
        return net.last(net.encoder(x[..., None].expand(-1, -1, 4), src_key_padding_mask=padding).sum(1))

    return Net(run, encoder=nn.TransformerEncoder(layer, 1, enable_nested_tensor=True), last=nn.Linear(4, 1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_fused_kernels_are_no_random_numbers():
    model = bnn.BNN(padded(), prior=UNIT, likelihood=GAUSSIAN).eval()
    with torch.no_grad():
        fused = model.outputs(model.initial_values, X)
    assert (fused - model.net(X.clone().requires_grad_())).abs().max() > 0.01
    assert make_source(bnn.Data(X, Y), model, None, seed=0).outputs == 1


def random_states():
    """Of torch and NumPy; checks of types at every call draw from Python's."""
    return torch.get_rng_state(), np.random.get_state()


def same_states(one, other):
    same_numpy = all(np.array_equal(a, b) for a, b in zip(one[1], other[1], strict=True))
    return torch.equal(one[0], other[0]) and same_numpy


def silenced(guide):
    """A fit of a network that does not draw yet."""
    net = Noisy(lambda h: h + torch.randn(()) + np.random.rand() + random.random())
    net.off = True
    posterior = fit(net, guide=guide)
    posterior.bnn.net.off = False
    return posterior


DATA = bnn.Data(X, Y)
PREDICTING = {
    "predict": lambda p: p.predict(X, num_draws=5).mean,
    "with draws": lambda p: p.predict(X, draws={k: v[:3] for k, v in p.draw(5).items()}).mean,
    "at the mean": lambda p: p.predict(X, at_mean=True).mean,
    "linearised": lambda p: p.predict(X, num_draws=5, linearized=True).mean,
    "a function": lambda p: bnn.sample_function(p, seed=0)(X),
    "mixture": lambda p: bnn.Mixture([p, p]).predict(X, num_draws=4).mean,
    "prior": lambda p: p.bnn.sample_prior_predictive(X, num_draws=5, seed=0).mean,
    "pruned": lambda p: bnn.prune(p, 0.5).predict(X, num_draws=5).mean,
    "DataTree": lambda p: torch.tensor(bnn.to_datatree(p, DATA, num_draws=10)["log_likelihood"]["y"].values),
    "leave one out": lambda p: torch.tensor(bnn.loo(p, DATA, num_draws=100).elpd_i.values),
    "ELBO": lambda p: torch.tensor(bnn.elbo_report(p, DATA).elbo.mean),
    "held out": lambda p: torch.tensor(bnn.heldout_elpd(p, DATA).elpd_i.values),
}


@pytest.mark.filterwarnings("ignore")  # k-hat, and loops in the place of vmap
@pytest.mark.parametrize("guide", ["mean_field", "laplace"])
@pytest.mark.parametrize("name", PREDICTING)
def test_what_predicts_is_seeded_and_leaves_random_states(name, guide):
    """Also for a network that begins to draw after the fit, as one that looks at its inputs may."""
    posterior = silenced(guide)
    before = random_states()
    first = PREDICTING[name](posterior)
    assert same_states(before, random_states())
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    assert torch.equal(PREDICTING[name](posterior), first)


def body(dtype=torch.float32):
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.5)).to(dtype)
    normed[1].running_mean.normal_()
    return normed.requires_grad_(requires_grad=False)


def classifier(body):
    """A body and a head, which widens what comes out of the body."""
    return Net(lambda net, x: net.head(net.body(x).to(net.head.weight.dtype)), body=body, head=nn.Linear(8, 3))


LABELS = torch.randint(3, (24,), generator=torch.Generator().manual_seed(2))
WAYS = {
    "mean-field": bnn.SVI(steps=30),
    "mini-batches": bnn.SVI(steps=30, batch_size=8),
    "last layer": bnn.SVI(guide=bnn.guides.Laplace(sites="last_layer"), steps=30),
    "IVON": bnn.IVON(steps=30),
    "SWAG": bnn.SWAG(bnn.SVI(guide="map", steps=30), steps=30, every=3, rank=5),
    "chains": bnn.NUTS(num_draws=5, warmup=5, num_chains=1),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("engine", ["eager", "captured"])
@pytest.mark.parametrize("name", WAYS)
def test_a_frozen_body_is_in_a_fit_what_it_is_in_prediction(name, engine):
    """The same posterior as that of the head alone, for what the body in evaluation mode makes of the inputs."""
    net = classifier(body())
    with torch.no_grad():
        features = net.body.eval()(X)
    net.body.train()
    kept = copy.deepcopy(net.body.state_dict())
    fits = [
        bnn.fit(
            bnn.BNN(copy.deepcopy(part), prior=UNIT, likelihood="categorical"),
            bnn.Data(x, LABELS), WAYS[name], seed=0, engine=engine, progress=False,
        )
        for part, x in ((net, X), (net.head, features))
    ]  # fmt: skip
    after = fits[0].bnn.net.body.state_dict()
    assert all(torch.equal(after[key], value) for key, value in kept.items())
    probs = [fit.predict(x, num_draws=10).class_probs for fit, x in zip(fits, (X, features), strict=True)]
    torch.testing.assert_close(*probs, rtol=1e-4, atol=1e-5)


def test_a_frozen_body_keeps_its_precision_and_the_loss_has_that_of_the_head(tmp_path):
    half = classifier(body(torch.bfloat16))
    model = bnn.BNN(half, prior=UNIT, likelihood="categorical")
    assert {value.dtype for value in model.net.body.parameters()} == {torch.bfloat16}
    assert (model.like.dtype, model.cast_inputs(X.double()).dtype) == (torch.float32, torch.bfloat16)
    posterior = bnn.fit(model, bnn.Data(X, LABELS), WAYS["mean-field"], seed=0, progress=False)
    with torch.no_grad():
        features = half.body.eval()(X.bfloat16()).float()
    alone = bnn.BNN(half.head, prior=UNIT, likelihood="categorical")
    of_head = bnn.fit(alone, bnn.Data(features, LABELS), WAYS["mean-field"], seed=0, progress=False)
    expected = of_head.predict(features).class_probs
    torch.testing.assert_close(posterior.predict(X).class_probs, expected, rtol=1e-4, atol=1e-5)
    bnn.save(posterior, tmp_path / "saved")
    loaded = bnn.load(tmp_path / "saved", net=classifier(body(torch.bfloat16)))
    assert {value.dtype for value in loaded.bnn.net.body.parameters()} == {torch.bfloat16}
    assert torch.equal(loaded.predict(X).class_probs, posterior.predict(X).class_probs)


def test_half_precision_is_widened_where_it_is_trained():
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).bfloat16()
    net[0].requires_grad_(requires_grad=False)
    model = bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN)
    dtypes = {name: value.dtype for name, value in model.net.state_dict().items() if value.is_floating_point()}
    assert {name for name, dtype in dtypes.items() if dtype == torch.bfloat16} == {"0.weight", "0.bias"}
    assert {value.dtype for value in net.state_dict().values() if value.is_floating_point()} == {torch.bfloat16}


def wrapped(net, form):
    """Returns what another network does, in another form."""
    return Net(lambda net, x: net.form(net.net(x)), net=net, form=form)


FORMS = {
    "an object": lambda f: types.SimpleNamespace(loss=None, logits=f),
    "a mapping": lambda f: {"hidden": f + 1, "logits": f},
    "a vector": lambda f: f[:, 0],
    "squeezed": lambda f: f.squeeze(-1),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("guide", ["mean_field", "laplace", "last layer"])
def test_outputs_of_other_forms_are_those_of_the_tensor(guide, name):
    chosen = bnn.guides.Laplace(sites="last_layer") if guide == "last layer" else guide
    expected, posterior = fit(plain(), guide=chosen), fit(wrapped(plain(), FORMS[name]), guide=chosen)
    for x in (X, X[:1]):
        torch.testing.assert_close(posterior.predict(x, num_draws=7).mean, expected.predict(x, num_draws=7).mean)


NO_ROWS = "map inputs (N, ...) to one tensor (N, outputs), or an object with one as `logits`, for a single row too; "
MIXED = "outputs of the network for a row depend on the other rows of its batch"
WRONG_FORMS = {
    "squeezed": (1, lambda f: f.squeeze(), f"{NO_ROWS}(1, 3) became ()"),
    "squeezed classes": (3, lambda f: f.squeeze(), f"{NO_ROWS}(1, 3) became (3,)"),
    "squeezed in a mapping": (1, lambda f: {"logits": f.squeeze()}, f"{NO_ROWS}(1, 3) became ()"),
    "flattened classes": (3, lambda f: f.flatten(), f"{NO_ROWS}(2, 3) became (6,)"),
    "a mean": (1, lambda f: f.mean(), f"{NO_ROWS}(2, 3) became ()"),
    "a sum over rows": (2, lambda f: f.sum(0), f"{NO_ROWS}(1, 3) became (2,)"),
    "the first rows": (1, lambda f: f[:2], f"{NO_ROWS}(24, 3) became (2, 1)"),
    "an axis more": (1, lambda f: f[:, None], f"{NO_ROWS}(2, 3) became (2, 1, 1)"),
    "columns for rows": (2, lambda f: f.T, f"{NO_ROWS}(1, 3) became (2, 1)"),
    "another view": (1, lambda f: f.view(-1, 2), f"{NO_ROWS}(2, 3) became (1, 2)"),
    "a view that takes two rows": (1, lambda f: f.view(2, -1), "does not take inputs of shape (1, 3): shape '[2, -1]'"),
    "complex": (1, lambda f: f + 0j, f"{NO_ROWS}(2, 3) became a complex tensor, or no tensor"),
    "shares of a batch": (1, lambda f: f.softmax(0), MIXED),
    "less the mean of a batch": (1, lambda f: f - f.mean(0), MIXED),
    "less the largest of a batch": (1, lambda f: f - f.max(0)[0], MIXED),
    "less the first row": (1, lambda f: f - f[:1], MIXED),
    "a layer too wide": (2, nn.Linear(3, 1), "does not take inputs of shape (24, 3): layer 'form', Linear(in_fea"),
}


@pytest.mark.parametrize("name", WRONG_FORMS)
def test_outputs_that_do_not_follow_the_rows_are_refused_by_name(name):
    outputs, form, message = WRONG_FORMS[name]
    labels = {"likelihood": "categorical"} if outputs == 3 else {"likelihood": GAUSSIAN}
    model = bnn.BNN(wrapped(plain(outputs), form), prior=UNIT, **labels)
    for y in (Y, Y[:1]) if name.startswith("squeezed") else (Y,):
        with pytest.raises(bnn.InputError, match=re.escape(message)):
            model.fit(X[: len(y)], y.round().abs() if outputs == 3 else y, steps=1, seed=0, progress=False)


@pytest.mark.parametrize("way", FITS)
@pytest.mark.parametrize("fault", ["draws random numbers in evaluation", "for a single row too; \\(1, 3\\) became"])
def test_every_way_to_fit_refuses(fault, way):
    net = Noisy(SOURCES["dropout"]) if fault.startswith("draws") else wrapped(plain(), torch.squeeze)
    before = random_states()
    with pytest.raises(bnn.InputError, match=fault):
        FITS[way](bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN))
    if way != "estimator":  # without `random_state` it takes its seed from NumPy
        assert same_states(before, random_states())


@pytest.mark.parametrize("method", [None, bnn.SVI(), bnn.NUTS(), bnn.EvidenceFramework(), bnn.SVI(guide="laplace")])
def test_a_network_without_a_value_for_standardised_inputs_is_refused(method):
    model = bnn.BNN(nn.Sequential(wrapped(nn.Identity(), torch.log), nn.Linear(3, 1)))
    num_missing = int((X - X.mean(0) < 0).any(1).sum())
    with pytest.raises(bnn.InputError, match=f"gives nan for {num_missing} of {len(X)} rows.*leave `standardize` out"):
        bnn.fit(model, bnn.Data(X, Y, standardize=True), method, progress=False)


def test_sequences_of_other_lengths_are_taken_by_parts_of_a_mapping():
    net = Net(lambda net, x: net.head(net.cell(x)[0][:, -1]), cell=nn.GRU(3, 2, batch_first=True), head=nn.Linear(2, 1))
    model, x, longer = bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN), X[:, None], torch.ones(2, 4, 3)
    short = model.fit(x, Y, steps=1, seed=0, progress=False)
    with pytest.raises(bnn.InputError, match="\\(2, 4, 3\\): a fit to a mapping, {'x': x}, takes sequences of any"):
        short.predict(longer)
    by_parts = model.fit({"x": x}, Y, steps=1, seed=0, progress=False)
    torch.testing.assert_close(by_parts.predict({"x": longer}).mean[0], by_parts.predict({"x": longer[:1]}).mean[0])
    with pytest.raises(bnn.InputError, match="does not take inputs of shape"):
        by_parts.predict({"x": longer[:, :, :2]})


@pytest.mark.parametrize("tracked", [True, False])
def test_one_row_has_no_statistics_of_a_batch(tracked):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=tracked), nn.Linear(4, 1))
    with pytest.raises(bnn.InputError, match="statistics of a batch, which one row has not: pass two rows or more"):
        fit(net, steps=2, guide="map").predict(X[:1]) if not tracked else bnn.BNN(net).fit(X[:1], Y[:1], steps=2)


@pytest.mark.parametrize("run", [False, True])
def test_modules_of_pyro_are_networks_also_after_a_call(run):
    """They have the density of the program by hand, whose own priors are refused."""
    net = PyroModule[nn.Sequential](PyroModule[nn.Linear](3, 2), nn.Tanh(), PyroModule[nn.Linear](2, 1))
    if run:
        net(X)
    posterior = fit(net)
    for layer in (net[0], net[2]):
        for name, value in [*layer.named_parameters()]:
            setattr(layer, name, PyroSample(Normal(0.0, 1.0).expand(value.shape).to_event(value.ndim)))

    def by_hand(x, y):
        f = net(x)[:, 0]
        with pyro.plate("data", len(x)):
            pyro.sample("y", Normal(f, 0.3), obs=y)

    drawn = poutine.trace(posterior.bnn).get_trace(X, Y)
    expected = poutine.trace(poutine.replay(by_hand, trace=drawn)).get_trace(X, Y)
    torch.testing.assert_close(drawn.log_prob_sum(), expected.log_prob_sum())
    with pytest.raises(bnn.InputError, match="pass parameters in place of each `PyroSample`, and priors by name"):
        bnn.BNN(net)


def test_outputs_in_half_precision_are_scored_in_that_of_the_weights():
    net = wrapped(plain(), lambda f: f.bfloat16())
    model = bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN)
    f = model.outputs(model.initial_values, X)
    assert f.dtype == torch.float32
    assert torch.equal(f, net(X).float())


def make_plain():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_a_function_makes_a_new_network_for_each_fit(tmp_path):
    """Members of an ensemble start by their seeds, as those of a declared network; those of a module, alike."""
    method = bnn.Ensemble(bnn.SVI("map", steps=1, lr=1e-9), members=3)

    def starts(net):
        mixture = bnn.fit(bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN), bnn.Data(X, Y), method, seed=0, progress=False)
        return mixture, torch.stack([member.mean()["0.weight"] for member in mixture.members])

    mixture, of_function = starts(make_plain)
    _, of_declared = starts(bnn.MLP(3, [4], 1, activation="tanh"))
    with pytest.warns(UserWarning, match="pass a function that makes the network"):
        _, of_module = starts(plain())
    torch.testing.assert_close(of_function, of_declared)
    assert (of_function[0] - of_function[1]).abs().min() > 0
    torch.testing.assert_close(of_module[0], of_module[1], rtol=0, atol=1e-6)
    bnn.save(mixture, tmp_path / "saved")
    for net in (make_plain, make_plain()):
        loaded = bnn.load(tmp_path / "saved", net=net)
        assert torch.equal(loaded.predict(X, num_draws=3).mean, mixture.predict(X, num_draws=3).mean)
    with pytest.raises(bnn.InputError, match="own network, Sequential: pass it"):
        bnn.load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("net", "x", "products"),
    [
        (nn.Sequential(nn.Linear(3, 50), nn.Tanh(), nn.Linear(50, 1)), X, 251),
        (nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 8, 3, padding=1), nn.Flatten(), nn.Linear(24, 1)), X, 96),
        (nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 1)), torch.zeros(24, 3, dtype=torch.long), 49),
    ],
)
def test_the_products_of_a_pass_are_counted_or_at_least_the_parameters(net, x, products, monkeypatch):
    """251 and 49 are numbers of parameters; 96 = 8 x 3 x 3 in the convolution and 24 in the linear layer."""
    data, model = bnn.Data(x, Y, standardize=False), bnn.BNN(net, prior=UNIT, likelihood=GAUSSIAN)
    assert make_source(data, model, None, seed=0).products == float("inf")  # without a GPU there is nothing to choose
    monkeypatch.setattr(network_checks, "has_gpu", lambda: True)
    assert make_source(data, model, None, seed=0).products == products
