"""How measures tell time and memory: by turns, by call, by events on a card."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


def by_turns(
    works: Mapping[Any, Callable[[], Any]], rounds: int, *, warm_up: int = 1, clock: Callable[[], float]
) -> dict[Any, list[float]]:
    """Return the seconds of each work in each round, in which the works take turns.

    Args:
        works: by name.
        rounds: times that each is measured.
        warm_up: rounds before those that do not count.
        clock: `time.perf_counter`, or `time.process_time` where other work on the machine is not to count.
    """
    seconds: dict[Any, list[float]] = {name: [] for name in works}
    for turn in range(-warm_up, rounds):
        for name, work in works.items():
            started = clock()
            work()
            if turn >= 0:
                seconds[name].append(clock() - started)
    return seconds


class Timed(NamedTuple):
    """The result of a call, its seconds by the clock, and CPU seconds of this process and of those that it started."""

    result: Any
    seconds: float
    cpu: float


def timed(work: Callable[[], Any]) -> Timed:
    """Return the result and the seconds of a call."""
    used, started = sum(os.times()[:4]), time.perf_counter()
    result = work()
    return Timed(result, time.perf_counter() - started, sum(os.times()[:4]) - used)


def resident(line: str = "VmRSS") -> int:
    """Return the memory of this process in KiB, pages of mapped files included; with "VmHWM" the most so far."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(text.split()[1]) for text in lines if text.startswith(line))


def milliseconds(step: Callable[[], Any], device: str, *, seconds: float, warm_up: int = 3) -> float:
    """Return the milliseconds of a call, over about that many seconds: by events on a card, by the clock on a CPU."""
    for _ in range(warm_up):
        step()
    count = max(1, int(seconds / max(_mean_ms(step, device, 1) / 1000, 1e-6)))
    return _mean_ms(step, device, min(count, 10_000))


def _mean_ms(step: Callable[[], Any], device: str, count: int) -> float:
    if device != "cuda":
        started = time.perf_counter()
        for _ in range(count):
            step()
        return 1000 * (time.perf_counter() - started) / count
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        step()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / count
