"""Processes killed (SIGKILL) while they compile a step, and a fit afterwards with the cache that they left."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults import outcome, page_of
from benchmarks.measures.harness import Options, Row

KEY = ("what",)
OPTIONS = {"count": 20}

_FIT = """
import hashlib, sys, torch
import pyrobnn as bnn
torch.set_num_threads(1)
x = torch.linspace(-1, 1, 64)[:, None]
net = bnn.MLP(1, [int(sys.argv[1])], 1)
model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.1))
method = bnn.SVI(steps=300)
bnn.fit(model, (x, (3 * x).sin()[:, 0]), method, seed=0, engine="eager", progress=False)
print("begins", flush=True)
fitted = bnn.fit(model, (x, (3 * x).sin()[:, 0]), method, seed=0, engine="captured", progress=False)
bits = b"".join(value.numpy().tobytes() for value in fitted.guide.state_dict().values())
print(fitted.record.engine.used, hashlib.sha256(bits).hexdigest(), flush=True)
"""
_SECONDS_TO_END = 60.0
"""Seconds in which the children of a killed process must end."""


def jobs(options: Options) -> list[Row]:
    """Return a single job."""
    return [{"what": "captured fits of 20 widths, one cache"}]


def run(job: Row, options: Options) -> list[Row]:
    """Return the row of all kills."""
    started, generator, in_compiler, count = time.perf_counter(), random.Random(0), 0, options.count
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as cache:
        began = time.perf_counter()
        wanted, begins = _finish(alone, count)
        longest = time.perf_counter() - began - begins
        for number in range(1, count + 1):
            process = _start(cache, number)
            process.stdout.readline()
            time.sleep(generator.uniform(0, 0.7 * longest))
            in_compiler += len(_of_session(process.pid)) > 1
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            if process.returncode != -signal.SIGKILL:
                failures.append(f"kill {number}: the fit had ended with {process.returncode}")
            deadline = time.monotonic() + _SECONDS_TO_END
            while _of_session(process.pid) and time.monotonic() < deadline:
                time.sleep(0.1)
            if stale := _of_session(process.pid):
                failures.append(f"kill {number}: {len(stale)} processes are left")
        printed = _finish(cache, count)[0]
        if printed != wanted:
            failures.append(f"the fit afterwards gave {printed}, and {wanted} without the kills")
    said = f"{count} killed, {in_compiler} of them while g++ ran; {len(failures)} failures"
    asked = (
        "nothing that they started goes on, and the next fit is captured and has the bits of one with an empty cache"
    )
    return [outcome(job["what"], count, asked, said, failures=failures, started=started)]


page = page_of("Processes killed while they compile")


def _start(cache: str, width: int) -> "subprocess.Popen[str]":
    """Start a fit of a network with this many units; the library serves all widths."""
    settings = os.environ | {"XDG_CACHE_HOME": cache}
    command = [sys.executable, "-c", _FIT, str(width)]
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _finish(cache: str, width: int) -> tuple[str, float]:
    """Return the output of a whole fit, and the seconds until it began."""
    started = time.perf_counter()
    with _start(cache, width) as process:
        process.stdout.readline()
        begins = time.perf_counter() - started
        return process.communicate()[0].strip(), begins


def _of_session(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = entry.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(own) == session and state != "Z":
            processes.append(int(entry.parent.name))
    return processes
