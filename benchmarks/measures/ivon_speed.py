"""The captured step of IVON beside those of a point and of mean-field SVI, by Adam.

One step of a 784-400-400-10 network on mini-batches of 128, one thread, in milliseconds: the methods take turns of 25
steps in one process. Medians over turns, and medians of the ratios within a turn. The normal numbers of a step, one for
each weight, are also timed by themselves.
"""

import statistics
import time
from functools import partial
from typing import Any

import torch

import pyrobnn as bnn
from benchmarks.captured_fits import captured, running
from benchmarks.measures.harness import Options, plain_page
from benchmarks.rows import Row
from benchmarks.timing import by_turns

KEY = ("step",)
STEPS = 25
METHODS = {
    "point, Adam": bnn.SVI(guide="map", batch_size=128, lr=1e-3),
    "mean-field, Adam, drawn KL": bnn.SVI(batch_size=128, lr=1e-3, steps=2000, kl="mc"),
    "mean-field, Adam, closed KL": bnn.SVI(batch_size=128, lr=1e-3, steps=2000, kl="analytic"),
    "IVON": bnn.IVON(batch_size=128, steps=2000),
}
OPTIONS = {"turns": 16}
POINT, NOISE = "point, Adam", "its noise alone"


def jobs(options: Options) -> list[Row]:
    """Return a single job, in which the methods take turns."""
    return [{"step": [*METHODS, NOISE]}]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each method."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(10_000, 784, generator=generator), torch.randint(10, (10_000,), generator=generator)
    data, noise = bnn.Data(x, y), torch.empty(478_410)
    model = bnn.BNN(bnn.MLP(784, [400, 400], 10), prior=bnn.priors.Normal(1.0), likelihood="categorical")
    with running(model, 128, 0, "speed of IVON"):
        works: dict[str, Any] = {
            name: partial(captured(model, data, method).advance, STEPS) for name, method in METHODS.items()
        }
        works[NOISE] = lambda: [noise.normal_() for _ in range(STEPS)]
        seconds = by_turns(works, options.turns, warm_up=0, clock=time.perf_counter)
    rows = []
    for name, turns in seconds.items():
        ratio = statistics.median(turn / beside for turn, beside in zip(turns, seconds[POINT], strict=True))
        ms = 1000 * statistics.median(turns) / STEPS
        rows.append({"step": name, "ms": round(ms, 2), "times the point": round(ratio, 2)})
    return rows


page = plain_page(
    "The captured step of IVON beside those of a point and of mean-field SVI, by Adam.",
    "Medians over turns.",
    {"ms": ".2f", "times the point": ".2f"},
)
