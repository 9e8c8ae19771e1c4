"""Seconds until a captured step and an estimator are ready, in new processes.

"compile" is the wait for a captured step: the imports of the compiler, recording, lowering and g++, of a network of
which nothing is kept ("empty"), and of one whose library is ("kept"). "regressor" and "classifier" are `fit` and
`predict` of `BNNRegressor()` and `BNNClassifier()` on 200 rows of four columns, nothing set: the first in a process
with an empty cache ("empty"), and the second in the same process, on other numbers ("again"). Seconds of the clock,
medians of the rounds; beside them those of the CPU, which tell whether the machine did other work. Python's bytecode of
all packages lies on disk, as on any computer where they were imported once.
"""

import tempfile
from functools import partial
from statistics import median
from typing import Any

from benchmarks.measures.harness import Options, Row, plain_page
from benchmarks.new_process import in_process
from benchmarks.timing import timed

KEY = ("what", "cache")
OPTIONS = {"rounds": 3}
NETS = ("13-50-1", "784-100-10", "LeNet", "LSTM", "transformer")
Times = list[tuple[float, float]]


def nets() -> dict[str, tuple[Any, tuple[int, ...], int]]:
    """Return networks with the shape of an input and the number of their classes, 0 for real targets."""
    from torch import nn

    import pyrobnn as bnn

    class LSTM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            return self.out(self.cell(x)[0][:, -1])

    lenet: list[nn.Module] = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
    lenet += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return {
        "13-50-1": (bnn.MLP(13, (50,), 1), (13,), 0),
        "784-100-10": (bnn.MLP(784, (100,), 10), (784,), 10),
        "LeNet": (nn.Sequential(*lenet, nn.Linear(84, 10)), (1, 28, 28), 10),
        "LSTM": (LSTM(), (20, 8), 10),
        "transformer": (nn.Sequential(layer, nn.Flatten(), nn.Linear(20 * 16, 10)), (20, 16), 10),
    }


def compile_once(name: str) -> Times:
    """Return the wait for the captured step of a network."""
    import torch

    import pyrobnn as bnn

    net, shape, classes = nets()[name]
    x = torch.randn(256, *shape)
    y = torch.randint(0, classes, (256,)) if classes else torch.randn(256)
    likelihood: Any = bnn.likelihoods.Categorical() if classes else bnn.likelihoods.Gaussian(0.1)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood)

    def fit(engine: Any, steps: int) -> Any:
        method = bnn.SVI(guide=bnn.guides.MeanField(noise="shared"), steps=steps, lr=1e-3, batch_size=64)
        return bnn.fit(model, bnn.Data(x, y, standardize=False), method, seed=0, engine=engine, progress=False)

    fit("eager", 2)
    return [timed(lambda: fit("captured", 2))[1:]]


def estimate(name: str) -> Times:
    """Return the times of an estimator's first and second fit and prediction in this process."""
    import numpy as np

    import pyrobnn as bnn

    def once(seed: int) -> None:
        g = np.random.default_rng(seed)
        x, noise = g.normal(size=(200, 4)), 0.3 * g.normal(size=200)
        y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + noise
        if name == "regressor":
            bnn.BNNRegressor(random_state=0).fit(x, y).predict(x)
        else:
            bnn.BNNClassifier(random_state=0).fit(x, (y > 0).astype(int)).predict_proba(x)

    return [timed(partial(once, seed))[1:] for seed in (1, 2)]


def jobs(options: Options) -> list[Row]:
    """Return the networks to compile, and the estimators."""
    compiled = [{"what": f"compile {net}", "cache": ["empty", "kept"]} for net in NETS]
    return [*compiled, *({"what": name, "cache": ["empty", "again"]} for name in ("regressor", "classifier"))]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each state of the cache; a round that does not count writes the bytecode of all imports."""
    by_state: dict[str, Times] = {}
    for number in range(options.rounds + 1):
        with tempfile.TemporaryDirectory() as cache:
            settings = {"XDG_CACHE_HOME": cache, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": ""}
            if job["what"].startswith("compile "):
                net = job["what"].removeprefix("compile ")
                times = {state: in_process(compile_once, net, **settings)[0] for state in job["cache"]}
            else:
                times = dict(zip(job["cache"], in_process(estimate, job["what"], **settings), strict=True))
        for state, pair in times.items() if number else ():
            by_state.setdefault(state, []).append(pair)
    rows = []
    for state, pairs in by_state.items():
        clock, cpu = (round(median(values), 2) for values in zip(*pairs, strict=True))
        rows.append(job | {"cache": state, "seconds": clock, "cpu": cpu, "rounds": options.rounds})
    return rows


_FORMATS = {"seconds": ".2f", "cpu": ".2f"}
page = plain_page("Seconds until things are ready", "On two cores of an x86 server.", _FORMATS)
