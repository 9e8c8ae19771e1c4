"""Tests of predictions of held-out targets; the posterior gives the null distribution.

If the posterior is right, held-out targets are a further draw from its joint predictive distribution: weights first,
then all targets with the same weights. So statistics of the targets are compared with statistics of targets simulated
in this way. Unlike a test for independent examples, this allows for their shared error through the weights, and keeps
its false-alarm rate for small training sets too.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._core.checks import as_targets
from pyrobnn._core.random import derive
from pyrobnn.data.directions import Directions, ranks
from pyrobnn.diagnostics.findings import WEAK, Finding
from pyrobnn.diagnostics.inputs import input_finding, with_cause
from pyrobnn.metrics.calibration import pit
from pyrobnn.metrics.curves import area_under_risk, errors_and_uncertainty, relative
from pyrobnn.metrics.regression import over_columns
from pyrobnn.posterior.prediction import MEDIAN, Prediction
from pyrobnn.verdict.remedies import (
    Fitted,
    Try,
    amounts,
    ensemble,
    heavier_tails,
    longer,
    measured_noise,
    narrower,
    open_to,
    other_guide,
    other_noise,
    other_rows,
    spread_counts,
    tuned_prior,
    varying_noise,
)

_INSIDE = 0.95
_NEGLIGIBLE = 1e-4
_FEWEST_SIMULATIONS = 200
_ORDERS = 200


@dataclasses.dataclass(frozen=True)
class _Words:
    """The words for a statistic that is too low, too high, or as it should be, how to write its value, and what helps.

    Attributes:
        low, high, fine: sentences.
        number: the form of the value.
        plain_low, plain_high: the same as clauses without numbers.
        if_low, if_high: what to try.
    """

    low: str
    high: str
    fine: str
    number: str
    plain_low: str
    plain_high: str
    if_low: tuple[Try, ...]
    if_high: tuple[Try, ...]


_NO_SIGN, _WEAK_SIGN = "No clear sign that", "A weak sign, which may be chance, that"
_DUE = "where {expected} ± {error} is expected"
_SIDE = "on average a share of {value} of the predictive distribution lies below its target, {due}"
_NARROW = "its predictions are too narrow: targets lie outside of its intervals too often"
_WIDE = "its predictions are wider than they need be"


_BIASED = (other_rows, ensemble)
_OF_NARROW = (measured_noise, spread_counts, varying_noise, other_noise, ensemble)
_OF_WIDE = (measured_noise, longer, narrower, other_noise, heavier_tails)
_RELATED = "the rank correlation of their size, in units of the predicted spread, with the median is {value}, {due}"
_VARIES = "The noise is not the same everywhere, or not as the fit says."
_SURE = "The share of right labels less the mean confidence is {value}, {due}."
_WORDS = {
    "bias": _Words(
        f"Targets lie below the predictions: {_SIDE}. The fit is biased, or far too sure of itself.",
        f"Targets lie above the predictions: {_SIDE}. The fit is biased, or far too sure of itself.",
        f"No clear sign that predictions are too high or too low: {_SIDE}.",
        "{:.3f}",
        "its predictions are too high",
        "its predictions are too low",
        _BIASED,
        _BIASED,
    ),
    "spread": _Words(
        "The predictions are too wide: ranks of the targets in them spread {value} times as much as uniform ones, "
        "{due}. The noise may be over-estimated, or the posterior too vague.",
        "The predictions are too narrow: ranks of the targets in them spread {value} times as much as uniform ones, "
        "{due}. The noise may be under-estimated, or the posterior too narrow.",
        "No clear sign that predictions are too wide or too narrow: ranks of the targets in them spread {value} times "
        "as much as uniform ones, {due}.",
        "{:.2f}",
        _WIDE,
        _NARROW,
        _OF_WIDE,
        _OF_NARROW,
    ),
    "coverage": _Words(
        "The central 95 % of the predictive distributions hold {value} of the targets, {due}: they are too narrow.",
        "The central 95 % of the predictive distributions hold {value} of the targets, {due}: they are too wide.",
        "No clear sign that intervals hold too many or too few targets: the central 95 % of the predictive "
        "distributions hold {value} of them, {due}.",
        "{:.1%}",
        _NARROW,
        _WIDE,
        _OF_NARROW,
        _OF_WIDE,
    ),
    "confidence": _Words(
        f"The fit is over-confident: it is right less often than it says. {_SURE}",
        f"The fit is under-confident: it is right more often than it says. {_SURE}",
        f"No clear sign that the fit is right more or less often than it says. {_SURE}",
        "{:.1%}",
        "it is surer of its classes than it should be",
        "it is less sure of its classes than it could be",
        (narrower, tuned_prior, ensemble),
        (longer, narrower, tuned_prior),
    ),
    "noise": _Words(
        f"Errors shrink as the prediction grows: {_RELATED}. {_VARIES}",
        f"Errors grow with the prediction: {_RELATED}. {_VARIES}",
        f"No clear sign that errors grow or shrink with the prediction: {_RELATED}.",
        "{:z.2f}",
        "its errors shrink as the prediction grows, more than it says",
        "its errors grow with the prediction, more than it says",
        (varying_noise, ensemble),
        (amounts, spread_counts, varying_noise, ensemble),
    ),
    "surprise": _Words(
        "Targets are less likely than the fit expects of itself: their mean log score is {value} nats, {due}. It "
        "misses something, such as outliers, or a difference between training and held-out examples.",
        "Targets are more likely than the fit expects of itself: their mean log score is {value} nats, {due}. Its "
        "predictions are vaguer than the data call for.",
        "No clear sign that targets are more or less likely than the fit expects of itself: their mean log score is "
        "{value} nats, {due}.",
        "{:.2f}",
        "some targets are far less likely than it expects, such as outliers",
        "its predictions are vaguer than they need be",
        (other_noise, spread_counts, heavier_tails, other_rows),
        _OF_WIDE,
    ),
}
_SHIFT = {"bias": 0.5}
"""Offset added to a statistic for display."""
_LEVELS = {"noise": 0.0027}
"""The level of a statistic that has its own: three standard errors in both tails."""


def statistics_of(prediction: Prediction) -> tuple[str, ...]:
    """Return the names of the statistics that share a false-alarm rate."""
    if prediction.has_quantiles:
        return ("bias", "spread", "coverage", "surprise")
    return ("confidence", "surprise") if prediction.is_classification else ("surprise",)


def predictive_findings(
    prediction: Prediction,
    y: Any,
    simulated: Tensor,
    level: float,
    *,
    seed: int,
    fit: Fitted | None = None,
    directions: Directions | None = None,
) -> list[Finding]:
    """Compare statistics of held-out targets y (N,) or (N, K) and of simulated targets (R, N, ...).

    A statistic counts as wrong if Student's t of its distance from the simulated mean has a p-value below `level`, or
    beyond three standard errors for the correlation of errors with predictions, and with inputs (`input_finding`). Each
    simulation takes a draw of the weights that is not in `prediction`. All is in original units. Remedies are
    those that are open to the fit.
    """
    targets = as_targets(y, len(prediction)).to(prediction.device)
    every = [targets, *simulated.to(targets.device)]
    away = [pit(prediction, each, seed=seed).double() - 0.5 for each in every] if prediction.has_quantiles else None
    statistics = _statistics(prediction)
    (values, *repeated) = [statistics(each, None if away is None else away[at]) for at, each in enumerate(every)]
    found = (_Statistic(name, value, np.array([each[name] for each in repeated])) for name, value in values.items())
    p_values = ((statistic, _p_value(statistic, prediction, targets.numel())) for statistic in found)
    findings = [_finding(each, p_value, _LEVELS.get(each.name, level), fit) for each, p_value in p_values]
    varies = 1.0
    if away is not None and directions is not None and directions.names:
        of_inputs, varies = input_finding(directions, torch.stack(away), fit)
        findings.append(of_inputs)
    return with_cause(findings, fit, varies)


@dataclasses.dataclass(frozen=True, eq=False)
class _Statistic:
    """A statistic of held-out targets.

    Attributes:
        name: its name in `_WORDS`.
        value: its value.
        simulated: its values for simulated targets, (R,).
    """

    name: str
    value: float
    simulated: np.ndarray

    @property
    def expected(self) -> float:
        """The mean of the simulated values."""
        return float(self.simulated.mean())

    @property
    def error(self) -> float:
        """The standard error of the distance between a further value and the mean."""
        return float(self.simulated.std(ddof=1)) * math.sqrt(1 + 1 / len(self.simulated))


def _p_value(statistic: _Statistic, prediction: Prediction, num_targets: int) -> float:
    """Return the chance of a value as far from the simulated ones, in both tails."""
    from scipy.stats import t as student

    value, expected, error, simulated = statistic.value, statistic.expected, statistic.error, statistic.simulated
    tails = student.sf(abs(value - expected) / error, len(simulated) - 1) if error > 0 else 0.5 * (value == expected)
    p_value = 2 * float(tails)
    if statistic.name == "coverage":
        p_value = max(p_value, _binomial(value, num_targets))
    if not math.isfinite(value) or not math.isfinite(error):
        return _of_rank(value, simulated)
    if prediction.is_classification:  # a few errors are far from normal
        return max(p_value, _of_rank(value, simulated))
    return p_value


def _finding(statistic: _Statistic, p_value: float, level: float, fit: Fitted | None) -> Finding:
    words, shift = _WORDS[statistic.name], _SHIFT.get(statistic.name, 0.0)
    is_high = statistic.value > statistic.expected
    template = words.fine if p_value >= level else words.high if is_high else words.low
    numbers = {"value": statistic.value + shift, "expected": statistic.expected + shift, "error": statistic.error}
    shown = {key: words.number.format(number) for key, number in numbers.items()}
    text = template.format(value=shown["value"], due=_DUE.format(**shown))
    if p_value >= WEAK:
        return Finding(statistic.name, "fine", text, p_value)
    if p_value >= level:
        return Finding(statistic.name, "note", text.replace(_NO_SIGN, _WEAK_SIGN), p_value)
    tries, plain = (words.if_high, words.plain_high) if is_high else (words.if_low, words.plain_low)
    return Finding(statistic.name, "warning", text, p_value, () if fit is None else open_to(fit, tries), plain)


def num_simulations(level: float, members: int) -> int:
    """Return the number of simulations whose ranks resolve a p-value below a level; at least one per member."""
    return max(_FEWEST_SIMULATIONS, members, math.ceil(2.1 / level))


def _of_rank(value: float, simulated: np.ndarray) -> float:
    """Return the two-sided p-value of a value by its rank among simulated values."""
    below, above = (simulated <= value).sum(), (simulated >= value).sum()
    return min(1.0, 2 * (1 + float(min(below, above))) / (len(simulated) + 1))


def _binomial(share: float, num: int) -> float:
    """Return the p-value of a coverage of independent targets, exact where intervals hold nearly all of a few."""
    from scipy.stats import binomtest

    return float(binomtest(round(share * num), num, _INSIDE).pvalue)


def _statistics(prediction: Prediction) -> Callable[[Tensor, Tensor | None], dict[str, float]]:
    """Return the function that computes the statistics of targets, and of their ranks in the predictions less 1/2."""
    medians = ranks(prediction.quantile(0.5)) if prediction.has_quantiles else None
    label = prediction.label if prediction.is_classification else None

    def statistics(y: Tensor, away: Tensor | None) -> dict[str, float]:
        found = {}
        if away is not None:
            found = {
                "bias": float(away.mean()),
                "spread": float(12 * away.square().mean()),
                "coverage": float((away.abs() <= _INSIDE / 2).double().mean()),
                "noise": float((ranks(away.abs()) * medians).sum(0).mean()),
            }
        elif label is not None:
            confidence = prediction.class_probs.amax(-1).double().mean()
            found = {"confidence": float((label == y).double().mean() - confidence)}
        return found | {"surprise": float(prediction.log_prob(y).double().mean())}

    return statistics


def epistemic_finding(prediction: Prediction, fit: Fitted | None = None) -> Finding:
    """Say so if the weights' uncertainty hardly reaches the predictions of some target column."""
    share = math.nan
    if prediction.has_moments:
        total = _total_variance(prediction)
        share = float((_mean(prediction, prediction.epistemic_variance) / total.clamp_min(1e-300)).min())
    if not math.isfinite(share):
        text = "The predictions have no finite or known mean, so the share of epistemic uncertainty cannot be told."
        return Finding("epistemic", "note", text)
    if share > _NEGLIGIBLE:
        text = (
            f"Uncertainty about the weights, which more data would remove, makes up {share:.1%} of the predictive "
            "variance."
        )
        return Finding("epistemic", "fine", text)
    words = f"near zero ({share:.1e} of it)" if share > 0 else "zero"
    text = (
        f"The epistemic part of the predictive variance is {words}: the posterior behaves like a single network, as a "
        "point estimate such as MAP does, and says nothing about what more data would teach."
    )
    return Finding("epistemic", "warning", text, remedies=() if fit is None else open_to(fit, (other_guide, ensemble)))


def mean_findings(prediction: Prediction, fit: Fitted) -> list[Finding]:
    """Warn of a mean of counts or amounts that a few draws make up."""
    few = int(prediction.rests_on_few_draws.sum())
    if not few:
        return []
    text = (
        f"The predictive mean rests on less than a fifth of the draws at {few} of {len(prediction)} inputs, where "
        "a few draws predict far larger targets than the others."
    )
    return [Finding("mean", "warning", text, remedies=(MEDIAN, *open_to(fit, (other_guide,))))]


def _total_variance(prediction: Prediction) -> Tensor:
    """Return the mean variance of each column; where it is infinite, the square of half the 68 % interval."""
    total = _mean(prediction, prediction.variance)
    if bool(total.isfinite().all()) or not prediction.has_quantiles:
        return total
    lower, upper = prediction.interval(0.68)
    return _mean(prediction, ((upper - lower) / 2).square())


def _mean(prediction: Prediction, values: Tensor) -> Tensor:
    """Return the mean over examples of each column; of classes, over them too."""
    return values.double().mean() if prediction.is_classification else values.double().mean(0)


def ranking_finding(
    prediction: Prediction, y: Any, level: float, *, seed: int, fit: Fitted | None = None
) -> Finding | None:
    """Warn if errors are larger where the fit is surer: if its order of held-out examples is worse than chance.

    The area under the sparsification curve (see `pyrobnn.metrics.sparsification`) is compared with the areas of 200
    random orders, by Student's t at `level`. None where predictive variances are infinite, not known, or all alike.
    """
    from scipy.stats import t as student

    if not prediction.has_moments:
        return None
    errors, uncertainty = errors_and_uncertainty(prediction, y)
    if not np.isfinite(uncertainty).all() or (uncertainty == uncertainty[0]).all():
        return None
    shape = functools.partial(relative, root=not prediction.is_classification)

    def area(by: np.ndarray) -> float:
        return over_columns(functools.partial(area_under_risk, shape=shape), errors, by)(np.ones(len(errors)))

    generator = np.random.default_rng(derive(seed, "orders"))
    chance = np.array([area(generator.permutation(uncertainty)) for _ in range(_ORDERS)])
    observed, error = area(uncertainty), float(chance.std(ddof=1)) * math.sqrt(1 + 1 / _ORDERS)
    if error == 0:
        return None
    p_value = float(student.sf((observed - chance.mean()) / error, _ORDERS - 1))
    left = f"dropping the least sure examples first leaves {observed:.2f} of the error on average"
    numbers = f"{left}, dropping them at random {chance.mean():.2f}"
    if p_value >= level:
        text = f"No clear sign that the uncertainty ranks errors worse than chance: {numbers}."
        return Finding("ranking", "fine", text, p_value)
    text = (
        f"The uncertainty ranks errors worse than chance: {numbers} ± {error:.2f}. Errors are larger where the fit is "
        "surer: do not select examples by it."
    )
    return Finding("ranking", "warning", text, p_value, () if fit is None else open_to(fit, (varying_noise, ensemble)))
