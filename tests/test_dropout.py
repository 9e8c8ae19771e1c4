"""The dropout guide: its objective is that of dropout training with L2, its mean the rescaled network.

The references are plain PyTorch in float64: an ordinary network with the same masks, and sums over all 2^n masks.
"""

import math
from itertools import product
from unittest import mock

import pyro.distributions as dist
import pytest
import torch
from helpers import Net
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.functional import logsigmoid

import pyrobnn as bnn
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.guides import Dropout, Map
from pyrobnn.guides.dropout import fed_weights
from pyrobnn.inference.capture.objective import Objective

F64 = torch.float64
INPUTS, HIDDEN, SCALE, NOISE = 2, 2, 0.8, 0.3
X = torch.tensor([[0.4, -1.2], [1.5, 0.3], [-0.7, 0.9]], dtype=F64)
Y = torch.tensor([0.5, -0.4, 1.1], dtype=F64)
WEIGHTS = ("0.weight", "2.weight")
RATES = {"0.weight": 0.2, "2.weight": 0.35}
pytestmark = pytest.mark.usefixtures("local")


def make(net=None, prior=None, dtype=F64):
    with seeded(0):
        net = net or bnn.MLP(INPUTS, [HIDDEN], 1, activation="tanh").build()
        prior = bnn.priors.Normal(SCALE) if prior is None else prior
        return bnn.BNN(net.to(dtype), prior=prior, likelihood=bnn.likelihoods.Gaussian(NOISE))


def built(setting=None, model=None):
    model = model or make()
    setting = setting or Dropout(RATES["2.weight"], input_rate=RATES["0.weight"])
    return model, bnn.guides.resolve(setting).build(model, X, Y)


def points(guide):
    """The trained points by name, the tensors themselves."""
    return dict(zip(("0.weight", "0.bias", "2.weight", "2.bias"), guide.points.points, strict=True))


def given(masks, *for_examples):
    """Make the guide draw these masks: a uniform number of 0 keeps a unit, one of nearly 1 drops it."""
    draws = [torch.cat(tuple(masks)), *for_examples]
    return mock.patch.object(torch, "rand", side_effect=[(1 - mask) * (1 - 1e-12) for mask in draws])


def every_mask(num_units=INPUTS + HIDDEN):
    return [torch.tensor(bits, dtype=F64).split(INPUTS) for bits in product((0.0, 1.0), repeat=num_units)]


def log_probability(masks, logits):
    pairs = zip(masks, logits, strict=True)
    return torch.stack([(m * logsigmoid(-one) + (1 - m) * logsigmoid(one)).sum() for m, one in pairs]).sum()


def dropped_network(w, masks, x):
    """The outputs of an ordinary network whose activations are multiplied by masks."""
    h = torch.tanh(F.linear(x * masks[0], w["0.weight"], w["0.bias"]))
    return F.linear(h * masks[1], w["2.weight"], w["2.bias"])[:, 0]


def by_torch(w, x, seed):
    """Outputs of a network with torch's dropout layers, which divide by 1 - p, and the masks that these draw."""
    net = nn.Sequential(nn.Dropout(0.2), nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Dropout(0.35), nn.Linear(HIDDEN, 1))
    masks = []
    for layer in (net[0], net[3]):
        layer.register_forward_hook(lambda module, args, output: masks.append((output != 0).to(F64)))
    names = {"0.weight": "1.weight", "0.bias": "1.bias", "2.weight": "4.weight", "2.bias": "4.bias"}
    rescaled = {names[name]: value * (1 - RATES.get(name, 0.0)) for name, value in w.items()}
    with seeded(seed):
        return functional_call(net.to(F64), rescaled, (x,)), masks


def log_likelihood(f, y=Y):
    return torch.distributions.Normal(f, NOISE).log_prob(y).sum()


def entropy(p):
    return -p * math.log(p) - (1 - p) * math.log(1 - p)


def penalty(w):
    """The L2 penalty of dropout training and what does not depend on the weights: E_q[log q - log p]."""
    kept = {name: 1 - RATES.get(name, 0.0) for name in w}
    l2 = sum(kept[name] / (2 * SCALE**2) * value.square().sum() for name, value in w.items())
    num_weights = sum(value.numel() for value in w.values())
    entropies = INPUTS * entropy(RATES["0.weight"]) + HIDDEN * entropy(RATES["2.weight"])
    return l2 + 0.5 * num_weights * math.log(2 * math.pi * SCALE**2) - entropies


def test_expected_objective_is_dropout_training_with_l2():
    """Over all 16 masks, ELBO and gradient are those of plain dropout training, to rounding."""
    model, guide = built()
    w = points(guide)
    found = expected = 0.0
    for masks in every_mask():
        probability = log_probability(masks, [torch.tensor(p, dtype=F64).logit() for p in RATES.values()]).exp()
        with given(masks):
            found -= probability * Trace_ELBO().differentiable_loss(model, guide, X, Y)
        expected += probability * log_likelihood(dropped_network(w, masks, X))
    expected -= penalty(w)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    gradients = [torch.autograd.grad(value, list(w.values())) for value in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_without_dropout_it_is_map():
    method = {"steps": 20, "lr": 0.05, "seed": 0, "engine": "eager", "progress": False, "batch_size": 2}
    one, other = (make().fit(X, Y, guide=guide, **method) for guide in (Dropout(0.0), Map()))
    assert one.history.elbo.tolist() == other.history.elbo.tolist()
    assert all(torch.equal(value, other.mean()[name]) for name, value in one.mean().items())
    assert all(torch.equal(value, other.draw(1)[name]) for name, value in one.draw(1).items())


def test_masks_have_their_rates_and_are_independent():
    """2^14 draws, seed 1: shares of kept units and correlations between all pairs of units."""
    _, guide = built()
    num = 2**14
    with seeded(1), torch.no_grad(), fast_pyro(), poutine.block():
        draws = vmap(lambda _: guide(), randomness="different")(torch.empty(num, 0))
    units = torch.cat([(draws[name][:, 0] != 0).to(F64) for name in WEIGHTS], 1)
    kept = 1 - torch.tensor([RATES[name] for name in WEIGHTS for _ in range(2)], dtype=F64)
    stderr = (kept * (1 - kept) / num).sqrt()
    assert ((units.mean(0) - kept).abs() < 4 * stderr).all()
    correlations = torch.corrcoef(units.T).fill_diagonal_(0)
    assert correlations.abs().max() < 4 / math.sqrt(num)


@pytest.mark.parametrize("learned", [False, True])
def test_a_draw_loses_whole_units_and_nothing_else(learned):
    posterior = make().fit(X, Y, guide=Dropout(0.4, learned=learned), steps=2, seed=0, progress=False)
    draws, at = posterior.draw(200), points(posterior.guide)
    columns = draws["2.weight"][:, 0]
    kept = columns != 0
    assert set(kept.sum(1).tolist()) == {0, 1, 2}
    assert torch.equal(columns, torch.where(kept, at["2.weight"][0], 0.0))
    for name in ("0.weight", "0.bias", "2.bias"):
        assert torch.equal(draws[name], at[name].detach().expand_as(draws[name]))


def test_one_pass_at_the_mean_is_the_rescaled_network():
    posterior = make().fit(X, Y, guide=Dropout(0.35, input_rate=0.2), steps=2, seed=0, progress=False)
    w = points(posterior.guide)
    ones = [torch.ones(INPUTS, dtype=F64), torch.ones(HIDDEN, dtype=F64)]
    rescaled = {name: value.detach() * (1 - RATES.get(name, 0.0)) for name, value in w.items()}
    torch.testing.assert_close(posterior.predict(X, at_mean=True).mean, dropped_network(rescaled, ones, X))


def learned(temperature):
    return built(Dropout(0.4, input_rate=0.3, learned=True, temperature=temperature))


def exact_gradient(guide):
    """The gradient of the exact ELBO, a sum over all masks, with respect to the logits of the rates."""
    w = {name: value.detach() for name, value in points(guide).items()}
    logits = guide.masks.logits.detach().clone().requires_grad_()
    total = 0.0
    for masks in every_mask():
        log_q = log_probability(masks, logits)
        drawn = {name: w[name] * mask for name, mask in zip(WEIGHTS, masks, strict=True)}
        log_p = sum(dist.Normal(0.0, SCALE).log_prob(value).sum() for value in drawn.values())
        total = total + log_q.exp() * (log_likelihood(dropped_network(w, masks, X)) + log_p - log_q)
    return torch.autograd.grad(total, logits)[0]


def drawn_gradients(model, guide, num, seed):
    """Gradients of the relaxed ELBO with respect to the logits, (num, 2)."""
    objective = Objective(model, guide, num_data=len(X), kl="mc")
    fixed = {name: value.detach() for name, value in objective.named_parameters()}
    logits = fixed.pop("guide.masks.logits")

    def elbo(values):
        log_likelihood, kl = functional_call(objective, fixed | {"guide.masks.logits": values}, (X, Y))
        return log_likelihood - kl

    with seeded(seed), fast_pyro():
        return vmap(lambda _: grad(elbo)(logits), randomness="different")(torch.empty(num, 0))


def test_relaxed_gradient_is_the_exact_one_at_low_temperature():
    """200,000 draws, seed 3: within 4 standard errors of the sum over all masks at 0.05, more than 10 off at 0.3."""
    for temperature, low, high in ((0.05, 0, 4), (0.3, 10, math.inf)):
        draws = drawn_gradients(*learned(temperature), 200_000, 3)
        errors = (draws.mean(0) - exact_gradient(learned(temperature)[1])) / (draws.std(0) / math.sqrt(len(draws)))
        assert low <= errors.abs().min()
        assert errors.abs().max() < high


def test_hard_and_relaxed_masks_come_from_the_same_noise():
    _, guide = learned(1e-4)
    with seeded(4), poutine.block():
        relaxed = guide()
    with seeded(4), poutine.block(), torch.no_grad():
        hard = guide()
    for name in WEIGHTS:
        torch.testing.assert_close(relaxed[name], hard[name])
        assert relaxed[name].requires_grad


def test_a_rate_that_starts_at_zero_is_not_learned():
    guide = Dropout(0.2, learned=True).build(make(), X, Y)
    assert {name: rate.item() for name, rate in guide.rates().items()} == pytest.approx({"2.weight": 0.2})
    assert guide.masks.logits.shape == (1,)


def test_per_example_likelihood_is_that_of_torch_dropout():
    """Every row of a network with torch's dropout layers, which draw a mask for each example, has the same output."""
    model, guide = built(Dropout(0.35, input_rate=0.2, per_example=True))
    w = points(guide)
    expected, masks = by_torch(w, X, 2)
    assert len(masks[1].unique(dim=0)) > 1
    shared = [torch.ones(2, dtype=F64), torch.zeros(2, dtype=F64)]
    with given(shared, *masks):
        outputs = poutine.replay(model, trace=poutine.trace(guide).get_trace())(X, Y)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    model.eval()
    with given(shared):
        outputs = poutine.replay(model, trace=poutine.trace(guide).get_trace())(X, Y)
    torch.testing.assert_close(outputs[:, 0], dropped_network(w, shared, X))


def fed(*layers):
    return fed_weights(make(nn.Sequential(*layers)))


LAYERS = {
    "linear": (nn.Linear(4, 3), (2, 4), -1),
    "conv1d": (nn.Conv1d(4, 6, 3), (2, 4, 7), 1),
    "conv2d in groups": (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5), 1),
    "depthwise conv2d": (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 5, 5), 1),
    "conv3d": (nn.Conv3d(4, 2, 2), (2, 4, 3, 3, 3), 1),
    "transposed conv2d in groups": (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5), 1),
    "gru cell": (nn.GRUCell(4, 3), (2, 4), -1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_masked_weight_is_masked_input(name):
    layer, shape, axis = LAYERS[name]
    layer = layer.to(F64)
    first = fed(layer)[0]
    parameter = first.name.removeprefix("0.")
    mask = torch.tensor([1.0, 0.0, 0.5, 2.0], dtype=F64)
    assert first.num_units == len(mask)
    x = torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    along = mask.view([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    masked = functional_call(layer, {parameter: layer.get_parameter(parameter) * first.spread(mask)}, (x,))
    torch.testing.assert_close(masked, layer(x * along))


def test_masked_embedding_drops_words_and_masked_attention_features_of_its_inputs():
    layer = nn.Embedding(4, 3)
    (first,) = fed(layer)
    mask, words = torch.tensor([1.0, 0.0, 1.0, 2.0]), torch.tensor([[0, 1], [3, 1]])
    assert first.num_units == 4
    masked = functional_call(layer, {"weight": layer.weight * first.spread(mask)}, (words,))
    torch.testing.assert_close(masked, layer(words) * mask[words][..., None])
    layer = nn.MultiheadAttention(4, 2).to(F64)
    first, second = fed(layer)
    mask = torch.tensor([1.0, 0.0, 0.5, 2.0], dtype=F64)
    x = torch.randn(5, 2, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    masked = functional_call(layer, {"in_proj_weight": layer.in_proj_weight * first.spread(mask)}, (x, x, x))
    torch.testing.assert_close(masked, layer(x * mask, x * mask, x * mask))
    assert (first.is_first, second.is_first) == (True, False)
    assert second.name == "0.out_proj.weight"


def test_only_weights_that_multiply_units_are_masked():
    layers = (nn.Linear(3, 4), nn.LayerNorm(4), nn.Bilinear(4, 4, 2), nn.LSTM(2, 5), nn.Linear(5, 1))
    names = [weight.name for weight in fed(*layers)]
    assert names == ["0.weight", "3.weight_ih_l0", "3.weight_hh_l0", "4.weight"]


def test_a_tied_weight_is_masked_where_it_comes_first():
    words = torch.tensor([[0], [1], [4]])
    run = lambda net, x: net.head(torch.tanh(net.table(x[:, 0])))[:, :1]  # noqa: E731
    net = Net(run, table=nn.Embedding(5, 3), head=nn.Linear(3, 5, bias=False))
    net.head.weight = net.table.weight
    model = make(nn.Sequential(net))
    posterior = model.fit(words, Y, guide=Dropout(input_rate=0.5), steps=2, seed=0, progress=False)
    rows = posterior.draw(50)["0.table.weight"] != 0
    assert torch.equal(rows.all(2), rows.any(2))
    assert 0.2 < rows.double().mean() < 0.8


def test_weights_with_a_constrained_support_are_points():
    def prior(name, value):
        return dist.HalfNormal(1.0) if name == "2.weight" else dist.Normal(0.0, 1.0)

    _, guide = built(Dropout(0.3, input_rate=0.3), make(prior=prior))
    assert list(guide.rates()) == ["0.weight"]


def test_replicates_have_rates_of_their_own():
    methods = [bnn.SVI(guide=Dropout(rate, input_rate=rate), steps=30) for rate in (0.0, 0.5)]
    none, half = bnn.fit_replicates(make(), (X, Y), methods, seed=0, engine="captured", progress=False)
    assert none.record.engine.used == "captured"
    assert none.draw(100)["2.weight"].std(0).max() == 0
    assert 0.3 < (half.draw(100)["2.weight"] == 0).double().mean() < 0.7


def of_layers(*layers):
    return lambda: built("dropout", make(nn.Sequential(*layers)))


def without_draws(rate, kl):
    return lambda: make().fit(X, Y, guide=Dropout(rate), kl=kl, steps=2, seed=0, progress=False)


BY_NAME = r"at '0.weight' for the guide Dropout\(.*: use kl='mc'"
REFUSALS = {
    **{f"{kl}, {rate}": (without_draws(rate, kl), BY_NAME) for kl in ("analytic", "quadrature") for rate in (0.0, 0.2)},
    "rate of 1": (lambda: Dropout(1.0), "`rate` must be less than 1"),
    "negative rate": (lambda: Dropout(input_rate=-0.1), "`input_rate` must be greater than or equal to 0"),
    "temperature of 0": (lambda: Dropout(temperature=0.0), "`temperature` must be greater than 0"),
    "no network": (lambda: Dropout().build(make().__call__, X, Y), "has no network there"),
    "a dropout layer": (of_layers(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1)), "layer, '1' with p=0.5"),
    "a single layer": (of_layers(nn.Linear(2, 1)), "has nothing to drop: .*, here 0.weight"),
    "no rate to learn": (lambda: built(Dropout(0.0, learned=True)), "has nothing to drop"),
    "biases alone": (lambda: built({"*.bias": "dropout", "*": "map"}), "embedding layers, here none"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(case):
    built("dropout", make(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.Linear(2, 1))))  # drops nothing
    call, message = REFUSALS[case]
    with pytest.raises(bnn.InputError, match=message):
        call()
