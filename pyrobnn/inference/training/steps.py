"""Fits in progress, side by side: an eager step at first, and then the engine that was chosen."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.random import random_state, set_random_state
from pyrobnn.data.batches import State
from pyrobnn.inference.training.engines import Choice, Engine, MakeLoop, capture, choose
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.posterior.record import EngineRecord


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
        self._restore_fits(state)
        if not finished and engine["used"] != "eager":
            self._capture(Choice(engine["asked"], engine["used"], engine["reason"]))
        if finished or self._captured or engine["used"] == "eager":
            self.record = EngineRecord(**engine)
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

    def _capture(self, choice: Choice) -> None:
        def make(make_loop: MakeLoop) -> Any:
            from pyrobnn.inference.capture.captured import Captured  # eager fits do without

            return Captured(self.fits, make_loop)

        from_step = self.fits[0].done + 1
        self._captured, self.record = capture(choice, make, what="fit runs", from_step=from_step)
