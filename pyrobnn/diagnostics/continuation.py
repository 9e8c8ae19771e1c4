"""Would further training raise the ELBO? A short continuation of a fit at a constant rate measures it."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.lock import ignored_warnings
from pyrobnn._core.random import derive, seeded
from pyrobnn._core.remedies import Remedy
from pyrobnn._torch.work import Work
from pyrobnn.data.batches import Batches
from pyrobnn.data.in_memory import Data
from pyrobnn.diagnostics.convergence import FEWEST_DRAWS, Chains
from pyrobnn.diagnostics.findings import Finding, Kind
from pyrobnn.guides.built import built
from pyrobnn.inference.data import make_source
from pyrobnn.inference.method import registry
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.inference.training.start import running
from pyrobnn.inference.training.state import TrainingState, cloned, put_values
from pyrobnn.nets import leftovers
from pyrobnn.optimizers import resolve_optimizer
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.verdict.remedies import Fitted, longer, open_to, slower

_STEPS, _FEWEST_STEPS = 400, 20
_SECONDS = 5.0
"""Limit on the predicted seconds of the steps."""
_NEGLIGIBLE = 0.5
"""Nats that matter to nobody who has not asked for less."""
_BLOCK, _FEWEST_BLOCKS, _MOST_BLOCKS = 20, 4, 20
"""Estimates of the objective between two looks at the error of their mean, and numbers of such blocks."""
_MOST_MEMBERS = 3
_OF_THE_OPTIMIZER = ("guide", "lr", "optimizer", "schedule")
"""Settings of a method that mean nothing to Adam."""


@dataclasses.dataclass(frozen=True)
class Gain:
    """The change of the objective by further steps, in nats on the scale of the whole data set.

    Attributes:
        mean: the objective at the average of the later iterates, less the objective of the fit.
        stderr: its standard error, over draws shared by both objectives.
        steps: number of further steps.
        rate: learning rate of these steps.
        tolerance: the largest gain that does not matter.
    """

    mean: float
    stderr: float
    steps: int
    rate: float
    tolerance: float

    @property
    def p_value(self) -> float:
        """The chance of such a gain if the true gain is the tolerance, by a normal approximation."""
        excess = self.mean - self.tolerance
        if self.stderr == 0:
            return float(excess <= 0)
        return 0.5 * math.erfc(excess / self.stderr / math.sqrt(2))


class _Continuation:
    """A copy of a fit, continued at a constant rate; the posterior is not changed.

    It begins at the parameters of the fit, with a new Adam, and its result is the average of the second half of the
    iterates. Its objective is compared with the fit's objective on the same batches and random numbers, which the steps
    have not seen.
    """

    def __init__(self, posterior: Posterior, method: SVI, train: Data, seed: int) -> None:
        bnn, guide = copy.deepcopy((posterior.bnn, posterior.guide), leftovers(posterior.bnn))
        bnn.train()
        self._bnn, self._seed = bnn, seed
        self._method = dataclasses.replace(
            method,
            batch_size=method.batch_size or posterior.record.batch_size or "all",
            optimizer=resolve_optimizer("adam"),
            schedule=None,
            kl_warmup=0,
            patience=None,
            epochs=None,
            steps=_STEPS,
        )
        self._source = make_source(train, bnn, self._method.batch_size, seed=seed)
        self._tolerance = method.tolerance_for(self._source.num_data)
        if method.tolerance is None:
            self._tolerance = max(_NEGLIGIBLE, self._tolerance)
        with seeded(seed, "continuation start"):
            example, batches = self._source.example(bnn), self._batches("steps")
            size = {"num_data": self._source.num_data, "schedule_steps": _STEPS}
            self._fit = TrainingState(bnn, guide, self._method, batches, example=example, **size)

    def gain(self) -> Gain:
        """Return the gain of the steps; no gain of an infinite error where they do not stay finite."""
        fit, start = self._fit, cloned(self._fit.parameters)
        batch_size = self._source.batch_size(self._method.batch_size)
        nan = ignored_warnings("Encountered NaN")  # at rates that are too high
        with running(self._bnn, batch_size, self._seed, "continuation"), nan:
            mean, num_steps = start, self._num_steps()
            for step in range(num_steps):
                fit.advance(1)
                share = 1 / max(1, step + 1 - num_steps // 2)
                mean = [value.lerp(new.detach(), share) for value, new in zip(mean, fit.parameters, strict=True)]
            change, stderr = self._compare(mean, start)
        if not math.isfinite(change):
            change, stderr = 0.0, math.inf
        return Gain(change, stderr, num_steps, max(fit.rates), self._tolerance)

    def _num_steps(self) -> int:
        """Return the affordable number of steps, from the operations of a step."""
        with Work() as work:
            self._fit.differentiate(self._fit.next_batches())
        seconds = work.seconds(self._fit.example[0].device.type)
        return min(_STEPS, max(_FEWEST_STEPS, int(_SECONDS / seconds)))

    def _compare(self, new: Sequence[Tensor], old: Sequence[Tensor]) -> tuple[float, float]:
        """Return the objective at new parameters less the objective at old parameters, and the standard error."""
        differences = torch.empty(0, dtype=torch.float64)
        for block in range(_MOST_BLOCKS):
            differences = torch.cat([differences, self._objectives(new, block) - self._objectives(old, block)])
            mean, stderr = float(differences.mean()), float(differences.std()) / math.sqrt(len(differences))
            if block + 1 >= _FEWEST_BLOCKS and stderr <= max(self._tolerance, abs(mean - self._tolerance)) / 4:
                break
        return mean, stderr

    def _objectives(self, values: Sequence[Tensor], block: int) -> Tensor:
        """Return estimates of the objective on batches and random numbers of a block, (_BLOCK,), on the CPU."""
        put_values(self._fit.parameters, values)
        batches = self._batches(f"measured {block}")
        with seeded(self._seed, f"measured {block}"):
            terms = torch.stack([self._fit.evaluate(next(batches)) for _ in range(_BLOCK)]).double().cpu()
        return terms[:, 0] - self._method.temperature * terms[:, 1]

    def _batches(self, purpose: str) -> Batches:
        return self._source.batches(self._bnn, self._method.batch_size, derive(self._seed, purpose))


def continuation_finding(posterior: Posterior | Mixture, train: Data, level: float, seed: int) -> Finding:
    """Continue a fit of fixed length, or the first members of a mixture, and say whether that raises the ELBO.

    Convergence is unknown where a fit cannot be continued: after another method than `SVI`, or where the guide is no
    longer trained. `level` is the chance of a warning, at most, where the gain is within the tolerance.
    """
    members, fit = members_of(posterior)[:_MOST_MEMBERS], Fitted(posterior)
    pairs = [(member, method) for member in members if (method := _method_of(member)) is not None]
    if len(pairs) < len(members):
        given = tuple(f"{fit.section}.{name}" for name in fit.lengths)
        open_end = Remedy(
            f"leave out {', '.join(fit.lengths)}: the fit then ends by itself", f"leave out {', '.join(given)}"
        )
        text = "Convergence is unknown: the fit cannot be continued."
        return Finding("elbo", "note", text, remedies=(open_end,) if given else ())
    gains = [(_Continuation(*pair, train, seed).gain(), pair[1]) for pair in pairs]
    gain, method = min(gains, key=lambda pair: (pair[0].p_value, -pair[0].mean))
    remedies = open_to(fit, (slower, longer)) or (Remedy("train longer"),)
    return _judged(gain, level / len(members), remedies, stops_early=method.patience is not None)


def _judged(gain: Gain, level: float, remedies: tuple[Remedy, ...], *, stops_early: bool = False) -> Finding:
    """Return the finding on a gain; early stopping leaves a fit before its end."""
    where = (
        f"{gain.steps} further steps at a constant learning rate of {gain.rate:.2g} change the ELBO by "
        f"{gain.mean:+.3g} ± {gain.stderr:.2g} nats; changes below {gain.tolerance:.2g} do not matter."
    )
    if gain.p_value < level:
        lead, kind = "The fit has not converged", "note" if stops_early else "warning"
    elif gain.stderr > gain.tolerance:
        lead, kind = "The ELBO is too noisy to tell whether the fit has converged", "note"
    else:
        lead, kind = "Training longer gains nothing that matters", "fine"
    tries = remedies if kind == "warning" else ()
    return Finding(
        "elbo", cast("Kind", kind), f"{lead}: {where}", gain.p_value, tries, value=gain.mean, error=gain.stderr
    )


def _method_of(posterior: Posterior) -> SVI | None:
    """Return how a fit goes on, which it can after `SVI` and methods of its kind, such as `IVON`; without its guide."""
    table = posterior.record.method
    guide = built(posterior.guide)
    if guide.pruned_sites() or not (guide.trainable and isinstance(table, dict) and any(_trainable(posterior))):
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


def ending_finding(posterior: Posterior, section: str = "fit") -> Finding | None:
    """Report the ending of a fit of automatic length; None for other fits. `section` is that of its settings."""
    record = posterior.record
    convergence = record.convergence
    if convergence is None:
        return None
    gain = "there was no second cycle" if convergence.gain is None else f"the last cycle gained {convergence.gain:.2g}"
    elbo = f"ELBO {convergence.elbo:.2f} nats; {gain}, and gains below {convergence.tolerance:.2g} do not matter"
    if convergence.converged:
        return Finding(
            "length", "fine", f"The fit ended by itself: training longer gains nothing that matters ({elbo})."
        )
    text = f"The fit did not end by itself: {record.stop_reason} ({elbo})."
    if not record.needs_steps:
        return Finding("length", "note", text)
    steps = max(2 * (record.num_steps or 0), SVI().max_steps)
    name = "guide_steps" if any(table.get("type") == "evidence_framework" for table in record.methods) else "max_steps"
    return Finding("length", "warning", text, remedies=(_set("train longer", f"{name}={steps}", section),))


_LARGEST_RHAT, _SMALLEST_ESS = 1.01, 400
_LARGEST_ROUGH_RHAT, _SMALLEST_ROUGH_ESS = 1.1, 50
"""Limits for chains with fewer draws than the effective draws required; their R-hat exceeds 1.01 by chance."""
_MOST_CHAINS = 4
_ACCEPTED = (0.95, 0.99)
"""Rates of acceptance to try one after the other."""
_SMOOTHER = Remedy("choose a smoother prior, `bnn.priors.Normal()`", "choose a smoother prior", ("prior.type=normal",))


def _set(words: str, setting: str, section: str = "fit") -> Remedy:
    """Return the remedy that a setting of the method gets a further value."""
    return Remedy(f"{words}, `{setting}`", words, (f"{section}.{setting}",))


def chain_findings(chains: Chains, settings: Mapping[str, Any] = MappingProxyType({})) -> list[Finding]:
    """Judge Markov chains by R-hat and effective sample sizes of their predictions (Vehtari et al. 2021).

    `settings` are those of the method; remedies go further than they do.
    """
    more = _set("draw more", f"num_draws={4 * chains.num_draws}")
    warmer = _set("warm up longer", f"warmup={2 * int(settings.get('warmup') or 1000)}")
    size = settings.get("step_size")
    step = [] if size is None else [Remedy(f"change or leave out `step_size`, which was given as {size!r}")]
    findings = [_agreement(chains, more, warmer, (*step, warmer, _SMOOTHER))]
    if chains.num_diverging:
        rate = settings.get("target_accept", _ACCEPTED[-1])
        smaller = [_set("take smaller steps", f"target_accept={each!r}") for each in _ACCEPTED if each > rate][:1]
        text = (
            f"{chains.num_diverging} of {chains.num_chains * chains.num_draws} draws diverged: some region of the "
            "posterior is too narrow for the step size and not explored."
        )
        remedies = (*(smaller or [warmer]), *step, _SMOOTHER)
        findings.append(Finding("divergences", "warning", text, remedies=remedies, value=chains.num_diverging))
    return findings


def _agreement(chains: Chains, more: Remedy, warmer: Remedy, if_stuck: tuple[Remedy, ...]) -> Finding:
    fewer = chains.num_chains < _MOST_CHAINS
    longer = (*([_set("run more chains", f"num_chains={_MOST_CHAINS}")] if fewer else []), more, warmer)
    if (convergence := chains.convergence) is None:
        text = (
            "Nothing tells whether the Markov chains have converged: R-hat needs two or more chains of at least "
            f"{FEWEST_DRAWS} draws."
        )
        return Finding("chains", "warning", text, remedies=longer)
    rhat, ess = float(np.max(convergence.rhat)), float(min(np.min(convergence.ess_bulk), np.min(convergence.ess_tail)))
    draws = chains.num_chains * chains.num_draws
    numbers = (
        f"the largest R-hat of a prediction is {rhat:.3f}, and {draws} draws are worth {ess:.0f} independent draws"
    )
    if not math.isfinite(rhat):
        text = "R-hat cannot be computed: at some input the predictions of the chains never change. They are stuck."
        return Finding("chains", "warning", text, remedies=if_stuck)
    if draws < _SMALLEST_ESS and rhat <= _LARGEST_ROUGH_RHAT and ess >= _SMALLEST_ROUGH_ESS:
        text = f"The Markov chains are short, and agree roughly: {numbers}."
        return Finding("chains", "note", text, remedies=(more,), value=rhat)
    if rhat > _LARGEST_RHAT:
        text = f"The Markov chains do not agree yet: {numbers}. R-hat should be below {_LARGEST_RHAT}."
        return Finding("chains", "warning", text, remedies=longer, value=rhat)
    if ess < _SMALLEST_ESS:
        text = f"The Markov chains are too short: {numbers}. {_SMALLEST_ESS} or more are enough."
        return Finding("chains", "warning", text, remedies=(more,), value=ess)
    return Finding("chains", "fine", f"The Markov chains agree: {numbers}.", value=rhat)
