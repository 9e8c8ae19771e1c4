"""Words and bars while work takes seconds: on a terminal or in a notebook, and nothing in a pipe or a file."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ERASED = "\r\x1b[K"
_BLANK = f"\r{' ' * 79}\r"
"""Takes a line away in a notebook, which does not know the sign of terminals."""


def is_watched() -> bool:
    """Return whether standard error goes to a terminal or a notebook, where a line may be written over."""
    return sys.stderr.isatty() or _is_notebook()


def _is_notebook() -> bool:
    return type(sys.stderr).__module__.startswith("ipykernel.")


def progress_bar(steps: Any = None, *, shown: bool, **options: Any) -> Any:
    """Return a bar of tqdm, which is drawn if it is to be shown and somebody watches.

    Args:
        steps: what it counts, if it is to count by itself.
        shown: whether to show it at all.
        **options: options of tqdm.
    """
    from tqdm.std import tqdm

    return tqdm(steps, disable=not (shown and is_watched()), **options)


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


@contextmanager
def waiting(words: str, *, shown: bool = True, after: float = 0) -> Iterator[None]:
    """Show words on standard error while the block runs, where it is watched, and take them away at its end.

    Args:
        words: what the work is.
        shown: whether to show them at all.
        after: seconds until they appear. The seconds so far stand beside them.
    """
    if not (shown and is_watched() and multiprocessing.current_process().name == "MainProcess"):
        yield
        return
    stream, began = sys.stderr, time.perf_counter()
    stand, ended, erased = threading.Event(), threading.Event(), _BLANK if _is_notebook() else _ERASED

    def show() -> None:
        stand.set()
        seconds = int(time.perf_counter() - began)
        print(f"{erased}{words} ...{f' {seconds} s' if seconds else ''}", end="", file=stream, flush=True)

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
            print(erased, end="", file=stream, flush=True)
