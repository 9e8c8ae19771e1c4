"""Seconds until things are ready, in new processes: `python -m benchmarks.ready`.

"compile" is the wait for a captured step: the imports of the compiler, recording, lowering and g++, of a network of
which nothing is kept ("empty"), and of one whose library is ("kept"). "regressor" and "classifier" are `fit` and
`predict` of `BNNRegressor()` and `BNNClassifier()` on 200 rows of four columns, nothing set: the first in a process
with an empty cache ("empty"), and the second in the same process, on other numbers ("again"). Seconds of the clock,
medians of the rounds; beside them those of the CPU, which tell whether the machine did other work. Python's bytecode of
all packages lies on disk, as on any computer where they were imported once. Writes benchmarks/results/ready.{csv,md}.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

OUT = Path(__file__).parent / "results" / "ready"
FIELDS = ("what", "cache", "seconds", "cpu", "rounds")
Times = list[tuple[float, float]]


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return seconds of the clock, and of the CPU in this process and those that it started."""
    used, started = sum(os.times()[:4]), time.perf_counter()
    work()
    return time.perf_counter() - started, sum(os.times()[:4]) - used


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
    return [timed(lambda: fit("captured", 2))]


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

    return [timed(lambda: once(1)), timed(lambda: once(2))]


def _in_process(kind: str, name: str, cache: str) -> Times:
    command = [sys.executable, "-m", "benchmarks.ready", "--only", kind, name]
    settings = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "CUDA_VISIBLE_DEVICES": ""}
    settings.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=True)
    return [(clock, cpu) for clock, cpu in json.loads(done.stdout.splitlines()[-1])]


def measured(rounds: int) -> list[dict[str, str]]:
    """Return a row for each wait."""
    found: dict[tuple[str, str], Times] = {}
    with tempfile.TemporaryDirectory() as cache:  # writes the bytecode of what is imported
        _in_process("compile", "13-50-1", cache)
        _in_process("estimate", "regressor", cache)
    for _ in range(rounds):
        for name in ("13-50-1", "784-100-10", "LeNet", "LSTM", "transformer"):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("empty", "kept"):
                    found.setdefault((f"compile {name}", state), []).extend(_in_process("compile", name, cache))
        for name in ("regressor", "classifier"):
            with tempfile.TemporaryDirectory() as cache:
                for state, times in zip(("empty", "again"), _in_process("estimate", name, cache), strict=True):
                    found.setdefault((name, state), []).append(times)
        print(*found.items(), sep="\n", flush=True)
    return [
        dict(
            zip(
                FIELDS,
                (*key, *(f"{median(values):.2f}" for values in zip(*times, strict=True)), str(rounds)),
                strict=True,
            )
        )
        for key, times in found.items()
    ]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        kind, name = arguments.only
        with warnings.catch_warnings(action="ignore"):
            print(json.dumps((compile_once if kind == "compile" else estimate)(name)))
        return
    rows = measured(arguments.rounds)
    with OUT.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = [
        "# Seconds until things are ready",
        "",
        "Made by `python -m benchmarks.ready`, which says what is measured, on two cores of an x86 server.",
        "",
        f"| {' | '.join(FIELDS)} |",
        f"|{'---|' * len(FIELDS)}",
        *(f"| {' | '.join(row.values())} |" for row in rows),
    ]
    OUT.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
