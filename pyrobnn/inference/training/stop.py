"""The flag that ends the steps of a fit early: set by a callback, or by Ctrl-C, which waits for the end of a step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyrobnn._core.lock import ONE_THREAD

_CTRL_C, _CALLBACK = "Ctrl-C", "a callback"


class Stop:
    """Whether a fit is to end after the present step, and who asked for it; a second Ctrl-C ends it at once.

    Args:
        puts_off: whether Ctrl-C waits for the end of a step, once a step was done; else it goes through.

    Attributes:
        by: who asked; None while the fit goes on.
        begun: whether a step was done.
    """

    def __init__(self, *, puts_off: bool = False) -> None:
        self._puts_off, self.begun = puts_off, False
        self.by: str | None = None

    @property
    def by_ctrl_c(self) -> bool:
        """Whether Ctrl-C, or KeyboardInterrupt in a callback, asked for the end."""
        return self.by == _CTRL_C

    def reason(self, done: int) -> str:
        """Return why a fit has ended after that many steps."""
        return f"stopped by {self.by} after step {done}"

    def ask(self) -> None:
        """Have the fit end, as a callback asked for."""
        self.by = self.by or _CALLBACK

    def _interrupt(self, *_: Any) -> None:
        if self.by_ctrl_c or not (self._puts_off and self.begun):
            raise KeyboardInterrupt
        self.by = _CTRL_C

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Note Ctrl-C in the block, in place of Python's own handler; other handlers, and callbacks, keep theirs."""
        in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
        if not (self._puts_off and in_main) or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        with ONE_THREAD.changed(lambda: signal.getsignal(signal.SIGINT), _set_handler):
            _set_handler(self._interrupt)
            yield

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a KeyboardInterrupt between two steps."""
        try:
            yield
        except KeyboardInterrupt:
            self._interrupt()


def is_cut_short(record: Any) -> bool:
    """Return whether Ctrl-C ended the fit of a record."""
    return (record.stop_reason or "").startswith(f"stopped by {_CTRL_C}")


def _set_handler(handler: Any) -> None:
    signal.signal(signal.SIGINT, handler)
