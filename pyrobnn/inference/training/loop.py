"""The loop of a fit: steps by an engine, eager or captured, looks at them, checkpoints, and one flag that ends it."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.lock import ONE_THREAD, ignored_warnings
from pyrobnn._core.random import random_state, set_random_state
from pyrobnn._torch.private import tree_map
from pyrobnn.data.batches import StateDict
from pyrobnn.inference.capture.graph import capture, choose_engine
from pyrobnn.inference.method import Engine, Run
from pyrobnn.inference.network_checks import changes
from pyrobnn.inference.training.checkpoint import Checkpoint
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.inference.training.watch import BLOCK, Ended, Stop, Watch
from pyrobnn.nets import is_custom
from pyrobnn.posterior.record import EngineRecord

_TURN = 0.1
"""Seconds of steps between two looks for other threads that wait."""


class Stepper:
    """Fits in progress, one or R replicates of one shape, under an engine.

    The first step is eager: the captured engine goes on from it. `record` says which engine, and why.
    """

    def __init__(self, fits: Sequence[TrainingState], engine: Engine, num_steps: int) -> None:
        self.fits, self._choice = fits, choose_engine(engine, num_steps)
        self._captured: Any = None
        self._at_once = 1
        self._moved: list[Callable[[], str | None]] = []
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

    def in_turns(self, num_steps: int, stop: Stop) -> np.ndarray:
        """Do steps, fewer if interrupted, with turns for other threads; return both terms of each, (steps, R, 2)."""
        terms: list[np.ndarray] = []
        with ignored_warnings("Encountered NaN"):  # Pyro's word for what `train` raises
            while num_steps and not (terms and stop.by_ctrl_c):
                with stop.noted():
                    ONE_THREAD.let_waiting_in()
                count, started = min(num_steps, self._at_once), time.perf_counter()
                each = self.advance(count).double().cpu().numpy()
                terms.append(each.reshape(count, -1, 2))
                self._at_once = max(1, int(count * _TURN / (time.perf_counter() - started)))
                num_steps -= count
                stop.begun = True
        return np.concatenate(terms)

    def state(self) -> StateDict:
        """Return everything that the next steps depend on; tensors are shared."""
        return {
            "fits": [fit.state() for fit in self.fits],
            "engine": dataclasses.asdict(self.record) | {"waits": self._waits},
            "random": random_state(),
        }

    def resume(self, state: StateDict, *, finished: bool) -> None:
        """Go on from a state of another process, under the engine that was used there, if there is anything to do."""
        engine = dict(state["engine"])
        self._waits = engine.pop("waits")
        before = EngineRecord(**engine)
        self.restore(state)
        if not finished and before.used != "eager":
            self._capture(before)
        if finished or self._captured or before.used == "eager":
            self.record = before
        if not finished:
            self.restore(state)

    def restore(self, state: StateDict) -> None:
        for fit, saved in zip(self.fits, state["fits"], strict=True):
            fit.restore(saved)
        set_random_state(state["random"])

    def _eager_steps(self, num_steps: int) -> Tensor:
        """Do some steps of all fits, in turn: what is drawn does not depend on how steps are put into blocks."""
        steps = [[fit.advance(1)[0] for fit in self.fits] for _ in range(num_steps)]
        return torch.stack([terms[0] if len(terms) == 1 else torch.stack(terms) for terms in steps])

    def _capture(self, choice: EngineRecord) -> None:
        def make() -> Any:
            from pyrobnn.inference.training.captured import Captured  # eager fits do without

            return Captured(self.fits)

        from_step = self.fits[0].done + 1
        self._captured, self.record = capture(choice, make, what="fit runs", from_step=from_step)
        if self._captured:
            self._moved = [changes(fit.bnn) for fit in self.fits if is_custom(fit.bnn.settings["net"])]

    def check_still(self) -> None:
        """Go on eagerly from where a callback, say, has changed a network in Python."""
        what = next((words for moved in self._moved if (words := moved())), None)
        if what is not None:
            reason = f"{self.record.reason}, until {what} of the network changed after step {self.fits[0].done}"
            self.record = dataclasses.replace(self.record, used="eager", reason=reason)
            self._captured, self._moved = None, []
            for fit in self.fits:
                fit.count_steps()


_KEEP_EVERY = 500
"""Steps between two states that are kept, from which the steps before a fault are done again to name its site."""


def train(
    fits: Sequence[TrainingState],
    run: Run,
    stop: Stop,
    *,
    validate: Callable[[], float] | None = None,
    checkpoint: Checkpoint | None = None,
    block: int = BLOCK,
) -> list[Ended]:
    """Run the steps of fits of one shape and method side by side, and return how each ended.

    Convergence, patience in the score of `validate`, a callback, or Ctrl-C if it is put off, set `stop`, which ends
    them after a step. A FloatingPointError names a site that is not finite.
    """
    length = fits[0].length
    stepper = Stepper(fits, run.engine, length.most)
    watch = Watch(fits, run, stop, validate=validate, block=block)
    for fit in fits:
        fit.bnn.train()
    with watch.bar, ExitStack() as at_end:
        for fit in fits:
            at_end.callback(fit.batches.close)
        state, done = None if checkpoint is None else checkpoint.read(fits), 0
        if checkpoint is not None and state is not None:
            stepper.resume(state["training"], finished=checkpoint.finished)
            watch.restore(state["watch"], done := int(state["done"]))
        sound = _Sound(stepper, done)
        while done < length.most and stop.by is None:
            terms = stepper.in_turns(watch.steps_to_next_look(done, checkpoint), stop)
            done += len(terms)
            sound.check(terms, done)
            watch.look(terms, done)
            if run.callbacks or validate is not None:
                stepper.check_still()
            sound.move_on(done)
            if checkpoint is not None and done < length.most and stop.by is None and done % checkpoint.every == 0:
                checkpoint.write(_kept(stepper, watch, done), finished=False)
        if checkpoint is not None and not checkpoint.finished:
            interrupted = stop.by_ctrl_c and done < length.most
            checkpoint.write(_kept(stepper, watch, done), finished=not interrupted)
            if interrupted:
                raise KeyboardInterrupt(
                    f"The fit was stopped by Ctrl-C after step {done}. Its state is kept in {checkpoint.folder}: the "
                    "same call goes on from there."
                )
    for fit in fits:
        fit.bnn.eval()
    watch.restore_best()
    return watch.ended(done, stepper.record)


def _kept(stepper: Stepper, watch: Watch, done: int) -> StateDict:
    return {"done": done, "training": _copied(stepper), "watch": watch.state()}


class _Sound:
    """The latest state that is kept of fits whose numbers were finite until then."""

    def __init__(self, stepper: Stepper, done: int) -> None:
        self._stepper, self._done, self._state = stepper, done, _copied(stepper)

    def move_on(self, done: int) -> None:
        """Keep a state that is due."""
        if done % _KEEP_EVERY == 0:
            self._done, self._state = done, _copied(self._stepper)

    def check(self, terms: np.ndarray, done: int) -> None:
        """Raise FloatingPointError, with the site at fault, if the latest terms (steps, R, 2) are not finite."""
        fits, fault = self._stepper.fits, self._fault(terms, done)
        if fault is None:
            return
        from pyrobnn.inference.training.faults import explain  # sound fits do without

        step, replicate, value = fault
        self._stepper.restore(self._state)
        of_which = f" of replicate {replicate}" if len(fits) > 1 else ""
        why = explain(fits[replicate], step - self._done)
        advice = "Lower the learning rate, standardise the data, or start the guide narrower."
        raise FloatingPointError(f"The ELBO{of_which} became {value} at step {step}: {why}. {advice}")

    def _fault(self, terms: np.ndarray, done: int) -> tuple[int, int, float] | None:
        """Return step, replicate and value of the first bad ELBO; a parameter counts as NaN, at the end."""
        elbo = terms[..., 0] - terms[..., 1]
        good = np.isfinite(elbo)
        if not good.all():
            index, replicate = np.argwhere(~good)[0]
            return done - len(elbo) + int(index) + 1, int(replicate), float(elbo[index, replicate])
        lost = [index for index, fit in enumerate(self._stepper.fits) if not fit.is_finite()]
        return (done, lost[0], float("nan")) if lost else None


def _copied(stepper: Stepper) -> Any:
    return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, stepper.state())
