"""What measures of a GPU share, and the command that runs all of them.

    python -m benchmarks.gpu                                  on a card, within 9 minutes
    python -m benchmarks.gpu --device cpu --rehearse          everything small, within 5 minutes on 2 cores
    python -m benchmarks.gpu --only graphs                    one measure

Each is a measure, `python -m benchmarks measure gpu_graphs`, and runs in a separate process with a limit of time. Rows
on file are kept, so the same command goes on after an interruption. Nothing is downloaded. It ends with 1 where a check
did not hold, a row failed, or a measure did not end.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import RESULTS
from benchmarks.measures.harness import Options, plain_page, short
from benchmarks.rows import Row

SECONDS = {"agreement": 205, "graphs": 120, "steps": 200}
"""Seconds that a measure may take on a card."""
_TOTAL, _REHEARSAL = 525, 540
"""Seconds for all measures on a card, and for each in a rehearsal, which is short but on a busy machine."""
KEY = ("device", "name")
OPTIONS: dict[str, Any] = {
    "device": {"choices": ["cuda", "cpu"], "default": "cuda", "help": "cuda by default"},
    "rehearse": {"action": "store_true", "help": "everything small"},
}
type Checks = Iterator[tuple[str, Callable[[], Row]]]
"""The name of each row, and the function that returns its columns; `holds` says whether what it checks does."""


def size(options: Options, full: int, small: int) -> int:
    """Return a size: the full one on a card, the small one in a rehearsal."""
    return small if options.rehearse else full


def measure_of(title: str, checks: Callable[[Options], Checks]) -> tuple[Any, ...]:
    """Return KEY, OPTIONS, `jobs`, `run` and `page` of a measure with a row for each check."""

    def jobs(options: Options) -> list[Row]:
        device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
        return [{"device": device + ", rehearsal" * options.rehearse, "name": name} for name, _ in checks(options)]

    def run(job: Row, options: Options) -> list[Row]:
        started = time.perf_counter()
        columns = dict(checks(options))[job["name"]]()
        return [short(job | columns | {"seconds": time.perf_counter() - started})]

    return KEY, OPTIONS, jobs, run, plain_page(title, "Rows with `holds` are checks.", {})


def main(arguments: list[str] | None = None) -> int:
    """Run the measures asked for on the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    for option, shape in OPTIONS.items():
        parser.add_argument(f"--{option}", **shape)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--only", choices=SECONDS, metavar="MEASURE", help=f"one of {', '.join(SECONDS)}")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here: rehearse with --device cpu --rehearse")
    if options.device == "cpu" and not options.rehearse:
        parser.error("the whole kit is for a card: add --rehearse on a CPU")
    words = ["--device", options.device, "--out", str(options.out.resolve()), *["--rehearse"] * options.rehearse]
    ends, code = time.perf_counter() + _TOTAL, 0
    for name in [options.only] if options.only else SECONDS:
        limit = _REHEARSAL if options.rehearse else min(SECONDS[name], ends - time.perf_counter())
        command = [sys.executable, "-m", "benchmarks", "measure", f"gpu_{name}", *words]
        try:
            code |= subprocess.run(command, cwd=Path(__file__).parents[1], timeout=limit, check=False).returncode != 0
        except subprocess.TimeoutExpired:
            print(f"{name} was not done after {limit:.0f} s; the same command goes on.", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
