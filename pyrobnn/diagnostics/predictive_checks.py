"""Statistics of held-out targets, beside those of targets simulated from the posterior, all by the same weights.

Unlike a test for independent examples, this allows for their common error, and keeps its rate for small data too.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from pyrobnn._core.checks import as_targets
from pyrobnn._core.random import derive
from pyrobnn.metrics.calibration import pit
from pyrobnn.metrics.curves import area_under_risk, errors_and_uncertainty, relative
from pyrobnn.metrics.scoring import over_columns
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.evidence import THREE_ERRORS, Evidence
from pyrobnn.verdict.finding import Finding, Values, lowered, templates

_INSIDE = 0.95
_SHUFFLED_ORDERS = 200
PASSED = "nothing against"  # the key of the finding of a test that found nothing
_P_OF_A_STATISTIC = 0.05  # below which a statistic is not called fine
LEVELS = {"noise": 2 * THREE_ERRORS}  # p-values below which other tests warn than those that share the rate
_OF_QUANTILES: dict[str, Callable[[Tensor, np.ndarray], float]] = {
    "spread": lambda away, medians: float(12 * away.square().mean()),
    "coverage": lambda away, medians: float((away.abs() <= _INSIDE / 2).double().mean()),
    "bias": lambda away, medians: 0.5 + float(away.mean()),
    "noise": lambda away, medians: float((ranks(away.abs()) * medians).sum(0).mean()),
}
"""Statistics of PIT values less 1/2, (N,) or (N, K), and of the ranks of predicted medians."""


class Deviation(NamedTuple):
    """A statistic, that of a good fit, the standard error of their difference, and the p-value."""

    value: float
    expected: float
    error: float
    p: float

    def finding(self, name: str, level: float) -> Finding:
        """Return a warning below a level, a note of a weak sign, or nothing against the fit."""
        key = f"{name} {'low' if self.value <= self.expected else 'high'}"
        facts: Values = {"measure": templates()[key].measure, "sign": lowered(templates()[key].lead)}
        if self.p < level:
            return Finding(name, "warning", *self, facts=facts, key=key)
        is_weak = self.p < _P_OF_A_STATISTIC
        return Finding(name, "note" if is_weak else "fine", *self, facts=facts, key="weak sign" if is_weak else PASSED)


def level_of(evidence: Evidence) -> float:
    """Return the p-value below which a test warns: the tests of ELBO and calibration share the false-alarm rate."""
    num = int(by_steps(evidence))
    if evidence.held_out is not None:
        num += len({*statistics_of(evidence.prediction)} - {*LEVELS})
    return evidence.budget.false_alarm_rate / max(1, num)


def statistics_of(prediction: Prediction) -> list[str]:
    """Return the names of the statistics of targets, in the order in which they are told."""
    of_kind = _OF_QUANTILES if prediction.has_quantiles else ["confidence"] * prediction.is_classification
    return [*of_kind, "surprise"]


def by_steps(evidence: Evidence) -> bool:
    """Return whether steps along the gradient of the ELBO led to the fit, in a loop of the caller's or here."""
    return bool(evidence.posterior.record.own_loop or len(evidence.posterior.history or ()))


def predictive_tests(prediction: Prediction, y: Any, simulated: Tensor, *, seed: int) -> dict[str, Deviation]:
    """Compare statistics of held-out targets y (N,) or (N, K) and of simulated targets (R, N, ...), in original units.

    The p-value is Student's t of the distance from the simulated mean; of classes it is that of the rank, if larger.
    """
    from scipy.stats import binomtest

    targets = as_targets(y, len(prediction)).to(prediction.device)
    statistics, tests = _statistics(prediction, seed), {}
    values, *repeated = [statistics(each) for each in (targets, *simulated.to(targets.device))]
    for name, value in values.items():
        null = np.array([each[name] for each in repeated])
        expected, error = float(null.mean()), float(null.std(ddof=1)) * math.sqrt(1 + 1 / len(null))
        p = _p_value(value, null, expected, error, is_ranked=prediction.is_classification)
        if name == "coverage":  # intervals hold nearly all of a few: exact for independent targets
            p = max(p, float(binomtest(round(value * targets.numel()), targets.numel(), _INSIDE).pvalue))
        tests[name] = Deviation(value, expected, error, p)
    return tests


def _p_value(value: float, null: np.ndarray, expected: float, error: float, *, is_ranked: bool) -> float:
    """Return the p-value of a statistic, of Student's t or of the rank among simulated ones (R,)."""
    from scipy.stats import t as student

    below, above = (null <= value).sum(), (null >= value).sum()
    by_rank = min(1.0, 2 * (1 + float(min(below, above))) / (len(null) + 1))
    if not math.isfinite(value) or not math.isfinite(error):
        return by_rank
    tails = student.sf(abs(value - expected) / error, len(null) - 1) if error > 0 else 0.5 * (value == expected)
    return max(2 * float(tails), by_rank if is_ranked else 0.0)


def _statistics(prediction: Prediction, seed: int) -> Callable[[Tensor], dict[str, float]]:
    """Return the function that computes the statistics of targets."""
    medians = ranks(prediction.quantile(0.5)) if prediction.has_quantiles else None

    def statistics(y: Tensor) -> dict[str, float]:
        """Return the statistics of targets, by name."""
        values = {"surprise": float(prediction.log_prob(y).double().mean())}
        if medians is not None:
            away = pit(prediction, y, seed=seed).double() - 0.5
            values |= {name: statistic(away, medians) for name, statistic in _OF_QUANTILES.items()}
        elif prediction.is_classification:
            confidence = prediction.class_probs.amax(-1).double().mean()
            values["confidence"] = float((prediction.label == y).double().mean() - confidence)
        return {name: values[name] for name in statistics_of(prediction)}

    return statistics


def ranks(values: Tensor) -> np.ndarray:
    """Return the ranks in each column of values (N,) or (N, K) as vectors of mean 0 and length 1, or 0 if all alike.

    Their products are Spearman's rank correlations. NaN has no rank and becomes 0, so that it says nothing.
    """
    from scipy.stats import rankdata

    array = values.cpu().numpy()
    found = rankdata(array.reshape(len(array), -1), axis=0, nan_policy="omit")
    found = np.nan_to_num(found - np.nanmean(found, axis=0))
    return found / np.linalg.norm(found, axis=0).clip(1e-9)


def ranking_test(prediction: Prediction, y: Any, *, seed: int) -> Deviation | None:
    """Compare the area under the sparsification curve with those of 200 random orders, by Student's t on one side.

    None where predictive variances are infinite, not known, or all alike.
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
    value, error = area(uncertainty), float(chance.std(ddof=1)) * math.sqrt(1 + 1 / _SHUFFLED_ORDERS)
    if error == 0:
        return None
    p = float(student.sf((value - chance.mean()) / error, _SHUFFLED_ORDERS - 1))
    return Deviation(value, float(chance.mean()), error, p)
