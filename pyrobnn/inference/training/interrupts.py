"""Ctrl-C during the steps of a fit: put off to the end of a step, where everything fits together."""

import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyrobnn._core.counts import counted
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn.guides.built import built
from pyrobnn.posterior.mixture import members_of


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a fit.

    Attributes:
        method: the method that was to fit; an outer method, which was not done, lets the interrupt through.
        posteriors: the fits so far.
    """

    def __init__(self, method: Any, posteriors: Sequence[Any]) -> None:
        super().__init__("The fit was stopped by Ctrl-C.")
        self.method, self.posteriors = method, posteriors

    @property
    def warning(self) -> str:
        """What the result is, for its user."""
        first = self.posteriors[0]
        alone = members_of(first) == (first,)
        go_on = ", or go on from here by `start=` of fit" if alone and built(first.guide).trainable else ""
        return (
            f"The fit has not converged: it was {first.record.stop_reason}. Its predictions may be far off, and its "
            f"uncertainty too small. Fit again{go_on}."
        )


def stopped_after(done: int, planned: int, what: str) -> str:
    """Return why a method that does its work in parts has ended."""
    return f"stopped by Ctrl-C after {done} of {counted(planned, what)}"


def ending_in_words[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Have an interrupt of a function that keeps nothing say so."""

    @functools.wraps(function)
    def ends(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except KeyboardInterrupt as interrupt:
            raise with_words(interrupt) from None

    return ends


def with_words(
    interrupt: KeyboardInterrupt, method: Any = None, checkpoint: str | Path | None = None
) -> KeyboardInterrupt:
    """Return an interrupt that says that nothing was kept, and how to keep; one with words of its own is unchanged."""
    if interrupt.args and not isinstance(interrupt, Interrupted):
        return interrupt
    if checkpoint is not None and any(Path(checkpoint).glob("*.safetensors")):
        kept = f"what {checkpoint} has is kept: the same call goes on from there"
    elif method is None:
        kept = "nothing was kept"
    elif method.offer().resumable:
        kept = "nothing was kept; with `checkpoint`, a folder, the same call goes on where it was, once steps are done"
    else:
        kept = f"nothing was kept; {type(method).__name__} keeps no checkpoints, as SVI does"
    return KeyboardInterrupt(f"The fit was stopped by Ctrl-C before it had a result: {kept}.")


class Interrupts:
    """Notes Ctrl-C, and KeyboardInterrupt of a callback, for a fit to end after a step; a second one ends it at once.

    Args:
        puts_off: whether it does; else all interrupts go through.

    Attributes:
        asked: whether the fit is to end.
        begun: whether a step was done; before the first one an interrupt goes through.
    """

    def __init__(self, *, puts_off: bool = True) -> None:
        self._puts_off, self.asked, self.begun = puts_off, False, False

    def _note(self, *_: Any) -> None:
        if self.asked or not (self._puts_off and self.begun):
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Note Ctrl-C in the block, in place of Python's own handler; other handlers, and callbacks, keep theirs."""
        in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
        if not (self._puts_off and in_main) or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        with ONE_THREAD.changed(lambda: signal.getsignal(signal.SIGINT), _set_handler):
            _set_handler(self._note)
            yield

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a KeyboardInterrupt between two steps."""
        try:
            yield
        except KeyboardInterrupt:
            self._note()

    def stop_reason(self, done: int) -> str:
        """Return why a fit has ended after a step."""
        return f"stopped by Ctrl-C after step {done}"

    def raise_with(self, method: Any, posteriors: Sequence[Any]) -> None:
        """Raise where the fit was asked to end.

        Raises:
            Interrupted: with the fits so far.
        """
        if self.asked:
            raise Interrupted(method, posteriors)


def _set_handler(handler: Any) -> None:
    signal.signal(signal.SIGINT, handler)
