"""The engine of a run: eager, or captured from 100 steps on where its step can be."""

import logging
import time
import warnings
from collections.abc import Callable

from pyrobnn._core.errors import NotCapturable
from pyrobnn._torch.private import MissingFromTorch, sources_forgotten
from pyrobnn.inference.method import Engine
from pyrobnn.posterior.record import EngineRecord

_LONG = 100
"""Steps from which on a step is captured. In a new process, 100 steps of a perceptron or a small convolution take 0.7 s
less so, and 50 as long."""
_log = logging.getLogger("pyrobnn")


def choose_engine(engine: Engine, num_steps: int) -> EngineRecord:
    """Return the engine for a number of steps."""
    if engine != "auto":
        return EngineRecord(engine, engine, "asked for")
    if num_steps < _LONG:
        return EngineRecord(engine, "eager", f"fewer than {_LONG} steps")
    return EngineRecord(engine, "captured", f"{_LONG} steps or more")


def capture[T](
    choice: EngineRecord, make: Callable[[], T], *, what: str, from_step: int
) -> tuple[T | None, EngineRecord]:
    """Return what `make` captures, or None, and the record; `what` is for messages."""
    if choice.used == "eager":
        return None, choice
    started = time.perf_counter()
    try:
        with sources_forgotten():
            made = make()
    except (NotCapturable, MissingFromTorch) as error:
        if choice.asked == "captured":
            warnings.warn(f"The {what} eagerly, since {error}.", stacklevel=2)
        return None, EngineRecord(choice.asked, "eager", f"not capturable: {error}")
    seconds = time.perf_counter() - started
    _log.info("%s from step %d: %s; ready in %.1f s", choice.used, from_step, choice.reason, seconds)
    return made, EngineRecord(choice.asked, choice.used, choice.reason, from_step, seconds)
