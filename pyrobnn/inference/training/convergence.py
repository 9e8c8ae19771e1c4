"""Automatic length: a fit goes on until neither more steps nor a lower rate would change it by much."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor
from torch.optim import Adam

from pyrobnn.data.batches import StateDict
from pyrobnn.inference.training.state import Move, TrainingState, cloned, put_values
from pyrobnn.posterior.record import Convergence

_FEWEST_BLOCKS = 10
_MOST_BLOCKS = 20
"""Blocks of steps over which a cycle's objective is measured; at most a tenth of the cycle, if that is more."""
_LOWER = 0.3
"""Factor on the learning rate once more steps at the old one gain nothing."""
_STILL = 0.01
"""A cycle in which Adam cannot move a parameter so far tells nothing: its steps are no longer than its rate."""

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


def cycle_after(cycle: Cycle, done: int, left: int, *, gained: bool) -> Cycle | None:
    """Return the cycle that follows, of at most `left` steps that train; None if the fit ends."""
    if cycle.is_lowered and not gained:
        return None
    steps, is_lower = (2 * cycle.steps, False) if gained else (cycle.steps // 2, True)
    if steps > left:
        steps, is_lower = min(cycle.steps, left), True
    if steps < cycle.steps // 4:
        return None
    return Cycle(steps, done, cycle.rate * _LOWER if is_lower else cycle.rate, is_lowered=not gained)


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
        values = self._end_cycle(done)
        left = self._max_steps - done
        left = min(left - _MOST_BLOCKS * block, 10 * left // 11)  # to measure takes up to a tenth more
        following = cycle_after(now.cycle, done, left, gained=self._gained)
        if following is None:
            now.phase = "ended"
            return Move(rate=0.0, values=values)
        now.cycle, now.phase, now.blocks = following, "train", []
        return Move(rate=following.rate, values=values, cycle=following.steps)

    def _end_cycle(self, done: int) -> list[Tensor]:
        """Note what the cycle gained, and return the best parameters."""
        now = self._now
        elbo, error = float(np.mean(now.blocks)), _error(now.blocks)
        now.gain = elbo - now.best.elbo if now.best else None
        if now.best is None or elbo > now.best.elbo:
            now.best = Best(cloned(self._fit.parameters), elbo, error)
        now.cycle_ends.append(done)
        return now.best.values

    def finish(self) -> None:
        """Leave the best result in the parameters, whatever the optimiser did after, if a cycle came to its end."""
        if self._now.best:
            put_values(self._fit.parameters, self._now.best.values)

    def reason(self) -> str:
        gain, steps = self._now.gain, self._now.cycle.steps
        if self.converged:
            return f"converged: the last {steps} steps, at a lower rate, gained {gain:.2g} nats"
        if self._now.phase == "ended" and self._is_too_slow:
            return (
                f"not converged: the last {steps} steps cannot move a parameter by {_STILL:g}; raise the learning rate"
            )
        gained = "" if gain is None else f": the last {steps} steps gained {gain:.2g} nats"
        return f"not converged within max_steps={self._max_steps}{gained}"

    def record(self) -> Convergence:
        now, error = self._now, None
        elbo = float(np.mean(now.blocks or [now.latest]))
        if now.best:
            elbo, error = now.best.elbo, now.best.error
        elif len(now.blocks) > 1:
            error = _error(now.blocks)
        return Convergence(
            converged=self.converged,
            elbo=elbo,
            elbo_error=error,
            gain=now.gain,
            tolerance=self._tolerance,
            cycle_ends=[*now.cycle_ends],
        )

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
