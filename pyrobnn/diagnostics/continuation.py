"""Would further training raise the ELBO? A short continuation of a fit at a constant rate measures it."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.random import derive, seeded
from pyrobnn.data.batches import Batches
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.findings import Finding
from pyrobnn.guides.empirical import EmpiricalGuide
from pyrobnn.guides.laplace import BlockGuide
from pyrobnn.guides.pruned import PrunedGuide
from pyrobnn.inference.data import make_source
from pyrobnn.inference.method import registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.cost import Work
from pyrobnn.inference.training.start import running
from pyrobnn.inference.training.state import TrainingState, cloned, put_values
from pyrobnn.nets import leftovers
from pyrobnn.optimizers import resolve_optimizer
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior

_RATES = (3.0, 1.0)
"""Factors on the learning rate of the method: where little is left to gain averages need no small rate."""
_STAGES = (100, 400, 1000)
"""Steps at each rate after which the gain is measured."""
_FEWEST_STEPS = 20
_SECONDS = 10.0
"""Seconds that the steps of any fit may take, as predicted from what one computes: two to five times the true ones."""
_SHARE_OF_FIT = 0.05
_NEGLIGIBLE = 0.5
"""Nats that matter to nobody who has not asked for less."""
_BLOCK = 20
"""Estimates of the objective between two looks at the error of their mean."""
_FEWEST_BLOCKS, _MOST_BLOCKS = 4, 20
_MOST_MEMBERS = 3
_OF_THE_OPTIMIZER = ("guide", "lr", "optimizer", "schedule")
"""Settings of a method that mean nothing to Adam."""


@dataclasses.dataclass(frozen=True)
class Gain:
    """The change of the objective by further steps, in nats on the scale of the whole data set.

    Attributes:
        mean: the objective at the average of the later iterates, less the objective of the fit.
        stderr: its standard error, over draws that both have in common.
        steps: number of further steps.
        rate: their learning rate.
        tolerance: the gain that does not matter.
    """

    mean: float
    stderr: float
    steps: int
    rate: float
    tolerance: float

    @property
    def p_value(self) -> float:
        """The chance of such a gain where the true one is the tolerance, by a normal approximation."""
        excess = self.mean - self.tolerance
        if self.stderr == 0:
            return float(excess <= 0)
        return 0.5 * math.erfc(excess / self.stderr / math.sqrt(2))


class Continuation:
    """A copy of a fit that goes on at constant rates; the posterior is not changed.

    Each rate begins at the fit's own parameters, with a new Adam, and its result is the average of the second half of
    the iterates. The objective there is compared with the fit's on the same batches and random numbers, which the
    steps have not seen.

    Args:
        posterior: the fit.
        method: how it was fitted.
        train: its training data.
        seed: seed of everything random.
    """

    def __init__(self, posterior: Posterior, method: SVI, train: Data, seed: int) -> None:
        self._bnn, self._guide = copy.deepcopy((posterior.bnn, posterior.guide), leftovers(posterior.bnn))
        self._bnn.train()
        self._method = dataclasses.replace(
            method,
            batch_size=method.batch_size or posterior.record.batch_size or "all",
            optimizer=resolve_optimizer("adam"),
            schedule=None,
            kl_warmup=0,
            patience=None,
            epochs=None,
            steps=_STAGES[-1],
        )
        self._source = make_source(train, self._bnn, self._method.batch_size)
        self._example, self._seed = self._source.example(self._bnn), seed
        self._tolerance = method.tolerance_for(self._source.num_data)
        if method.tolerance is None:
            self._tolerance = max(_NEGLIGIBLE, self._tolerance)
        with seeded(seed, "continuation start"):
            self._start = cloned(self._fit(1.0).parameters)
        self._done = 0 if posterior.history is None else len(posterior.history)
        self._own: list[Tensor] = []

    def gain(self, level: float) -> Gain:
        """Return the first gain that is above the tolerance with a p-value below the level, or else the largest."""
        level /= len(_RATES) * len(_STAGES)
        found: list[Gain] = []
        batch_size = self._source.batch_size(self._method.batch_size)
        nan = ignored_warnings("Encountered NaN")  # at rates that are too high
        with running(self._bnn, batch_size, self._seed, "continuation"), nan:
            stages = self._stages()
            for factor in _RATES:
                for gain in self._gains(factor, stages):
                    if gain.p_value < level:
                        return gain
                    found.append(gain)
        nothing = Gain(0.0, math.inf, stages[0], self._method.lr, self._tolerance)
        return max(found, key=lambda gain: gain.mean, default=nothing)

    def _stages(self) -> list[int]:
        """Return the numbers of steps that are affordable, from what one step computes."""
        fit = self._fit(1.0)
        batch = next(fit.batches)
        with Work() as work:
            fit.differentiate(batch)
        seconds = work.cost(1, self._start[0].device.type).step
        most = max(_FEWEST_STEPS, int(_SECONDS / seconds / len(_RATES)), int(_SHARE_OF_FIT * self._done))
        return sorted({min(stage, most) for stage in _STAGES})

    def _gains(self, factor: float, stages: Sequence[int]) -> Iterator[Gain]:
        """Yield the gain after each number of steps at the method's rate times a factor, while it is finite."""
        fit = self._fit(factor)
        put_values(fit.parameters, self._start)
        for stage in stages:
            mean, count = cloned(fit.parameters), 0
            while fit.done < stage:
                fit.advance(1)
                count += fit.done > stage // 2
                for value, parameter in zip(mean, fit.parameters, strict=True):
                    value.lerp_(parameter.detach(), 1 / max(1, count))
            gain = self._measured(fit, mean)
            if not math.isfinite(gain.mean):
                return
            yield gain

    def _measured(self, fit: TrainingState, values: Sequence[Tensor]) -> Gain:
        """Compare the objective at some parameters with that at the start; the fit is left as it is."""
        kept, differences = cloned(fit.parameters), torch.empty(0, dtype=torch.float64)
        for block in range(min(_MOST_BLOCKS, max(_FEWEST_BLOCKS, fit.done // (2 * _BLOCK)))):
            if block == len(self._own):
                put_values(fit.parameters, self._start)
                self._own.append(self._objectives(fit, block))
            put_values(fit.parameters, values)
            differences = torch.cat([differences, self._objectives(fit, block) - self._own[block]])
            mean, stderr = float(differences.mean()), float(differences.std()) / math.sqrt(len(differences))
            if block + 1 >= _FEWEST_BLOCKS and stderr <= max(self._tolerance, abs(mean - self._tolerance)) / 4:
                break
        put_values(fit.parameters, kept)
        return Gain(mean, stderr, fit.done, fit.rate, self._tolerance)

    def _objectives(self, fit: TrainingState, block: int) -> Tensor:
        """Return estimates of the objective on batches and random numbers of a block, (_BLOCK,), on the CPU."""
        batches = self._batches(f"measured {block}")
        with seeded(self._seed, f"measured {block}"):
            terms = torch.stack([fit.evaluate(next(batches)) for _ in range(_BLOCK)]).double().cpu()
        return terms[:, 0] - self._method.temperature * terms[:, 1]

    def _batches(self, purpose: str) -> Batches:
        return self._source.batches(self._bnn, self._method.batch_size, derive(self._seed, purpose))

    def _fit(self, factor: float) -> TrainingState:
        """Return a fit of the copy, at the method's rate times a factor."""
        return TrainingState(
            self._bnn,
            self._guide,
            dataclasses.replace(self._method, lr=factor * self._method.lr),
            self._batches("steps"),
            example=self._example,
            num_data=self._source.num_data,
            num_steps=_STAGES[-1],
        )


def continuation_finding(posterior: Posterior | Mixture, train: Data, level: float, seed: int) -> Finding | None:
    """Continue a fit, or the first members of a mixture, and say whether that raises the ELBO.

    Args:
        posterior: the fit.
        train: its training data.
        level: chance of a warning, at most, where the gain is within the tolerance.
        seed: seed of everything random.

    Returns:
        The finding; None where a fit cannot be continued: not `SVI` alone, or a guide that is no longer trained.
    """
    members = members_of(posterior)[:_MOST_MEMBERS]
    methods = [_method_of(member) for member in members]
    found: list[tuple[Gain, SVI]] = []
    for member, method in zip(members, methods, strict=True):
        if method is None:
            return None
        found.append((Continuation(member, method, train, seed).gain(level / len(members)), method))
    gain, method = min(found, key=lambda pair: (pair[0].p_value, -pair[0].mean))
    ended = [member.record.convergence for member in members]
    converged = all(ending is not None and ending.converged for ending in ended)
    of = "a member" if len(members) > 1 else "the fit"
    return _finding(gain, method, level / len(members), of=of, converged=converged)


def _method_of(posterior: Posterior) -> SVI | None:
    """Return how a fit goes on, which it can after `SVI` and methods of its kind, such as `IVON`; without its guide."""
    table = posterior.record.method
    trained = not isinstance(posterior.guide, (BlockGuide, EmpiricalGuide, PrunedGuide))
    if not (trained and isinstance(table, dict) and any(_trainable(posterior))):
        return None
    kind = table.get("type")
    if kind not in registry.names or not issubclass(registry.get(kind), SVI):
        return None
    method: SVI = registry.resolve({key: value for key, value in table.items() if key != "guide"})
    if type(method) is SVI:
        return method
    others = [field.name for field in dataclasses.fields(SVI) if field.name not in _OF_THE_OPTIMIZER]
    return SVI(**{name: getattr(method, name) for name in others})


def _trainable(posterior: Posterior) -> Iterator[bool]:
    return (p.requires_grad for p in (*posterior.bnn.parameters(), *posterior.guide.parameters()))


def _finding(gain: Gain, method: SVI, level: float, *, of: str, converged: bool) -> Finding:
    numbers = f"{gain.steps} further steps of {of} at a constant learning rate of {gain.rate:.2g} change the ELBO by "
    numbers += f"{gain.mean:+.3g} ± {gain.stderr:.2g} nats; {gain.tolerance:.2g} do not matter"
    if gain.p_value < level / (len(_RATES) * len(_STAGES)):
        least = gain.mean - 2 * gain.stderr
        text = f"The fit has not converged, it is {least:.3g} nats away at least: {numbers}. "
        if method.patience is not None:
            return Finding("elbo", "note", f"{text}Early stopping leaves a fit so.", gain.p_value)
        advice = "lower `tolerance`" if converged else "raise `max_steps`"
        if not method.ends_by_itself:
            advice = "train longer, or leave out `steps` and `epochs`"
        return Finding("elbo", "warning", f"{text}To mend it, {advice}.", gain.p_value)
    if gain.stderr > gain.tolerance:
        return Finding("elbo", "note", f"The ELBO is too noisy to tell whether the fit has converged: {numbers}.")
    return Finding("elbo", "fine", f"Training longer gains nothing that matters: {numbers}.", gain.p_value)
