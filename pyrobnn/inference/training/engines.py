"""The choice of the engine: Pyro at each step, or a captured graph, replayed or compiled: what is to end first."""

import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

from pyrobnn._core.errors import InputError
from pyrobnn._core.lock import one_compiler
from pyrobnn._torch.private import MissingFromTorch, sources_forgotten
from pyrobnn.inference.capture.errors import NotCapturable
from pyrobnn.inference.training.cost import Work
from pyrobnn.posterior.record import EngineRecord

Engine = Literal["auto", "eager", "captured"]
_log = logging.getLogger("pyrobnn")


def check_engine(engine: Any) -> None:
    """Refuse what is not an engine."""
    if engine not in get_args(Engine):
        raise InputError(f"`engine` must be one of {', '.join(get_args(Engine))}, got {engine!r}.")


class Choice(NamedTuple):
    """An engine, and why.

    Attributes:
        asked: as in `pyrobnn.fit`.
        used: "eager"; "captured", a compiled graph; or "replayed", one whose operations run one by one.
        reason: in words.
        eager_seconds: seconds of an eager step as predicted, where there was something to choose.
    """

    asked: str
    used: str
    reason: str = "asked for"
    eager_seconds: float | None = None


def choose(work: Work, num_steps: int, device: str, *, alike: int = 1, may_replay: bool = False) -> Choice:
    """Return the engine that is predicted to end sooner.

    Args:
        work: what one step computes.
        num_steps: how many there are.
        device: type of the device.
        alike: parts of a step that do the same, such as replicates and particles.
        may_replay: whether a graph may be replayed without compiling it.
    """
    cost = work.cost(num_steps, device, alike=alike)
    ways = {"eager": cost.eager, "captured": cost.captured} | ({"replayed": cost.replayed} if may_replay else {})
    reason = f"predicted {', '.join(f'{seconds:.3g} s {way}' for way, seconds in ways.items())}"
    return Choice("auto", min(ways, key=ways.__getitem__), reason, cost.step)


def capture[T](choice: Choice, make: Callable[[Any], T], *, what: str, from_step: int) -> tuple[T | None, EngineRecord]:
    """Return what `make` captures with the compiler that it gets, or None, and the record; `what` is for messages."""
    if choice.used == "eager":
        return None, EngineRecord(choice.asked, "eager", choice.reason, eager_seconds=choice.eager_seconds)
    started = time.perf_counter()
    try:
        with one_compiler(), _no_word_of_cuda(), _without_collections(), sources_forgotten():
            from pyrobnn.inference.capture.compiler import compile_graph  # eager runs do without
            from pyrobnn.inference.capture.replay import replay

            made = make(replay if choice.used == "replayed" else compile_graph)
    except (NotCapturable, MissingFromTorch) as error:
        if choice.asked == "captured":
            warnings.warn(f"The {what} eagerly, since {error}.", stacklevel=2)
        reason = f"not capturable: {error}"
        return None, EngineRecord(choice.asked, "eager", reason, eager_seconds=choice.eager_seconds)
    seconds = time.perf_counter() - started
    _log.info("%s from step %d: %s; ready in %.1f s", choice.used, from_step, choice.reason, seconds)
    return made, EngineRecord(choice.asked, choice.used, choice.reason, from_step, choice.eager_seconds, seconds)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Spare Python its searches for garbage among the modules and expressions of the compiler, a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _no_word_of_cuda() -> Iterator[None]:
    """Drop the warning that compilers for a GPU are there but no GPU: it does not matter on a CPU."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.addFilter(_about_other_things)
    try:
        yield
    finally:
        logger.removeFilter(_about_other_things)


def _about_other_things(record: logging.LogRecord) -> bool:
    return "CUDA" not in record.getMessage()
