"""Watching a fit: the history of the ELBO and its two parts, progress bar, callbacks, and what ends its steps early."""

import copy
import dataclasses
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyrobnn._core.counts import length
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn._core.remedies import Remedy, change, reader
from pyrobnn._core.waiting import progress_bar
from pyrobnn.bnn import BNN
from pyrobnn.inference.method import Callback, Progress
from pyrobnn.inference.training.convergence import ConvergenceRule
from pyrobnn.inference.training.state import Move
from pyrobnn.posterior.record import Convergence, EngineRecord

_CTRL_C, _CALLBACK = "Ctrl-C", "a callback"


class Stop:
    """Whether a fit is to end after the present step, and who asked for it; a second Ctrl-C ends it at once.

    Args:
        puts_off: whether Ctrl-C waits for the end of a step, once a step was done; else it goes through.

    Attributes:
        by: who asked; None while the fit goes on.
        begun: whether a step was done.
    """

    def __init__(self, *, puts_off: bool = False) -> None:
        self._puts_off, self.begun = puts_off, False
        self.by: str | None = None

    @property
    def by_ctrl_c(self) -> bool:
        """Whether Ctrl-C, or KeyboardInterrupt in a callback, asked for the end."""
        return self.by == _CTRL_C

    def reason(self, done: int) -> str:
        """Return why a fit has ended after that many steps."""
        return f"stopped by {self.by} after step {done}"

    def ask(self) -> None:
        """Have the fit end, as a callback asked for."""
        self.by = self.by or _CALLBACK

    def _interrupt(self, *_: Any) -> None:
        if self.by_ctrl_c or not (self._puts_off and self.begun):
            raise KeyboardInterrupt
        self.by = _CTRL_C

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Note Ctrl-C in the block, in place of Python's own handler; other handlers, and callbacks, keep theirs."""
        in_main = threading.current_thread() is threading.main_thread()  # elsewhere Python takes no handlers
        if not (self._puts_off and in_main) or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        with ONE_THREAD.changed(lambda: signal.getsignal(signal.SIGINT), _set_handler):
            _set_handler(self._interrupt)
            yield

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a KeyboardInterrupt between two steps."""
        try:
            yield
        except KeyboardInterrupt:
            self._interrupt()


def is_cut_short(record: Any) -> bool:
    """Return whether Ctrl-C ended the fit of a record."""
    return (record.stop_reason or "").startswith(f"stopped by {_CTRL_C}")


def _set_handler(handler: Any) -> None:
    signal.signal(signal.SIGINT, handler)


@dataclasses.dataclass(eq=False)
class History:
    """Estimates of the ELBO along a fit, on the scale of the whole data set in nats.

    Attributes:
        log_likelihood: expected log-likelihood at each step, (steps,).
        kl: KL(q || prior) at each step, (steps,), whatever weight the objective gave it.
        validation_steps: steps after which the validation score was computed.
        validation_scores: mean log score on the validation data at those steps.
        engine: how the steps were run.
    """

    log_likelihood: np.ndarray
    kl: np.ndarray
    validation_steps: list[int]
    validation_scores: list[float]
    engine: EngineRecord = dataclasses.field(default_factory=lambda: EngineRecord("eager", "eager", "asked for"))

    @property
    def elbo(self) -> np.ndarray:
        """The ELBO at each step, log_likelihood - kl."""
        return self.log_likelihood - self.kl

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.kl)


@dataclasses.dataclass
class Ended:
    """The end of a fit.

    Attributes:
        history: its steps.
        stop_reason: why it ended, in words.
        convergence: of a fit of automatic length, how it ended.
    """

    history: History
    stop_reason: str
    convergence: Convergence | None = None


class Terms:
    """Collects the terms of each step on the device and fetches them in blocks."""

    def __init__(self) -> None:
        self._waiting: list[Tensor] = []
        self._fetched: list[np.ndarray] = []
        self.validation_steps: list[int] = []
        self.validation_scores: list[float] = []

    def add(self, terms: Tensor) -> None:
        """Note some steps, (steps, [R,] 2)."""
        self._waiting.append(terms)

    def fetch(self) -> np.ndarray:
        """Bring the waiting steps from the device, (steps, [R,] 2)."""
        if not self._waiting:
            return np.empty((0, 2))
        block = torch.cat(self._waiting).double().cpu().numpy()
        self._waiting.clear()
        self._fetched.append(block)
        return block

    def last(self, count: int) -> np.ndarray:
        """Return the terms of the last steps that were fetched, at most so many, (steps, [R,] 2)."""
        blocks: list[np.ndarray] = []
        for block in reversed(self._fetched):
            blocks.insert(0, block)
            if sum(map(len, blocks)) >= count:
                break
        return np.concatenate(blocks)[-count:]

    @property
    def all(self) -> np.ndarray:
        """Everything fetched so far, (steps, [R,] 2)."""
        return np.concatenate(self._fetched) if self._fetched else np.empty((0, 2))

    def state(self) -> dict[str, Any]:
        """Return everything noted so far."""
        validation = {"steps": [*self.validation_steps], "scores": [*self.validation_scores]}
        return {"blocks": [*self._fetched], "validation": validation}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back, or on, to what was noted then."""
        self._waiting.clear()
        self._fetched = [*state["blocks"]]
        validation = state["validation"]
        self.validation_steps, self.validation_scores = [*validation["steps"]], [*validation["scores"]]

    def histories(self, engine: EngineRecord, ends: Sequence[int | None]) -> list[History]:
        """Return what was noted of each replicate, until the step at which it ended by itself, or all."""
        self.fetch()
        terms = self.all
        columns = terms.reshape(len(terms), -1, 2)
        pairs = zip(columns.transpose(1, 2, 0), itertools.cycle(ends), strict=False)
        return [
            History(log_likelihood[:end], kl[:end], [*self.validation_steps], [*self.validation_scores], engine)
            for (log_likelihood, kl), end in pairs
        ]


ALL_STEPS = "all steps done"
BLOCK = 50
"""Steps between two looks at the ELBO from the host."""
_FORM = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_OPEN_FORM = "{desc}: step {n_fmt} [{elapsed}{postfix}]"
"""Of bars: both leave room for the ELBO in 80 columns. A fit that ends by itself has no total to show."""
_FORECAST_AFTER, _LONG = 2.0, 10.0
"""Seconds after which a fit that ends by itself tells how long it may take, if it is longer than that."""
_SHORTER = Remedy("`steps=`, or SVI(max_steps=...),", f"a limit {change('fit.max_steps=20000')}")


class Watch:
    """Told of each step, it reports, validates, and says when to stop; it looks after every `block` steps.

    Attributes:
        terms: the terms of the ELBO of each step.
        rules: what ends each fit by itself; none where their number of steps is fixed.
        stop_reason: why a callback or the validation score ended all fits; None if neither did.
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
        block: int,
        stop: Stop,
        rules: Sequence[ConvergenceRule] = (),
    ) -> None:
        self._block, self.rules, self._stop = block, rules, stop
        self.terms = Terms()
        self.stop_reason: str | None = None
        self._bnn, self._guide = bnn, guide
        self._num_steps, self._eval_every, self._patience = num_steps, eval_every, patience
        self._callbacks, self._validate = callbacks, validate
        form = _OPEN_FORM if rules else _FORM
        self._bar = progress_bar(total=None if rules else num_steps, shown=progress, desc="training", bar_format=form)
        self._elbo, self._is_forecast, self._progress = "", False, progress
        self._first_look: tuple[float, int] | None = None
        self._trained = nn.ModuleList([bnn, guide])
        self._best_state: dict[str, Any] | None = None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def steps_to_next_look(self, done: int, every: int | None = None) -> int:
        """Return how many steps to do before the next look, which is to come at multiples of `every` too."""
        intervals = [self._block, *([] if self._validate is None else [self._eval_every]), *([every] if every else [])]
        return min(self._num_steps - done, *(interval - done % interval for interval in intervals))

    def report(self, done: int) -> bool:
        """Show, validate and ask the callbacks after that many steps; return whether the fit is to end here."""
        at_end = done == self._num_steps
        stop = False
        if done % self._block == 0 or at_end:
            stop = self._show_and_ask(done)
        stands = bool(self.rules) and all(rule.measures for rule in self.rules)
        if self._validate is not None and ((done % self._eval_every == 0 and not stands) or at_end or stop):
            stop = self._validate_and_judge(done, self._validate) or stop
        return stop

    def judge(self, done: int) -> dict[int, Move]:
        """Return what the rules ask for after that many steps, fetched and finite, by the number of the fit."""
        if not self.rules or (done % self._block and done != self._num_steps):
            return {}
        terms = self._latest(done)
        asked = {index: rule.judge(terms[:, index], done) for index, rule in enumerate(self.rules)}
        return {index: move for index, move in asked.items() if move is not None}

    def _latest(self, done: int) -> np.ndarray:
        """Return the terms since the last look, (steps, R, 2)."""
        terms = self.terms.last(done % self._block or self._block)
        return terms.reshape(len(terms), -1, 2)

    def _show_and_ask(self, done: int) -> bool:
        terms = self._latest(done)
        elbo = float((terms[..., 0] - terms[..., 1]).mean())
        self._elbo = self._words(elbo)
        self._show(done)
        self._forecast(done)
        state = Progress(done, self._num_steps, elbo, self._bnn, self._guide)
        converged = bool(self.rules) and all(rule.end is not None for rule in self.rules)
        ask(self._callbacks, state, self._stop)
        is_asked = self._stop.by is not None and not self._stop.by_ctrl_c
        if is_asked and not converged:
            self.stop_reason = self._stop.reason(done)
        return is_asked or converged

    def _show(self, done: int) -> None:
        scores = self.terms.validation_scores
        best = f", best score={np.nanmax(scores):.3f}" if np.isfinite(scores).any() else ""
        self._bar.set_postfix_str(f"{self._elbo}{best}", refresh=False)
        self._bar.update(done - self._bar.n)

    def _forecast(self, done: int) -> None:
        """Say how long the fit may take at its present speed: beside a bar once, if its end is open and may be far."""
        now = time.perf_counter()
        then, before = self._first_look = self._first_look or (now, done)
        if now - then < _FORECAST_AFTER or done <= before:
            return
        seconds = (self._num_steps - done) * (now - then) / (done - before)
        if self._is_forecast or not self._progress or not self.rules:
            return
        self._is_forecast = True
        if seconds > _LONG:
            text = f"This fit goes on until it has converged, for about {length(seconds)} at most"
            self._bar.write(f"{text}; {_SHORTER.said(reader.get())} ends it earlier.", file=sys.stderr)

    def _words(self, elbo: float) -> str:
        if not self.rules:
            return f"elbo={elbo:.1f}"
        first, others = min(self.rules, key=lambda rule: rule.end is not None), len(self.rules) - 1
        going = f", {sum(rule.end is None for rule in self.rules)} of {others + 1} fits" if others else ""
        return f"{first}{going}"

    def state(self) -> dict[str, Any]:
        """Return what was seen so far."""
        return {
            "terms": self.terms.state(),
            "best": self._best_state,
            "stop_reason": self.stop_reason,
            "rules": [rule.state() for rule in self.rules],
        }

    def restore(self, state: dict[str, Any], done: int) -> None:
        """Go back, or on, to what was seen after that many steps."""
        self.terms.restore(state["terms"])
        self._best_state, self.stop_reason = state["best"], state["stop_reason"]
        for rule, saved in zip(self.rules, state["rules"], strict=True):
            rule.restore(saved)
        self._show(done)

    def _validate_and_judge(self, done: int, validate: Callable[[], float]) -> bool:
        scores, steps = self.terms.validation_scores, self.terms.validation_steps
        scores.append(validate())
        steps.append(done)
        best = int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
        self._show(done)
        if self._patience is None:
            return False
        if best == len(scores) - 1:
            self._best_state = copy.deepcopy(self._trained.state_dict())
        if len(scores) - 1 - best < self._patience:
            return False
        self.stop_reason = f"no better validation score since step {steps[best]}"
        return True

    def _stop_reason_of(self, replicate: int) -> str:
        """Return why a fit ended."""
        rule = self.rules[replicate] if self.rules else None
        if rule is None or (self.stop_reason is not None and rule.end is None):
            return self.stop_reason or ALL_STEPS
        return rule.reason()

    def ended(self, engine: EngineRecord) -> list[Ended]:
        """Return how each fit ended, with what was noted until then."""
        ends = [rule.end for rule in self.rules] or [None]
        return [
            Ended(
                history,
                self._stop_reason_of(index),
                self.rules[index].record() if self.rules else None,
            )
            for index, history in enumerate(self.terms.histories(engine, ends))
        ]

    def restore_best(self) -> None:
        """Leave the best results in the parameters, and go back to the best validation score where asked for."""
        if self._best_state is not None:
            self._trained.load_state_dict(self._best_state)
            return
        for rule in self.rules:
            rule.finish()


def ask(callbacks: Sequence[Callback], state: Progress, stop: Stop) -> None:
    """Show all callbacks the state of a fit; note whether one of them ends it, also by KeyboardInterrupt."""
    if not callbacks:
        return
    with stop.noted(), ONE_THREAD.others_let_in():
        if any([asks_to_stop(callback(state)) for callback in callbacks]):
            stop.ask()


def asks_to_stop(answer: object) -> bool:
    """Return whether the answer of a callback is a plain True, of Python or NumPy."""
    return isinstance(answer, (bool, np.bool_)) and bool(answer)
