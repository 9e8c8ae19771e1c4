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
from pyrobnn.inference.svi.capture import store
from pyrobnn.inference.svi.capture.compiler import interpret
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

    monkeypatch.setattr("pyrobnn.inference.svi.capture.compiler.compile_graph", compiler)
    return names


def fit(num_rows, net=None, guide="mean_field", *, weights=False, **settings):
    method = bnn.SVI(guide=guide, steps=4, **settings)
    return bnn.fit(model(net), method, data(num_rows, weights=weights), seed=0, engine="captured", progress=False)


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


@pytest.mark.parametrize("net", [with_batch_statistics, with_noise])
def test_no_rows_are_added_where_they_would_change_something(net, programs):
    """Examples that are treated together, or have noise of their own, keep their number."""
    for length in (100, 101):
        fit(length, net=net())
    assert len(set(programs)) == 2


@pytest.mark.parametrize("net", [None, with_batch_statistics])
def test_fits_of_any_length_are_the_eager_ones(net, programs):
    for length in (100, 101, 104):
        x, y = data(length).x.float(), data(length).y.float()
        assert_same(*both(model(net() if net else None), x, y, steps=20, lr=1e-2))


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


@pytest.mark.parametrize("length", [97, 101, 700])
def test_a_guide_that_takes_no_weights_of_examples_fits_as_eagerly(length, programs):
    given = data(length)
    assert_same(*both(model(), given.x.float(), given.y.float(), guide=Own(), steps=20))


PROCESS = """
import os, pathlib, sys
import numpy as np
import pyrobnn as bnn

x = np.random.default_rng(0).normal(size=(int(sys.argv[1]), 3))
model = bnn.BNN(bnn.MLP(3, [8], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.1))
posterior = bnn.fit(model, bnn.SVI(steps=60), (x, np.sin(x[:, 0])), seed=0, engine="captured", progress=False)
assert posterior.info["engine"]["used"] == "captured"
print(*sorted(path.name for path in (pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "pyrobnn").iterdir()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(97, 104), (700, 5000)], ids=["all rows", "mini-batches"])
def test_a_process_finds_the_program_that_another_compiled_for_another_length(lengths, tmp_path):
    kept = []
    for length in lengths:
        command = [sys.executable, "-c", PROCESS, str(length)]
        settings = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        kept.append(subprocess.run(command, env=settings, capture_output=True, text=True, check=True).stdout.split())
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2  # the step, and the loop around it
