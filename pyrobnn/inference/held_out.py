"""A fit chosen by rows held out: each candidate is fitted to four fifths of the rows, and the best to all."""

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyrobnn._core.random import derive
from pyrobnn._core.settings import in_short, kind_of
from pyrobnn._core.waiting import progress_bar
from pyrobnn.bnn import BNN
from pyrobnn.data import InputColumns
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import split_rows
from pyrobnn.inference.defaults import Choice
from pyrobnn.inference.method import Run, check_offered
from pyrobnn.inference.parts import Parts
from pyrobnn.posterior.record import CandidateRecord, ChoiceRecord

_SHARE, _MOST_ROWS = 0.2, 4000
_MORE_STEPS = 1.25
"""More rows take more steps, by their share."""
_LAST_STEPS = 0.79
"""Share of the steps of a trial after which its best score says that it had more to gain."""
_DRAWS = 200
_LEAST_MASS = 1e-9
"""Probability of a whole number below which the difference of distribution functions has lost its digits."""

Build = Callable[[Parts, Data], BNN]


def settled(choice: Choice, data: Data, run: Run, build: Build = Parts.model) -> tuple[Parts, ChoiceRecord]:
    """Return the parts to fit to all rows, and the record of the choice; refuse what a candidate does not take.

    Args:
        choice: the candidates.
        data: all rows.
        run: the arguments of the fit.
        build: makes the model of some parts.
    """
    for parts in choice.candidates:
        check_offered(parts.method, run)
    record = ChoiceRecord(choice.rule.name, choice.sentence, [], chose_length=choice.facts.given.leaves_length)
    first = choice.candidates[0]
    if len(choice.candidates) == 1 and (first.trial is None or not record.chose_length):
        return dataclasses.replace(first, trial=None), record
    judge = _Judge(data, run, build, choice.facts.are_counts, record.chose_length)
    with progress_bar(choice.candidates, desc="fits judged by rows held out", unit="fit", shown=run.progress) as bar:
        trials = [judge.tried(parts, number) for number, parts in enumerate(bar)]
    judged = [trial for trial in trials if trial.parts.trial is None]
    if len(judged) < len(trials):
        short = max((trial for trial in trials if trial not in judged), key=_score)
        parts = judge.with_length(short)
        if judged:  # fits of the length for all rows: the best is judged at that length too, with all its members
            trials.append(judge.tried(parts, short.number))
            judged.append(trials[-1])
        else:
            trials[trials.index(short)] = dataclasses.replace(short, parts=parts)
            judged = trials
    order = sorted(judged, key=_score, reverse=True)
    best, found = order[0], [trial.record for trial in trials]
    if not math.isfinite(_score(best)):
        raise FloatingPointError("No fit kept to finite numbers. Look for extreme values in the data.")
    lead = judge.mean_and_error(best.scores - order[1].scores) if len(order) > 1 else None
    record = dataclasses.replace(record, candidates=found, chosen=trials.index(best), lead=lead)
    if run.progress:
        tqdm.write(str(record), file=sys.stderr)
    return best.parts, record


@dataclasses.dataclass(frozen=True, eq=False)
class _Trial:
    """Parts, the log score of each row held out, and the number of steps that was best there."""

    number: int
    parts: Parts
    scores: Tensor
    steps: int
    record: CandidateRecord


def _score(trial: _Trial) -> float:
    return trial.record.log_score


@dataclasses.dataclass(frozen=True, eq=False)
class _Judge:
    """A fifth of the rows, or fewer of many, which score fits to the others."""

    data: Data
    run: Run
    build: Build
    by_mass: bool = False  # whether targets are whole numbers that repeat, to be scored by their probability
    finds_length: bool = True  # whether nobody gave the number of steps, which then bounds each fit

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """The numbers of the rows to fit to, and of those held out."""
        share = min(_SHARE, _MOST_ROWS / len(self.data))
        return split_rows(self.data.row_groups(), self.data.y, share, seed=derive(self.run.seed, "held out"))

    def split(self, inputs: InputColumns) -> tuple[Data, Data]:
        whole, (rest, part) = self.data.with_inputs(inputs), self.rows
        return whole[rest], whole[part]

    def tried(self, parts: Parts, number: int) -> _Trial:
        """Return the trial of parts; scores are -infinity for a fit that failed."""
        started = time.perf_counter()
        train, held = self.split(parts.inputs)
        method, steps, likelihood = parts.trial or parts.method, 0, in_short(parts.likelihood)
        run = dataclasses.replace(
            self.run,
            seed=derive(self.run.seed, f"candidate {number}"),
            progress=False,
            callbacks=(),
            checkpoint=None,
            validation=None if parts.trial is None else held,
        )
        try:
            posterior = method.infer(self.build(parts, train), train, run)
            scores = self._scores(posterior, held)
            evidence = posterior.record.evidence
            likelihood = likelihood if evidence is None or not evidence.likelihoods else evidence.likelihood.name
            if parts.trial is not None:
                steps = posterior.history.validation_steps[int(np.argmax(posterior.history.validation_scores))]
        except FloatingPointError:
            scores = torch.full((len(held),), -math.inf, dtype=torch.float64)
        judged = self.mean_and_error(scores)
        record = CandidateRecord(_named(parts, likelihood), *judged, time.perf_counter() - started)
        return _Trial(number, parts, scores, steps, record)

    def with_length(self, best: _Trial) -> Parts:
        """Return the parts with the number of steps for all rows; a trial that still gained at its end goes on."""
        parts, steps = best.parts, best.steps
        if not self.finds_length:
            return dataclasses.replace(parts, trial=None)
        inner, trial = parts.method.offer().inner, parts.trial
        if _MORE_STEPS * steps > inner.steps and steps > _LAST_STEPS * trial.steps:
            longer = dataclasses.replace(trial, steps=4 * trial.steps, eval_every=2 * trial.eval_every)
            steps = self.tried(dataclasses.replace(parts, trial=longer), best.number).steps or steps
        inner = dataclasses.replace(inner, steps=max(inner.steps, math.ceil(_MORE_STEPS * steps)))
        return dataclasses.replace(parts, method=dataclasses.replace(parts.method, method=inner), trial=None)

    def mean_and_error(self, scores: Tensor) -> tuple[float, float]:
        """Return the mean of a number for each row held out, and its standard error; infinite where a number is."""
        weights = torch.ones_like(scores) if self.data.weights is None else self.data.weights[self.rows[1]]
        mean, total = float((weights * scores).sum() / weights.sum()), float(weights.sum())
        if not math.isfinite(mean):
            return mean, math.inf
        return mean, math.sqrt(float((weights * (scores - mean).square()).sum()) / max(total - 1, 1) / total)

    def _scores(self, posterior: Any, held: Data) -> Tensor:
        """Return the log score of each row; of counts under a density, the log probability of y - 1/2 to y + 1/2."""
        prediction = posterior.predict(held.x, num_draws=_DRAWS)
        scores: Tensor = prediction.log_prob(held.y).double().cpu().nan_to_num(nan=-math.inf, neginf=-math.inf)
        if not (self.by_mass and prediction.is_continuous):
            return scores
        below, above = (prediction.cdf(held.y.double() + half).flatten().double().cpu() for half in (-0.5, 0.5))
        mass = above - below
        return torch.where(mass > _LEAST_MASS, mass.log(), scores.clamp_max(math.log(_LEAST_MASS)))


def _named(parts: Parts, likelihood: str) -> str:
    """Return the parts by which candidates differ, in words."""
    inner = parts.method.offer().inner or parts.method
    words = f"{kind_of(parts.method)}, {likelihood}, {in_short(inner.offer().guide)}, {parts.inputs} inputs"
    return words if parts.trial is None else f"trial of {words}"
