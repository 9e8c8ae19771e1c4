"""The choice of the engine: "auto" captures from `LONG` steps on, and is eager below."""

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from pyrobnn._core.errors import InputError, NotCapturable
from pyrobnn._torch.private import MissingFromTorch, sources_forgotten
from pyrobnn.posterior.record import EngineRecord

LONG = 100
"""Steps from which on a step is captured. In a new process, 100 steps of a perceptron or a small convolution take 0.7 s
less so, and 50 as long."""
Engine = Literal["auto", "eager", "captured"]
MakeLoop = Callable[[Any, list[Tensor]], Callable[[int], None]]
"""From a recorded graph and its inputs to a function that runs it a number of times."""
_log = logging.getLogger("pyrobnn")


def check_engine(engine: Any) -> None:
    """Refuse what is not an engine."""
    if engine not in get_args(Engine):
        raise InputError(f"`engine` must be one of {', '.join(get_args(Engine))}, got {engine!r}.")


class Choice(NamedTuple):
    """An engine, and why.

    Attributes:
        asked: as in `pyrobnn.fit`.
        used: "eager" or "captured".
        reason: in words.
    """

    asked: str
    used: str
    reason: str = "asked for"


def choose(engine: Engine, num_steps: int) -> Choice:
    """Return the engine for a number of steps."""
    if engine != "auto":
        return Choice(engine, engine)
    if num_steps < LONG:
        return Choice(engine, "eager", f"fewer than {LONG} steps")
    return Choice(engine, "captured", f"{LONG} steps or more")


def capture[T](
    choice: Choice, make: Callable[[MakeLoop], T], *, what: str, from_step: int
) -> tuple[T | None, EngineRecord]:
    """Return what `make` captures, or None, and the record; `what` is for messages."""
    if choice.used == "eager":
        return None, EngineRecord(choice.asked, "eager", choice.reason)
    started = time.perf_counter()
    try:
        with sources_forgotten():
            from pyrobnn.inference.capture.run import make_loop  # eager runs do without

            made = make(make_loop)
    except (NotCapturable, MissingFromTorch) as error:
        if choice.asked == "captured":
            warnings.warn(f"The {what} eagerly, since {error}.", stacklevel=2)
        return None, EngineRecord(choice.asked, "eager", f"not capturable: {error}")
    seconds = time.perf_counter() - started
    _log.info("%s from step %d: %s; ready in %.1f s", choice.used, from_step, choice.reason, seconds)
    return made, EngineRecord(choice.asked, choice.used, choice.reason, from_step, seconds)
