"""Watching a fit: history, progress bar, callbacks, and early stopping."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from pyro.nn import PyroModule
from torch import nn
from tqdm.std import tqdm

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn.bnn import BNN
from pyrobnn.inference.history import Recorder

_BLOCK = 50
"""Steps between two looks at the ELBO from the host."""


@dataclasses.dataclass(frozen=True, eq=False)
class Progress:
    """What a callback sees after each block of 50 steps; a callback that returns True ends the fit.

    A callback runs between two steps, under the random states and Pyro's settings from outside the fit, and other
    threads may predict and fit meanwhile: it may draw random numbers, and wait for them.

    Attributes:
        step: number of steps done.
        num_steps: number of steps planned.
        elbo: mean of the ELBO over the block.
        bnn: the model in training.
        guide: the guide in training.
    """

    step: int
    num_steps: int
    elbo: float
    bnn: BNN
    guide: PyroModule


Callback = Callable[[Progress], object]


class Monitor:
    """Told of each step, it reports, validates, and says when to stop; it looks after every `block` steps.

    Attributes:
        recorder: what was noted of each step.
        stop_reason: why the fit ended.
        rewinds: where it went back after numbers had ceased to be finite.
    """

    def __init__(
        self,
        bnn: BNN,
        guide: PyroModule,
        *,
        num_steps: int,
        progress: bool,
        callbacks: Sequence[Callback],
        validate: Callable[[], float] | None,
        eval_every: int,
        patience: int | None,
        block: int = _BLOCK,
    ) -> None:
        self._block = block
        self.recorder = Recorder()
        self.stop_reason = "all steps done"
        self.rewinds: list[dict[str, Any]] = []
        self._bnn, self._guide = bnn, guide
        self._num_steps, self._eval_every, self._patience = num_steps, eval_every, patience
        self._callbacks, self._validate = callbacks, validate
        self._bar = tqdm(total=num_steps, disable=not progress, desc="SVI", unit="step")
        self._trained = nn.ModuleList([bnn, guide])
        self._best_state: dict[str, Any] | None = None

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def steps_to_next_look(self, done: int, every: int | None = None) -> int:
        """Return how many steps to do before the next look, which is to come at multiples of `every` too."""
        intervals = [self._block, *([] if self._validate is None else [self._eval_every]), *([every] if every else [])]
        return min(self._num_steps - done, *(interval - done % interval for interval in intervals))

    def stops_after(self, done: int) -> bool:
        """Look at the fit after that many steps, fetched and finite, and say whether it should end here."""
        at_end = done == self._num_steps
        stop = False
        if done % self._block == 0 or at_end:
            stop = self._report(done)
        if self._validate is not None and (done % self._eval_every == 0 or at_end or stop):
            stop = self._validated_long_ago(done, self._validate) or stop
        return stop

    def _report(self, done: int) -> bool:
        terms = self.recorder.last(done % self._block or self._block)
        elbo = float((terms[..., 0] - terms[..., 1]).mean())
        self._bar.set_postfix(elbo=f"{elbo:.1f}", refresh=False)
        self._show(done)
        state = Progress(done, self._num_steps, elbo, self._bnn, self._guide)
        stop = self._callbacks_ask_to_stop(state)
        if stop:
            self.stop_reason = f"stopped by a callback after step {done}"
        return stop

    def _callbacks_ask_to_stop(self, state: Progress) -> bool:
        if not self._callbacks:
            return False
        with ONE_THREAD.others_let_in():
            return any([asks_to_stop(callback(state)) for callback in self._callbacks])

    def _show(self, done: int) -> None:
        self._bar.update(done - self._bar.n)

    def state(self) -> dict[str, Any]:
        """Return what was seen so far."""
        return {"recorder": self.recorder.state(), "best": self._best_state, "stop_reason": self.stop_reason}

    def restore(self, state: dict[str, Any], done: int) -> None:
        """Go back, or on, to what was seen after that many steps."""
        self.recorder.restore(state["recorder"])
        self._best_state, self.stop_reason = state["best"], state["stop_reason"]
        self._show(done)

    def summary(self, replicate: int) -> dict[str, Any]:
        """Return how the fit of a replicate went, for its `info`."""
        own = [entry for entry in self.rewinds if entry["replicate"] == replicate]
        rewinds = [{key: value for key, value in entry.items() if key != "replicate"} for entry in own]
        return {"stop_reason": self.stop_reason} | ({"rewinds": rewinds} if rewinds else {})

    def _validated_long_ago(self, done: int, validate: Callable[[], float]) -> bool:
        scores, steps = self.recorder.validation_scores, self.recorder.validation_steps
        scores.append(validate())
        steps.append(done)
        best = int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
        if self._patience is None:
            return False
        if best == len(scores) - 1:
            self._best_state = copy.deepcopy(self._trained.state_dict())
        if len(scores) - 1 - best < self._patience:
            return False
        self.stop_reason = f"no better validation score since step {steps[best]}"
        return True

    def restore_best(self) -> None:
        """Go back to the parameters with the best validation score, if stopping early was asked for."""
        if self._best_state is not None:
            self._trained.load_state_dict(self._best_state)


def asks_to_stop(answer: object) -> bool:
    """Return whether the answer of a callback is a plain True, of Python or NumPy."""
    return isinstance(answer, (bool, np.bool_)) and bool(answer)
