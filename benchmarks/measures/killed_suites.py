"""Suites whose process is killed (SIGKILL) at random moments, and started again until all jobs are done."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.compare import results
from benchmarks.faults import outcome, page_of
from benchmarks.measures.harness import Options
from benchmarks.rows import Row
from benchmarks.store import Store

KEY = ("what",)
OPTIONS = {"count": 20}
ROOT = Path(__file__).parents[2]
MOST_JOBS = 4
"""Most jobs that a runner finishes before it is killed."""
LONGEST_WAIT = 1.0
"""Most seconds from then to the kill."""
JOBS = 16
SUITE = """task = "regression"
data = ["diabetes"]
num_splits = 2

[base]
net = { type = "mlp", hidden = [4] }
guide = { type = "map" }
fit = { type = "svi", steps = 60, lr = 0.03, engine = "eager" }
predict = { num_draws = 1 }
""" + "".join(
    f'\n[[entries]]\nname = "{number}"\nprior = {{ type = "normal", scale = {0.1 * number} }}\n'
    for number in range(1, JOBS + 1)
)


def jobs(options: Options) -> list[Row]:
    """Return a single job."""
    return [{"what": "`python -m benchmarks run`, two workers"}]


def run(job: Row, options: Options) -> list[Row]:
    """Return the row of all kills."""
    started, generator, count = time.perf_counter(), random.Random(0), options.count
    failures: list[str] = []
    kills = at_work = chains = 0
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "suite.toml"
        suite.write_text(SUITE, encoding="utf-8")
        _finish(suite, Path(folder) / "undisturbed")
        expected = _table(Path(folder) / "undisturbed")
        while kills < count:
            out = Path(folder) / str(chains)
            while kills < count and len(_lines(out)) < JOBS:
                before = _lines(out)
                wanted = len(before) + generator.randint(0, MOST_JOBS)
                _kill(suite, out, wanted, generator.uniform(0, LONGEST_WAIT))
                now = _lines(out)
                kills, at_work = kills + 1, at_work + (0 < len(now) < JOBS)
                if now[: len(before)] != before:
                    failures.append(f"kill {kills}: finished jobs changed")
            _finish(suite, out)
            if _table(out) != expected:
                failures.append(f"chain {chains}: the table differs from that of an undisturbed run")
            chains += 1
    happened = f"{kills} killed, {at_work} of them with some jobs finished and some not; the same rows at the end"
    asked = "no finished job lost or done twice, and at the end the rows of an undisturbed run, bit for bit"
    return [outcome(job["what"], kills, asked, happened, failures=failures, started=started)]


page = page_of("The runner of the benchmarks killed while it works")


def _start(suite: Path, out: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "benchmarks", "run", str(suite), "--out", str(out), "--workers", "2"]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)


def _kill(suite: Path, out: Path, wanted: int, seconds: float) -> None:
    """Start a runner, and kill it `seconds` after the number of finished jobs is `wanted`."""
    runner = _start(suite, out)
    while len(_lines(out)) < wanted and runner.poll() is None:
        time.sleep(0.01)
    try:
        runner.wait(seconds)
    except subprocess.TimeoutExpired:
        runner.send_signal(signal.SIGKILL)
        runner.wait()


def _finish(suite: Path, out: Path) -> None:
    if _start(suite, out).wait() != 0:
        raise RuntimeError("the runner did not end well")


def _lines(out: Path) -> list[str]:
    path = out / "rows.jsonl"
    return path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []


def _table(out: Path) -> Counter[str]:
    """Return how often each row is there, times left out."""
    return Counter(results([row]) for record in Store(out).records() for row in record.rows)
