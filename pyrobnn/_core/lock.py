"""One thread at a time: random states, Pyro's handlers and settings, and swapped weights belong to the process."""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pyrobnn._core.deadline import check_time


class _Change:
    """A state of the process that a block has changed.

    Attributes:
        other: the state that is not in force: the one from before the block, or, while others are let in, the block's.
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self._get, self.put, self.other = get, put, get()

    def swap(self) -> None:
        """Put the other state in force, and keep the one that was."""
        now = self._get()
        self.put(self.other)
        self.other = now


class _OneThread:
    """A lock that a thread may take again, and that a forked process finds free unless its only thread holds it.

    Threads that wait come in by turns. The holder may let them in between two pieces of its work: it gives up the lock
    at every depth, and takes back what it has changed in the process, for as long as that lasts.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_in_child)

    def _renew(self) -> None:
        self._lock, self._turnstile = threading.Lock(), threading.Lock()
        self._owner: int | None = None
        self._depth, self._changes = 0, list[_Change]()

    def _renew_in_child(self) -> None:
        if self._owner == threading.get_ident():
            self._turnstile = threading.Lock()  # a thread that waited is not here
        else:
            self._renew()

    def _take(self) -> None:
        with self._turnstile:
            self._lock.acquire()
        self._owner = threading.get_ident()

    def _take_whatever_comes(self) -> KeyboardInterrupt | None:
        """Take the lock back, which whoever ends a block relies on; return what came meanwhile."""
        found = None
        while self._owner != threading.get_ident():
            try:
                self._take()
            except KeyboardInterrupt as interrupt:
                found = interrupt
        return found

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
    def changed(self, get: Callable[[], Any], put: Callable[[Any], None]) -> Iterator[None]:
        """Hold the lock in a block that changes a state of the process, which is put back after it.

        Args:
            get: returns the state.
            put: puts such a state in force.
        """
        with self:
            change = _Change(get, put)
            self._changes.append(change)
            try:
                yield
            finally:
                self._changes.pop()
                put(change.other)

    @contextmanager
    def others_let_in(self) -> Iterator[None]:
        """Give up the lock for the block, in which every state of the process is as if this thread had changed none."""
        if self._owner != threading.get_ident():
            yield
            return
        depth, changes = self._depth, self._changes
        for change in reversed(changes):
            change.swap()
        self._depth, self._changes = 0, []
        self._give()
        try:
            yield
        finally:
            interrupt = self._take_whatever_comes()
            self._depth, self._changes = depth, changes
            for change in changes:
                change.swap()
            if interrupt is not None:
                raise interrupt

    def let_waiting_in(self) -> None:
        """Let another thread take a turn if one waits; long work calls it at each step, and ends there when it must.

        Raises:
            OutOfTime: the time of the block is over (`deadline.until`).
        """
        check_time()
        if self._turnstile.locked():
            with self.others_let_in():
                pass


ONE_THREAD = _OneThread()
"""Held wherever one of these is used, so that threads may predict, and fit, side by side: they take turns."""
_ONE_COMPILER = _OneThread()


@contextmanager
def one_compiler() -> Iterator[None]:
    """Compile in the block, in one thread at a time, others of which may predict meanwhile."""
    with ExitStack() as held:
        with ONE_THREAD.others_let_in():
            held.enter_context(_ONE_COMPILER)
        yield


@contextmanager
def ignored_warnings(message: str = "") -> Iterator[None]:
    """Ignore warnings that begin with a message in the block; other threads let in meanwhile have theirs."""
    with ONE_THREAD.changed(lambda: [*warnings.filters], _set_filters):
        warnings.filterwarnings("ignore", message)
        yield


def _set_filters(filters: list[Any]) -> None:
    warnings.simplefilter("default", append=True)  # notes that filters change
    warnings.filters[:] = filters  # type: ignore[index]
