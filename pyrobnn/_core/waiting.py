"""A word on the terminal while work takes seconds."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_ERASED = "\r\x1b[K"


@contextmanager
def waiting(words: str, *, shown: bool = True, after: float = 0) -> Iterator[None]:
    """Show words on standard error while the block runs, if it is a terminal, and take them away at its end.

    Args:
        words: what the work is.
        shown: whether to show them at all.
        after: seconds until they appear. The seconds so far stand beside them.
    """
    if not (shown and sys.stderr.isatty() and multiprocessing.current_process().name == "MainProcess"):
        yield
        return
    stream, began = sys.stderr, time.perf_counter()
    stand, ended = threading.Event(), threading.Event()

    def show() -> None:
        stand.set()
        seconds = int(time.perf_counter() - began)
        print(f"{_ERASED}{words} ...{f' {seconds} s' if seconds else ''}", end="", file=stream, flush=True)

    def tick() -> None:
        pause = after or 1
        while not ended.wait(pause):
            show()
            pause = 1

    clock = threading.Thread(target=tick, daemon=True)
    if not after:
        show()
    clock.start()
    try:
        yield
    finally:
        ended.set()
        clock.join()
        if stand.is_set():
            print(_ERASED, end="", file=stream, flush=True)
