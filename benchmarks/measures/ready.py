"""Seconds until a captured step and an estimator are ready, in new processes.

"first step" is the wait for a captured fit of two steps by a network, after an eager fit has imported what both need:
recording, the plan of the tape, and, where no library that runs tapes is on disk ("empty"), building it; a second
process finds that library ("kept"). "regressor" is `fit` and `predict` of `BNNRegressor()` on 200 rows of four columns,
"classifier" of `BNNClassifier()` on 60, nothing set: in a process with no library on disk ("empty"); a whole process
that finds it, from its start with all imports to its end ("whole process"); and again in one process, on other numbers
("again"). Seconds of the clock, medians of the rounds; beside them those of the CPU, which tell whether the machine did
other work, but of whole processes. Python's bytecode of all packages lies on disk, as on any computer where they were
imported once.
"""

import tempfile
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import pyrobnn as bnn
from benchmarks.library import no_library
from benchmarks.measures.harness import Options, plain_page
from benchmarks.networks import LSTM
from benchmarks.new_process import in_process
from benchmarks.peers.cases import CASES
from benchmarks.rows import Row
from benchmarks.timing import timed

KEY = ("what", "cache")
OPTIONS = {"rounds": 3}
ROWS = {"regressor": 200, "classifier": 60}
Times = list[tuple[float, float]]


def lenet() -> nn.Module:
    """Return LeNet-5."""
    from benchmarks.peers.torch_parts import make_net  # imports more than the other measurements here need

    return make_net(CASES["lenet"], torch.device("cpu"))


def transformer() -> nn.Module:
    """Return a layer of attention over 20 steps."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(20 * 16, 10))


NETS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "1-20-20-1": (partial(bnn.MLP, 1, (20, 20), 1), (1,), 0),
    "13-50-1": (partial(bnn.MLP, 13, (50,), 1), (13,), 0),
    "784-100-10": (partial(bnn.MLP, 784, (100,), 10), (784,), 10),
    "LeNet": (lenet, (1, 28, 28), 10),
    "LSTM": (partial(LSTM, 8, 32), (20, 8), 10),
    "transformer": (transformer, (20, 16), 10),
}
"""Network, shape of an input, and number of classes, 0 for real targets."""


def first_step(name: str) -> Times:
    """Return the wait for the captured step of a network."""
    make, shape, classes = NETS[name]
    x = torch.randn(256, *shape)
    y = torch.randint(0, classes, (256,)) if classes else torch.randn(256)
    likelihood: Any = bnn.likelihoods.Categorical() if classes else bnn.likelihoods.Gaussian(0.1)
    model = bnn.BNN(make(), prior=bnn.priors.Normal(1.0), likelihood=likelihood)
    method = bnn.SVI(guide=bnn.guides.MeanField(noise="shared"), steps=2, lr=1e-3, batch_size=64)

    def fit(engine: Any) -> Any:
        return bnn.fit(model, bnn.Data(x, y, standardize=False), method, seed=0, engine=engine, progress=False)

    fit("eager")
    return [timed(lambda: fit("captured"))[1:]]


def estimate(name: str, times: int) -> Times:
    """Return the times of an estimator's fits and predictions in this process, each on other numbers."""

    def once(seed: int) -> None:
        g = np.random.default_rng(seed)
        x, noise = g.normal(size=(ROWS[name], 4)), 0.3 * g.normal(size=ROWS[name])
        y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + noise
        if name == "regressor":
            bnn.BNNRegressor(random_state=0).fit(x, y).predict(x)
        else:
            bnn.BNNClassifier(random_state=0).fit(x, (y > 0).astype(int)).predict_proba(x)

    return [timed(partial(once, seed + 1))[1:] for seed in range(times)]


def jobs(options: Options) -> list[Row]:
    """Return the networks, and the estimators."""
    steps = [{"what": f"first step, {net}", "cache": ["empty", "kept"]} for net in NETS]
    return [*steps, *({"what": name, "cache": ["empty", "whole process", "again"]} for name in ROWS)]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each state of the cache; a round that does not count writes the bytecode of all imports."""
    rounds: list[Times] = []
    for _ in range(options.rounds + 1):
        with no_library(), tempfile.TemporaryDirectory() as cache:
            settings = {"XDG_CACHE_HOME": cache, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": ""}
            if net := job["what"].partition("first step, ")[2]:
                rounds.append([in_process(first_step, net, **settings)[0] for _ in job["cache"]])
            else:
                (empty,) = in_process(estimate, job["what"], 1, **settings)
                _, seconds, cpu = timed(partial(in_process, estimate, job["what"], 1, **settings))
                _, again = in_process(estimate, job["what"], 2, **settings)
                rounds.append([empty, (seconds, cpu), again])
    rows = []
    for state, pairs in zip(job["cache"], zip(*rounds[1:], strict=True), strict=True):
        clock, cpu = (round(median(values), 2) for values in zip(*pairs, strict=True))
        rows.append(job | {"cache": state, "seconds": clock, "cpu": cpu, "rounds": options.rounds})
    return rows


_FORMATS = {"seconds": ".2f", "cpu": ".2f"}
page = plain_page("Seconds until things are ready", "Medians of the rounds.", _FORMATS)
