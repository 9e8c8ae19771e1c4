"""One thread at a time: random states, Pyro's handlers and settings, and swapped weights belong to the process."""

import os
import threading
from typing import Any


class _OneThread:
    """A lock that a thread may take again, and that a forked process finds free unless its only thread holds it."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        if not self._lock._is_owned():
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


ONE_THREAD = _OneThread()
"""Held wherever one of these is used, so that threads may predict, and fit, side by side: they take turns."""
