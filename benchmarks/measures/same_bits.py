"""Whether the same call gives the same bits in every process.

Default calls run in 20 processes each, every second of them with no library on disk that runs recorded steps, and half
of them beside another busy process. The digest of each result is a row; the page counts how many differ.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import pyrobnn as bnn
from benchmarks.library import no_library
from benchmarks.measures.harness import Options, Page, chosen
from benchmarks.new_process import in_process
from benchmarks.rows import Row, grid

KEY = ("call", "process")
CALLS: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "mean_field, 57 x 4, its own length": lambda x, y: fit(x, y, 20, bnn.SVI()),
    "mean_field, 57 x 4, 4,000 steps": lambda x, y: fit(x, y, 20, bnn.SVI(steps=4000)),
    "no method, 57 x 4": lambda x, y: fit(x, y, 5),
    "BNNRegressor(), 57 x 4": lambda x, y: bnn.BNNRegressor(random_state=0).fit(x, y).posterior_,
}
OPTIONS = {"times": 20, "calls": list(CALLS)}
_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with the process that started it, also where that is killed."""


def fit(x: np.ndarray, y: np.ndarray, units: int, *method: Any) -> Any:
    """Return the posterior of a network with so many hidden units."""
    return bnn.fit(bnn.BNN(bnn.MLP(4, [units], 1)), bnn.Data(x, y), *method, seed=0, progress=False)


def digest(call: str) -> str:
    """Return the digest of the predictions of a call."""
    g = np.random.default_rng(0)
    x = g.normal(size=(57, 4))
    y = x @ [1.0, -2.0, 0.5, 0.0] + 0.3 * g.normal(size=57)
    prediction = CALLS[call](x, y).predict(x, num_draws=50)
    return hashlib.sha256(prediction.draw_means.numpy().tobytes()).hexdigest()


@cache
def kept() -> "tempfile.TemporaryDirectory[str]":
    """Return the folder in which the library stays as long as this process lives."""
    return tempfile.TemporaryDirectory()


def jobs(options: Options) -> list[Row]:
    """Return the processes, call by call."""
    return [{"call": call, "process": process} for call in options.calls for process in range(options.times)]


def run(job: Row, options: Options) -> list[Row]:
    """Do a call in a new process."""
    is_cold, is_busy = job["process"] % 2 == 0, job["process"] % 4 > 1
    busy = subprocess.Popen([sys.executable, "-c", _BUSY]) if is_busy else None
    started = time.perf_counter()
    try:
        with no_library(), tempfile.TemporaryDirectory() as fresh:
            bits = in_process(digest, job["call"], XDG_CACHE_HOME=fresh if is_cold else kept().name)
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
    row = job | {"cache": "empty" if is_cold else "kept"} | ({"beside": "a busy process"} if is_busy else {})
    return [row | {"digest": bits[:16], "seconds": round(time.perf_counter() - started, 1)}]


def page(rows: list[Row], options: Options) -> Page:
    """Return how many results differ."""
    lines = []
    for call in dict.fromkeys(row["call"] for row in rows):
        digests = [row["digest"] for row in chosen(rows, call=call)]
        lines.append([call, len(digests), len(set(digests))])
    about = (
        "Each call runs in new processes with one seed, half of them with no library on disk, half beside a busy",
        "process.",
    )
    return Page("The same call gives the same bits", about, grid(["call", "processes", "different results"], lines))
