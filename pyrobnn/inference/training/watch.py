"""Watching a fit: the history of the ELBO and its two parts, progress bar, callbacks, and the flag that ends it."""

import copy
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.waiting import progress_bar
from pyrobnn.inference.method import Callback, Progress, Run
from pyrobnn.inference.training.checkpoint import Checkpoint
from pyrobnn.inference.training.convergence import ConvergenceRule
from pyrobnn.inference.training.state import TrainingState
from pyrobnn.posterior.record import Convergence, EngineRecord, History, StoppedBy

BLOCK = 50
"""Steps between two looks at the ELBO from the host."""
_PROGRESS_FORM = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_OPEN_PROGRESS_FORM = "{{desc}}: step {{n_fmt}} of at most {most} [{{elapsed}}{{postfix}}]"
"""Of bars: both leave room for the ELBO in 80 columns. A fit that ends by itself has no total to show."""


class Stop:
    """The flag that ends a fit after the present step; a second Ctrl-C ends it at once.

    `by` says who asked, and `why` in words where that and the number of steps do not say it. With `puts_off`, Ctrl-C
    waits for the end of a step, once a step has `begun`.
    """

    def __init__(self, *, puts_off: bool = False) -> None:
        self._puts_off, self.begun = puts_off, False
        self.by: StoppedBy | None = None
        self.why: str | None = None

    @property
    def by_ctrl_c(self) -> bool:
        """Whether Ctrl-C, or KeyboardInterrupt in a callback, asked for the end."""
        return self.by == "Ctrl-C"

    def reason(self, done: int) -> str:
        """Return why a fit has ended after that many steps."""
        by = "a callback" if self.by == "callback" else self.by
        return self.why or f"stopped by {by} after step {done}"

    def ask(self, by: StoppedBy, why: str | None = None) -> None:
        """Have the fit end; the first to ask counts."""
        if self.by is None:
            self.by, self.why = by, why

    def _interrupt(self, *_: Any) -> None:
        if self.by_ctrl_c or not (self._puts_off and self.begun):
            raise KeyboardInterrupt
        self.ask("Ctrl-C")

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Note Ctrl-C in the block, in place of Python's own handler; other handlers, and callbacks, keep theirs."""
        in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
        if not (self._puts_off and in_main) or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        with ONE_THREAD.changed(partial(signal.getsignal, signal.SIGINT), partial(signal.signal, signal.SIGINT)):
            signal.signal(signal.SIGINT, self._interrupt)
            yield

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a KeyboardInterrupt between two steps."""
        try:
            yield
        except KeyboardInterrupt:
            self._interrupt()


def ask(callbacks: Sequence[Callback], state: Progress, stop: Stop) -> None:
    """Show all callbacks the state of a fit, which a plain True or a KeyboardInterrupt of theirs ends."""
    if not callbacks:
        return
    with stop.noted(), ONE_THREAD.others_let_in():
        answers = [callback(state) for callback in callbacks]
        if any(isinstance(answer, (bool, np.bool_)) and answer for answer in answers):
            stop.ask("callback")


@dataclasses.dataclass
class Ended:
    """The end of a fit."""

    history: History  # its steps
    stopped_by: StoppedBy
    stop_reason: str  # the same in words
    convergence: Convergence | None = None  # of a fit of automatic length, how it ended


class Watch:
    """Looks at fits after every block of steps: judges them, shows them, validates, and asks the callbacks.

    A rule judges each fit that ends by itself. The callbacks see the first fit.
    """

    def __init__(
        self, fits: Sequence[TrainingState], run: Run, stop: Stop, *, validate: Callable[[], float] | None, block: int
    ) -> None:
        self._fits, self._stop, self._block = fits, stop, block
        self._callbacks, self._validate, self._method = run.callbacks, validate, fits[0].method
        self._num_steps = num_steps = fits[0].length.most
        ends_by_itself = self._method.ends_by_itself
        self._rules = [ConvergenceRule(fit, fit.tolerance, num_steps) for fit in fits if ends_by_itself]
        form = _OPEN_PROGRESS_FORM.format(most=num_steps) if ends_by_itself else _PROGRESS_FORM
        total = None if ends_by_itself else num_steps
        self.bar = progress_bar(total=total, shown=run.progress, desc="training", bar_format=form)
        self._blocks: list[np.ndarray] = []  # log-likelihood and KL of the steps, (steps, R, 2) each
        self._scores: list[float] = []
        self._scored: list[int] = []
        self._elbo = ""
        self._trained = fits[0].trained
        self._best_state: dict[str, Any] | None = None

    def steps_to_next_look(self, done: int, checkpoint: Checkpoint | None) -> int:
        """Return how many steps to do before the next look, which is to come where a checkpoint is due, too."""
        intervals = [self._block]
        intervals += [] if self._validate is None else [self._method.eval_every]
        intervals += [] if checkpoint is None else [checkpoint.every]
        return min(self._num_steps - done, *(interval - done % interval for interval in intervals))

    def look(self, terms: np.ndarray, done: int) -> None:
        """Judge, show and validate the fits, by the finite terms of the latest of so many steps; ask the callbacks."""
        self._blocks.append(terms)
        at_end = done == self._num_steps
        if done % self._block == 0 or at_end:
            count = done % self._block or self._block
            terms = np.concatenate(self._blocks[-count:])[-count:]
            for index, rule in enumerate(self._rules):
                move = rule.judge(terms[:, index], done)
                if move is not None:
                    self._fits[index].follow(move)
            elbo, first = float((terms[..., 0] - terms[..., 1]).mean()), self._fits[0]
            self._elbo = f"elbo={elbo:.1f}"
            self._show(done)
            ask(self._callbacks, Progress(done, self._num_steps, elbo, first.bnn, first.guide), self._stop)
            if self._rules and all(rule.end is not None for rule in self._rules):
                self._stop.ask("convergence")
        stands = bool(self._rules) and all(rule.measures for rule in self._rules)
        is_due = done % self._method.eval_every == 0 and not stands
        ends = self._stop.by is not None and not self._stop.by_ctrl_c
        if self._validate is not None and (is_due or at_end or ends):
            self._score(done, self._validate())

    def _show(self, done: int) -> None:
        best = f", best score={np.nanmax(self._scores):.3f}" if np.isfinite(self._scores).any() else ""
        self.bar.set_postfix_str(f"{self._elbo}{best}", refresh=False)
        self.bar.update(done - self.bar.n)

    def _score(self, done: int, score: float) -> None:
        """Note a validation score, and end the fit if it waited in vain for a better one."""
        self._scores.append(score)
        self._scored.append(done)
        self._show(done)
        patience = self._method.patience
        if patience is None:
            return
        best = int(np.argmax(np.nan_to_num(self._scores, nan=-np.inf)))
        if best == len(self._scores) - 1:
            self._best_state = copy.deepcopy(self._trained.state_dict())
        if len(self._scores) - 1 - best >= patience:
            self._stop.ask("patience", f"no better validation score since step {self._scored[best]}")

    def state(self) -> dict[str, Any]:
        return {
            "terms": torch.from_numpy(np.concatenate(self._blocks)),
            "scores": [*self._scores],
            "scored": [*self._scored],
            "best": self._best_state,
            "stop": None if self._stop.by_ctrl_c else [self._stop.by, self._stop.why],
            "rules": [rule.state() for rule in self._rules],
        }

    def restore(self, state: dict[str, Any], done: int) -> None:
        """Go on from what was seen after that many steps."""
        self._blocks = [state["terms"].numpy()]
        self._scores, self._scored, self._best_state = [*state["scores"]], [*state["scored"]], state["best"]
        for rule, saved in zip(self._rules, state["rules"], strict=True):
            rule.restore(saved)
        if state["stop"] is not None and state["stop"][0] is not None:
            self._stop.ask(*state["stop"])
        self._show(done)

    def ended(self, done: int, engine: EngineRecord) -> list[Ended]:
        terms = np.concatenate(self._blocks) if self._blocks else np.empty((0, len(self._fits), 2))
        ended = []
        for index, rule in enumerate(self._rules or [None] * len(self._fits)):
            by, why = self._stop.by or "steps", "all steps done" if self._stop.by is None else self._stop.reason(done)
            if rule is not None and (rule.end is not None or self._stop.by is None):
                by, why = "convergence" if rule.converged else "steps", rule.reason()
            log_likelihood, kl = terms[: None if rule is None else rule.end, index].T
            history = History(log_likelihood, kl, [*self._scored], [*self._scores], engine)
            ended.append(Ended(history, by, why, None if rule is None else rule.record()))
        return ended

    def restore_best(self) -> None:
        """Leave the best results in the parameters, and go back to the best validation score where asked for."""
        if self._best_state is not None:
            self._trained.load_state_dict(self._best_state)
            return
        for rule in self._rules:
            rule.finish()
