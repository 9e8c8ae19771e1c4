"""Processes killed (SIGKILL) while they build the library that runs recorded steps, and a fit afterwards."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.faults import outcome, page_of
from benchmarks.library import no_library
from benchmarks.measures.harness import Options
from benchmarks.rows import Row

KEY = ("what",)
OPTIONS = {"count": 20}
ASKED = "nothing that they started goes on, and the next fit is captured and has the bits of one with an empty folder"
_FIT = """
import hashlib, torch
import pyrobnn as bnn
torch.set_num_threads(1)
x = torch.linspace(-1, 1, 64)[:, None]
model = bnn.BNN(bnn.MLP(1, [8], 1), prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(0.1))
bnn.fit(model, (x, (3 * x).sin()[:, 0]), bnn.SVI(steps=2), seed=0, engine="eager", progress=False)
print("begins", flush=True)
fitted = bnn.fit(model, (x, (3 * x).sin()[:, 0]), bnn.SVI(steps=300), seed=0, engine="captured", progress=False)
bits = b"".join(value.numpy().tobytes() for value in fitted.guide.state_dict().values())
print(fitted.record.engine.used, hashlib.sha256(bits).hexdigest(), flush=True)
"""
_SECONDS_TO_END = 60.0
"""Seconds in which the children of a killed process must end."""


def jobs(options: Options) -> list[Row]:
    """Return a single job."""
    return [{"what": "first fits with no library on disk, all with the same folder"}]


def run(job: Row, options: Options) -> list[Row]:
    """Return the row of all kills."""
    started, generator, building, count = time.perf_counter(), random.Random(0), 0, options.count
    failures: list[str] = []
    with no_library(), tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as folder:
        wanted, longest = _finish(alone)
        for number in range(1, count + 1):
            for library in Path(folder).rglob("pyrobnn/**/*.so"):
                library.unlink()
            process = _start(folder)
            time.sleep(generator.uniform(0, 0.7 * longest))
            building += len(_of_session(process.pid)) > 1
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            if process.returncode != -signal.SIGKILL:
                failures.append(f"kill {number}: the fit had ended with {process.returncode}")
            deadline = time.monotonic() + _SECONDS_TO_END
            while _of_session(process.pid) and time.monotonic() < deadline:
                time.sleep(0.1)
            if stale := _of_session(process.pid):
                failures.append(f"kill {number}: {len(stale)} processes are left")
        printed, _ = _finish(folder)
        if printed != wanted:
            failures.append(f"the fit afterwards gave {printed}, and {wanted} without the kills")
    happened = f"{count} killed, {building} of them while the compiler ran; {len(failures)} failures"
    return [outcome(job["what"], count, ASKED, happened, failures=failures, started=started)]


page = page_of("Processes killed while they build the library")


def _start(folder: str) -> "subprocess.Popen[str]":
    """Start a fit with a folder for the library and for temporary files, and return when its captured part begins."""
    settings = os.environ | {"XDG_CACHE_HOME": folder, "TMPDIR": folder}
    command = [sys.executable, "-c", _FIT]
    process = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True, start_new_session=True)
    process.stdout.readline()
    return process


def _finish(folder: str) -> tuple[str, float]:
    """Return the output of a whole fit, and the seconds of its captured part."""
    with _start(folder) as process:
        began = time.perf_counter()
        return process.communicate()[0].strip(), time.perf_counter() - began


def _of_session(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = entry.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            processes.append(int(entry.parent.name))
    return processes
