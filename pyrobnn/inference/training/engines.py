"""The choice of the engine: the one predicted to finish first, by the operations of a step; nothing is timed."""

import dataclasses
import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from pyrobnn._core.errors import InputError, NotCapturable
from pyrobnn._core.lock import one_compiler
from pyrobnn._torch.private import MissingFromTorch, OperationMode, sources_forgotten, tree_leaves
from pyrobnn.posterior.record import EngineRecord

_RECORDING, _COMPILING, _COMPILING_OPERATION = 0.4, 4.5, 0.0085
"""Seconds to record a step for replay, to record and compile it, and more for each of its operations: what new
processes with an empty cache took for six networks, on two cores of an x86 server. A library kept from before counts as
one still to compile, so that the same call makes the same choice whatever ran before it."""


class Figures(NamedTuple):
    """Seconds for what steps do on a kind of device.

    Attributes:
        operation: for an operation of torch, with its share of Python and Pyro.
        replayed: for an operation of torch where neither runs.
        number: for a number that an operation writes.
        product: for two floating-point operations of a matrix product or convolution.
        fused: share of the time for numbers that is left where operations are fused.
    """

    operation: float
    replayed: float
    number: float
    product: float
    fused: float


_FIGURES = {"cpu": Figures(1e-5, 7e-7, 1e-9, 5e-11, 0.25)}
"""Medians of eight models (perceptrons of 50 to 1200 units, a convolution, an LSTM), one thread of an x86 server."""
_ACCELERATOR = Figures(1e-5, 2e-6, 1e-11, 2e-13, 0.25)
"""Not measured: operations wait for Python as they do on a CPU, the rest is two orders of magnitude faster."""


@dataclasses.dataclass
class Cost:
    """Seconds of a number of steps.

    Attributes:
        eager: run eagerly.
        replayed: recorded, and replayed one operation after the other.
        captured: recorded and compiled.
        step: a single eager step.
    """

    eager: float
    replayed: float
    captured: float
    step: float


class Work(OperationMode):
    """Counts the operations of torch in its block, backward passes included.

    Attributes:
        operations: how many there were.
        numbers: how many numbers they wrote.
        products: half of the floating-point operations of their matrix products and convolutions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.numbers = self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.operations += 1
        if not func.is_view:
            self.numbers += sum(value.numel() for value in tree_leaves(result) if isinstance(value, Tensor))
        if func.overloadpacket in flop_registry:
            self.products += flop_registry[func.overloadpacket](*args, **kwargs, out_val=result) // 2
        return result

    def cost(self, num_steps: int, device: str, *, alike: int = 1) -> Cost:
        """Return what steps cost of which the block was one.

        Args:
            num_steps: how many.
            device: type of the device.
            alike: parts of the block that do the same, such as replicates and particles: a graph holds them once.
        """
        recorded, figures = self.operations / alike, _FIGURES.get(device, _ACCELERATOR)
        products, numbers = self.products * figures.product, self.numbers * figures.number
        step = self.operations * figures.operation + numbers + products
        replayed = recorded * figures.replayed + numbers + products
        compiling = _COMPILING + _COMPILING_OPERATION * recorded
        return Cost(
            eager=num_steps * step,
            replayed=_RECORDING + num_steps * replayed,
            captured=compiling + num_steps * (figures.fused * numbers + products),
            step=step,
        )


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
