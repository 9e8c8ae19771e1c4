"""Scores of real targets and counts."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike

from pyrobnn.metrics.base import Statistic, Weighted, as_columns, mean_of, observed, real_columns
from pyrobnn.metrics.calibration import pit, uniformity_error
from pyrobnn.metrics.crps import ranked_probability
from pyrobnn.metrics.curves import sparsification_error
from pyrobnn.posterior.prediction import Prediction

_SAMPLES = 400
_MOST_DISTANCES = 4_000_000


def real_statistics(prediction: Prediction, y: ArrayLike, levels: Sequence[float]) -> dict[str, Statistic]:
    """Return the scores of real targets and counts that are defined, but for the log score; see `score`."""
    targets, statistics = as_columns(observed(prediction, y)), {}
    if prediction.has_quantiles and prediction.is_divisible:
        statistics["crps"] = mean_of(as_columns(ranked_probability(prediction, observed(prediction, y))))
    moments = real_columns(prediction, y) if prediction.has_moments else None
    if moments is not None and np.isfinite(moments[1]).all():
        statistics |= dict(_errors(*moments[:2]))
    if _has_intervals(prediction):
        statistics |= dict(_intervals(prediction, targets, levels))
    if prediction.has_quantiles:
        statistics["pit_error"] = Statistic(over_columns(uniformity_error, as_columns(pit(prediction, y))))
    if moments is not None and np.isfinite(moments[2]).all():
        squared = (moments[1] - moments[0]) ** 2
        statistics["ause"] = Statistic(over_columns(partial(sparsification_error, root=True), squared, moments[2]))
    if targets.shape[1] > 1:
        statistics["energy_score"] = mean_of(energy(prediction, targets))
    return statistics


def statistics_by_column(prediction: Prediction, y: ArrayLike) -> list[dict[str, Statistic]]:
    """Return errors of real targets or counts, and the coverage of their intervals, for each column by itself."""
    targets = as_columns(observed(prediction, y))
    found: list[dict[str, Statistic]] = [{} for _ in targets.T]
    mean = as_columns(prediction.mean) if prediction.has_moments else np.full_like(targets, np.nan)
    bounds = [as_columns(bound) for bound in prediction.interval(0.95)] if _has_intervals(prediction) else []
    for column, statistics in enumerate(found):
        if np.isfinite(mean).all():
            statistics |= dict(_errors(targets[:, [column]], mean[:, [column]]))
        if bounds:
            y_of, lower, upper = (values[:, column] for values in (targets, *bounds))
            statistics["coverage_95"] = mean_of((lower <= y_of) & (y_of <= upper), higher_is_better=True)
            statistics["width_95"] = mean_of(upper - lower)
    return found


def _has_intervals(prediction: Prediction) -> bool:
    """Return whether intervals hold their level, or for counts at least that, if the prediction is calibrated."""
    return prediction.has_quantiles and (prediction.is_continuous or prediction.is_count)


def _errors(targets: np.ndarray, mean: np.ndarray) -> Iterator[tuple[str, Statistic]]:
    errors = mean - targets
    yield "rmse", Statistic(over_columns(_rmse, errors))
    yield "mae", mean_of(np.abs(errors))
    yield "median_error", Statistic(over_columns(_median, np.abs(errors)))
    if (targets != targets[0]).any(0).all():
        yield "r2", Statistic(over_columns(_explained, targets, errors), higher_is_better=True)


def over_columns(function: Callable[..., Weighted], *arrays: np.ndarray) -> Weighted:
    """Return the mean over columns of a function of weights that is made from the columns of arrays (N, K)."""
    each = [function(*columns) for columns in zip(*(array.T for array in arrays), strict=True)]
    return lambda weights: float(np.mean([of(weights) for of in each]))


def _rmse(errors: np.ndarray) -> Weighted:
    squared = errors**2
    return lambda weights: float(np.sqrt(weights @ squared / weights.sum()))


def _median(errors: np.ndarray) -> Weighted:
    return lambda weights: float(np.median(np.repeat(errors, weights.astype(int))))


def _explained(targets: np.ndarray, errors: np.ndarray) -> Weighted:
    centred, squared = targets - targets.mean(), errors**2

    def of(weights: np.ndarray) -> float:
        share = weights / weights.sum()
        variance = float(share @ centred**2 - (share @ centred) ** 2)
        return 1 - float(share @ squared) / variance if variance > 0 else float("nan")

    return of


def _intervals(prediction: Prediction, targets: np.ndarray, levels: Sequence[float]) -> Iterator[tuple[str, Statistic]]:
    import scoringrules

    for level in levels:
        lower, upper = (as_columns(bound) for bound in prediction.interval(level))
        percent = f"{100 * level:g}"
        inside = (targets >= lower) & (targets <= upper)
        interval_score = scoringrules.interval_score(targets, lower, upper, 1 - level).reshape(targets.shape)
        yield f"coverage_{percent}", mean_of(inside, higher_is_better=True)
        yield f"width_{percent}", mean_of(upper - lower)
        yield f"interval_score_{percent}", mean_of(interval_score)


def energy(prediction: Prediction, targets: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """Return the energy score of each example (Gneiting & Raftery 2007), without bias, from samples, (N,).

    Each row is sampled under the same seed, so that its score does not depend on other rows.
    """
    import scoringrules

    size = max(1, _MOST_DISTANCES // (targets.shape[1] * _SAMPLES**2))
    scores = []
    for start in range(0, len(targets), size):
        y = targets[start : start + size]
        rows = [prediction[[start + row]].sample(_SAMPLES, seed=seed)[:, 0] for row in range(len(y))]
        samples = torch.stack(rows).detach().cpu().double().numpy()
        scores.append(np.atleast_1d(scoringrules.es_ensemble(y, samples, estimator="fair")))
    return np.concatenate(scores)
