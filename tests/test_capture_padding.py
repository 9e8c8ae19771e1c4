"""One program for data of about the same size: what a fit compiles does not depend on the exact number of rows."""

import os
import subprocess
import sys

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import nn

import pyrobnn as bnn
from pyrobnn.inference.capture import store
from pyrobnn.inference.capture.compiler import interpret
from tests.test_capture import assert_same, both

SMALL, LARGE = (97, 100, 104), (700, 1003, 5000)


def data(num_rows, *, weights=False):
    g = np.random.default_rng(num_rows)
    x = g.normal(size=(num_rows, 3))
    y = np.sin(x[:, 0]) + 0.1 * g.normal(size=num_rows)
    return bnn.Data(x, y, weights=g.uniform(0.5, 2, num_rows) if weights else None)


def model(net=None, **parts):
    return bnn.BNN(net or bnn.MLP(3, [8], 1), **({"likelihood": "gaussian"} | parts))


@pytest.fixture
def programs(monkeypatch):
    """Names of the programs that fits would compile; their graphs are interpreted."""
    names = []

    def compiler(graph, device):
        names.append(store.fingerprint(store.describe(graph)))
        return interpret(graph, device)

    monkeypatch.setattr("pyrobnn.inference.capture.compiler.compile_graph", compiler)
    return names


def fit(num_rows, net=None, guide="mean_field", *, weights=False, **settings):
    method = bnn.SVI(guide=guide, steps=4, **settings)
    return bnn.fit(model(net), data(num_rows, weights=weights), method, seed=0, engine="captured", progress=False)


@pytest.mark.one_in(5, 3)
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("guide", ["mean_field", "dropout", "full_rank"])
@pytest.mark.parametrize("lengths", [SMALL, LARGE], ids=["all rows", "mini-batches"])
def test_one_program_serves_data_of_similar_length(lengths, guide, weights, programs):
    for length in lengths:
        fit(length, guide=guide, weights=weights)
    assert (len(programs), len(set(programs))) == (3, 1)


@pytest.mark.filterwarnings("ignore")
def test_other_lengths_and_batches_have_other_programs(programs):
    for length, settings in ((100, {}), (105, {}), (700, {}), (700, {"batch_size": 64}), (700, {"batch_size": "all"})):
        fit(length, **settings)
    assert len(set(programs)) == 5


def with_batch_statistics():
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))


def with_noise():
    return nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.2), nn.Linear(6, 1))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("net", [with_batch_statistics, with_noise])
def test_no_rows_are_added_where_they_would_change_something(net, programs):
    """Examples that are treated together, or have noise of their own, keep their number."""
    for length in (100, 101):
        fit(length, net=net())
    assert len(set(programs)) == 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("net", [None, with_batch_statistics])
def test_fits_of_any_length_are_the_eager_ones(net, programs):
    for length in (100, 101, 104):
        x, y = data(length).x.float(), data(length).y.float()
        assert_same(*both(model(net() if net else None), x, y, steps=20, lr=1e-2))


class Hidden(nn.Module):
    """A branch behind a factor that begins at zero."""

    def __init__(self, branch):
        super().__init__()
        self.first, self.branch, self.last = nn.Linear(3, 6), branch, nn.Linear(6, 1)
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(h + self.gain * self.branch(h))


class Dead(nn.Module):
    """Centred units that no row activates at the start."""

    def __init__(self):
        super().__init__()
        self.dead = nn.Linear(6, 6)
        nn.init.constant_(self.dead.bias, -100.0)

    def forward(self, h):
        units = torch.relu(self.dead(h))
        return h + units - units.mean(0)


class Counter(nn.Module):
    """The number of rows seen in training, among many."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(1e7))

    def forward(self, x):
        if self.training:
            self.seen.add_(float(len(x)))
        return x


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, h):
        return self.function(h)


TOGETHER = {
    "batch normalisation": lambda: Hidden(nn.BatchNorm1d(6)),
    "centring": lambda: Hidden(Function(lambda h: h - h.mean(0))),
    "attention": lambda: Hidden(Function(lambda h: torch.softmax(h @ h.T, -1) @ h)),
    "neighbours": lambda: Hidden(Function(lambda h: h.roll(1, 0))),
    "their number": lambda: Hidden(Function(lambda h: h / len(h))),
    "normalisation of columns": lambda: Hidden(Function(lambda h: nn.functional.layer_norm(h.T, (len(h),)).T)),
    "dead units": lambda: nn.Sequential(nn.Linear(3, 6), Dead(), nn.Linear(6, 1)),
    "a count": lambda: nn.Sequential(nn.Linear(3, 6), Counter(), nn.Linear(6, 1)),
}
APART = {
    "a hidden layer": lambda: Hidden(nn.Linear(6, 6)),
    "normalisation of rows": lambda: nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 1)),
    "the largest": lambda: Hidden(Function(lambda h: h / (1 + h.abs().amax(0)))),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TOGETHER)
def test_no_rows_are_added_where_a_hidden_part_of_the_network_would_see_them(name, programs):
    """A look at the first parameters alone does not show it."""
    for length in (97, 98):
        fit(length, net=TOGETHER[name](), guide="map", lr=1e-4)
    assert len(set(programs)) == 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", APART)
def test_rows_are_added_where_they_change_nothing(name, programs):
    for length in (97, 98):
        fit(length, net=APART[name](), guide="map", lr=1e-4)
    assert len(set(programs)) == 1


def started(name):
    torch.manual_seed(0)
    return bnn.BNN(TOGETHER[name](), prior=bnn.priors.Normal(1.0), likelihood="gaussian")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["batch normalisation", "attention", "a count"])
def test_fits_of_networks_whose_rows_meet_are_the_eager_ones(name, programs):
    given = data(97)
    options = {"guide": "map", "steps": 60, "lr": 1e-3, "progress": False, "seed": 3, "replicates": 2}
    pairs = [started(name).fit(given, engine=e, **options) for e in ("eager", "captured")]
    for eager, captured in zip(*pairs, strict=True):
        assert captured.history.engine.used == "captured"
        for part in ("guide", "bnn"):
            found, expected = (getattr(one, part).state_dict() for one in (captured, eager))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("length", [100, 101, 700])
@pytest.mark.parametrize("likelihood", ["poisson", "student_t", "negative_binomial", "bernoulli"])
def test_fits_of_all_likelihoods_are_the_eager_ones(likelihood, length, programs):
    given = data(length)
    y = (given.y > 0).float() if likelihood in ("poisson", "negative_binomial", "bernoulli") else given.y.float()
    assert_same(*both(model(likelihood=likelihood), given.x.float(), y, steps=20))


class OwnGuide(PyroModule):
    """A guide of a user's own, which takes what it needs: no weights of examples, but N."""

    def __init__(self, shapes):
        super().__init__()
        self.shapes = shapes
        self.loc = nn.Parameter(torch.zeros(sum(shape.numel() for shape in shapes.values())))

    def forward(self, x=None, y=None, *, num_data=1):
        parts = self.loc.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: pyro.sample(name, dist.Normal(part.reshape(shape), num_data**-0.5).to_event(len(shape)))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


class Own:
    def build(self, model, *args):
        return OwnGuide({name: value.shape for name, value in model.initial_values.items()})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("length", [101, 97, 700])
def test_a_guide_that_takes_no_weights_of_examples_fits_as_eagerly(length, programs):
    given = data(length)
    assert_same(*both(model(), given.x.float(), given.y.float(), guide=Own(), steps=20))


PROCESS = """
import os, pathlib, sys
import numpy as np
import pyrobnn as bnn

x = np.random.default_rng(0).normal(size=(int(sys.argv[1]), 3))
model = bnn.BNN(bnn.MLP(3, [8], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.1))
posterior = bnn.fit(model, (x, np.sin(x[:, 0])), bnn.SVI(steps=60), seed=0, engine="captured", progress=False)
assert posterior.info["engine"]["used"] == "captured"
print(*sorted(path.name for path in (pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "pyrobnn").iterdir()))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("lengths", [(97, 104), (700, 5000)], ids=["all rows", "mini-batches"])
def test_a_process_finds_the_program_that_another_compiled_for_another_length(lengths, tmp_path):
    kept = []
    for length in lengths:
        command = [sys.executable, "-c", PROCESS, str(length)]
        settings = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        kept.append(subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout.split())
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2  # the step, and the loop around it
