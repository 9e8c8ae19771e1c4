"""A deadline at which work stops, at any point."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_OF_THREAD = threading.local()


class OutOfTime(Exception):
    """The time of a block is over."""


@contextmanager
def until(end: float | None) -> Iterator[None]:
    """Have the work of this thread in the block raise `OutOfTime` at its next step after a time, or never if None.

    Args:
        end: by `time.perf_counter`.
    """
    before = getattr(_OF_THREAD, "end", None)
    _OF_THREAD.end = end
    try:
        yield
    finally:
        _OF_THREAD.end = before


def check_time() -> None:
    """Raise `OutOfTime` after the time of the block."""
    end = getattr(_OF_THREAD, "end", None)
    if end is not None and time.perf_counter() > end:
        raise OutOfTime
