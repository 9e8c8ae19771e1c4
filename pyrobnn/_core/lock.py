"""One thread at a time: random states, Pyro's handlers and swapped weights belong to the process."""

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _OneThread:
    """A reentrant lock that is free in a forked process unless the only thread there holds it.

    Threads that wait come in by turns, also between two pieces of the holder's work, with its changes undone.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_in_child)

    def _renew(self) -> None:
        self._lock, self._turnstile = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        self._depth, self._changes = 0, list[Callable[[], None]]()

    def _renew_in_child(self) -> None:
        if self._owner == threading.get_ident():
            self._turnstile = threading.Lock()  # a thread that waited is not here
        else:
            self._renew()

    def _take(self) -> None:
        with self._turnstile:
            self._lock.acquire()
        self._owner = threading.get_ident()

    def _give(self) -> None:
        self._owner = None
        self._lock.release()

    def __enter__(self) -> None:
        if self._owner != threading.get_ident():
            self._take()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._give()

    @contextmanager
    def changed(self, get: Callable[[], Any], put: Callable[[Any], object]) -> Iterator[None]:
        """Hold the lock in a block that changes a state of the process, got and put so, which is put back after it."""
        with self:
            other = get()

            def swap() -> None:
                nonlocal other
                now = get()
                put(other)
                other = now

            self._changes.append(swap)
            try:
                yield
            finally:
                self._changes.pop()
                put(other)

    @contextmanager
    def others_let_in(self) -> Iterator[None]:
        """Give up the lock for the block, with all changes of this thread to the process undone."""
        if self._owner != threading.get_ident():
            yield
            return
        depth, changes = self._depth, self._changes
        for swap in reversed(changes):
            swap()
        self._depth, self._changes = 0, []
        self._give()
        try:
            yield
        finally:
            interrupt = None
            while self._owner != threading.get_ident():  # the end of a block needs the lock, whatever comes
                try:
                    self._take()
                except KeyboardInterrupt as pressed:
                    interrupt = pressed
            self._depth, self._changes = depth, changes
            for swap in changes:
                swap()
            if interrupt is not None:
                raise interrupt

    def let_waiting_in(self) -> None:
        """Let another thread take a turn if one waits; long work calls it at each step."""
        if self._turnstile.locked():
            with self.others_let_in():
                pass


ONE_THREAD = _OneThread()  # held wherever process-wide state is used


@contextmanager
def ignored_warnings(message: str = "") -> Iterator[None]:
    """Ignore warnings that begin with a message in the block; other threads keep their warnings.

    `warnings.filterwarnings` would make Python forget which warnings it has shown, and show them again.
    """
    with ONE_THREAD.changed(lambda: [*warnings.filters], _set_filters):
        _set_filters([("ignore", re.compile(message, re.IGNORECASE), Warning, None, 0), *warnings.filters])
        yield


def _set_filters(filters: list[Any]) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
