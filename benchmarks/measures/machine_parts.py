"""A captured mean-field step beside its matrix products, normal numbers and Adam alone.

784-400-400-10 and 784-1200-1200-10, batch 128, float32, one draw of all weights a step, Adam. The parts are the matrix
products of a forward and a backward pass (torch.mm), as many normal numbers as there are weights (torch.randn), and
fused Adam on two numbers a weight; each is measured alone, by turns with the steps, in one process. CPU seconds of one
thread, so that other work on the machine does not count; medians of rounds.
"""

import itertools
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

import pyrobnn as bnn
from benchmarks.captured_fits import captured, running
from benchmarks.measures.harness import Options, each, plain_page, short
from benchmarks.rows import Row
from benchmarks.timing import by_turns

NETS = {"784-400-400-10": (784, 400, 400, 10), "784-1200-1200-10": (784, 1200, 1200, 10)}

KEY = ("net",)
OPTIONS = {"nets": list(NETS)}
BATCH, BLOCK, ROUNDS = 128, 20, 9


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


def repeated(work: Callable[[], Any]) -> Callable[[], None]:
    """Return the function that works as often as a block has steps."""

    def works() -> None:
        for _ in range(BLOCK):
            work()

    return works


jobs = each("net", "nets")


def run(job: Row, options: Options) -> list[Row]:
    """Return a row: the milliseconds of a step and of each part."""
    torch.set_num_threads(1)
    inputs, *hidden, outputs = widths = NETS[job["net"]]
    data = bnn.Data(torch.randn(4000, inputs), torch.randint(0, outputs, (4000,)), standardize=False)
    model = bnn.BNN(bnn.MLP(inputs, hidden, outputs), prior=bnn.priors.Normal(1.0), likelihood="categorical")
    guide = bnn.guides.MeanField(init_rho=-5.0, noise="shared")
    method = bnn.SVI(guide=guide, steps=BLOCK * (ROUNDS + 2), lr=1e-3, batch_size=BATCH)
    with running(model, BATCH, 0, "parts of a step"):
        works = {"step": partial(captured(model, data, method).advance, BLOCK)}
        works |= {part: repeated(work) for part, work in parts(widths).items()}
        seconds = by_turns(works, ROUNDS, clock=time.process_time)
    times = {name: 1000 * median(spent) / BLOCK for name, spent in seconds.items()}
    ratio = times["step"] / sum(value for part, value in times.items() if part != "step")
    return [short(job | times) | {"ratio": round(ratio, 2)}]


page = plain_page(
    "A captured step beside its parts",
    "Milliseconds of CPU time of one thread; the ratio is that of the step to the sum of its parts.",
    {"ratio": ".2f"},
)
