"""Whether the same call gives the same bits in every process.

Default calls run in 20 processes each, every second one with nothing compiled before, and half of them beside another
busy process. The digest of each result is a row; the page counts how many differ.
"""

import os
import subprocess
import sys
import tempfile
import time
from functools import cache

from benchmarks.measures.harness import Options, Page, Row, chosen
from benchmarks.report.parts import grid

KEY = ("call", "process")
CALLS = {
    "mean_field, 57 x 4, its own length": (
        "bnn.fit(bnn.BNN(bnn.MLP(4, [20], 1)), data, bnn.SVI(), seed=0, progress=False)"
    ),
    "mean_field, 57 x 4, 4,000 steps": (
        "bnn.fit(bnn.BNN(bnn.MLP(4, [20], 1)), data, bnn.SVI(steps=4000), seed=0, progress=False)"
    ),
    "no method, 57 x 4": "bnn.fit(bnn.BNN(bnn.MLP(4, [5], 1)), data, seed=0, progress=False)",
    "BNNRegressor(), 57 x 4": "bnn.BNNRegressor(random_state=0).fit(x, y).posterior_",
}
OPTIONS = {"times": 20, "calls": list(CALLS)}
_CODE = """
import hashlib, warnings
import numpy as np
warnings.simplefilter("ignore")
import pyrobnn as bnn
g = np.random.default_rng(0)
x = g.normal(size=(57, 4))
y = x @ [1.0, -2.0, 0.5, 0.0] + 0.3 * g.normal(size=57)
data = bnn.Data(x, y)
prediction = {call}.predict(x, num_draws=50)
print(hashlib.sha256(prediction.draw_means.numpy().tobytes()).hexdigest())
"""
_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with the process that started it, also where that is killed."""


def digest(call: str, cache: str) -> str:
    """Return the digest of what a call predicts, in a new process with this folder for compiled steps."""
    code, settings = _CODE.format(call=call), os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache}
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


@cache
def kept() -> "tempfile.TemporaryDirectory[str]":
    """Return the folder in which compiled steps stay as long as this process lives."""
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
        with tempfile.TemporaryDirectory() as fresh:
            found = digest(CALLS[job["call"]], fresh if is_cold else kept().name)
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
    row = job | {"cache": "empty" if is_cold else "kept"} | ({"beside": "a busy process"} if is_busy else {})
    return [row | {"digest": found[:16], "seconds": round(time.perf_counter() - started, 1)}]


def page(rows: list[Row], options: Options) -> Page:
    """Return how many results differ."""
    lines = []
    for call in dict.fromkeys(row["call"] for row in rows):
        digests = [row["digest"] for row in chosen(rows, call=call)]
        lines.append([call, len(digests), len(set(digests))])
    about = (
        "Each call runs in new processes with one seed, half of them with nothing compiled before, half beside a busy",
        "process, on two cores of an x86 server.",
    )
    return Page("The same call gives the same bits", about, grid(["call", "processes", "different results"], lines))
