"""Tests of predictions of held-out targets, against targets simulated from the posterior.

All targets of a simulation share their weights. Unlike a test for independent examples, this allows for the error that
they share, and keeps its false-alarm rate for small training sets too.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from pyrobnn._core.checks import as_targets
from pyrobnn._core.random import derive
from pyrobnn._core.remedies import Remedy
from pyrobnn.metrics.calibration import pit
from pyrobnn.metrics.curves import area_under_risk, errors_and_uncertainty, relative
from pyrobnn.metrics.scoring import over_columns
from pyrobnn.posterior.prediction import MEDIAN, Prediction
from pyrobnn.verdict.finding import Cause, Finding
from pyrobnn.verdict.remedies import (
    Fitted,
    Try,
    amounts,
    by_evidence,
    ensemble,
    longer,
    measured_noise,
    narrower,
    open_to,
    other_guide,
    other_noise,
    spread_counts,
    varying_noise,
)
from pyrobnn.verdict.residuals import ranks

CLASSES: Literal["classes"] = "classes"
"""Name of the finding that a class is never predicted."""
_INSIDE = 0.95
_NEGLIGIBLE_P = 1e-4
_FEWEST_SIMULATIONS = 200
_SHUFFLED_ORDERS = 200
_RARE = 0.2
"""Share of the labels up to which a class is rare."""
_P_OF_AN_ORDER = 0.05
_P_OF_A_STATISTIC = 0.05
"""The p-values below which an order may be better than guessing, and a statistic is not called fine."""
_LEVELS: dict[Cause, float] = {"noise": 0.0027}
"""The level of a statistic that has its own: three standard errors in both tails."""
MEASURES: dict[Cause, str] = {
    "bias": "the mean share of a predictive distribution below its target",
    "spread": "the spread of the ranks of targets in their predictions, over that of uniform ones",
    "coverage": "the share of targets inside the central 95 %",
    "confidence": "the share of right labels less the mean confidence",
    "noise": "the rank correlation of the size of errors, in units of the predicted spread, with the median",
    "surprise": "the mean log score in nats",
    "ranking": "the share of the error that is left as the least sure examples are dropped, on average",
}
"""The statistics by name."""
_OF_NARROW = (measured_noise, spread_counts, varying_noise, other_noise, ensemble)
_OF_WIDE = (measured_noise, longer, narrower, other_noise)
_OF_GROWING = (amounts, spread_counts, varying_noise, ensemble)
IF_LOW: dict[Cause, tuple[str, tuple[Try, ...]]] = {
    "bias": ("Targets lie below the predictions", (ensemble,)),
    "spread": ("The predictions are too wide", _OF_WIDE),
    "coverage": ("The intervals are too narrow", _OF_NARROW),
    "confidence": ("The fit is over-confident", (narrower, by_evidence, ensemble)),
    "noise": ("Errors shrink as the prediction grows, more than the fit says", (varying_noise, ensemble)),
    "surprise": ("Targets are less likely than the fit expects of itself", (other_noise, spread_counts)),
    "ranking": ("The uncertainty ranks errors better than chance", ()),
}
"""What a value that is too low says, and what to try then."""
IF_HIGH: dict[Cause, tuple[str, tuple[Try, ...]]] = {
    "bias": ("Targets lie above the predictions", (ensemble,)),
    "spread": ("The predictions are too narrow", _OF_NARROW),
    "coverage": ("The intervals are too wide", _OF_WIDE),
    "confidence": ("The fit is under-confident", (longer, narrower, by_evidence)),
    "noise": ("Errors grow with the prediction, more than the fit says", _OF_GROWING),
    "surprise": ("Targets are more likely than the fit expects of itself", _OF_WIDE),
    "ranking": ("The uncertainty ranks errors worse than chance", (varying_noise, ensemble)),
}
"""The same of a value that is too high."""


def statistics_of(prediction: Prediction) -> tuple[str, ...]:
    """Return the names of the statistics that share a false-alarm rate."""
    if prediction.has_quantiles:
        return ("bias", "spread", "coverage", "surprise")
    return ("confidence", "surprise") if prediction.is_classification else ("surprise",)


def predictive_findings(
    prediction: Prediction, y: Any, simulated: Tensor, level: float, *, seed: int, fit: Fitted | None = None
) -> list[Finding]:
    """Compare statistics of held-out targets y (N,) or (N, K) and of simulated targets (R, N, ...).

    A statistic counts as wrong if Student's t of its distance from the simulated mean has a p-value below `level`, or
    beyond three standard errors for the correlation of errors with predictions. All is in original units.
    """
    from scipy.stats import binomtest

    targets = as_targets(y, len(prediction)).to(prediction.device)
    statistics = _statistics(prediction, seed)
    value, *repeated = [statistics(each) for each in (targets, *simulated.to(targets.device))]
    findings = []
    for name, observed in value.items():
        null = np.array([each[name] for each in repeated])
        expected, error = float(null.mean()), float(null.std(ddof=1)) * math.sqrt(1 + 1 / len(null))
        p_value = _p_value(observed, null, expected, error, is_ranked=prediction.is_classification)
        if name == "coverage":  # intervals hold nearly all of a few: exact for independent targets
            num = targets.numel()
            p_value = max(p_value, float(binomtest(round(observed * num), num, _INSIDE).pvalue))
        findings.append(_by_test(name, _Test(observed, expected, error, p_value), level, fit))
    return findings


@dataclasses.dataclass(frozen=True)
class _Test:
    """A value, that of a good fit, the standard error of their difference, and the p-value."""

    value: float
    expected: float
    error: float
    p_value: float


def _by_test(name: Cause, test: _Test, level: float, fit: Fitted | None) -> Finding:
    """Return the finding of a test: a warning below a level, a note of a weak sign, or nothing against the fit."""
    lead, tries = (IF_HIGH if test.value > test.expected else IF_LOW)[name]
    measure, numbers = MEASURES[name], dataclasses.asdict(test)
    if test.p_value < _LEVELS.get(name, level):
        return Finding(name, "warning", f"{lead}, by {measure}.", remedies=_open(fit, tries), plain=lead, **numbers)
    if test.p_value < _P_OF_A_STATISTIC:
        sign = f"A weak sign, which may be chance, that {lead[:1].lower()}{lead[1:]}"
        return Finding(name, "note", f"{sign}, by {measure}.", **numbers)
    return Finding(name, "fine", f"Nothing against the fit in {measure}.", **numbers)


def _open(fit: Fitted | None, tries: Iterable[Try]) -> tuple[Remedy, ...]:
    return () if fit is None else open_to(fit, tries)


def _p_value(value: float, null: np.ndarray, expected: float, error: float, *, is_ranked: bool) -> float:
    """The chance of a value as far from simulated ones, in both tails: by Student's t, of classes by rank too."""
    from scipy.stats import t as student

    below, above = (null <= value).sum(), (null >= value).sum()
    by_rank = min(1.0, 2 * (1 + float(min(below, above))) / (len(null) + 1))
    if not math.isfinite(value) or not math.isfinite(error):
        return by_rank
    tails = student.sf(abs(value - expected) / error, len(null) - 1) if error > 0 else 0.5 * (value == expected)
    return max(2 * float(tails), by_rank if is_ranked else 0.0)


def num_simulations(level: float, members: int) -> int:
    """Return the number of simulations whose ranks resolve a p-value below a level; at least one per member."""
    return max(_FEWEST_SIMULATIONS, members, math.ceil(2.1 / level))


def _statistics(prediction: Prediction, seed: int) -> Callable[[Tensor], dict[Cause, float]]:
    """Return the function that computes the statistics of targets."""
    medians = ranks(prediction.quantile(0.5)) if prediction.has_quantiles else None

    def statistics(y: Tensor) -> dict[Cause, float]:
        found: dict[Cause, float] = {}
        if medians is not None:
            away = pit(prediction, y, seed=seed).double() - 0.5
            found = {
                "bias": 0.5 + float(away.mean()),
                "spread": float(12 * away.square().mean()),
                "coverage": float((away.abs() <= _INSIDE / 2).double().mean()),
                "noise": float((ranks(away.abs()) * medians).sum(0).mean()),
            }
        elif prediction.is_classification:
            confidence = prediction.class_probs.amax(-1).double().mean()
            found = {"confidence": float((prediction.label == y).double().mean() - confidence)}
        return found | {"surprise": float(prediction.log_prob(y).double().mean())}

    return statistics


def epistemic_finding(prediction: Prediction, fit: Fitted | None = None) -> Finding:
    """Say so if the weights' uncertainty hardly reaches the predictions of some target column."""
    dims = None if prediction.is_classification else 0  # each column by itself, classes together
    share = math.nan
    if prediction.has_moments:
        total = prediction.variance.double().mean(dims)
        if prediction.has_quantiles and not bool(total.isfinite().all()):
            lower, upper = prediction.interval(0.68)
            total = ((upper - lower) / 2).square().double().mean(dims)
        shares = (prediction.epistemic_variance.double().mean(dims) / total.clamp_min(1e-300)).flatten()
        share, few = float(shares.min()), (shares <= _NEGLIGIBLE_P).nonzero().flatten().tolist()
        where = f" of target column {', '.join(map(str, few))}" if 0 < len(few) < len(shares) else ""
    if not math.isfinite(share):
        text = "The predictions have no finite or known mean, so the share of epistemic uncertainty cannot be told."
        return Finding("epistemic", "note", text)
    if share > _NEGLIGIBLE_P:
        text = f"Uncertainty about the weights makes up {share:.1%} of the predictive variance."
        return Finding("epistemic", "fine", text, value=share)
    lead = f"The epistemic part of the predictive variance{where} is {'near ' if share > 0 else ''}zero"
    text = (
        f"{lead}: the posterior behaves like a single network there, as a point estimate does, and says nothing about "
        "what more data would teach."
    )
    return Finding("epistemic", "warning", text, None, _open(fit, (other_guide, ensemble)), lead, value=share)


def mean_findings(prediction: Prediction, fit: Fitted) -> list[Finding]:
    """Warn of a mean of counts or amounts that a few draws make up."""
    few = int(prediction.rests_on_few_draws.sum())
    if not few:
        return []
    lead = f"The predictive mean rests on less than a fifth of the draws at {few} of {len(prediction)} inputs"
    text = f"{lead}, where a few draws predict far larger targets than the others."
    return [Finding("mean", "warning", text, remedies=(MEDIAN, *open_to(fit, (other_guide,))), plain=lead)]


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
    chance = np.array([area(generator.permutation(uncertainty)) for _ in range(_SHUFFLED_ORDERS)])
    observed, error = area(uncertainty), float(chance.std(ddof=1)) * math.sqrt(1 + 1 / _SHUFFLED_ORDERS)
    if error == 0:
        return None
    p_value = float(student.sf((observed - chance.mean()) / error, _SHUFFLED_ORDERS - 1))
    return _by_test("ranking", _Test(observed, float(chance.mean()), error, p_value), level, fit)


def rarest_class(y: Tensor) -> tuple[int, bool]:
    """Return the rarest label that occurs in y (N,), and whether it is rare."""
    labels, counts = y.unique(return_counts=True)
    return int(labels[counts.argmin()]), float(counts.min()) <= _RARE * len(y)


def ranks_better(prediction: Prediction, y: Tensor, label: int) -> bool:
    """Return whether the examples of a class have larger probabilities of it than the others, by Mann and Whitney."""
    from scipy.stats import mannwhitneyu

    probs, is_one = prediction.class_probs[:, label].cpu().double(), y.cpu() == label
    if bool(is_one.all()):
        return False
    p_value = mannwhitneyu(probs[is_one].numpy(), probs[~is_one].numpy(), alternative="greater").pvalue
    return bool(p_value < _P_OF_AN_ORDER)


def class_finding(prediction: Prediction, y: Tensor, train_y: Tensor, class_names: Sequence[str] = ()) -> list[Finding]:
    """Note the classes among targets that are never the most probable, with a threshold for the rarest if it is rare.

    The threshold is the share of the class in training; none if no example of the class is above it.
    """

    def named(label: int) -> str:
        return repr(class_names[label]) if class_names else str(label)

    predicted = set(prediction.label.unique().tolist())
    shares = {int(label): float((train_y == label).double().mean()) for label in y.unique()}
    missed = {label: share for label, share in shares.items() if label not in predicted}
    if not missed:
        return []
    num = sum(int((y == label).sum()) for label in missed)
    lead = f"The most probable class is never {', '.join(map(named, missed))}"
    remedies: tuple[Remedy, ...] = ()
    rarest = min(missed, key=missed.__getitem__)
    limit, is_rarest = f"{missed[rarest]:.2g}", y.cpu() == rarest
    said = prediction.class_probs[:, rarest].cpu() > float(limit)
    if 0 < missed[rarest] <= _RARE and (right := int((said & is_rarest).sum())):
        price = f"which finds {right} of {int(is_rarest.sum())} among {int(said.sum())}"
        column = f"prob_{class_names[rarest]}" if class_names else "its probability"
        say, call = f"say {named(rarest)} where", f"`prediction.class_probs[:, {rarest}] > {limit}`"
        remedies = (Remedy(f"{say} {call}, {price}", f"{say} {column} is above {limit}, {price}"),)
    text = f"{lead}: {num} of {len(y)} are."
    return [Finding(CLASSES, "note", text, remedies=remedies, plain=lead, value=num)]
