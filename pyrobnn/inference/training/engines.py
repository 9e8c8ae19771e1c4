"""The engine of steps: eager, or recorded once and run without Python; "auto" captures from `LONG` steps on."""

import dataclasses
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import NotCapturable
from pyrobnn._core.random import random_state, set_random_state
from pyrobnn._torch.private import MissingFromTorch, sources_forgotten
from pyrobnn.data.batches import State
from pyrobnn.inference.method import Engine
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.posterior.record import EngineRecord

LONG = 100
"""Steps from which on a step is captured. In a new process, 100 steps of a perceptron or a small convolution take 0.7 s
less so, and 50 as long."""
MakeLoop = Callable[[Any, list[Tensor]], Callable[[int], None]]
"""From a recorded graph and its inputs to a function that runs it a number of times."""
_log = logging.getLogger("pyrobnn")


def choose(engine: Engine, num_steps: int) -> EngineRecord:
    """Return the engine for a number of steps."""
    if engine != "auto":
        return EngineRecord(engine, engine, "asked for")
    if num_steps < LONG:
        return EngineRecord(engine, "eager", f"fewer than {LONG} steps")
    return EngineRecord(engine, "captured", f"{LONG} steps or more")


def capture[T](
    choice: EngineRecord, make: Callable[[MakeLoop], T], *, what: str, from_step: int
) -> tuple[T | None, EngineRecord]:
    """Return what `make` captures, or None, and the record; `what` is for messages."""
    if choice.used == "eager":
        return None, choice
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


class Stepper:
    """Fits in progress, one or R replicates, under an engine.

    The first step is eager: the captured engine goes on from it.

    Attributes:
        fits: as given, of one shape.
        record: which engine, and why.
    """

    def __init__(self, fits: Sequence[TrainingState], engine: Engine, num_steps: int) -> None:
        self.fits, self._choice = fits, choose(engine, num_steps)
        self._captured: Any = None
        self._waits = self._choice.used == "captured" and num_steps > 1
        self.record = EngineRecord(engine, "eager", self._choice.reason)

    def advance(self, num_steps: int) -> Tensor:
        """Do some steps and return the log-likelihood and KL of each, (steps, [R,] 2)."""
        terms = []
        if self._waits:
            self._waits = False
            terms.append(self._eager_steps(1))
            self._capture(self._choice)
            num_steps -= 1
        if num_steps:
            terms.append(self._captured.advance(num_steps) if self._captured else self._eager_steps(num_steps))
        return torch.cat(terms)

    def state(self) -> State:
        """Return everything that the next steps depend on; tensors are shared."""
        return {
            "fits": [fit.state() for fit in self.fits],
            "engine": dataclasses.asdict(self.record) | {"waits": self._waits},
            "random": random_state(),
        }

    def resume(self, state: State, *, finished: bool) -> None:
        """Go on from a state of another process, under the engine that was used there, if there is anything to do."""
        engine = dict(state["engine"])
        self._waits = engine.pop("waits")
        before = EngineRecord(**engine)
        self._restore_fits(state)
        if not finished and before.used != "eager":
            self._capture(before)
        if finished or self._captured or before.used == "eager":
            self.record = before
        if not finished:
            self.restore(state)

    def restore(self, state: State) -> None:
        """Go back to a state of these fits."""
        self._restore_fits(state)
        set_random_state(state["random"])

    def _restore_fits(self, state: State) -> None:
        for fit, saved in zip(self.fits, state["fits"], strict=True):
            fit.restore(saved, in_place=self._captured is not None)

    def _eager_steps(self, num_steps: int) -> Tensor:
        """Do some steps of all fits, in turn: what is drawn does not depend on how steps are put into blocks."""
        steps = [[fit.advance(1)[0] for fit in self.fits] for _ in range(num_steps)]
        return torch.stack([terms[0] if len(terms) == 1 else torch.stack(terms) for terms in steps])

    def _capture(self, choice: EngineRecord) -> None:
        def make(make_loop: MakeLoop) -> Any:
            from pyrobnn.inference.capture.captured import Captured  # eager fits do without

            return Captured(self.fits, make_loop)

        from_step = self.fits[0].done + 1
        self._captured, self.record = capture(choice, make, what="fit runs", from_step=from_step)
