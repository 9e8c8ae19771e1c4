"""Automatic length: a fit goes on until neither more steps nor a lower rate would change it by much."""

import copy
import dataclasses
import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam

from pyrobnn._core.errors import progress_bar
from pyrobnn._core.lock import ONE_THREAD
from pyrobnn.data.batches import StateDict
from pyrobnn.inference.method import Callback, Progress, Run
from pyrobnn.inference.training.state import Move, TrainingState, cloned, put_values
from pyrobnn.posterior.record import Convergence, EngineRecord, History, StoppedBy

_FEWEST_BLOCKS, _MOST_BLOCKS = 10, 20  # of steps that measure a cycle's objective; or a tenth of the cycle
_LOWER = 0.3  # factor on the learning rate once more steps at the old one gain nothing
_STILL = 0.01  # a cycle in which Adam cannot move a parameter so far tells nothing

Phase = Literal["train", "measure", "ended"]


@dataclasses.dataclass(frozen=True)
class Cycle:
    """A run of the schedule, and then steps at rate 0 that measure the objective."""

    steps: int  # steps that train
    start: int = 0  # steps done when it began
    rate: float = 1.0  # factor on the learning rate
    is_lowered: bool = False  # whether it is the first at its rate, after more steps at a higher rate gained nothing


@dataclasses.dataclass
class Best:
    """The result of the best cycle: parameters, objective in nats, and its standard error."""

    values: list[Tensor]
    elbo: float
    error: float


@dataclasses.dataclass
class _Now:
    """All that a rule knows between two looks."""

    cycle: Cycle
    phase: Phase = "train"  # "ended" after the last cycle
    latest: float = math.nan  # the objective of the latest block of steps
    blocks: list[float] = dataclasses.field(default_factory=list)  # of those that measure; before, of the last four
    best: Best | None = None
    gain: float | None = None  # nats that the latest cycle gained over those before it
    cycle_ends: list[int] = dataclasses.field(default_factory=list)  # steps done then


class ConvergenceRule:
    """Judges a fit after each block of steps: says when its schedule begins anew, and when it has converged.

    A cycle runs the schedule of the learning rate from the best result so far, and measures the objective by steps at
    rate 0. After a gain of the tolerance, or while the KL warms up, the next has twice as many steps, else half as many
    at 0.3 times the rate. If that gains less too the fit has converged, unless its rate was too low to move anything.
    """

    def __init__(self, fit: TrainingState, tolerance: float, max_steps: int) -> None:
        self._fit, self._tolerance, self._max_steps = fit, tolerance, max_steps
        self._now = _Now(Cycle(fit.schedule_steps))

    @property
    def end(self) -> int | None:
        """Steps done at the end of the fit; None while it goes on."""
        return self._now.cycle_ends[-1] if self._now.phase == "ended" else None

    @property
    def converged(self) -> bool:
        """Whether neither more steps nor a lower rate gained the tolerance."""
        now = self._now
        return now.phase == "ended" and now.cycle.is_lowered and not self._gained and not self._is_too_slow

    @property
    def _is_too_slow(self) -> bool:
        """Whether the rate was too low to move a parameter in the latest cycle."""
        return isinstance(self._fit.optimizer, Adam) and self._fit.reach * self._now.cycle.rate < _STILL

    @property
    def measures(self) -> bool:
        """Whether the parameters stand still while the objective is measured."""
        return self._now.phase == "measure"

    @property
    def _gained(self) -> bool:
        """Whether the latest cycle gained the tolerance, or more like it would."""
        now = self._now
        return now.gain is None or now.gain >= self._tolerance or now.cycle.start < self._fit.method.kl_warmup

    def judge(self, terms: np.ndarray, done: int) -> Move | None:
        """Return what is to change after steps with these log-likelihoods and KLs, (steps, 2); None if nothing is."""
        now = self._now
        if now.phase == "ended":
            return None
        now.latest = float((terms[:, 0] - self._fit.method.temperature * terms[:, 1]).mean())
        now.blocks.append(now.latest)
        if now.phase == "train":
            now.blocks = now.blocks[-4:]
            if done - now.cycle.start < now.cycle.steps:
                return None
            now.phase, now.blocks = "measure", []
            return Move(rate=0.0)
        block = len(terms)
        is_known = len(now.blocks) >= _FEWEST_BLOCKS and _error(now.blocks) <= self._tolerance / 2
        if not is_known and len(now.blocks) < max(_MOST_BLOCKS, now.cycle.steps // (10 * block)):
            return None
        elbo, error = float(np.mean(now.blocks)), _error(now.blocks)
        now.gain = elbo - now.best.elbo if now.best else None
        if now.best is None or elbo > now.best.elbo:
            now.best = Best(cloned(self._fit.parameters), elbo, error)
        now.cycle_ends.append(done)
        values, left = now.best.values, self._max_steps - done
        left = min(left - _MOST_BLOCKS * block, 10 * left // 11)  # to measure takes up to a tenth more
        cycle, gained = now.cycle, self._gained
        steps, is_lower = (2 * cycle.steps, False) if gained else (cycle.steps // 2, True)
        if steps > left:
            steps, is_lower = min(cycle.steps, left), True
        if (cycle.is_lowered and not gained) or steps < cycle.steps // 4:
            now.phase = "ended"
            return Move(rate=0.0, values=values)
        rate = cycle.rate * _LOWER if is_lower else cycle.rate
        now.cycle, now.phase, now.blocks = Cycle(steps, done, rate, is_lowered=not gained), "train", []
        return Move(rate=rate, values=values, cycle=steps)

    def finish(self) -> None:
        """Leave the best result in the parameters, whatever the optimiser did after, if a cycle came to its end."""
        if self._now.best:
            put_values(self._fit.parameters, self._now.best.values)

    def reason(self) -> str:
        gain, steps = self._now.gain, self._now.cycle.steps
        if self.converged:
            return f"converged: the last {steps} steps, at a lower rate, gained {gain:.2g} nats"
        if self._now.phase == "ended" and self._is_too_slow:
            return f"not converged: the last {steps} steps move no parameter by {_STILL:g}; raise the learning rate"
        gained = "" if gain is None else f": the last {steps} steps gained {gain:.2g} nats"
        return f"not converged within max_steps={self._max_steps}{gained}"

    def record(self) -> Convergence:
        now, error = self._now, None
        elbo = float(np.mean(now.blocks or [now.latest]))
        if now.best:
            elbo, error = now.best.elbo, now.best.error
        elif len(now.blocks) > 1:
            error = _error(now.blocks)
        seen: dict[str, Any] = {"elbo": elbo, "elbo_error": error, "gain": now.gain, "cycle_ends": [*now.cycle_ends]}
        return Convergence(converged=self.converged, tolerance=self._tolerance, **seen)

    def state(self) -> StateDict:
        """Return all that the next looks depend on; what is not finite, which JSON has not, is left out."""
        table = dataclasses.asdict(self._now)
        return {key: value for key, value in table.items() if not isinstance(value, float) or math.isfinite(value)}

    def restore(self, state: StateDict) -> None:
        table = copy.deepcopy(state)
        for name, kind in (("cycle", Cycle), ("best", Best)):
            table[name] = table[name] and kind(**table[name])
        self._now = _Now(**table)


def _error(blocks: Sequence[float]) -> float:
    return float(np.std(blocks, ddof=1) / math.sqrt(len(blocks))) if len(blocks) > 1 else math.inf


BLOCK = 50  # steps between two looks at the ELBO from the host
_PROGRESS_FORM = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_OPEN_PROGRESS_FORM = "{{desc}}: step {{n_fmt}} of at most {most} [{{elapsed}}{{postfix}}]"  # has no total to show


class Stop:
    """The flag that ends a fit after the present step; a second Ctrl-C ends it at once.

    `by` says who asked, and `why` in words. With `puts_off`, Ctrl-C waits for the end of a step, once one has `begun`.
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
        return self.why or f"stopped by {'a callback' if self.by == 'callback' else self.by} after step {done}"

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
    """Looks at fits after every block of steps: judges those that end by themselves, validates, and asks callbacks."""

    def __init__(
        self, fits: Sequence[TrainingState], run: Run, stop: Stop, *, validate: Callable[[], float] | None, block: int
    ) -> None:
        self._fits, self._stop, self._block = fits, stop, block
        self._callbacks, self._validate, self._method = run.callbacks, validate, fits[0].method
        self._num_steps = num_steps = fits[0].most_steps
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

    def steps_to_next_look(self, done: int, *more: int) -> int:
        """Return how many steps to do before the next look, which is to come at multiples of other numbers, too."""
        intervals = [self._block, *more, *([] if self._validate is None else [self._method.eval_every])]
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
        if self._method.patience is None:
            return
        best = int(np.argmax(np.nan_to_num(self._scores, nan=-np.inf)))
        if best == len(self._scores) - 1:
            self._best_state = copy.deepcopy(self._trained.state_dict())
        if len(self._scores) - 1 - best >= self._method.patience:
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
        """Leave the best results, or those of the best validation score, in the parameters; return how fits ended."""
        if self._best_state is not None:
            self._trained.load_state_dict(self._best_state)
        for each in self._rules if self._best_state is None else []:
            each.finish()
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
