"""The choice of the engine: an eager step at first, and the captured graph where it pays."""

import dataclasses
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import random_state, set_random_state
from pyrobnn._torch.private import MissingFromTorch
from pyrobnn.data.batches import State
from pyrobnn.inference.history import EngineRecord
from pyrobnn.inference.svi.capture.errors import NotCapturable
from pyrobnn.inference.svi.cost import Work
from pyrobnn.inference.svi.eager import Eager

Engine = Literal["auto", "eager", "captured"]
_FEWEST = 10
"""Steps of a fit that is worth a choice."""
_SPEED_UP = 2.0
"""Least factor by which captured steps are expected to be faster on a GPU."""
_LONG_RUN = 100.0
"""On a GPU, seconds that the captured steps must take for compiling to be worth it."""
_log = logging.getLogger("pyrobnn")


def check_engine(engine: Any) -> None:
    """Refuse what is not an engine."""
    if engine not in get_args(Engine):
        raise InputError(f"`engine` must be one of {', '.join(get_args(Engine))}, got {engine!r}.")


class Training:
    """Fits in progress, one or R replicates, under the engine that was asked for or pays.

    Args:
        fits: the fits, of one shape.
        engine: "eager"; "captured" from the second step on; "auto" for captured if that is predicted to take less time,
            from what the first step computes.
        num_steps: steps in all.

    Attributes:
        fits: as given.
        record: what was chosen and why.
    """

    def __init__(self, fits: Sequence[Eager], engine: Engine, num_steps: int) -> None:
        self.fits, self._engine, self._num_steps = fits, engine, num_steps
        self._captured: Any = None
        self._decided = engine == "eager" or num_steps < (2 if engine == "captured" else _FEWEST)
        self.record = EngineRecord(engine, "eager", "asked for" if engine == "eager" else "too few steps to choose")

    def advance(self, num_steps: int) -> Tensor:
        """Do some steps and return the log-likelihood and KL of each, (steps, [R,] 2)."""
        terms = []
        if not self._decided:
            terms.append(self._decide())
            num_steps -= 1
        if num_steps:
            terms.append(self._captured.advance(num_steps) if self._captured else self._eager_steps(num_steps))
        return torch.cat(terms)

    def state(self) -> State:
        """Return everything that the next steps depend on; tensors are shared."""
        return {
            "fits": [fit.state() for fit in self.fits],
            "engine": dataclasses.asdict(self.record) | {"decided": self._decided},
            "noise": self._captured.step.noise.state() if self._captured else [],
            "random": random_state(),
        }

    def resume(self, state: State, *, finished: bool) -> None:
        """Go on from a state of another process, under the engine that was used there, if there is anything to do."""
        engine = dict(state["engine"])
        self._decided = engine.pop("decided")
        engine.pop("seconds", None)  # of checkpoints by a version that timed steps
        self._restore_fits(state)
        if finished:
            self.record = EngineRecord(**engine)
            return
        if engine["used"] == "captured":
            self._capture(engine["reason"], engine["eager_seconds"])
        if engine["used"] == ("captured" if self._captured else "eager"):
            self.record = EngineRecord(**engine)
        self.restore(state)

    def restore(self, state: State) -> None:
        """Go back to a state of these fits."""
        self._restore_fits(state)
        if self._captured:
            self._captured.step.noise.restore(state["noise"])
        set_random_state(state["random"])

    def _restore_fits(self, state: State) -> None:
        for fit, own in zip(self.fits, state["fits"], strict=True):
            fit.restore(own, in_place=self._captured is not None)

    def _eager_steps(self, num_steps: int) -> Tensor:
        """Do some steps of all fits, in turn: what is drawn does not depend on how steps are put into blocks."""
        steps = [[fit.advance(1)[0] for fit in self.fits] for _ in range(num_steps)]
        return torch.stack([terms[0] if len(terms) == 1 else torch.stack(terms) for terms in steps])

    def _decide(self) -> Tensor:
        """Do the first step, and choose by what it computes."""
        self._decided = True
        if self._engine == "captured":
            terms = self._eager_steps(1)
            self._capture("asked for", None)
            return terms
        with Work() as work:
            terms = self._eager_steps(1)
        first = self.fits[0]
        device, draws = first.example[0].device.type, first.method.num_particles // (1 + first.method.antithetic)
        step = work.cost(1, device).step
        alike, compiles = len(self.fits) * draws, self._compiling_pays(step)
        cost = work.cost(self._num_steps, device, alike=alike, compiles=compiles)
        if cost.captured < cost.eager:
            self._capture(str(cost), step)
        else:
            self.record = EngineRecord("auto", "eager", str(cost), eager_seconds=step)
        return terms

    def _compiling_pays(self, eager_seconds: float | None) -> bool:
        """Return False for a short run on a GPU, where the recorded kernels are replayed as they are."""
        if eager_seconds is None or self.fits[0].example[0].device.type == "cpu":
            return True
        return self._num_steps * eager_seconds / _SPEED_UP > _LONG_RUN

    def _capture(self, reason: str, eager_seconds: float | None) -> None:
        started = time.perf_counter()
        try:
            with no_word_of_cuda():
                from pyrobnn.inference.svi.capture.compiler import compile_graph, interpret  # eager fits do without
                from pyrobnn.inference.svi.captured import Captured

                compiler = compile_graph if self._compiling_pays(eager_seconds) else interpret
                self._captured = Captured(self.fits, compiler)
        except (NotCapturable, MissingFromTorch) as error:
            self.record = EngineRecord(self._engine, "eager", f"not capturable: {error}", eager_seconds=eager_seconds)
            if self._engine == "captured":
                warnings.warn(f"The fit runs eagerly, since {error}.", stacklevel=2)
            return
        seconds = time.perf_counter() - started
        from_step = self.fits[0].done + 1
        self.record = EngineRecord(self._engine, "captured", reason, from_step, eager_seconds, seconds)
        _log.info("captured from step %d: %s; compiled in %.1f s", from_step, reason, seconds)


@contextmanager
def no_word_of_cuda() -> Iterator[None]:
    """Drop the warning that compilers for a GPU are there but no GPU: it does not matter on a CPU."""
    logger = logging.getLogger("torch.utils.cpp_extension")
    logger.addFilter(_about_other_things)
    try:
        yield
    finally:
        logger.removeFilter(_about_other_things)


def _about_other_things(record: logging.LogRecord) -> bool:
    return "CUDA" not in record.getMessage()
