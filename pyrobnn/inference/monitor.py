"""Watching a fit: history, progress bar, callbacks, early stopping, and a halt when numbers cease to be finite."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from pyro.nn import PyroModule
from torch import nn
from tqdm.std import tqdm

from pyrobnn.bnn import BNN
from pyrobnn.inference.history import Recorder

_BLOCK = 50
"""Steps between two looks at the ELBO from the host."""


@dataclasses.dataclass(frozen=True, eq=False)
class Progress:
    """What a callback sees after each block of 50 steps; a callback that returns True ends the fit.

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
    """Told of each step, it reports, validates, and says when to stop; it looks after every `block` steps."""

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

    def steps_to_next_look(self, done: int) -> int:
        """Return how many steps to do before `stops_after` is to be asked again."""
        intervals = [self._block] if self._validate is None else [self._block, self._eval_every]
        return min(self._num_steps - done, *(interval - done % interval for interval in intervals))

    def stops_after(self, done: int) -> bool:
        """Look at the fit after that many steps, and say whether it should end here."""
        at_end = done == self._num_steps
        stop = False
        if done % self._block == 0 or at_end:
            stop = self._report(done)
        if self._validate is not None and (done % self._eval_every == 0 or at_end or stop):
            stop = self._validated_long_ago(done, self._validate) or stop
        return stop

    def _report(self, done: int) -> bool:
        terms = self.recorder.fetch()
        elbo = terms[..., 0] - terms[..., 1]
        if not np.isfinite(elbo).all():
            index, *replicate = np.argwhere(~np.isfinite(elbo))[0]
            where = f" of replicate {replicate[0]}" if replicate else ""
            raise FloatingPointError(
                f"The ELBO{where} became {elbo[~np.isfinite(elbo)][0]} at step {done - len(elbo) + index + 1}: lower "
                "the learning rate, standardise the data, or start the guide narrower."
            )
        self._bar.update(done - self._bar.n)
        self._bar.set_postfix(elbo=f"{elbo.mean():.1f}")
        state = Progress(done, self._num_steps, float(elbo.mean()), self._bnn, self._guide)
        stop = any([_asks_to_stop(callback(state)) for callback in self._callbacks])
        if stop:
            self.stop_reason = f"stopped by a callback after step {done}"
        return stop

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


def _asks_to_stop(answer: object) -> bool:
    return isinstance(answer, (bool, np.bool_)) and bool(answer)
