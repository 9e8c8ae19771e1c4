"""What is taken where a user has not chosen: an ordered table of rules, and rows held out that choose among several.

docs/explanations/defaults.md has each rule with its measurements.
"""

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

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.errors import counted, progress_bar
from pyrobnn._core.random import derive
from pyrobnn._core.settings import in_short, snake_case
from pyrobnn.bnn import BNN
from pyrobnn.data import InputColumns
from pyrobnn.data.in_memory import Data
from pyrobnn.data.splits import split_rows
from pyrobnn.inference.limits import ROWS_FOR_EACH_INPUT
from pyrobnn.inference.mcmc.mclmc import MCLMC
from pyrobnn.inference.method import Run, check_offered
from pyrobnn.inference.parts import FAN_IN, NET, OPEN, Facts, Parts, with_width
from pyrobnn.inference.scales.evidence_framework import EvidenceFramework
from pyrobnn.inference.several.ensemble import Ensemble
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods.noise import HalfNormal
from pyrobnn.posterior.record import CandidateRecord, ChoiceRecord
from pyrobnn.tables.schema import Task

MOST_ROWS_OF_CHAINS, ROWS_OF_WIDE = 1000, 2
MOST_ROWS_OF_EVIDENCE, MOST_ROWS_OF_SHORT_EVIDENCE = 500, 200
MOST_LONG_ROWS_OF_EVIDENCE, MOST_NUMBERS_OF_TWO_STARTS = 10_000, 30_000
FEWEST_ROWS_OF_LARGE_BATCHES, FEWEST_ROWS_OF_ONE_NETWORK, MOST_COLUMNS_OF_WAVES = 2000, 20_000, 50

_Columns = tuple[tuple[InputColumns, float], ...]
_SHARED_SCALES = priors.Hierarchical("log_normal")
_SCALES_OF_INPUTS = priors.ARD("log_normal", scale="fan_in")


@dataclasses.dataclass(frozen=True)
class _Size:
    """Networks with dropout: inputs and rates to try for numbers, and steps of a trial and, at least, of a member."""

    numbers: _Columns
    hidden: tuple[int, ...]
    members: int
    trial: int
    steps: int
    batch_size: int
    lr: float


_NUMBERS: _Columns = (("ranks", 0.3), ("ranks", 0.1), ("ranks", 0.03), ("waves", 0.1), ("waves", 0.03))
_OF_MANY_NUMBERS: _Columns = (("ranks", 0.05), ("waves", 0.05))
_LABELS: _Columns = (("plain", 0.1), ("ranks", 0.1))
_FEW = _Size(_NUMBERS, hidden=(128, 128), members=5, trial=1000, steps=500, batch_size=128, lr=0.002)
_MANY = _Size(_OF_MANY_NUMBERS, hidden=(256, 256), members=1, trial=2500, steps=5000, batch_size=256, lr=0.003)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A row of the table: when it holds, why in words, and the parts to take; of several, rows held out choose."""

    name: str
    holds: Callable[[Facts], bool]
    because: str
    parts: Callable[[Facts], list[Parts]]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The rule that holds for facts, and the parts that it leads to with what was given."""

    rule: Rule
    facts: Facts
    candidates: list[Parts]

    @property
    def sentence(self) -> str:
        facts = self.facts
        kind = "labels" if facts.task == "classification" else "counts" if facts.are_counts else "numbers"
        return f"{counted(facts.num_data, 'row')} of {kind}: {self.rule.because}"


def choose(facts: Facts) -> Choice:
    """Return the first rule that holds, with its parts; those that were given stay."""
    rule = next(rule for rule in RULES if rule.holds(facts))
    candidates = list[Parts]()
    for parts in rule.parts(facts):
        own = _with_given(parts, facts)
        candidates += [own] if own not in candidates else []
    return Choice(rule, facts, candidates)


def explain(data: Data, task: Task | None = None) -> str:
    """Return which rule holds for data where nothing is given, and why; without a task whole numbers are labels.

    Examples:
        >>> bnn.inference.defaults.explain(bnn.datasets.sinusoid())
        '32 rows of numbers: up to 500, the evidence measures what was left open'
    """
    told: Task = task or ("regression" if data.y.is_floating_point() else "classification")
    return choose(Facts.of(told, data)).sentence


def _with_given(parts: Parts, facts: Facts) -> Parts:
    """Return the parts that were given in place of others; a prior of None leaves its scales to the method."""
    given = facts.given
    prior = given.prior if parts.prior is None or given.prior not in (None, OPEN) else parts.prior
    net = parts.net if given.net is None else given.net
    return Parts(
        net=with_width(net, "out_features", facts.num_outputs(parts.likelihood)) if facts.num_data else net,
        prior=prior or (OPEN if facts.task == "classification" else FAN_IN),
        likelihood=parts.likelihood,
        method=given.method_for(parts.method),
        inputs=given.inputs or parts.inputs,
        trial=None if parts.trial is None else given.method_for(parts.trial),
    )


def _is_wide(facts: Facts) -> bool:
    """Whether one column of targets has few rows for its inputs, in which the evidence takes noise for a function."""
    is_column = facts.task == "regression" and not facts.num_targets and not facts.are_counts
    is_wide = facts.is_table and facts.num_data < min(ROWS_OF_WIDE * facts.num_inputs, MOST_ROWS_OF_EVIDENCE)
    return is_column and is_wide and facts.takes_chains


def _chains(facts: Facts) -> list[Parts]:
    """Return chains that draw the scales of weights too, of an `MLP` one for each input, and open noise."""
    prior: Any = _SHARED_SCALES
    if facts.given.net is None or isinstance(facts.given.net, nets.MLP):
        prior = {"0.weight": _SCALES_OF_INPUTS, "*": _SHARED_SCALES}
    method = MCLMC(num_draws=100, warmup=600, num_chains=4, init="net")
    noise = likelihoods.Gaussian(HalfNormal(facts.spread))
    likelihood = noise if facts.likelihood == likelihoods.Gaussian() else facts.likelihood
    return [Parts(net=NET, prior=prior, likelihood=likelihood, method=method)]


def _shared(facts: Facts) -> list[Parts]:
    """Return an ensemble of modes, at a low temperature under an open prior, under which a mode is too smooth."""
    steps = max(800, min(2000, 3 * facts.num_data // 32))
    heat = 0.03 if facts.leaves_scales else 1.0
    member = SVI(guide="map", steps=steps, lr=0.005, batch_size=32, schedule="cosine_annealing_lr", temperature=heat)
    return [Parts(net=NET, prior=None, likelihood=facts.likelihood, method=Ensemble(member, members=3))]


def _evidence(facts: Facts) -> list[Parts]:
    """Return the evidence framework, with less to do for few rows, where it is as good, and for many."""
    starts, is_short = EvidenceFramework.starts, facts.num_data <= MOST_ROWS_OF_SHORT_EVIDENCE
    if facts.num_data > MOST_ROWS_OF_EVIDENCE:
        starts = 2 if facts.num_data * facts.num_inputs <= MOST_NUMBERS_OF_TWO_STARTS else 1
    iterations = 75 if is_short else EvidenceFramework.iterations
    method = EvidenceFramework(starts=starts, iterations=iterations, likelihoods=_rivals(facts))
    return [Parts(net=NET, prior=None, likelihood=facts.likelihood, method=method)]


def _rivals(facts: Facts) -> tuple[Any, ...]:
    """Return the likelihoods that compete with the first; none for fewer than six rows for each column."""
    is_open = facts.leaves_likelihood and facts.given.guide is None and not facts.learns_on
    if not is_open or not facts.is_standardized or facts.num_data < ROWS_FOR_EACH_INPUT * facts.num_inputs:
        return ()
    if facts.are_counts and facts.are_dispersed:
        return likelihoods.Poisson(), likelihoods.NegativeBinomial()
    varying = likelihoods.Gaussian("heteroscedastic")
    others = (varying,) if facts.num_data > MOST_ROWS_OF_EVIDENCE else (likelihoods.StudentT(), varying)
    return (likelihoods.LogNormal(), *others) if facts.is_positive else others


def _shape(facts: Facts) -> Any:
    """Return a density of any shape; of whole numbers, on each of which that would pile up, one with a single peak."""
    if facts.are_counts:
        return likelihoods.NegativeBinomial() if facts.are_dispersed else likelihoods.StudentT(scale="heteroscedastic")
    return likelihoods.MixtureDensity(components=5)


def _flexible(facts: Facts) -> list[Parts]:
    """Return the evidence framework, and ensembles with dropout on ranks of inputs, under a density of any shape."""
    has_labels, size = facts.task == "classification", _FEW if facts.num_data < FEWEST_ROWS_OF_ONE_NETWORK else _MANY
    found = list[Parts]()
    if not has_labels and facts.takes_evidence and max(facts.num_data, facts.num_rows) <= MOST_LONG_ROWS_OF_EVIDENCE:
        found += _evidence(facts)
    is_open = facts.leaves_likelihood and not has_labels
    takes_ranks = facts.is_table and facts.is_standardized and facts.leaves_width("in_features")
    batch_size = 64 if facts.num_data < FEWEST_ROWS_OF_LARGE_BATCHES else size.batch_size
    for inputs, rate in _LABELS if has_labels else size.numbers:
        if inputs == "waves" and facts.num_inputs > MOST_COLUMNS_OF_WAVES:
            continue
        guide = guides.Dropout(rate=rate, per_example=True)
        shape: dict[str, Any] = {"batch_size": batch_size, "lr": size.lr, "schedule": "cosine_annealing_lr"}
        member = SVI(guide=guide, steps=size.steps, eval_every=100, **shape)
        trial = dataclasses.replace(member, steps=size.trial, schedule=None, patience=5, eval_every=size.trial // 10)
        found.append(
            Parts(
                net=nets.MLP(hidden=size.hidden),
                prior=priors.Normal(1.0 if has_labels else 0.3),
                likelihood=_shape(facts) if is_open else facts.likelihood,
                method=Ensemble(member, members=size.members),
                inputs=inputs if takes_ranks else "plain",
                trial=trial,
            )
        )
    return found


RULES = (
    Rule(
        "given method",
        lambda facts: facts.given.method is not None,
        "the method was given",
        lambda facts: [Parts(net=NET, prior=None, likelihood=facts.likelihood, method=facts.given.method)],
    ),
    Rule(
        "labels",
        lambda facts: facts.task == "classification" and facts.num_data <= MOST_ROWS_OF_CHAINS and facts.takes_chains,
        f"up to {MOST_ROWS_OF_CHAINS:,}, chains draw the weights and their scales",
        _chains,
    ),
    Rule(
        "few numbers",
        _is_wide,
        f"fewer than {ROWS_OF_WIDE} for each column, chains draw the weights, their scales and the noise",
        _chains,
    ),
    Rule(
        "shared weights",
        lambda facts: facts.shares_weights and facts.leaves_training,
        "weights are shared between positions, so a short ensemble of modes is trained",
        _shared,
    ),
    Rule(
        "numbers",
        lambda facts: facts.task == "regression" and facts.num_data <= MOST_ROWS_OF_EVIDENCE and facts.takes_evidence,
        f"up to {MOST_ROWS_OF_EVIDENCE}, the evidence measures what was left open",
        _evidence,
    ),
    Rule(
        "trained guide",
        lambda facts: facts.learns_on or not (facts.leaves_training and facts.leaves_scales),
        "what was given is trained until it has converged",
        lambda facts: [Parts(net=NET, prior=None, likelihood=facts.likelihood, method=SVI())],
    ),
    Rule("many rows", lambda facts: True, "a fifth of the rows, held out, chooses the best of several fits", _flexible),
)
"""The rules of the defaults, the first that holds counts."""


_SHARE, _MOST_ROWS = 0.2, 4000
_MORE_STEPS = 1.25  # more rows take more steps, by their share
_LAST_STEPS = 0.79  # share of the steps of a trial after which its best score says that it had more to gain
_DRAWS = 200
_LEAST_MASS = 1e-9
"""Probability of a whole number below which the difference of distribution functions has lost its digits."""

Build = Callable[[Parts, Data], BNN]


def settled(choice: Choice, data: Data, run: Run, build: Build = Parts.model) -> tuple[Parts, ChoiceRecord]:
    """Return the parts to fit to all rows, and the record of the choice; `build` makes the model of some parts."""
    for parts in choice.candidates:
        check_offered(parts.method, run)
    given = choice.facts.given
    leaves_length = given.method is None and {"steps", "epochs"}.isdisjoint(given.settings)
    record = ChoiceRecord(choice.rule.name, choice.sentence, [], chose_length=leaves_length)
    first = choice.candidates[0]
    if len(choice.candidates) == 1 and (first.trial is None or not record.chose_length):
        return dataclasses.replace(first, trial=None), record
    judge = _Judge(data, run, build, choice.facts.are_counts, record.chose_length)
    with progress_bar(choice.candidates, desc="fits judged by rows held out", unit="fit", shown=run.progress) as bar:
        trials = [judge.tried(parts, number) for number, parts in enumerate(bar)]
    judged = [trial for trial in trials if trial.parts.trial is None]
    if len(judged) < len(trials):
        short = max((trial for trial in trials if trial not in judged), key=lambda trial: trial.score)
        parts = judge.with_length(short)
        if judged:  # fits of the length for all rows: the best is judged at that length too, with all its members
            trials.append(judge.tried(parts, short.number))
            judged.append(trials[-1])
        else:
            trials[trials.index(short)] = dataclasses.replace(short, parts=parts)
            judged = trials
    order = sorted(judged, key=lambda trial: trial.score, reverse=True)
    best, found = order[0], [trial.record for trial in trials]
    if not math.isfinite(best.score):
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

    @property
    def score(self) -> float:
        return self.record.log_score


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
        alone: dict[str, Any] = {"progress": False, "callbacks": (), "checkpoint": None}
        validation, seed = None if parts.trial is None else held, derive(self.run.seed, f"candidate {number}")
        run = dataclasses.replace(self.run, seed=seed, validation=validation, **alone)
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
        guide = in_short((parts.method.offer().inner or parts.method).offer().guide)
        words = f"{snake_case(type(parts.method).__name__)}, {likelihood}, {guide}, {parts.inputs} inputs"
        name = words if parts.trial is None else f"trial of {words}"
        record = CandidateRecord(name, *judged, time.perf_counter() - started)
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
