"""A fit chosen by rows held out: each candidate is fitted to four fifths of the rows, and the best to all."""

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyrobnn._core.random import derive
from pyrobnn._core.settings import in_short
from pyrobnn._core.waiting import progress_bar
from pyrobnn.bnn import BNN
from pyrobnn.data.in_memory import Data
from pyrobnn.inference.defaults import Choice
from pyrobnn.inference.method import Run
from pyrobnn.inference.parts import Parts
from pyrobnn.posterior.record import CandidateRecord, ChoiceRecord

_SHARE = 0.2
_PATIENCE, _EVALUATIONS = 6, 25
_MORE_STEPS = 1.25
"""More rows take more steps, by their share."""
_DRAWS = 200
_LEAST_MASS = 1e-9
"""Probability of a whole number below which the difference of distribution functions has lost its digits."""

Build = Callable[[Parts, Data], BNN]


def settled(choice: Choice, data: Data, run: Run, build: Build = Parts.model) -> tuple[Parts, ChoiceRecord]:
    """Return the parts to fit to all rows, and the record of the choice.

    Args:
        choice: the candidates.
        data: all rows.
        run: the arguments of the fit.
        build: makes the model of some parts.
    """
    record = ChoiceRecord(choice.rule.name, choice.sentence, [], chose_length=choice.facts.given.leaves_length)
    if len(choice.candidates) == 1:
        return choice.candidates[0], record
    seed = derive(run.seed, "held out")
    quiet = dataclasses.replace(run, progress=False, callbacks=(), checkpoint=None)
    by_mass, tried, ends = choice.facts.are_counts, list[Tensor](), list[Parts]()
    with progress_bar(choice.candidates, desc="fits judged by rows held out", unit="fit", shown=run.progress) as bar:
        for index, parts in enumerate(bar):
            started = time.perf_counter()
            train, held = data.with_inputs(parts.inputs).split(_SHARE, seed=seed)
            of_trial = dataclasses.replace(quiet, seed=derive(seed, f"candidate {index}"))
            try:
                scores, end = _tried(parts, train, held, of_trial, build, by_mass=by_mass)
            except FloatingPointError:
                scores, end = torch.full((len(held),), -math.inf, dtype=torch.float64), parts
            tried.append(scores)
            ends.append(end)
            judged = _mean_and_error(scores, held)
            record.candidates.append(CandidateRecord(_named(end), *judged, time.perf_counter() - started))
    best, second = np.argsort([-one.log_score for one in record.candidates], kind="stable")[:2].tolist()
    if not math.isfinite(record.candidates[best].log_score):
        raise FloatingPointError("No fit kept to finite numbers. Look for extreme values in the data.")
    record = dataclasses.replace(record, chosen=best, lead=_mean_and_error(tried[best] - tried[second], held))
    if run.progress:
        tqdm.write(str(record), file=sys.stderr)
    return ends[best], record


def _tried(parts: Parts, train: Data, held: Data, run: Run, build: Build, *, by_mass: bool) -> tuple[Tensor, Parts]:
    """Return the log score of each row held out, and the parts with the length that was best there."""
    inner = parts.method.offer().inner
    if inner is None:
        posterior = parts.method.infer(build(parts, train), train, run)
        return _scores(posterior, held, by_mass=by_mass), parts
    every = max(1, inner.steps // _EVALUATIONS)
    method = dataclasses.replace(inner, patience=_PATIENCE, eval_every=every, schedule=None)
    posterior = method.infer(build(parts, train), train, dataclasses.replace(run, validation=held))
    best = posterior.history.validation_steps[int(np.argmax(posterior.history.validation_scores))]
    longer = dataclasses.replace(inner, steps=math.ceil(_MORE_STEPS * max(best, every)))
    end = dataclasses.replace(parts, method=dataclasses.replace(parts.method, method=longer))
    return _scores(posterior, held, by_mass=by_mass), end


def _scores(posterior: Any, held: Data, *, by_mass: bool) -> Tensor:
    """Return the log score of each row; of counts under a density, the log probability of y - 1/2 to y + 1/2."""
    prediction = posterior.predict(held.x, num_draws=_DRAWS)
    scores: Tensor = prediction.log_prob(held.y).double().cpu()
    if not (by_mass and prediction.is_continuous):
        return scores
    below, above = (prediction.cdf(held.y.double() + half).flatten().double().cpu() for half in (-0.5, 0.5))
    mass = above - below
    return torch.where(mass > _LEAST_MASS, mass.log(), scores.clamp_max(math.log(_LEAST_MASS)))


def _mean_and_error(scores: Tensor, held: Data) -> tuple[float, float]:
    """Return the mean of a number for each row, and its standard error; infinite where a number is."""
    weights = torch.ones_like(scores) if held.weights is None else held.weights
    mean, total = float((weights * scores).sum() / weights.sum()), float(weights.sum())
    if not math.isfinite(mean):
        return mean, math.inf
    return mean, math.sqrt(float((weights * (scores - mean).square()).sum()) / max(total - 1, 1) / total)


def _named(parts: Parts) -> str:
    """Return the parts by which candidates differ, in words."""
    inner = parts.method.offer().inner or parts.method
    return f"{in_short(parts.likelihood)}, {in_short(inner.offer().guide)}, {parts.inputs} inputs"
