"""The protocol of an engine's process: JSON lines on standard input and output. Standard library only.

    {"ready": {"torch": "2.15.0"}, "resident": 300.1}      said once everything is imported
    {"do": "prepare", "case": {...}}                       -> {"seconds", "num_weights", "elbo"}
    {"do": "time", "seconds": 1.0}                         -> {"ms": [...], "elbo"}
    {"do": "memory"}                                       -> {"peak", "resident"} in MiB

An answer may instead be {"error": message}. The process ends when its input does.
"""

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.cases import Case

_MIB = 2**20
_BLOCKS = 8
_MANY_BLOCKS, _FEW_BLOCKS = 5, 2
_LONGEST = 3
"""A turn goes on for this many times its length to reach 5 blocks."""


class Built(Protocol):
    """A case that an engine has built."""

    def run(self, num_steps: int) -> int:
        """Do about that many steps (or predictions) to their end, and return how many were done."""
        ...

    def elbo(self) -> float | None:
        """Return a recent estimate of the ELBO for the whole data set, or None where there is none."""
        ...


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "from source, not installed"


def serve(build: Callable[[Case], Built], packages: tuple[str, ...]) -> None:
    """Answer requests until the input ends.

    Args:
        build: builds a case, without running a step.
        packages: distributions whose versions are reported.
    """
    server = _Server(build)
    say = _private_stdout()
    say({"ready": {name: _version(name) for name in packages}, "resident": server.resident})
    for line in sys.stdin:
        say(server.answer(json.loads(line)))


class _Server:
    def __init__(self, build: Callable[[Case], Built]) -> None:
        self.resident = _resident()
        self._build = build
        self._built: Built | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; a failure is an answer too."""
        try:
            if request["do"] == "prepare":
                return self._prepare(Case.from_dict(request["case"]))
            if request["do"] == "time":
                return self._time(request["seconds"])
            return {"peak": _peak(), "resident": self.resident}
        except Exception as error:  # whatever a library raises is a result
            traceback.print_exc()
            return {"error": f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"}

    def _prepare(self, case: Case) -> dict[str, Any]:
        started = time.perf_counter()
        built = self._build(case)
        built.run(1)
        seconds = time.perf_counter() - started
        self._built = built
        return {"seconds": seconds, "num_weights": case.num_weights, "elbo": built.elbo()}

    def _time(self, seconds: float) -> dict[str, Any]:
        if self._built is None:
            raise RuntimeError("Expected `prepare` before `time`.")
        return {"ms": time_blocks(self._built, seconds), "elbo": self._built.elbo()}


def time_blocks(built: Built, seconds: float) -> list[float]:
    """Run it for about that long, and return the milliseconds a step of blocks of steps.

    There are at least 5 blocks, or 2 where it cannot do few enough steps at a time for more.
    """
    began = time.perf_counter()
    estimate = _seconds_per_step(built, 1)
    if time.perf_counter() - began < 0.05 * seconds:
        estimate = _seconds_per_step(built, max(1, int(0.1 * seconds / estimate)))
    block = max(1, round(seconds / _BLOCKS / estimate))
    times: list[float] = []
    began = time.perf_counter()
    while not _suffices(len(times), time.perf_counter() - began, seconds):
        times.append(1000 * _seconds_per_step(built, block))
    return times


def _suffices(blocks: int, elapsed: float, seconds: float) -> bool:
    enough = blocks >= _MANY_BLOCKS or (blocks >= _FEW_BLOCKS and elapsed >= _LONGEST * seconds)
    return enough and elapsed >= seconds


def _seconds_per_step(built: Built, num_steps: int) -> float:
    started = time.perf_counter()
    done = built.run(num_steps)
    return (time.perf_counter() - started) / done


def _private_stdout() -> Callable[[dict[str, Any]], None]:
    """Keep standard output for answers, and send what libraries print to standard error."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    return say


def _resident() -> float:
    """Return the resident set now, in MiB."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() / _MIB if statm.exists() else _peak()


def _peak() -> float:
    """Return the largest resident set of the process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / _MIB if sys.platform == "darwin" else peak / 1024
