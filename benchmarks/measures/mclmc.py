"""Microcanonical chains beside NUTS: distance to the exact predictions, and effective draws a second.

The three problems of the suite `nuts`. "TV" is the total variation distance of the predictive distribution to that of
long chains of NUTS by NumPyro, on file (see `benchmarks.tasks.nuts`); half of those against the other half has 0.019,
0.012 and 0.004. "draws" is the smallest effective sample size of the mean function, in bulk, over the test inputs, and
"rhat" the largest R-hat. Seconds are of the CPU, for whole fits on one thread, warm-up included; the
methods take turns, for each seed in one process. Chains of NUTS run one after another, the others side by side.
"""

import time
from statistics import median
from typing import Any

import numpy as np
import torch

import pyrobnn as bnn
from benchmarks.measures.harness import Options, Page, chosen, short
from benchmarks.rows import Row, grid
from benchmarks.tasks.nuts import PROBLEMS, distance_of, reference_path

KEY = ("problem", "seed", "method")
NUTS = "NUTS"
METHODS: dict[str, Any] = {
    NUTS: bnn.NUTS(num_draws=500, warmup=500),
    "MCLMC": bnn.MCLMC(),
    "MILE": bnn.MILE(),
}
OPTIONS = {"seeds": 2, "problems": list(PROBLEMS)}


def jobs(options: Options) -> list[Row]:
    """Return a job for each seed and problem, in which the methods take turns."""
    return [
        {"problem": name, "seed": seed, "method": list(METHODS)}
        for seed in range(options.seeds)
        for name in options.problems
    ]


def run(job: Row, options: Options) -> list[Row]:
    """Return a row for each method."""
    torch.set_num_threads(1)
    problem, stored = PROBLEMS[job["problem"]](), np.load(reference_path(job["problem"]))
    reference = {key: stored[key].astype(np.float32) for key in stored.files if stored[key].ndim}
    bnn.fit(problem.model(), problem.data, bnn.HMC(num_draws=2, warmup=2), seed=0, progress=False)
    rows = []
    for name, method in METHODS.items():
        started = time.process_time()
        posterior = bnn.fit(
            problem.model(), problem.data, method, seed=job["seed"], device="cpu", engine="captured", progress=False
        )
        seconds = time.process_time() - started
        found = bnn.function_rhat(posterior, problem.test)
        draws = float(found.ess_bulk.min())
        distance = distance_of(posterior, reference, problem, 1000)["predictive"]
        numbers = {"TV": distance, "rhat": float(found.rhat.max()), "draws": draws, "seconds": seconds}
        rows.append(short({**job, "method": name, **numbers, "draws a second": draws / seconds}))
    return rows


def page(rows: list[Row], options: Options) -> Page:
    """Return the medians over seeds, and the gain over NUTS in effective draws a second."""
    lines = []
    for problem in PROBLEMS:
        for name in METHODS:
            if found := chosen(rows, problem=problem, method=name):
                beside = {row["seed"]: row["draws a second"] for row in chosen(rows, problem=problem, method=NUTS)}
                gain = median(row["draws a second"] / beside[row["seed"]] for row in found)
                cells = [median(row[key] for row in found) for key in ("TV", "seconds", "draws", "draws a second")]
                shown = (
                    f"{cells[0]:.3f}",
                    f"{max(row['rhat'] for row in found):.3f}",
                    *(f"{c:.4g}" for c in cells[1:]),
                )
                lines.append([problem, name, *shown, f"{gain:.1f}"])
    header = ["problem", "method", "TV", "largest R-hat", "seconds", "effective draws", "a second", "times NUTS"]
    return Page("Microcanonical chains beside NUTS", ["Medians over seeds; CPU seconds."], grid(header, lines))
