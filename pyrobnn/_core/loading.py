"""The seconds in which torch and Pyro are imported: words for them, and Ctrl-C put off to their end."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyrobnn._core.waiting import waiting

_WORDS = "loading torch and Pyro"


@contextmanager
def loading() -> Iterator[None]:
    """Say what takes seconds, and put Ctrl-C off to its end: an interrupt in the import of torch aborts the process."""
    in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        with waiting(_WORDS):
            yield
        return
    asked: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if not asked:
            print("stopping, once torch is loaded", file=sys.stderr, flush=True)
        asked.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        with waiting(_WORDS):
            yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt
