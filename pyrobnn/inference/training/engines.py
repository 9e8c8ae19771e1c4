"""The choice of the engine: the one predicted to finish first, by the operations of a step; nothing is timed."""

import dataclasses
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from pyrobnn._core.errors import InputError, NotCapturable
from pyrobnn._torch.private import MissingFromTorch, OperationMode, sources_forgotten, tree_leaves
from pyrobnn.posterior.record import EngineRecord

_RECORDING = 0.2
"""Seconds to record and plan a step. The library that runs it is compiled once on a machine, which does not count: the
same call makes the same choice whatever ran before it."""


class Figures(NamedTuple):
    """Seconds for what steps do on a kind of device.

    Attributes:
        operation: for an operation of torch, with its share of Python and Pyro.
        number: for a number that an operation writes.
        product: for two floating-point operations of a matrix product or convolution.
        fused: share of the time for numbers that is left where operations are fused.
    """

    operation: float
    number: float
    product: float
    fused: float


_FIGURES = {"cpu": Figures(1e-5, 1e-9, 5e-11, 0.25)}
"""Medians of eight models (perceptrons of 50 to 1200 units, a convolution, an LSTM), one thread of an x86 server."""
_ACCELERATOR = Figures(1e-5, 1e-11, 2e-13, 0.25)
"""Not measured: operations wait for Python as they do on a CPU, the rest is two orders of magnitude faster."""


@dataclasses.dataclass
class Cost:
    """Seconds of a number of steps.

    Attributes:
        eager: run eagerly.
        captured: recorded, and run without Python.
        step: a single eager step.
    """

    eager: float
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

    def cost(self, num_steps: int, device: str) -> Cost:
        """Return what steps cost of which the block was one.

        Args:
            num_steps: how many.
            device: type of the device.
        """
        figures = _FIGURES.get(device, _ACCELERATOR)
        products, numbers = self.products * figures.product, self.numbers * figures.number
        step = self.operations * figures.operation + numbers + products
        captured = _RECORDING + num_steps * (figures.fused * numbers + products)
        return Cost(eager=num_steps * step, captured=captured, step=step)


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
        used: "eager" or "captured".
        reason: in words.
        eager_seconds: seconds of an eager step as predicted, where there was something to choose.
    """

    asked: str
    used: str
    reason: str = "asked for"
    eager_seconds: float | None = None


def choose(work: Work, num_steps: int, device: str) -> Choice:
    """Return the engine that is predicted to end sooner.

    Args:
        work: what one step computes.
        num_steps: how many there are.
        device: type of the device.
    """
    cost = work.cost(num_steps, device)
    reason = f"predicted {cost.eager:.3g} s eager, {cost.captured:.3g} s captured"
    return Choice("auto", "captured" if cost.captured < cost.eager else "eager", reason, cost.step)


MakeLoop = Callable[[Any, list[Tensor]], Callable[[int], None]]
"""From a recorded graph and its inputs to a function that runs it a number of times."""


def capture[T](
    choice: Choice, make: Callable[[MakeLoop], T], *, what: str, from_step: int
) -> tuple[T | None, EngineRecord]:
    """Return what `make` captures, or None, and the record; `what` is for messages."""
    if choice.used == "eager":
        return None, EngineRecord(choice.asked, "eager", choice.reason, eager_seconds=choice.eager_seconds)
    started = time.perf_counter()
    try:
        with sources_forgotten():
            from pyrobnn.inference.capture.run import make_loop  # eager runs do without

            made = make(make_loop)
    except (NotCapturable, MissingFromTorch) as error:
        if choice.asked == "captured":
            warnings.warn(f"The {what} eagerly, since {error}.", stacklevel=2)
        reason = f"not capturable: {error}"
        return None, EngineRecord(choice.asked, "eager", reason, eager_seconds=choice.eager_seconds)
    seconds = time.perf_counter() - started
    _log.info("%s from step %d: %s; ready in %.1f s", choice.used, from_step, choice.reason, seconds)
    return made, EngineRecord(choice.asked, choice.used, choice.reason, from_step, choice.eager_seconds, seconds)
