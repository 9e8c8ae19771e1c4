"""Scores that depend on an order only: risk among the surest examples, and how well a number tells two groups apart.

Examples with the same number are in no order: each curve is the mean over all orders of them.
"""

import functools
from collections.abc import Callable

import numpy as np

from pyrobnn.metrics.base import Weighted

Curve = Callable[[np.ndarray], np.ndarray]
"""From weights (N,) to the values of a curve, (N,)."""
Shape = Callable[[np.ndarray], np.ndarray]
"""From the values of a curve to others, (N,)."""


def risk_by_coverage(errors: np.ndarray, uncertainty: np.ndarray) -> Curve:
    """Return the function from weights to the mean error among the k surest examples, for k = 1 to N, (N,)."""
    order = np.argsort(uncertainty, kind="stable")
    _, tied = np.unique(uncertainty[order], return_inverse=True)
    errors = errors[order]

    def curve(weights: np.ndarray) -> np.ndarray:
        sorted_weights = weights[order]
        total = np.bincount(tied, sorted_weights)
        sums = np.bincount(tied, sorted_weights * errors)
        mean = np.divide(sums, total, out=np.zeros_like(sums), where=total > 0)
        covered = sorted_weights.cumsum()
        lost = (sorted_weights * mean[tied]).cumsum()
        return np.divide(lost, covered, out=np.zeros_like(lost), where=covered > 0)

    return curve


def area_under_risk(errors: np.ndarray, uncertainty: np.ndarray, shape: Shape = np.asarray) -> Weighted:
    """Return the area under the risk-coverage curve, shaped before: the mean over k, as a function of weights."""
    curve, order = risk_by_coverage(errors, uncertainty), np.argsort(uncertainty, kind="stable")
    return lambda weights: float(shape(curve(weights)) @ weights[order] / weights.sum())


def sparsification_error(errors: np.ndarray, uncertainty: np.ndarray, *, root: bool) -> Weighted:
    """Return the area between the sparsification curve, or its root for squared errors, and its oracle."""
    shape = functools.partial(relative, root=root)
    area, least = (area_under_risk(errors, by, shape) for by in (uncertainty, errors))
    return lambda weights: area(weights) - least(weights)


def relative(risk: np.ndarray, *, root: bool) -> np.ndarray:
    """Return a curve over the error of all examples, its last entry; zeros if nothing is wrong."""
    if risk[-1] <= 0:
        return np.zeros_like(risk)
    return np.sqrt(risk / risk[-1]) if root else risk / risk[-1]


def receiver_operating(positive: np.ndarray, number: np.ndarray) -> dict[str, Weighted]:
    """Return how well a number separates positive examples from the others, as functions of weights.

    "auroc", the area under the receiver operating characteristic; "aupr", the average precision; "fpr_95", the share
    of the others above the threshold that 95 % of the positive examples reach. NaN if a group is empty.
    """
    values, place = np.unique(-number, return_inverse=True)

    def counts(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of positive and of other examples at each value, from the largest value down."""
        hits = np.bincount(place, weights * positive, minlength=len(values))
        return hits, np.bincount(place, weights, minlength=len(values)) - hits

    def auroc(hits: np.ndarray, alarms: np.ndarray) -> float:
        ahead = alarms.cumsum()
        return 1 - float(hits @ (ahead - alarms / 2) / (hits.sum() * ahead[-1]))

    def aupr(hits: np.ndarray, alarms: np.ndarray) -> float:
        cumulative, shown = hits.cumsum(), (hits + alarms).cumsum()
        precision = np.divide(cumulative, shown, out=np.zeros_like(cumulative), where=shown > 0)
        return float(hits @ precision / cumulative[-1])

    def fpr_95(hits: np.ndarray, alarms: np.ndarray) -> float:
        cumulative = hits.cumsum()
        reached = int(np.argmax(cumulative >= 0.95 * cumulative[-1] * (1 - 1e-12)))
        return float(alarms[: reached + 1].sum() / alarms.sum())

    def where_defined(score: Callable[[np.ndarray, np.ndarray], float]) -> Weighted:
        def of(weights: np.ndarray) -> float:
            hits, alarms = counts(weights)
            return score(hits, alarms) if hits.any() and alarms.any() else float("nan")

        return of

    return {"auroc": where_defined(auroc), "aupr": where_defined(aupr), "fpr_95": where_defined(fpr_95)}
