"""The choice of the engine: eager steps at first, and the captured graph where it pays."""

import dataclasses
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import pyrobnn
from pyrobnn._random import random_state, set_random_state
from pyrobnn.inference.batches import State
from pyrobnn.inference.capture.errors import NotCapturable
from pyrobnn.inference.eager import Eager
from pyrobnn.inference.history import EngineRecord

Engine = Literal["auto", "eager", "captured"]
_WARM_UP, _TIMED = 2, 4
"""Eager steps before the timed ones, and timed ones."""
_COLD_SECONDS, _WARM_SECONDS = 20.0, 2.0
"""Expected time until the first captured step, without and with a library kept on disk."""
_SURE = 1.5
"""Factor on the expected time to compile: the choice should not lose when it takes longer."""
_SPEED_UP = 2.0
"""Least factor by which captured steps are expected to be faster."""
_LONG_RUN = 5.0
"""On a GPU, how many times longer than compiling the captured steps must take for compiling to be worth it."""
_log = logging.getLogger("pyrobnn")


class Training:
    """Fits in progress, one or R replicates, under the engine that was asked for or pays.

    Args:
        fits: the fits, of one shape.
        engine: "eager"; "captured" from the second step on; "auto" for captured after a few eager steps if the
            predicted time of all steps is less.
        num_steps: steps in all.

    Attributes:
        fits: as given.
        record: what was chosen and why.
    """

    def __init__(self, fits: Sequence[Eager], engine: Engine, num_steps: int) -> None:
        self.fits, self._engine, self._num_steps = fits, engine, num_steps
        self._captured: Any = None
        self._seconds: list[float] = []
        self._decided = engine == "eager" or num_steps == 1
        self.record = EngineRecord(engine, "eager", "asked for" if engine == "eager" else "too few steps to choose")

    def advance(self, num_steps: int) -> Tensor:
        """Do some steps and return the log-likelihood and KL of each, (steps, [R,] 2)."""
        terms = []
        while num_steps and not self._decided:
            terms.append(self._eager_steps(1))
            num_steps -= 1
            self._decide()
        if num_steps:
            terms.append(self._captured.advance(num_steps) if self._captured else self._eager_steps(num_steps))
        return torch.cat(terms)

    def state(self) -> State:
        """Return everything that the next steps depend on; tensors are shared."""
        return {
            "fits": [fit.state() for fit in self.fits],
            "engine": dataclasses.asdict(self.record) | {"decided": self._decided, "seconds": [*self._seconds]},
            "noise": self._captured.step.noise.state() if self._captured else [],
            "random": random_state(),
        }

    def resume(self, state: State, *, finished: bool) -> None:
        """Go on from a state of another process, under the engine that was used there, if there is anything to do."""
        engine = dict(state["engine"])
        self._decided, self._seconds = engine.pop("decided"), engine.pop("seconds")
        self._restore_fits(state)
        if finished:
            self.record = EngineRecord(**engine)
            return
        if engine["used"] == "captured":
            for fit in self.fits:
                fit.mark_gradients()
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
        steps = [[self._timed_step(fit) for fit in self.fits] for _ in range(num_steps)]
        return torch.stack([terms[0] if len(terms) == 1 else torch.stack(terms) for terms in steps])

    def _timed_step(self, fit: Eager) -> Tensor:
        started = time.perf_counter()
        terms = fit.advance(1)[0]
        if not self._decided:
            self._seconds.append(time.perf_counter() - started)
        return terms

    def _decide(self) -> None:
        """Choose, if there is enough to choose from."""
        timed = self._seconds[_WARM_UP:]
        if self._engine == "auto" and len(timed) < _TIMED:
            return
        self._decided = True
        eager_seconds = sorted(timed)[len(timed) // 2] if timed else None
        if self._engine == "auto":
            eager_total, captured_total = self._predict(eager_seconds or 0.0)
            reason = f"predicted {eager_total:.3g} s eager and at most {captured_total:.3g} s captured"
            if captured_total >= eager_total:
                self.record = EngineRecord("auto", "eager", reason, eager_seconds=eager_seconds)
                return
        else:
            reason = "asked for"
        self._capture(reason, eager_seconds)

    def _predict(self, eager_seconds: float) -> tuple[float, float]:
        """Return the time that the remaining steps would take eagerly, and at most captured, compiling included."""
        eager_total = self._remaining(eager_seconds)
        preparing = _Ledger(self.fits).expected_seconds() if self._compiling_pays(eager_seconds) else _WARM_SECONDS
        return eager_total, _SURE * preparing + eager_total / _SPEED_UP

    def _remaining(self, eager_seconds: float) -> float:
        return len(self.fits) * (self._num_steps - self.fits[0].done) * eager_seconds

    def _compiling_pays(self, eager_seconds: float | None) -> bool:
        """Return False for a short run on a GPU, where the recorded kernels are replayed as they are."""
        if eager_seconds is None or self.fits[0].example[0].device.type == "cpu":
            return True
        return self._remaining(eager_seconds) / _SPEED_UP > _LONG_RUN * _COLD_SECONDS

    def _capture(self, reason: str, eager_seconds: float | None) -> None:
        started, ledger = time.perf_counter(), _Ledger(self.fits)
        try:
            with no_word_of_cuda():
                from pyrobnn.inference.capture.compiler import compile_graph, interpret  # eager fits do without
                from pyrobnn.inference.captured import Captured

                compiler = compile_graph if self._compiling_pays(eager_seconds) else interpret
                self._captured = Captured(self.fits, compiler)
        except NotCapturable as error:
            self.record = EngineRecord(self._engine, "eager", f"not capturable: {error}", eager_seconds=eager_seconds)
            if self._engine == "captured":
                warnings.warn(f"The fit runs eagerly, since {error}.", stacklevel=2)
            return
        seconds = time.perf_counter() - started
        ledger.note(self._captured.step.library)
        from_step = self.fits[0].done + 1
        self.record = EngineRecord(self._engine, "captured", reason, from_step, eager_seconds, seconds)
        _log.info("captured from step %d: %s; compiled in %.1f s", from_step, reason, seconds)


class _Ledger:
    """Which steps were compiled here before: their libraries, under names known before anything is recorded."""

    def __init__(self, fits: Sequence[Eager]) -> None:
        from pyrobnn.inference.capture import store

        self._store, self._name = store, store.fingerprint(_signature(fits))

    def expected_seconds(self) -> float:
        """Return the expected time to record and compile."""
        return _COLD_SECONDS if self._store.find(self._name) is None else _WARM_SECONDS

    def note(self, library: Path | None) -> None:
        """Remember that this step was compiled."""
        if library is not None:
            self._store.keep(self._name, library)


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


def _signature(fits: Sequence[Eager]) -> str:
    """Return what the compiled graph depends on, in words."""
    first = fits[0]
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in first.guide.named_parameters()]
    method = first.method
    settings = repr((first.bnn, method.guide, method.optimizer, method.kl, method.antithetic))
    numbers = (len(fits), first.num_data, method.batch_size, method.num_particles, method.clip_norm)
    versions = (torch.__version__, pyrobnn.__version__)
    place = (str(first.example[0].device), torch.get_num_threads())
    return repr((versions, place, shapes, settings, numbers))
