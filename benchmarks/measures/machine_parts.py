"""A captured mean-field step beside its matrix products, normal numbers and Adam alone.

784-400-400-10 and 784-1200-1200-10, batch 128, float32, one draw of all weights a step, Adam. The parts are the matrix
products of a forward and a backward pass (torch.mm), as many normal numbers as there are weights (torch.randn), and
fused Adam on two numbers a weight; each is measured alone, by turns with the steps, in one process. CPU seconds of one
thread, so that other work on the machine does not count; medians of rounds.
"""

import itertools
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Row, each, plain_page, short

NETS = {"784-400-400-10": (784, 400, 400, 10), "784-1200-1200-10": (784, 1200, 1200, 10)}

KEY = ("net",)
OPTIONS = {"nets": list(NETS)}
BATCH, BLOCK, ROUNDS, REPEATS = 128, 50, 9, 20


def timed(work: Callable[[], Any]) -> float:
    """Return milliseconds of one call."""
    started = time.process_time()
    for _ in range(REPEATS):
        work()
    return 1000 * (time.process_time() - started) / REPEATS


def parts(widths: tuple[int, ...]) -> dict[str, Callable[[], Any]]:
    """Return the parts of a step as functions."""
    pairs = list(itertools.pairwise(widths))
    x = [torch.randn(BATCH, width) for width in widths]
    w = [torch.randn(*pair) for pair in pairs]
    size = sum(n * m + m for n, m in pairs)
    moved = [torch.randn(size, requires_grad=True) for _ in range(2)]
    for value in moved:
        value.grad = torch.randn(size)
    adam = torch.optim.Adam(moved, fused=True)

    def products() -> None:
        for index, weight in enumerate(w):
            torch.mm(x[index], weight)
            torch.mm(x[index].T, x[index + 1])
            if index:
                torch.mm(x[index + 1], weight.T)

    return {"products": products, "normals": lambda: torch.randn(size), "Adam": adam.step}


def measured(widths: tuple[int, ...]) -> dict[str, float]:
    """Return medians in milliseconds: the step, and each part."""
    own, found = parts(widths), dict[str, list[float]]()
    ends: list[float] = []

    def look(_: Any) -> None:
        if ends:
            found.setdefault("step", []).append(1000 * (time.process_time() - ends[-1]) / BLOCK)
        for name, work in own.items():
            found.setdefault(name, []).append(timed(work))
        ends.append(time.process_time())

    inputs, *hidden, outputs = widths
    x, y = torch.randn(4000, inputs), torch.randint(0, outputs, (4000,))
    model = bnn.BNN(
        bnn.MLP(inputs, hidden, outputs), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Categorical()
    )
    guide = bnn.guides.MeanField(init_rho=-5.0, noise="shared")
    method = bnn.SVI(guide=guide, steps=BLOCK * (ROUNDS + 1), lr=1e-3, batch_size=BATCH)
    run: dict[str, Any] = {"seed": 0, "device": "cpu", "engine": "captured", "progress": False, "callbacks": [look]}
    bnn.fit(model, bnn.Data(x, y, standardize=False), method, **run)
    return {name: median(values) for name, values in found.items()}


jobs = each("net", "nets")


def run(job: Row, options: Options) -> list[Row]:
    """Return a row."""
    torch.set_num_threads(1)
    found = measured(NETS[job["net"]])
    ratio = found["step"] / sum(value for part, value in found.items() if part != "step")
    return [short(job | found) | {"ratio": round(ratio, 2)}]


page = plain_page(
    "A captured step beside its parts",
    "Milliseconds of CPU time of one thread on an x86 server; the ratio is that of the step to the sum of its parts.",
    {"ratio": ".2f"},
)
