"""Runs the checks of a part of the GPU kit: each has a name and gives a row."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Found = dict[str, Any]
"""Columns of a row. The column `holds`, if there is one, says whether the check passed."""
Check = tuple[str, Callable[[], Found]]
"""Name of a row, and the function that returns its columns."""


class NotHere(Exception):
    """A row needs something that is not on this machine; the message says what."""


@dataclass(frozen=True)
class Setting:
    """How a part is run.

    Attributes:
        device: "cuda" or "cpu".
        rehearse: small, to see that it runs.
        seconds: after which no further check of the part begins.
    """

    device: str
    rehearse: bool
    seconds: float

    def size(self, full: int, small: int) -> int:
        """Return a size: the full one on a card, the small one in a rehearsal."""
        return small if self.rehearse else full


def rows(checks: Iterator[Check], setting: Setting, skip: set[str]) -> Iterator[Found]:
    """Do checks one after the other and yield a row for each, also for a check that fails.

    The status of a row is "ok"; "wrong" where what was checked does not hold; "failed", with an error; "not here"; or
    "no time".
    """
    began = time.perf_counter()
    for name, check in checks:
        if name in skip:
            continue
        if time.perf_counter() - began > setting.seconds:
            yield {"name": name, "status": "no time", "error": f"the part had {setting.seconds:.0f} s"}
            continue
        started = time.perf_counter()
        try:
            found = check()
        except NotHere as reason:
            found = {"status": "not here", "error": str(reason)}
        except Exception as error:  # whatever a library raises is a result
            found = {"status": "failed", "error": f"{type(error).__name__}: {str(error).strip()[:500]}"}
        status = "ok" if found.pop("holds", True) else "wrong"
        seconds = round(time.perf_counter() - started, 2)
        yield {"name": name, "status": found.pop("status", status), "seconds": seconds} | found


def milliseconds(step: Callable[[], Any], device: str, *, seconds: float, warm_up: int = 3) -> float:
    """Return the milliseconds of a call, over about that many seconds: by events on a card, by the clock on a CPU."""
    for _ in range(warm_up):
        step()
    count = max(1, int(seconds / max(_timed(step, device, 1) / 1000, 1e-6)))
    return _timed(step, device, min(count, 10_000))


def _timed(step: Callable[[], Any], device: str, count: int) -> float:
    if device != "cuda":
        started = time.perf_counter()
        for _ in range(count):
            step()
        return 1000 * (time.perf_counter() - started) / count
    import torch  # parts that do not time anything do without

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        step()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / count
