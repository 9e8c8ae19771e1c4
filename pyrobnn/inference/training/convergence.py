"""Automatic length: a fit goes on until neither more steps nor a lower rate would change it by much."""

import copy
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyrobnn.data.batches import State
from pyrobnn.inference.training.state import Move, TrainingState, cloned, put_values
from pyrobnn.posterior.record import Convergence

_FEWEST_MEASURED, _MOST_MEASURED = 10, 20
"""Blocks of steps over which a cycle's objective is measured; at most a tenth of the cycle, if that is more."""
_LOWER = 0.3
"""Factor on the learning rate once more steps at the old one gain nothing."""
_LEAST_COSINE, _ALIKE = 0.9, (0.8, 1.25)
"""Cosine between the ways of two cycles, and ratio of their lengths, of parameters that go straight on.

With rates too small for the way they were 0.97 and more, and 0.92 to 1.00. Cycles that came to an optimum had a cosine
of at most 0.85, or a ratio below 0.5.
"""


@dataclasses.dataclass
class _RuleState:
    """All that a length knows between two looks; a cycle trains, and then measures where it came to.

    Attributes:
        start: steps done when the cycle began.
        steps: how many it trains.
        latest: the objective of the latest block of steps.
        blocks: the objective of blocks at rate 0, once it measures; of the latest four blocks before.
        measures: whether the rate is 0.
        rate: factor on the learning rate while the cycle trains.
        lowered: whether the cycle is the first at its rate, after more steps at a higher one gained nothing.
        best: the parameters of the best cycle.
        elbo: their objective, in nats.
        error: its standard error.
        gain: nats that the latest cycle gained over those before it.
        begun: the parameters at the start of the first cycle, until it ends.
        way: how far the parameters went in the latest cycle.
        reach: how far that cycle could go: its steps times its rate, and its rate, for schedules that end early.
        straight: whether the latest cycle went on where the one before it went, as far as it could.
        cycle_ends: steps done at the end of each cycle.
        end: steps done at the end of the fit.
    """

    steps: int
    start: int = 0
    latest: float = math.nan
    blocks: list[float] = dataclasses.field(default_factory=list)
    measures: bool = False
    rate: float = 1.0
    lowered: bool = False
    best: list[Tensor] = dataclasses.field(default_factory=list)
    elbo: float = -math.inf
    error: float = math.inf
    gain: float | None = None
    begun: list[Tensor] = dataclasses.field(default_factory=list)
    way: list[Tensor] = dataclasses.field(default_factory=list)
    reach: Sequence[float] = (1.0, 1.0)
    straight: bool = True
    cycle_ends: list[int] = dataclasses.field(default_factory=list)
    end: int | None = None


class ConvergenceRule:
    """Judges a fit after each block of steps: says when its schedule begins anew, and when it has converged.

    The fit trains in cycles, each of which runs the schedule of the learning rate from its start to its end, and goes
    on from the best result so far. At the end of a cycle the objective is measured by steps at rate 0. After a cycle
    that gained the tolerance or more, the next one has twice as many steps. After one that gained less, the next one
    has half as many at 0.3 times the rate: noise in the gradients can keep a fit at a high rate from a better result,
    however many steps it has. The fit has converged when that gains less than the tolerance too; the best result stays.
    A small gain says nothing where the parameters still go straight on, as they do at a rate that is too small to come
    anywhere, or where the KL still warms up: the next cycle then has twice as many steps as well.
    A cycle that would pass the largest number of steps takes what is left of it at a lower rate, if that is worth it.
    (The order, more steps first and then lower rates, is our own. Welandawe et al. 2024 divide the rate as well, after
    tests for stationarity, Dhaka et al. 2020, which on networks take longer to a worse ELBO.)

    Args:
        fit: the fit, with the schedule of the first cycle.
        tolerance: nats.
        max_steps: steps that are not passed.
        warmup: first steps, in which the factor on the KL grows.
    """

    def __init__(self, fit: TrainingState, tolerance: float, max_steps: int, *, warmup: int = 0) -> None:
        self._fit, self._tolerance, self._max_steps, self._warmup = fit, tolerance, max_steps, warmup
        self._now = _RuleState(steps=fit.schedule_steps)

    @property
    def end(self) -> int | None:
        """Steps done at the end of the fit; None while it goes on."""
        return self._now.end

    @property
    def converged(self) -> bool:
        """Whether neither more steps nor a lower rate gained the tolerance."""
        return self._now.end is not None and self._gained_nothing

    @property
    def _gained_nothing(self) -> bool:
        return self._now.lowered and not self._gained

    @property
    def _gained(self) -> bool:
        """Whether the latest cycle gained the tolerance, or more like it would."""
        now = self._now
        would = now.straight or now.start < self._warmup
        return now.gain is None or now.gain >= self._tolerance or would

    def judge(self, terms: np.ndarray, done: int) -> Move | None:
        """Return what is to change in the fit after a block of steps; None if it goes on as it does, or has ended.

        Args:
            terms: log-likelihood and KL of the steps, (steps, 2).
            done: the number of the last of them.
        """
        now, method = self._now, self._fit.method
        if now.end is not None:
            return None
        now.begun = now.begun or cloned([] if now.best else self._fit.parameters)
        now.latest = float((terms[:, 0] - method.temperature * terms[:, 1]).mean())
        now.blocks.append(now.latest)
        if not now.measures:
            now.blocks = now.blocks[-4:]
            if done - now.start >= now.steps:
                now.measures, now.blocks = True, []
                return Move(rate=0.0)
            return None
        count = len(now.blocks)
        precise = count >= _FEWEST_MEASURED and _error(now.blocks) <= self._tolerance / 2
        if precise or count >= max(_MOST_MEASURED, now.steps // (10 * len(terms))):
            return self._end_cycle(done, len(terms))
        return None

    def _end_cycle(self, done: int, block: int) -> Move:
        now = self._now
        elbo = float(np.mean(now.blocks))
        now.gain = elbo - now.elbo if now.best else None
        self._compare_ways()
        if elbo > now.elbo:
            now.best, now.elbo, now.error = cloned(self._fit.parameters), elbo, _error(now.blocks)
        now.cycle_ends.append(done)
        steps, is_lower = (2 * now.steps, False) if self._gained else (now.steps // 2, True)
        left = self._max_steps - done
        left = min(left - _MOST_MEASURED * block, 10 * left // 11)  # to measure takes up to a tenth more
        if steps > left:
            steps, is_lower = min(now.steps, left), True
        if self._gained_nothing or steps < now.steps // 4:
            now.end = done
            return Move(rate=0.0, values=now.best)
        now.lowered = not self._gained
        now.rate *= _LOWER if is_lower else 1.0
        now.start, now.steps, now.measures, now.blocks = done, steps, False, []
        return Move(rate=now.rate, values=now.best, cycle=steps)

    def _compare_ways(self) -> None:
        """Note whether the cycle went straight on.

        It is as before where rounding left nothing of the steps, or what is left of `max_steps` is less than the way.
        """
        now, last, last_reach = self._now, self._now.way, self._now.reach
        now.reach = (now.rate * now.steps, now.rate)
        with torch.no_grad():
            now.way = [end - start for end, start in zip(self._fit.parameters, now.best or now.begun, strict=True)]
        now.begun = []
        own = _product(now.way, now.way)
        is_cut = now.straight and now.reach[0] < last_reach[0]
        if not last or own == 0 or is_cut:
            return
        before, both = _product(last, last), _product(now.way, last)
        ratio = both / before if before else 0.0
        reaches = zip(last_reach, now.reach, strict=True)
        is_alike = any(_ALIKE[0] <= ratio * old / new <= _ALIKE[1] for old, new in reaches)
        has_direction = sum(value.numel() for value in now.way) > 1
        now.straight = has_direction and is_alike and both >= _LEAST_COSINE * math.sqrt(own * before)

    @property
    def measures(self) -> bool:
        """Whether the parameters stand still while the objective is measured."""
        return self._now.measures and self._now.end is None

    def finish(self) -> None:
        """Leave the best result in the parameters, whatever the optimiser did after, if a cycle came to its end."""
        if self._now.best:
            put_values(self._fit.parameters, self._now.best)

    def __str__(self) -> str:
        """Return cycle and objective in words."""
        now = self._now
        if now.end is not None:
            return f"{'converged' if self.converged else 'ended'}, elbo={now.elbo:.1f} ± {now.error:.2g}"
        cycle = f"cycle {len(now.cycle_ends) + 1}"
        if len(now.blocks) < 2:
            return cycle
        return f"{cycle}, elbo={np.mean(now.blocks):.1f} ± {_error(now.blocks):.2g}"

    def rest(self, done: int) -> int:
        """Return the number of steps to come if this cycle is the last one, or the next if it is the first."""
        now = self._now
        cycles = 3 * now.steps if not now.cycle_ends else now.steps
        return 0 if now.end is not None else max(1, now.start + cycles - done)

    def reason(self) -> str:
        """Return why the fit ended, in words."""
        now = self._now
        if self.converged:
            return f"converged: the last {now.steps} steps, at a lower rate, gained {now.gain:.2g} nats"
        gained = "" if now.gain is None else f": the last {now.steps} steps gained {now.gain:.2g} nats"
        if now.gain is not None and now.straight:
            gained += ", straight on from those before: `lr` may be too small"
        return f"not converged within max_steps={self._max_steps}{gained}"

    def record(self) -> Convergence:
        """Return how the fit came to its end."""
        now = self._now
        known = bool(now.best) or len(now.blocks) > 1
        elbo, error = (
            (now.elbo, now.error) if now.best else (float(np.mean(now.blocks or [now.latest])), _error(now.blocks))
        )
        return Convergence(
            converged=self.converged,
            elbo=elbo,
            elbo_error=error if known else None,
            gain=now.gain,
            tolerance=self._tolerance,
            cycle_ends=[*now.cycle_ends],
        )

    def state(self) -> State:
        """Return all that the next looks depend on; what is not finite, which JSON has not, is left out."""
        table = dataclasses.asdict(self._now)
        return {key: value for key, value in table.items() if not isinstance(value, float) or math.isfinite(value)}

    def restore(self, state: State) -> None:
        """Go back, or on, to a state."""
        self._now = _RuleState(**copy.deepcopy(state))


def _product(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the sum of the products of all entries, in float64."""
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(one, other, strict=True))


def _error(blocks: Sequence[float]) -> float:
    """Return the standard error of the mean of some blocks."""
    return float(np.std(blocks, ddof=1) / math.sqrt(len(blocks))) if len(blocks) > 1 else math.inf
