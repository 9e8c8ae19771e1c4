"""The shape of the noise where nobody chose it: a few likelihoods, judged by rows that their fits have not seen."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn import guides, likelihoods, nets, priors
from pyrobnn._core.random import derive
from pyrobnn._core.waiting import waiting
from pyrobnn.data.in_memory import Data, held_out
from pyrobnn.data.splits import drawn_together, same_inputs
from pyrobnn.inference import limits
from pyrobnn.inference.default_parts import (
    Chosen,
    Known,
    Parts,
    is_skewed,
    make_model,
    method_for,
    parts_for,
    require_task,
    short_evidence,
    with_widths,
)
from pyrobnn.inference.fit import fit_in_silence
from pyrobnn.inference.method import Run
from pyrobnn.inference.several.ensemble import Ensemble
from pyrobnn.inference.svi.svi import SVI
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.tables.reading import LEAST_AMOUNT
from pyrobnn.verdict.complaint import complaint
from pyrobnn.verdict.residuals import Residuals

_SHAPES = (
    likelihoods.StudentT(scale="heteroscedastic", df="learned"),
    likelihoods.MixtureDensity(components=2),
    likelihoods.MixtureDensity(components=3),
)
"""Among them are wide tails, noise that depends on the input, skewness and several branches."""
_USUAL_LIKELIHOODS = (likelihoods.Gaussian(), likelihoods.LogNormal())
_ERRORS_AHEAD_OF_USUAL = 0.5
"""Defaults, rivals of each other for positive targets with a tail to the right, whose errors may be in per cent; and
the standard errors by which one must be ahead."""
_TAIL_SKEWNESS = 0.5
_FEWEST_TAILED_ROWS = 60
"""Skewness from which positive targets have such a tail, and the fewest rows, of which a third is held out."""
_ROBUST = (likelihoods.StudentT(), likelihoods.StudentT(df=2.5))
"""Rivals of a Gaussian for targets with outliers. Learned degrees of freedom fall to 2 where outliers are large."""
_VARYING = (likelihoods.Gaussian("heteroscedastic"),)
"""The rival of a Gaussian where the size of residuals depends on an input, or where this may be why tails are heavy."""
_COUNT_LIKELIHOODS = (likelihoods.Poisson(), likelihoods.NegativeBinomial(dispersion="learned"))
"""For whole numbers that repeat. A density of any shape, trained on them, would pile up on these values."""
_BEHIND = 2.0
"""Standard errors by which parts may be behind the best on the first third; one in 250 of equals would still win."""
_FEWEST_TOLD = 30
"""Rows of which a third tells how long to train noise that is an output."""
_CHANCE = NormalDist().cdf(-2)
"""That a single rival without a gain is ahead by two standard errors; for several, it is shared (Bonferroni)."""
_MOST_THOROUGH = limits.MOST_EVIDENCE_ROWS["regression"]
"""Rows up to which the evidence framework has many starts and rounds."""
_BRIEF = {"starts": 2, "rounds": 2, "iterations": 50}
"""Of fits that are compared: from large noise, for a simple function, and from small noise, for a close one."""
_TELLING = 100.0
"""Nats a row above which a number says nothing more: a slip of a single cell may gain millions."""
_LEAST_MASS = 1e-9
"""Probability of a whole number below which the difference of distribution functions has lost its digits."""
_NET = nets.MLP(hidden=(50,), dtype="float64")
_PRIOR = priors.Normal(scale="fan_in")
_QUICK = SVI(guide="map", steps=3000, batch_size=64, patience=5)
"""A point estimate of a second or less, which ends at its best validation score."""
_GUIDE = guides.Laplace(structure="kron")
"""Around five anchored modes: wider away from the data than five point estimates, at about the same log score."""


@dataclasses.dataclass(frozen=True)
class HeldOutGain:
    """How much higher the mean log score of rows held out is than under the default parts, and its standard error."""

    mean: float
    error: float

    @property
    def reason(self) -> str:
        """Why a likelihood was chosen, to follow its name in a sentence."""
        nats = f"{self.mean:.2f} ± {self.error:.2f} nats a row" if self.mean <= _TELLING else "far"
        return f", {nats} better on rows held out than the default"


@dataclasses.dataclass(frozen=True)
class Compared:
    """What rows held out say; `complain` fits the parts without some rows and says what is wrong with predictions."""

    parts: Parts  # to take: a likelihood, with a network, a prior and a method
    gain: HeldOutGain | None = None  # of a likelihood other than the default's
    complain: Callable[[], str | None] = lambda: None


def choose_parts(data: Data, known: Known, chosen: Chosen, run: Run, *, may_compare: bool = True) -> Compared:
    """Return the parts of a fit: those chosen, else the defaults, or what rows held out prefer to these.

    The network has its widths, and the method its guide, settings and length. `known` may be of more rows than `data`;
    with `may_compare`, rows are held out where `chosen` leaves the likelihood or its fit open.

    Raises:
        InputError: a likelihood of classes for numbers, or the reverse; a guide or settings that the method lacks.
    """
    default = parts_for(known, chosen)
    require_task(known.task, default.likelihood, data.y)
    found = Compared(default)
    if may_compare and chosen.compares and known.task == "regression" and not known.learns_on:
        is_told, steps = chosen.likelihood is not None, chosen.settings.get("steps")
        found = compare_densities(data, default, run, is_told=is_told, steps=steps)
    parts = found.parts
    net = with_widths(parts.net, data, known.num_outputs(parts.likelihood, data.y))
    method = method_for(chosen, parts.method)
    return dataclasses.replace(found, parts=dataclasses.replace(parts, net=net, method=method))


def compare_densities(
    data: Data, default: Parts, run: Run, *, is_told: bool = False, steps: int | None = None
) -> Compared:
    """Compare likelihoods, and the ways of fitting a default one, where nobody chose them.

    Fits to two thirds of the rows are scored on the last third; up to 500 rows brief fits to each two thirds, of which
    those far behind on the first third are not fitted again. Those fits are of the `_usual` likelihoods and other
    `_noises` by their default parts, for some sizes also by one start of the evidence framework. The best becomes the
    default if it gains more than 0.02 nats a row and one standard error (between a log-normal and a Gaussian, half an
    error); the rows of the largest gain and the largest loss do not count.

    Of likelihoods of other shapes quick point estimates are scored. If the best gains on the default's likelihood, an
    ensemble of it is fitted, and must gain clearly (Bonferroni). Counts are scored by their probability: under a
    density, from y - 1/2 to y + 1/2. Only standardised rows without weights are looked at.

    If the likelihood was chosen (`is_told`), only ways of fitting it are compared. One whose noise is an output gets an
    ensemble with the best number of steps, unless the evidence framework takes it. `steps` bounds each fit.
    """
    silent = dataclasses.replace(run, progress=False)
    if is_told and _needs_length(default) and _is_plain(data) and len(data) >= _FEWEST_TOLD:
        with waiting("choosing the length of training on rows held out", shown=run.progress):
            judge = _Judge(*_two_thirds(data, run)[0], silent, by_mass=False, steps=steps)
            parts = judge.suitable(default)  # by the rows that complain of it, which is slightly mild
            return judge.compared(parts, functools.partial(judge.fit, parts), None)
    rivals, shapes = _rivals(data, default, run, is_told=is_told)
    if not shapes and len(rivals) == 1:
        return Compared(default)
    with waiting("comparing likelihoods on rows held out", shown=run.progress):
        are_counts = data.y.ndim == 1 and _are_counts(data.y.double()) and not _are_distinct(data.y.double())
        first, *others = _two_thirds(data, run)
        are_brief = len(data) <= _MOST_THOROUGH and all(one.method.offer().tunes_scales == "search" for one in rivals)
        judge = _Judge(*first, silent, by_mass=are_counts, steps=steps, others=others if are_brief else ())
        default, fitted, gain = judge.best(rivals)
        if (clear := judge.clear_shape(default.likelihood, shapes)) is not None:
            ensemble = judge.fit(clear)
            fitted = functools.cache(fitted or functools.partial(judge.fit, default))
            gains = judge.scores(ensemble) - judge.scores(fitted())
            if _is_clear(gains, len(shapes)):
                return judge.compared(clear, lambda: ensemble, _mean(gains))
        elif fitted is None and are_counts:
            fitted = functools.partial(judge.fit, dataclasses.replace(default, method=default.method.shortened()))
    return Compared(default, gain) if fitted is None else judge.compared(default, fitted, gain)


def _two_thirds(data: Data, run: Run) -> list[tuple[Data, Data]]:
    """Return two thirds of the rows, and the others, three times, so that each row is among the others once."""
    parts, last = drawn_together(same_inputs(data.x), [len(data) // 3] * 2, seed=derive(run.seed, "density"))
    return held_out(data, [*parts, last])


def _ensemble_parts(likelihood: Any, steps: int) -> Parts:
    member = dataclasses.replace(_QUICK, guide=_GUIDE, steps=steps, patience=None)
    method = Ensemble(member, members=5, anchored=True)
    return Parts(net=_NET, prior=_PRIOR, likelihood=likelihood, method=method)


@dataclasses.dataclass(frozen=True, eq=False)
class _Judge:
    """Fits to two thirds of the rows, and their scores on the last third."""

    train: Data
    rest: Data
    run: Run
    by_mass: bool  # whether targets are whole numbers that repeat, to be scored by their probability
    steps: int | None = None  # bounds each fit
    others: Sequence[tuple[Data, Data]] = ()  # more such parts, with other rows held out

    def quick(self, likelihood: Any) -> tuple[Tensor, int]:
        """Return the log score of each row held out under a point estimate, and its best number of steps."""
        parts = Parts(net=_NET, prior=_PRIOR, likelihood=likelihood, method=_QUICK)
        try:
            posterior = self.fit(parts, validation=self.rest)
        except FloatingPointError:
            return torch.full((len(self.rest),), -math.inf, dtype=torch.float64), 0
        best = int(np.argmax(posterior.history.validation_scores))
        return self.scores(posterior), posterior.history.validation_steps[best]

    def suitable(self, parts: Parts) -> Parts:
        """Return the parts; for noise that is an output, an ensemble with the best number of steps."""
        _, steps = self.quick(parts.likelihood) if _needs_length(parts) else (None, 0)
        return _ensemble_parts(parts.likelihood, steps) if steps else parts

    def fit(self, parts: Parts, **options: Any) -> Any:
        model = make_model(parts, self.train)
        method = parts.method if self.steps is None else parts.method.bounded(self.steps)
        return fit_in_silence(model, self.train, method, dataclasses.replace(self.run, **options))

    def best(self, usual: list[Parts]) -> tuple[Parts, Callable[[], Any] | None, HeldOutGain | None]:
        """Return the best parts, what fits them if there are several, and what another likelihood gains."""
        if len(usual) == 1:
            return usual[0], None, None
        compared = list(usual)
        for index, parts in enumerate(usual if self.others else ()):  # with few starts and rounds
            brief = _BRIEF | {"starts": min(_BRIEF["starts"], parts.method.starts)}
            compared[index] = dataclasses.replace(parts, method=dataclasses.replace(parts.method, **brief))
        fits = [self.fit(parts) for parts in compared]
        scores = [self.scores(fit) for fit in fits]
        kept = _not_far_behind(scores) if self.others else range(len(usual))
        for train, rest in self.others:
            judge = dataclasses.replace(self, train=train, rest=rest)
            for index in kept:
                scores[index] = torch.cat([scores[index], judge.scores(judge.fit(compared[index]))])
        taken = 0
        for index in kept[1:]:
            gain = _mean(_without_extremes(scores[index] - scores[taken]))
            if gain.mean > _least_gain(usual[index], usual[taken], gain):
                taken = index
        is_other = usual[taken].likelihood != usual[0].likelihood
        whole = functools.partial(self.fit, usual[taken]) if self.others else lambda: fits[taken]
        return usual[taken], whole, _mean(scores[taken] - scores[0]) if is_other else None

    def clear_shape(self, likelihood: Any, shapes: tuple[Any, ...]) -> Parts | None:
        """Return parts for the best of several likelihoods, if quick fits of it and of another differ clearly."""
        if not shapes:
            return None
        quick, _ = self.quick(likelihood)
        tried = {shape: self.quick(shape) for shape in shapes}
        best = max(shapes, key=lambda shape: float(tried[shape][0].mean().nan_to_num(-math.inf)))
        scores, steps = tried[best]
        return _ensemble_parts(best, steps) if _is_clear(scores - quick, len(shapes)) else None

    def compared(self, parts: Parts, fitted: Callable[[], Any], gain: HeldOutGain | None) -> Compared:
        """Return what is taken, with the complaint about its fit."""
        rows = self.train, self.rest

        def complain() -> str | None:
            text = complaint(fitted(), *rows)
            return text and f"Of a fit to two thirds of the rows: {text}"

        return Compared(parts, gain, complain)

    def scores(self, posterior: Any) -> Tensor:
        y, prediction = self.rest.y, posterior.predict(self.rest.x)
        scores: Tensor = prediction.log_prob(y).double().cpu()
        if not (self.by_mass and prediction.is_continuous):
            return scores
        below, above = (prediction.cdf(y.double() + half).flatten().double().cpu() for half in (-0.5, 0.5))
        mass = above - below
        return torch.where(mass > _LEAST_MASS, mass.log(), scores.clamp_max(math.log(_LEAST_MASS)))


def _rivals(data: Data, default: Parts, run: Run, *, is_told: bool) -> tuple[list[Parts], tuple[Any, ...]]:
    """Return the parts that compete, of equals the first, and likelihoods of other shapes."""
    if not _is_plain(data):
        return [default], ()
    is_open = data.y.ndim == 1 and not is_told
    usual = _usual(data) if is_open else ()
    noises = _noises(data, default.likelihood, run) if is_open else ()
    known = Known.of("regression", data)
    others = [parts_for(known, Chosen(likelihood=one)) for one in usual if one != default.likelihood]
    if usual is _COUNT_LIKELIHOODS:
        others = [dataclasses.replace(each, method=each.method.shortened()) for each in others]
    rivals = []
    is_short = data.y.numel() <= limits.MOST_ROWS_OF_SHORT_EVIDENCE
    for each in (default, *others):
        if is_short and each.method.offer().tunes_scales is None:
            rivals.append(short_evidence(Chosen(likelihood=each.likelihood)))
        rivals.append(each)
    return rivals + [parts_for(known, Chosen(likelihood=one)) for one in noises], _shapes(data) if is_open else ()


def _usual(data: Data) -> tuple[Any, ...]:
    """Return a log-normal and a Gaussian for positive targets with a tail, and those of counts that repeat."""
    y, rows = data.y.double(), len(data)
    if not _FEWEST_TAILED_ROWS <= rows <= limits.MOST_ROWS_OF_SHORT_EVIDENCE:
        return ()
    if _are_counts(y):
        return _COUNT_LIKELIHOODS if rows <= _MOST_THOROUGH and not _are_distinct(y) else ()
    return _USUAL_LIKELIHOODS if is_skewed(data.y, _TAIL_SKEWNESS) else ()


def _noises(data: Data, default: Any, run: Run) -> tuple[Any, ...]:
    """Return other noise than a Gaussian's, where the residuals of a Gaussian process call for it."""
    is_open = (
        _FEWEST_TAILED_ROWS <= len(data) <= limits.MOST_ROWS_OF_SHORT_EVIDENCE and default == likelihoods.Gaussian()
    )
    if not (is_open and data.y.is_floating_point() and _are_distinct(data.y.double())):
        return ()
    told = Residuals.of(data, run.seed)
    if told.vary_with_inputs:
        return _VARYING
    return (*_VARYING, *_ROBUST) if told.have_heavy_tails else ()


def _shapes(data: Data) -> tuple[Any, ...]:
    """Return other shapes for many rows: of counts, or any for real targets that are mostly distinct."""
    y = data.y.double()
    if len(data) < limits.FEWEST_ROWS_OF_DENSITY:
        return ()
    if _are_counts(y) and not _are_distinct(y):
        return _COUNT_LIKELIHOODS if len(data) > _MOST_THOROUGH else ()
    return _SHAPES if data.y.is_floating_point() and _are_distinct(y) else ()


def _is_plain(data: Data) -> bool:
    """Return whether the rows count alike and are standardised, as the parts that compete expect."""
    return data.weights is None and bool(data.standardize)


def _are_distinct(y: Tensor) -> bool:
    return len(y.unique()) > len(y) / 2


def _are_counts(y: Tensor) -> bool:
    return bool((y >= 0).all()) and torch.equal(y, y.round()) and bool(y.median() < LEAST_AMOUNT)


def _needs_length(parts: Parts) -> bool:
    """Return whether the noise is an output of the network, and nothing holds it against training for too long."""
    is_output = as_likelihood(parts.likelihood).noise == "heteroscedastic"
    return is_output and bool(parts.method.offer().tunes_scales != "search")


def _not_far_behind(scores: list[Tensor]) -> list[int]:
    """Return the numbers of the parts that may still be the best on all rows, by their scores on a third; and 0."""
    best = max(scores, key=lambda each: float(each.mean().nan_to_num(-math.inf)))
    leads = [_mean(_without_extremes(best - each)) for each in scores]
    return [index for index, lead in enumerate(leads) if index == 0 or not lead.mean > _BEHIND * lead.error]


def _without_extremes(gains: Tensor) -> Tensor:
    """Return the gains but the largest and the smallest: one row, such as a slip, is no reason for a likelihood."""
    return gains.sort().values[1:-1]


def _least_gain(rival: Parts, taken: Parts, gain: HeldOutGain) -> float:
    if all(parts.likelihood in _USUAL_LIKELIHOODS for parts in (rival, taken)):
        return _ERRORS_AHEAD_OF_USUAL * gain.error
    return max(limits.LEAST_GAIN_OF_DENSITY, gain.error)


def _is_clear(gains: Tensor, num_rivals: int) -> bool:
    """Return whether the best of several gains more than chance gives the best."""
    gain = _mean(gains)
    errors = NormalDist().inv_cdf(1 - _CHANCE / num_rivals)
    return gain.mean > max(limits.LEAST_GAIN_OF_DENSITY, errors * gain.error)


def _mean(gains: Tensor) -> HeldOutGain:
    return HeldOutGain(float(gains.mean()), float(gains.std()) / math.sqrt(len(gains)))
