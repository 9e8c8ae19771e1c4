"""Curvature in every structure, against sums over targets, explicit Jacobians and Hessians, and loops. float64."""

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hard_to_batch import HARD_TO_BATCH, hard_to_batch, looped_jacobian
from helpers import Net
from test_conformance import LIKELIHOODS, PRIORS
from torch import nn
from torch.autograd.functional import hessian, jacobian
from torch.distributions import constraints
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import pyrobnn as bnn
from pyrobnn import likelihoods, priors
from pyrobnn._core.random import seeded
from pyrobnn._torch.vectorize import DrawMap
from pyrobnn.curvature.base import Examples, Point
from pyrobnn.curvature.hessian import Hessian
from pyrobnn.curvature.kinds import KINDS
from pyrobnn.curvature.metric import fisher_columns, score_columns
from pyrobnn.curvature.outer_products import add_diagonal, add_full, add_kronecker
from pyrobnn.curvature.prior import log_entries, prior_curvature, prior_laws
from pyrobnn.curvature.recursion import Recursion
from pyrobnn.curvature.tracker import Tracker
from pyrobnn.inference.laplace import product_of
from pyrobnn.posterior.output_draws import Tangent

F64 = torch.float64
EXACT = {"rtol": 1e-9, "atol": 1e-11}
UNIT = bnn.priors.Normal(1.0)
pytestmark = pytest.mark.usefixtures("local")


def outer(columns):
    """The sum over columns (K, B, C) of outer products, (B, C, C)."""
    return torch.einsum("kbc,kbd->bcd", columns, columns)


TARGETS = {
    likelihoods.Categorical: torch.tensor([0, 2, 1]),
    likelihoods.Bernoulli: torch.tensor([0.0, 1.0, 1.0]),
    likelihoods.Ordinal: torch.tensor([0, 1, 1]),
    likelihoods.LogNormal: torch.tensor([0.5, 1.0, 2.0]),
    likelihoods.Gamma: torch.tensor([0.5, 1.0, 2.0]),
    likelihoods.Beta: torch.tensor([0.1, 0.5, 0.7]),
}
REAL_K = [likelihoods.Gaussian(0.3), likelihoods.Laplace(0.4), likelihoods.Gaussian("learned")]
CASES = {f"{setting!r}": (setting, 1) for setting in LIKELIHOODS if setting != likelihoods.DenseCategorical(3)}
CASES |= {f"{setting!r}, 2 columns": (setting, 2) for setting in [*REAL_K, likelihoods.Bernoulli()]}


def outputs_of(setting, columns):
    """Outputs (3, C) and the module of a likelihood, its latents drawn from their priors."""
    y = TARGETS.get(type(setting), torch.tensor([0.0, 1.0, 2.0]))
    if isinstance(setting, likelihoods.Gaussian) and isinstance(setting.scale, tuple):
        columns = len(setting.scale)
    y = y if columns == 1 else torch.stack([y] * columns, 1)
    num_outputs = setting.num_outputs(y)
    generator = torch.Generator().manual_seed(3)
    f = torch.randn(3, num_outputs, dtype=F64, generator=generator)
    module = setting.build(f, torch.ones(y.shape[1:], dtype=F64))
    return f, module


def law_of(module, f):
    with seeded(1):  # the same draw of latent scales at each call
        return module(f)


def base(distribution):
    while isinstance(distribution, torch.distributions.Independent):
        distribution = distribution.base_dist
    return distribution


def single_targets(distribution):
    """Targets of each column in the last axis, and weights w: sum w g(y) is the sum over targets, or the integral."""
    entry = base(distribution)
    if isinstance(entry, torch.distributions.Categorical):
        values = torch.arange(entry.logits.shape[-1])
        return values.expand(len(entry.logits), -1), torch.ones(len(values), dtype=F64)
    if entry.support.is_discrete:
        y = torch.arange(2.0 if entry.support is constraints.boolean else 2000.0, dtype=F64)
        return y.expand(*entry.batch_shape, -1), torch.ones_like(y)
    lower, upper = getattr(entry, "lower", None), getattr(entry, "upper", None)
    if lower is not None or upper is not None:
        start = entry.loc - 10 * entry.scale if lower is None else lower
        width = (entry.loc + 10 * entry.scale if upper is None else upper) - start
        y = start[..., None] + width[..., None] * (torch.arange(20000, dtype=F64) + 0.5) / 20000
        atoms = [limit[..., None] for limit in (lower, upper) if limit is not None]
        weights = [(width[..., None] / 20000).expand(y.shape), *map(torch.ones_like, atoms)]
        return torch.cat([y, *atoms], -1), torch.cat(weights, -1)
    most, many = (5.0, 600) if entry.batch_shape[1:] else (12.0, 20000)  # even: no node at a kink
    t = torch.linspace(-most, most, many, dtype=F64)
    y, slope = torch.sinh(t), torch.cosh(t)
    if entry.support is constraints.unit_interval:
        y, slope = torch.sigmoid(3 * t), 3 * torch.sigmoid(3 * t) * torch.sigmoid(-3 * t)
    elif entry.support is constraints.positive:
        y, slope = (3 * t).exp(), 3 * (3 * t).exp()
    elif hasattr(entry, "scale"):
        y, slope = (entry.loc[..., None] + entry.scale[..., None] * y), entry.scale[..., None] * slope
    return y.expand(*entry.batch_shape, -1), slope * (t[1] - t[0])


def expected_information(module, f):
    """E[s s^T] with the scores s of all targets, by enumeration or quadrature; of two columns over all pairs."""
    found = []
    for row in f:
        law = law_of(module, row[None])
        y, w = single_targets(law)
        w = w.expand(y.shape)
        if law.event_shape:
            pairs = torch.cartesian_prod(y[0, 0], y[0, 1])
            weights = torch.cartesian_prod(w[0, 0], w[0, 1]).prod(1)
        else:
            pairs, weights = y[0], w[0]
        many = row.expand(len(pairs), -1).clone().requires_grad_()
        log_prob = law_of(module, many).log_prob(pairs)
        (scores,) = torch.autograd.grad(log_prob.sum(), many)
        density = (weights * log_prob.exp()).detach()
        assert float(density.sum()) == pytest.approx(1.0, abs=2e-4)
        found.append(torch.einsum("y,yc,yd->cd", density, scores, scores))
    return torch.stack(found)


@pytest.mark.parametrize("name", CASES)
def test_fisher_columns_are_the_expected_outer_product_of_scores_and_these_the_slopes_of_the_log_density(name):
    f, module = outputs_of(*CASES[name])
    found = outer(fisher_columns(lambda f: law_of(module, f), f))
    torch.testing.assert_close(found, expected_information(module, f), rtol=1e-4, atol=1e-5)
    y = law_of(module, f).sample()
    scores = score_columns(lambda f: law_of(module, f), f, y)[0]
    for c, shift in enumerate(1e-6 * torch.eye(f.shape[1], dtype=F64)):
        ends = [law_of(module, f + sign * shift).log_prob(y).detach() for sign in (1, -1)]
        torch.testing.assert_close(scores[:, c], (ends[0] - ends[1]) / 2e-6, rtol=1e-4, atol=1e-6)


def test_fisher_of_a_strange_distribution_is_estimated_from_draws():
    """256 draws: scores of Gumbel are 1 - e, e ~ Exp(1): their squares have mean 1 and variance E(1 - e)^4 - 1 = 8."""

    class Strange(dist.Normal):
        pass

    f = torch.linspace(-1, 1, 50, dtype=F64)[:, None]
    assert fisher_columns(lambda f: Strange(f[:, 0], 1.0), f).shape == (1, 50, 1)  # a subclass of what is known
    gumbel = fisher_columns(lambda f: dist.Gumbel(f[:, 0], 1.0), f)
    assert gumbel.shape == (1, 50, 1)
    assert float((outer(gumbel).mean() - 1).abs()) < 4 * math.sqrt(8 / 256)


def average(axis):
    return Net(lambda _, x: x.mean(axis))


def recurrent():
    run = lambda net, x: net.head(net.cell(x)[0][:, -1])  # noqa: E731
    return Net(run, cell=nn.LSTM(2, 3, batch_first=True), head=nn.Linear(3, 3))


def attention():
    attend = lambda net, x: net.head(net.attention(x, x, x, need_weights=False)[0].mean(1))  # noqa: E731
    return Net(attend, attention=nn.MultiheadAttention(4, 2, batch_first=True), head=nn.Linear(4, 3))


def tied():
    """One layer twice, and one weight under two names."""
    run = lambda net, x: net.c(torch.tanh(net.b(torch.tanh(net.b(torch.tanh(net.a(x)))))))  # noqa: E731
    net = Net(run, a=nn.Linear(3, 3), b=nn.Linear(3, 3), c=nn.Linear(3, 3))
    net.c.weight = net.a.weight
    return net


def time_first():
    """Runs on (time, example, feature), with as many times as examples."""
    run = lambda net, x: net.head(torch.tanh(net.inner(x.transpose(0, 1))).mean(0))  # noqa: E731
    return Net(run, inner=nn.Linear(2, 3), head=nn.Linear(3, 3))


def vector():
    """A weight that is a vector, which torch's linear map takes too."""
    run = lambda net, x: net.head(torch.tanh(nn.functional.linear(x, net.weight))[:, None])  # noqa: E731
    return Net(run, weight=nn.Parameter(torch.randn(2)), head=nn.Linear(1, 3))


B = 4
IMAGES, SIGNALS, VOLUMES, FLAT = (B, 2, 5, 4), (B, 2, 9), (B, 1, 3, 4, 3), (B, 3)
INTEGERS = torch.randint(0, 5, (B, 3), generator=torch.Generator().manual_seed(2))


def pooled(*layers):
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(2), average(2), nn.Linear(layers[0].out_channels, 3))


NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), FLAT),
    "no bias": (lambda: nn.Sequential(nn.Linear(3, 4, bias=False), nn.Sigmoid(), nn.Linear(4, 3)), FLAT),
    "in place": (lambda: nn.Sequential(nn.Linear(3, 4), nn.SiLU(inplace=True), nn.Linear(4, 3)), FLAT),
    "conv1d": (lambda: pooled(nn.Conv1d(2, 3, 3, stride=2, padding=1, dilation=2)), SIGNALS),
    "circular": (lambda: pooled(nn.Conv1d(2, 3, 3, padding=1, padding_mode="circular")), SIGNALS),
    "conv2d": (lambda: pooled(nn.Conv2d(2, 3, (2, 3), stride=(2, 1), padding=(1, 0))), IMAGES),
    "conv2d same": (lambda: pooled(nn.Conv2d(2, 3, 3, padding="same", dilation=2)), IMAGES),
    "conv2d same, even": (lambda: pooled(nn.Conv2d(2, 3, (2, 4), padding="same")), IMAGES),
    "conv3d": (lambda: pooled(nn.Conv3d(1, 2, 2, padding=1)), VOLUMES),
    "transposed conv1d": (
        lambda: pooled(nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1, dilation=2)),
        SIGNALS,
    ),
    "transposed conv2d": (lambda: pooled(nn.ConvTranspose2d(2, 3, (2, 3), stride=(3, 1), padding=(2, 2))), IMAGES),
    "transposed conv3d": (lambda: pooled(nn.ConvTranspose3d(1, 2, 2, stride=(1, 2, 2), bias=False)), VOLUMES),
    "transposed conv, a position": (lambda: pooled(nn.ConvTranspose1d(2, 3, 2, padding=1)), (B, 2, 2)),
    "transposed conv, groups": (lambda: pooled(nn.ConvTranspose2d(2, 4, 3, groups=2)), IMAGES, ("0.weight", "0.bias")),
    "conv, groups": (lambda: pooled(nn.Conv2d(2, 4, 3, groups=2)), IMAGES, ("0.weight", "0.bias")),
    "embedding": (lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 3)), "integers"),
    "embedding, padding": (
        lambda: nn.Sequential(nn.Embedding(5, 2, padding_idx=1), nn.Flatten(), nn.Linear(6, 3)),
        "integers",
        ("0.weight",),
    ),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 3)), FLAT),
    "layer norm, 2 axes": (
        lambda: nn.Sequential(nn.LayerNorm((5, 4)), nn.Tanh(), nn.Flatten(2), average(1), nn.Linear(20, 3)),
        IMAGES,
    ),
    "group norm": (lambda: pooled(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), IMAGES),
    "batch norm": (lambda: pooled(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)), IMAGES),
    "sequence": (lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), average(1), nn.Linear(3, 3)), (B, 3, 2)),
    "time first": (time_first, (B, B, 2), ("inner.weight", "inner.bias")),
    "tied": (tied, FLAT, ("a.weight", "a.bias", "b.weight", "b.bias", "c.bias")),
    "vector": (vector, (B, 2), ("weight",)),
    "lstm": (recurrent, (B, 3, 2), tuple(f"cell.{w}_l0" for w in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))),
    "attention": (
        attention,
        (B, 3, 4),
        ("attention.in_proj_weight", "attention.in_proj_bias", "attention.out_proj.weight", "attention.out_proj.bias"),
    ),
    "transformer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), average(1), nn.Linear(4, 3)),
        (B, 3, 4),
        None,  # whether its layers are seen depends on the path that torch takes
    ),
}


def case(name, likelihood="categorical", prior=UNIT):
    """The model, inputs and labels of a network of the table, with random statistics in its normalisations."""
    make, shape, others = (*NETS[name], ())[:3]
    with seeded(7):
        net = make().double().eval()
        for module in net.modules():
            if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)):
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        x = INTEGERS if shape == "integers" else torch.randn(shape, dtype=F64)
        labels = torch.randint(0, 3, (B,))
        model = bnn.BNN(net, prior=prior, likelihood=likelihood).eval()
    return net, model, x, labels, others


def weights_of(model):
    return {name: model.initial_values[name].detach() for name in model.site_names}


def point_of(model, sites=None):
    return Point(model, weights_of(model), model.likelihood, sites or list(model.site_names))


def flat_function(net, weights, x):
    """The outputs as a function of one flat vector of weights: plain PyTorch on the user's network."""
    shapes = {name: value.shape for name, value in weights.items()}

    def function(flat):
        parts = flat.split([shape.numel() for shape in shapes.values()])
        values = {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items(), strict=True)}
        return functional_call(net, values, (x,))

    return function, torch.cat([value.reshape(-1) for value in weights.values()])


def explicit_ggn(net, model, x):
    """sum_n J_n^T (diag p - p p^T) J_n, with the Jacobian held whole."""
    function, flat = flat_function(net, weights_of(model), x)
    p = torch.softmax(function(flat), 1)
    information = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    jac = jacobian(function, flat)
    return torch.einsum("bci,bcd,bdj->ij", jac, information, jac).detach()


def pulled(model, x, *, sizes=(3, 1)):
    """The parts of the data, as columns pulled back."""
    weights, sites = weights_of(model), list(model.site_names)
    for part in x.split(list(sizes)):
        yield Tracker(model, weights, sites, part[:1]).pull(part, lambda f: fisher_columns(model.likelihood, f))


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", NETS)
def test_ggn_is_that_of_the_explicit_jacobian(name):
    net, model, x, _, others = case(name)
    if others is not None:
        tracker = Tracker(model, weights_of(model), list(model.site_names), x[:1])
        assert set(tracker.run(x).others) == set(others)
    expected = explicit_ggn(net, model, x)
    sites, sizes = list(model.site_names), [B] if name == "time first" else [3, 1]
    found = add_full(pulled(model, x, sizes=sizes), sites)
    torch.testing.assert_close(found, expected, **EXACT)
    diagonal = add_diagonal(pulled(model, x, sizes=sizes), sites)
    flat = torch.cat([diagonal[site].reshape(-1) for site in sites])
    torch.testing.assert_close(flat, expected.diagonal(), **EXACT)
    index = torch.tensor([0, 2, len(flat) - 1])
    some = add_full(pulled(model, x, sizes=sizes), sites, index)
    torch.testing.assert_close(some, expected[index][:, index], **EXACT)
    if name == "layer norm":  # what is no matrix keeps its diagonal, in the order of the network
        factors, rest = add_kronecker(pulled(model, x), "expand", joint_bias=True)
        assert [one.sites for one in factors] == [("0.weight", "0.bias"), ("3.weight", "3.bias")]
        assert list(rest) == ["1.weight", "1.bias"]
        torch.testing.assert_close(torch.cat([*rest.values()]), expected.diagonal()[16:24], **EXACT)


@pytest.mark.filterwarnings("ignore:torch.func.vmap .* the model", "ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", HARD_TO_BATCH)
def test_derivatives_of_examples_side_by_side_are_those_of_a_loop(name):
    net, x = hard_to_batch(name)
    model = bnn.BNN(net, prior=UNIT, likelihood="categorical").eval()
    weights, sites = weights_of(model), list(model.site_names)
    expected = looped_jacobian(net, weights, x)
    tracker = Tracker(model, weights, sites, x[:1])
    torch.testing.assert_close(tracker.pull(x).rows(sites).transpose(0, 1), expected, **EXACT)
    torch.testing.assert_close(tracker.pull(x[:1]).rows(sites)[:, 0], expected[0], **EXACT)
    draws = {site: value + 0.1 * torch.arange(4.0).view(-1, *[1] * value.ndim) for site, value in weights.items()}
    for linear, outputs_of in ((False, DrawMap(model.outputs, x, net)), (True, Tangent(model, weights, x).outputs)):
        found = outputs_of(draws)
        for s in range(4):
            own = {site: value[s] for site, value in draws.items()}
            change = torch.cat([(own[site] - weights[site]).reshape(-1) for site in sites])
            moved = net(x) + expected @ change if linear else functional_call(net, own, (x,))
            torch.testing.assert_close(found[s], moved.detach(), **EXACT)


def sequence(pool, activation):
    """f = sum or mean over positions of V h(W x_t + b); with "rows" all positions are outputs."""
    pooled = (lambda f: f.mean(1)) if pool == "mean" else (lambda f: f.flatten(1))
    run = lambda net, x: pooled(net.second(activation(net.first(x))))  # noqa: E731
    return Net(run, first=nn.Linear(2, 3), second=nn.Linear(3, 2))


def sequence_case(pool, activation=lambda h: h):
    with seeded(9):
        net = sequence(pool, activation).double()
        x = torch.randn(5, 4, 2, dtype=F64)
        return net, bnn.BNN(net, likelihood=likelihoods.Gaussian(0.5), prior=bnn.priors.Normal(1.0)).eval(), x


def kron(factors):
    return torch.kron(factors.outer, factors.inner.contiguous())


def in_block_order(net, layer, ggn):
    """The part of the GGN (outputs, inputs and bias) of one layer, with the bias as the last input."""
    names = [name for name, _ in net.named_parameters()]
    sizes = dict(zip(names, np.cumsum([0, *(p.numel() for p in net.parameters())])[:-1], strict=True))
    weight = getattr(net, layer).weight
    rows = []
    for out in range(weight.shape[0]):
        rows += [sizes[f"{layer}.weight"] + out * weight.shape[1] + i for i in range(weight.shape[1])]
        rows.append(sizes[f"{layer}.bias"] + out)
    index = torch.tensor(rows)
    return ggn[index][:, index]


@pytest.mark.parametrize(("sharing", "pool"), [("expand", "rows"), ("reduce", "mean")])
def test_kfac_is_exact_for_deep_linear_networks(sharing, pool):
    """Expand where positions are outputs, reduce where they are averaged (Eschenhagen et al. 2023, prop. 1 and 2)."""
    net, model, x = sequence_case(pool)
    factors, rest = add_kronecker(pulled(model, x, sizes=(3, 2)), sharing, joint_bias=True)
    assert not rest
    jac = jacobian(*flat_function(net, weights_of(model), x)).flatten(0, 1)
    expected = jac.T @ jac / 0.5**2
    for one in factors:
        layer = one.sites[0].split(".")[0]
        torch.testing.assert_close(kron(one), in_block_order(net, layer, expected), **EXACT)
    other = "reduce" if sharing == "expand" else "expand"
    wrong, _ = add_kronecker(pulled(model, x, sizes=(3, 2)), other, joint_bias=True)
    assert not torch.allclose(kron(wrong[0]), in_block_order(net, "first", expected), rtol=1e-2)


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("joint_bias", [True, False])
def test_kfac_factors_are_those_of_their_definition(sharing, joint_bias):
    """The first layer's factors in loops over examples, positions and outputs."""
    net, model, x = sequence_case("mean", torch.tanh)
    factors, _ = add_kronecker(pulled(model, x, sizes=(3, 2)), sharing, joint_bias=joint_bias)
    num, times = x.shape[:2]
    h = net.first(x).detach().requires_grad_()
    f = net.second(torch.tanh(h)).mean(1)
    outer_factor = torch.zeros(3, 3, dtype=F64)
    for n in range(num):
        for c in range(2):
            (g,) = torch.autograd.grad(f[n, c], h, retain_graph=True)
            parts = [g[n].sum(0)] if sharing == "reduce" else list(g[n])
            outer_factor += sum(torch.outer(part, part) for part in parts) / 0.5**2
    inner = torch.zeros(3, 3, dtype=F64)
    for n in range(num):
        parts = [x[n].mean(0)] if sharing == "reduce" else list(x[n])
        for a in parts:
            with_one = torch.cat([a, torch.ones(1, dtype=F64)])
            inner += torch.outer(with_one, with_one) / (num if sharing == "reduce" else num * times)
    by_sites = {one.sites: one for one in factors}
    if joint_bias:
        found = by_sites["first.weight", "first.bias"]
        torch.testing.assert_close(found.inner, inner, **EXACT)
    else:
        found = by_sites[("first.weight",)]
        torch.testing.assert_close(found.inner, inner[:2, :2], **EXACT)
        torch.testing.assert_close(by_sites[("first.bias",)].inner, torch.ones(1, 1, dtype=F64), **EXACT)
        torch.testing.assert_close(by_sites[("first.bias",)].outer, outer_factor, **EXACT)
    torch.testing.assert_close(found.outer, outer_factor, **EXACT)


@pytest.mark.parametrize("joint_bias", [True, False])
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_kfac_of_a_transposed_convolution_is_that_of_the_convolution_of_inputs_with_zeros_between(sharing, joint_bias):
    """The same layer with its kernel flipped, as `nn.Conv2d` on inputs that are padded by hand."""
    with seeded(2):
        layer, x = nn.ConvTranspose2d(2, 3, (2, 3), stride=2).double(), torch.randn(5, 2, 3, 2, dtype=F64)
        head = nn.Linear(3, 3).double()
    spread = torch.zeros(5, 2, 7, 7, dtype=F64)
    spread[:, :, 1:6:2, 2:5:2] = x
    twin = nn.Conv2d(2, 3, (2, 3)).double()
    twin.weight.data.copy_(layer.weight.transpose(0, 1).flip(2, 3))
    twin.bias.data.copy_(layer.bias)
    torch.testing.assert_close(layer(x), twin(spread))
    found = []
    for first, inputs in ((layer, x), (twin, spread)):
        net = nn.Sequential(first, nn.Tanh(), nn.Flatten(2), average(2), head)
        model = bnn.BNN(net, prior=UNIT, likelihood="categorical").eval()
        found.append(add_kronecker(pulled(model, inputs, sizes=(3, 2)), sharing, joint_bias=joint_bias)[0])
    for own, expected in zip(*found, strict=True):
        assert own.sites == expected.sites
        assert own.transposed == (own.sites[0].startswith("0"))
        torch.testing.assert_close(own.outer, expected.outer, **EXACT)
        flip = torch.arange(len(expected.inner))
        if own.sites[0] == "0.weight":
            flip[:12] = flip[:12].view(2, 2, 3).flip(1, 2).flatten()
        torch.testing.assert_close(own.inner, expected.inner[flip][:, flip], **EXACT)


def test_the_closest_product_is_closest_in_logs_and_exact_where_a_prior_is_one():
    rows, columns = torch.tensor([0.5, 2.0, 3.0], dtype=F64), torch.tensor([1.0, 4.0], dtype=F64)
    first, second, error = product_of(rows[:, None] * columns)
    torch.testing.assert_close(first[:, None] * second, rows[:, None] * columns, **EXACT)
    assert error == pytest.approx(1.0, abs=1e-12)
    matrix = torch.tensor([[1.0, 4.0], [1.0, 1.0]], dtype=F64)
    first, second, error = product_of(matrix)
    logs = matrix.log()
    fit = logs.mean(1, keepdim=True) + logs.mean(0, keepdim=True) - logs.mean()
    torch.testing.assert_close(first[:, None] * second, fit.exp(), **EXACT)
    assert error == pytest.approx(math.exp(float((fit - logs).abs().max())))
    assert error == pytest.approx(math.sqrt(2.0))


def plain_energy(net, model, x, y):
    """-log p(y | w) of a classification as a function of the flat weights, in plain PyTorch."""
    function, flat = flat_function(net, weights_of(model), x)
    return (lambda w: nn.functional.cross_entropy(function(w), y, reduction="sum")), flat


def batches(x, y, sizes=(3, 1)):
    return zip(x.split(list(sizes)), y.split(list(sizes)), strict=True)


HESSIAN_NETS = ["mlp", "no bias", "in place", "conv1d", "conv2d", "layer norm", "batch norm", "embedding", "sequence"]
HESSIAN_NETS += ["transposed conv2d", "transposed conv, a position", "tied", "time first", "lstm", "attention"]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", HESSIAN_NETS)
def test_second_derivatives_are_those_of_autograd(name):
    net, model, x, labels, _ = case(name)
    energy, flat = plain_energy(net, model, x, labels)
    with sdpa_kernel(SDPBackend.MATH):
        expected = hessian(energy, flat)
    sites, sizes = list(model.site_names), [B] if name == "time first" else [3, 1]
    point, data = point_of(model), Examples(lambda: batches(x, labels, sizes))
    torch.testing.assert_close(Hessian().full(point, data).full, expected, **EXACT)
    diagonal = Hessian().diagonal(point, data).diagonal
    torch.testing.assert_close(torch.cat([diagonal[site].reshape(-1) for site in sites]), expected.diagonal(), **EXACT)


def test_curvature_of_some_sites_alone():
    net, model, x, labels, _ = case("mlp")
    energy, flat = plain_energy(net, model, x, labels)
    expected = hessian(energy, flat)
    point, data = point_of(model, ["2.weight"]), Examples(lambda: batches(x, labels))
    diagonal = Hessian().diagonal(point, data).diagonal
    torch.testing.assert_close(diagonal["2.weight"].reshape(-1), expected.diagonal()[16:28], **EXACT)
    torch.testing.assert_close(Hessian().full(point, data).full, expected[16:28, 16:28], **EXACT)
    model = bnn.BNN(net, prior={"2.bias": UNIT, "0.weight": UNIT, "*": None}, likelihood="categorical").eval()
    assert model.site_names == ("0.weight", "2.bias")
    found = add_full(pulled(model, x), list(model.site_names))
    torch.testing.assert_close(found, explicit_ggn(net, model, x), **EXACT)


NOISE = 0.2


def of_net(net):
    return bnn.BNN(net.double(), likelihood=likelihoods.Gaussian(NOISE), prior=UNIT).eval()


def diagonals(model, x, y):
    point, data = point_of(model), Examples(lambda: batches(x, y, (7, len(x) - 7)))
    return [KINDS[name].diagonal(point, data).diagonal for name in ("recursion", "hessian", "ggn")]


def test_recursion_drops_nothing_in_two_layers_with_one_output():
    with seeded(4):
        model = of_net(nn.Sequential(nn.Linear(1, 4, bias=False), nn.Sigmoid(), nn.Linear(4, 1, bias=False)))
    x = torch.linspace(-3, 3, 20, dtype=F64)[:, None]
    found, exact, ggn = diagonals(model, x, torch.sin(x[:, 0]))
    torch.testing.assert_close(found, exact, **EXACT)
    assert not torch.allclose(found["0.weight"], ggn["0.weight"], rtol=1e-3)  # it lacks the residual term


def test_recursion_differs_from_the_exact_diagonal_by_the_terms_that_it_drops():
    """Three layers: of the first, h'(a_j)^2 sum_{k != l} w_kj w_lj d2E/da_k da_l is dropped, times z_i^2."""
    with seeded(5):
        net = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 1)).double()
        x, y = torch.randn(12, 2, dtype=F64), torch.randn(12, dtype=F64)
    found, exact, ggn = diagonals(of_net(net), x, y)
    dropped = torch.zeros_like(net[0].weight)
    for x_n, y_n in zip(x, y, strict=True):
        a = net[0](x_n).detach()
        units = net[2](torch.sigmoid(a)).detach()
        in_units = hessian(lambda u, y_n=y_n: (net[4](torch.sigmoid(u))[0] - y_n) ** 2 / (2 * NOISE**2), units)
        off = in_units - torch.diag(in_units.diagonal())
        slope = torch.sigmoid(a) * (1 - torch.sigmoid(a))
        terms = slope**2 * torch.einsum("kj,lj,kl->j", net[2].weight, net[2].weight, off)
        dropped += torch.outer(terms, x_n**2)
    torch.testing.assert_close(exact["0.weight"] - found["0.weight"], dropped.detach(), **EXACT)
    for name in ("2.weight", "2.bias", "4.weight", "4.bias"):
        torch.testing.assert_close(exact[name], found[name], **EXACT)
    three = [part["0.weight"] for part in (found, exact, ggn)]
    gaps = [(three[i] - three[j]).abs().max() / three[2].max() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert min(gaps) > 1e-3


def test_recursion_takes_one_activation_twice_and_activations_in_place():
    """The same module at two places counts twice, and in-place activations do not change what came before."""
    act = nn.Tanh()
    with seeded(6):
        net = nn.Sequential(nn.Linear(2, 3), act, nn.Linear(3, 2), act, nn.Linear(2, 1), nn.SiLU(inplace=True)).double()
        x, y = torch.randn(9, 2, dtype=F64), torch.randn(9, dtype=F64)
    plain = nn.Sequential(net[0], nn.Tanh(), net[2], nn.Tanh(), net[4], nn.SiLU())
    found, exact, _ = diagonals(of_net(net), x, y)
    torch.testing.assert_close(found, diagonals(of_net(plain), x, y)[0], **EXACT)
    torch.testing.assert_close(found["4.weight"], exact["4.weight"], **EXACT)


REFUSED_NETS = {
    "conv": (lambda: nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten(), nn.Linear(4, 1)), "Conv1d"),
    "softmax": (lambda: nn.Sequential(nn.Linear(2, 2), nn.Softmax(1), nn.Linear(2, 1)), "Softmax"),
    "tied": (lambda: nn.Sequential(layer := nn.Linear(2, 2), nn.Tanh(), layer), "weights that layers share"),
    "sequence": (lambda: nn.Sequential(nn.Linear(2, 1), nn.Tanh(), nn.Flatten()), "not on sequences"),
}


@pytest.mark.parametrize("name", REFUSED_NETS)
def test_recursion_refuses_what_it_cannot_run_through(name):
    make, message = REFUSED_NETS[name]
    x, y = (torch.zeros(3, 4, 2), torch.zeros(3, 4)) if name == "sequence" else (torch.zeros(3, 2), torch.zeros(3))
    x, y = x.double(), y.double()
    with pytest.raises(bnn.InputError, match=message):
        Recursion().diagonal(point_of(of_net(make())), Examples(lambda: [(x, y)]))


def prior_case(prior):
    with seeded(11):
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        model = bnn.BNN(net, prior=prior, likelihood=likelihoods.Gaussian(0.3)).eval()
        example = torch.zeros(1, 3, dtype=F64), torch.zeros(1, dtype=F64)
        sites = bnn.guides.latent_sites(model, *example)
        others = {site.name: site.start.detach() for site in sites if site.name not in model.site_names}
        weights = {name: 0.3 * torch.randn_like(value) for name, value in weights_of(model).items()}
    return model, weights, others


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
def test_prior_curvature_is_that_of_finite_differences(prior):
    """Fourth-order differences of the log density of each entry; where that is not convex, 1 / variance instead."""
    model, weights, others = prior_case(prior)
    found = prior_curvature(model, weights, others, list(model.site_names))
    laws = prior_laws(model, weights, others)
    assert not found.joint
    for name, w in weights.items():
        h = 1e-3
        steps = zip((-2, -1, 0, 1, 2), (-1 / 12, 4 / 3, -5 / 2, 4 / 3, -1 / 12), strict=True)
        second = -sum(c * log_entries(laws[name], w + k * h) for k, c in steps).detach() / h**2
        entries = log_entries(laws[name], w).detach()
        torch.testing.assert_close(entries.sum(), laws[name].log_prob(w).sum().detach(), **EXACT)
        positive = second > 1e-4
        torch.testing.assert_close(found.precision[name][positive], second[positive], rtol=2e-3, atol=1e-4)
        clipped = second < -1e-4
        assert found.clipped[name] >= int(clipped.sum())
        assert bool((found.precision[name] > 0).all())


def test_entries_without_curvature_take_the_precision_of_the_prior():
    """Student's t with 5 degrees of freedom is concave for |w| < sqrt(5); its variance is 5 / 3. Laplace's is 2 b^2."""
    model, weights, others = prior_case(priors.StudentT(5.0, 1.0))
    weights["2.bias"] = torch.tensor([3.0], dtype=F64)
    weights["0.bias"] = torch.tensor([0.0, 1.0, 2.5, -4.0], dtype=F64)
    found = prior_curvature(model, weights, others, ["2.bias", "0.bias"])
    assert found.clipped == {"2.bias": 1, "0.bias": 2}
    assert float(found.precision["2.bias"]) == pytest.approx(0.6)
    expected = torch.tensor([6 / 5, 6 * 4 / 36, 0.6, 0.6], dtype=F64)  # 6 (5 - w^2) / (5 + w^2)^2
    torch.testing.assert_close(found.precision["0.bias"], expected, **EXACT)
    model, weights, others = prior_case(priors.Laplace(0.7))
    found = prior_curvature(model, weights, others, ["0.bias"])
    torch.testing.assert_close(found.precision["0.bias"], torch.full((4,), 1 / (2 * 0.7**2), dtype=F64), **EXACT)


def test_a_prior_without_variance_gives_the_spread_of_its_draws():
    """At w = 2 a Cauchy is convex; 0.6745 / its median absolute deviation of 1, over 1000 draws, within 4 errors."""
    model, weights, others = prior_case(dist.Cauchy(0.0, 1.0))
    weights = {name: torch.full_like(value, 2.0) for name, value in weights.items()}
    found = prior_curvature(model, weights, others, ["2.bias"])
    # the median of |w| has a standard error of pi / 2 / sqrt(1000) = 0.05
    assert float(found.precision["2.bias"].rsqrt()) == pytest.approx(1 / 0.6745, abs=4 * 0.05 / 0.6745)
