"""Networks whose outputs are limited, by a last sigmoid or so, where a likelihood takes them without limits."""

import math
import warnings

import pytest
import torch
from torch import nn

import pyrobnn as bnn
from pyrobnn.inference.data import make_source
from pyrobnn.likelihoods import (
    Bernoulli,
    Categorical,
    CensoredGaussian,
    Gaussian,
    Laplace,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
)

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G)
REAL = X[:, 0].sin() + 0.1 * torch.randn(60, generator=G)
LABELS = torch.arange(60) % 3
BINARY = (X[:, 0] > 0).float()
COUNTS = torch.poisson(X[:, 0].exp(), generator=G).long()
UNIT = bnn.priors.Normal(1.0)


def net(outputs, *end, hidden=8, bias=True):
    torch.manual_seed(0)
    first = [nn.Linear(3, hidden, bias=bias), nn.Tanh()] if hidden else []
    return nn.Sequential(*first, nn.Linear(hidden or 3, outputs, bias=bias), *end)


class Ends(nn.Module):
    """Ends in a function."""

    def __init__(self, outputs, function, **settings):
        super().__init__()
        self.net, self.function = net(outputs, **settings), function

    def forward(self, x):
        return self.function(self.net(x))


def second_half(function):
    return lambda f: torch.cat([f[:, :1], function(f[:, 1:])], 1)


def messages(network, likelihood, y, *, standardize=False, prior=UNIT, x=X):
    model = bnn.BNN(network, prior=prior, likelihood=likelihood)
    data = bnn.Data(x, y, standardize=standardize)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make_source(data, model, None, seed=0)
    assert all(issubclass(one.category, bnn.PoorFitWarning) for one in found)
    return [str(one.message) for one in found]


SIGMOID = 1 / (1 + math.exp(-1))
LIMITED = {
    "softmax": (net(3, nn.Softmax(-1)), Categorical(), LABELS, f"more probable than {math.e / (math.e + 2):.2f}"),
    "sigmoids": (net(3, nn.Sigmoid()), Categorical(), LABELS, "the layer '3', Sigmoid, and its outputs stay between 0"),
    "tanh": (net(3, nn.Tanh()), Categorical(), LABELS, f"than {math.exp(2) / (math.exp(2) + 2):.2f}"),
    "softmax, then none": (
        net(3, nn.Softmax(-1), nn.Identity(), nn.Dropout(0.1)),
        Categorical(),
        LABELS,
        "'3', Softmax",
    ),
    "a function": (Ends(3, lambda f: f.softmax(-1)), Categorical(), LABELS, "ends in a function in `forward`"),
    "by hand": (
        Ends(3, lambda f: f.exp() / f.exp().sum(1, keepdim=True)),
        Categorical(),
        LABELS,
        "stay between 0 and 1",
    ),
    "clamped": (Ends(3, lambda f: f.softmax(-1).clamp(1e-6, 1 - 1e-6)), Categorical(), LABELS, "stay between 0 and 1"),
    "Bernoulli": (net(1, nn.Sigmoid()), Bernoulli(), BINARY, f"can only be 0.50 to {SIGMOID:.2f}"),
    "two columns": (net(2, nn.Sigmoid()), Bernoulli(), torch.stack([BINARY, 1 - BINARY], 1), "stay between 0 and 1"),
    "Bernoulli of ReLU": (
        net(1, nn.ReLU()),
        Bernoulli(),
        BINARY,
        "never below 0 whatever its weights. Bernoulli takes",
    ),
    "log probability": (net(1, nn.LogSigmoid()), Bernoulli(), BINARY, "can only be 0.00 to 0.50"),
    "Ordinal": (net(1, nn.Sigmoid()), Ordinal(3), LABELS, f"by a factor of {math.e:.1f} at most"),
    "Poisson of exp": (
        Ends(1, torch.exp),
        Poisson(),
        COUNTS,
        "takes them as logs of means: a mean can only be 1 to inf",
    ),
    "Poisson of softplus": (net(1, nn.Softplus()), Poisson(), COUNTS, "'3', Softplus"),
    "negative binomial": (net(1, nn.ReLU()), NegativeBinomial(), COUNTS, "NegativeBinomial takes them as logs"),
    "Gaussian": (
        net(1, nn.Sigmoid()),
        Gaussian(),
        REAL,
        "stay between 0 and 1 whatever its weights, where targets are",
    ),
    "too far": (net(1, nn.Tanh()), StudentT(), 100 + REAL, "are never above 1 whatever its weights"),
    "wider": (Ends(1, lambda f: 5 * f.tanh()), Laplace(), 50 + REAL, "are never above 5 whatever its weights"),
    "below": (net(1, nn.Softplus()), Gaussian(), REAL - 10, "are never below 0 whatever its weights"),
    "censored": (net(1, nn.Sigmoid()), CensoredGaussian(upper=3.0), 2 * REAL, "stay between 0 and 1"),
    "one of two columns": (
        Ends(2, second_half(torch.sigmoid)),
        Gaussian(),
        torch.stack([REAL, REAL], 1),
        "stay between 0 and 1",
    ),
    "scale": (
        Ends(2, second_half(nn.functional.softplus)),
        Gaussian("heteroscedastic"),
        REAL,
        f"the scale of the noise, which is then {math.log(2):.2f} or more",
    ),
    "scale of exp": (Ends(2, second_half(torch.exp)), Laplace("heteroscedastic"), REAL, "softplus of the second half"),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limited_outputs_are_named(name):
    network, likelihood, y, expected = LIMITED[name]
    (found,) = messages(network, likelihood, y)
    assert expected in found
    assert found.endswith("See docs/how-to/likelihoods.md.")


@pytest.mark.parametrize("end", [nn.Tanh(), nn.ReLU(), nn.Sigmoid()])
def test_standardised_targets_are_taken_as_the_network_sees_them(end):
    inside = 0.5 + 0.4 * REAL / REAL.abs().max()
    assert messages(net(1, end), Gaussian(), inside) == []
    (found,) = messages(net(1, end), Gaussian(), inside, standardize=True)
    assert "standardised if the data are" in found


UNLIMITED = {
    "log_softmax": (net(3, nn.LogSoftmax(-1)), Categorical(), LABELS),
    "tanh around its targets": (net(1, nn.Tanh()), Gaussian(), REAL),
    "positive targets": (net(1, nn.ReLU()), Gaussian(), 100 + REAL),
    "large targets": (net(1), Gaussian(), 1e6 + REAL),
    "normalised with learned scales": (net(3, nn.LayerNorm(3)), Categorical(), LABELS),
    "scale of wide noise": (
        Ends(2, second_half(nn.functional.softplus)),
        Gaussian("heteroscedastic"),
        100 * REAL,
    ),
}


@pytest.mark.parametrize("name", UNLIMITED)
def test_what_an_end_does_no_harm_to_is_not_named(name):
    assert messages(*UNLIMITED[name]) == []


def zero_head(*shape, **settings):
    network = net(*shape, **settings)
    nn.init.zeros_(network[-1].weight)
    return network


def narrow(*shape, **settings):
    """A network whose outputs lie in [0, 1] at its start."""
    network = net(*shape, **settings)
    network[-1].weight.data.mul_(0.01)
    if network[-1].bias is not None:
        network[-1].bias.data.fill_(0.5)
    return network


KINDS = {
    "Categorical": (Categorical(), LABELS, 3),
    "Bernoulli": (Bernoulli(), BINARY, 1),
    "Ordinal": (Ordinal(3), LABELS, 1),
    "Poisson": (Poisson(), COUNTS, 1),
    "NegativeBinomial": (NegativeBinomial(), COUNTS, 1),
    "Gaussian": (Gaussian(), 1000 * REAL, 1),
    "heteroscedastic": (Gaussian("heteroscedastic"), REAL, 2),
    "two columns": (Gaussian(), torch.stack([REAL, 5 + REAL], 1), 2),
    "two heteroscedastic columns": (StudentT("heteroscedastic"), torch.stack([REAL, 5 + REAL], 1), 4),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", [zero_head, narrow, net])
@pytest.mark.parametrize("prior", [UNIT, {"0.*": UNIT, "*": None}, {"2.*": UNIT, "*": None}])
def test_an_ordinary_network_is_never_named(kind, start, prior, monkeypatch):
    """Not even by the weights that are tried, where no last linear layer is there to tell."""
    monkeypatch.setattr("pyrobnn.inference.output_limits._ending", lambda bnn, x: "what it may")
    likelihood, y, outputs = KINDS[kind]
    for settings in ({}, {"bias": False}, {"hidden": 1}, {"hidden": 100}):
        assert messages(start(outputs, **settings), likelihood, y, prior=prior) == []
    one = bnn.Data(X[:1], y[:1])
    assert messages(start(outputs), likelihood, one.y, x=one.x) == []


@pytest.mark.slow
def test_false_alarms_of_random_networks_are_rare(monkeypatch):
    """Starts whose log means are positive, none of which sixteen other weights leave so."""
    monkeypatch.setattr("pyrobnn.inference.output_limits._ending", lambda bnn, x: "what it may")
    for seed in range(150):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
        network[-1].bias.data.fill_(1.0)
        assert messages(network, Poisson(), COUNTS[:4], x=X[:4]) == []


def test_a_last_linear_layer_is_never_named(monkeypatch):
    monkeypatch.setattr(
        "pyrobnn.inference.output_limits._outputs_elsewhere",
        lambda bnn, x, chance, size: bnn.outputs(bnn.initial_values, x),
    )
    assert messages(narrow(3), Categorical(), LABELS) == []
    assert len(messages(net(3, nn.Softmax(-1)), Categorical(), LABELS)) == 1


def test_weights_that_the_network_refuses_are_no_alarm():
    def root(f):
        if bool((f.abs() > 1).any()):
            raise ValueError("too large")
        return f.tanh()

    assert messages(Ends(3, root), Categorical(), LABELS) == []


def test_the_look_changes_nothing_of_a_fit():
    """Neither numbers nor parameters without a prior, which it moves and puts back."""
    model = bnn.BNN(net(3, nn.Softmax(-1)), prior={"0.*": UNIT, "*": None}, likelihood="categorical")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.warns(bnn.PoorFitWarning, match="its outputs stay between 0 and 1"):
        make_source(bnn.Data(X, LABELS), model, None, seed=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


CLASSES = bnn.Data(X, LABELS)


class Probabilities(nn.Sequential):
    """Linear, then softmax."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(3, 3), nn.Softmax(-1))


def model_of(network):
    return bnn.BNN(network, prior=UNIT, likelihood="categorical")


WAYS = {
    "svi": lambda n: model_of(n).fit(CLASSES, guide="map", steps=1, seed=0, progress=False),
    "nuts": lambda n: bnn.fit(model_of(n), CLASSES, bnn.NUTS(num_draws=2, warmup=2), seed=0, progress=False),
    "sgld": lambda n: bnn.fit(
        model_of(n), CLASSES, bnn.SGLD(num_draws=2, burn_in=1), seed=0, engine="eager", progress=False
    ),
    "replicates": lambda n: model_of(n).fit(CLASSES, steps=1, replicates=2, seed=0, progress=False),
    "loader": lambda n: model_of(n).fit(
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, LABELS), batch_size=20),
        steps=1,
        seed=0,
        progress=False,
    ),
    "around a model": lambda n: bnn.guides.Laplace().around(model_of(n), CLASSES, progress=False),
    "around a network": lambda n: bnn.guides.Laplace().around(n, CLASSES, progress=False),
    "estimator": lambda n: bnn.BNNClassifier(net=n, steps=1, prior=UNIT).fit(X.numpy(), LABELS.numpy()),
}


@pytest.mark.filterwarnings("ignore:The fit predicts", "ignore:.* draws diverged")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_fit_tells(way):
    with pytest.warns(
        bnn.PoorFitWarning, match=r"ends in the layer '1', Softmax, .* no class can be more probable than 0.58"
    ):
        WAYS[way](Probabilities())


class Foreign:
    """A likelihood of another package, with what the contract asks for."""

    standardizes_targets, integer_targets = False, True
    build, num_outputs, check_targets = Categorical.build, Categorical.num_outputs, Categorical.check_targets


class Knowing(Foreign):
    """One that knows its limits too."""

    def limits(self, low, high, y):
        """Say so of outputs that are never large."""
        return "are small. Scale them." if bool((high < 5).all()) else None


def test_a_likelihood_of_another_package_may_know_limits():
    assert messages(Probabilities(), Foreign(), LABELS) == []
    (found,) = messages(Probabilities(), Knowing(), LABELS)
    assert found.startswith("The network ends in the layer '1', Softmax, and its outputs are small. Scale them. See")
    assert messages(net(3), Knowing(), LABELS) == []


@pytest.mark.parametrize("columns", [1, 2, 5])
@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace", bnn.likelihoods.Gaussian(scale=0.5)])
@pytest.mark.filterwarnings("error")
def test_several_target_columns_within_reach_are_fitted_without_a_word(likelihood, columns):
    x = torch.linspace(-1, 1, 8)[:, None]
    model = bnn.BNN(bnn.MLP(1, [4], columns), likelihood=likelihood)
    posterior = model.fit(x, torch.cat([x] * columns, 1), steps=2, seed=0, progress=False)
    assert posterior.predict(x).mean.reshape(8, -1).shape == (8, columns)
