"""Words and bars while work takes seconds: on a terminal or in a notebook; in a pipe or a file a line now and then."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pyrobnn._core.counts import length

_ERASED = "\r\x1b[K"
_BLANK = f"\r{' ' * 79}\r"
"""Takes a line away in a notebook, which does not know the sign of terminals."""
FIRST_LINE = 10.0
"""Seconds until work says in a pipe or a file that it goes on. It says so again each time that they have doubled."""

_END: ContextVar[list[float] | None] = ContextVar("end of training", default=None)
"""The time at which the training that `waiting` waits for ends at the latest, where that is known."""


def is_watched() -> bool:
    """Return whether standard error goes to a terminal or a notebook, where a line may be written over."""
    return sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    return type(sys.stderr).__module__.startswith("ipykernel.")


def _is_main() -> bool:
    return multiprocessing.current_process().name == "MainProcess"


def progress_bar(steps: Any = None, *, shown: bool, **options: Any) -> Any:
    """Return a bar of tqdm, which is drawn if it is to be shown and somebody watches; else it prints few plain lines.

    Args:
        steps: what it counts, if it is to count by itself.
        shown: whether to show it at all.
        **options: options of tqdm.
    """
    from tqdm.std import tqdm

    if is_watched() or not (shown and _is_main()):
        return tqdm(steps, disable=not (shown and is_watched()), **options)
    from pyrobnn._core.lines import Lines

    return Lines(steps, first=FIRST_LINE, **options)


@contextmanager
def ticking(bar: Any) -> Iterator[None]:
    """Redraw a bar every second while the block runs, so that its clock goes on where steps are long."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1):
            bar.refresh()

    clock = threading.Thread(target=tick, daemon=True)
    if not bar.disable:
        clock.start()
    try:
        yield
    finally:
        ended.set()


def tell_left(seconds: float) -> None:
    """Let the words of `waiting` say that training takes so many seconds more at most; 0 where nothing is known."""
    end = _END.get()
    if end is not None:
        end[:] = [time.perf_counter() + seconds]


@contextmanager
def waiting(words: str, *, shown: bool = True, after: float = 0) -> Iterator[None]:
    """Show words on standard error while the block runs, and take them away at its end; in a file, print few lines.

    Args:
        words: what the work is.
        shown: whether to show them at all.
        after: seconds until they appear. The seconds so far stand beside them, and those that `tell_left` says.
    """
    if not (shown and _is_main()):
        yield
        return
    stream, began = sys.stderr, time.perf_counter()
    stand, ended, erased = threading.Event(), threading.Event(), _BLANK if _is_notebook() else _ERASED

    end: list[float] = []

    def left() -> str:
        seconds = end[0] - time.perf_counter() if end else 0
        return f", training ends in {length(seconds)} at most" if seconds >= 1 else ""

    def show() -> None:
        stand.set()
        seconds = int(time.perf_counter() - began)
        print(f"{erased}{words} ...{f' {seconds} s' if seconds else ''}{left()}", end="", file=stream, flush=True)

    def tick() -> None:
        pause = after or 1
        while not ended.wait(pause):
            show()
            pause = 1

    def tell() -> None:
        pause = FIRST_LINE
        while not ended.wait(pause):
            pause = time.perf_counter() - began
            print(f"{words}: {length(pause)} so far{left()}", file=stream, flush=True)

    clock = threading.Thread(target=tick if is_watched() else tell, daemon=True)
    if not after and is_watched():
        show()
    clock.start()
    outer = _END.set(end)
    try:
        yield
    finally:
        _END.reset(outer)
        ended.set()
        clock.join()
        if stand.is_set():
            print(erased, end="", file=stream, flush=True)
