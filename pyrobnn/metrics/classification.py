"""Scores of classes."""

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from pyrobnn.metrics.base import Statistic, Weighted, mean_of
from pyrobnn.metrics.calibration import NUM_BINS, bins_of, calibration_error
from pyrobnn.metrics.columns import brier, class_columns, entropy
from pyrobnn.metrics.curves import wrong_and_doubt
from pyrobnn.metrics.ranking import (
    area_under_risk,
    excess_area_under_risk,
    receiver_operating,
    sparsification_error,
)
from pyrobnn.metrics.regression import over_columns
from pyrobnn.posterior.prediction import Prediction

_FEWEST = 10
"""Examples of each class from which no exception is told from few; resamples of one example, or of none, are alike."""


def class_statistics(prediction: Prediction, y: ArrayLike) -> dict[str, Statistic]:
    """Return the scores of classes that are defined, but for the log score; see `score`."""
    labels, probs = class_columns(prediction, y)
    wrong, doubt = wrong_and_doubt(labels, probs)
    squared = brier(labels, probs)
    confidence_gap = doubt - wrong
    class_gaps = ((labels[..., None] == np.arange(probs.shape[-1])) - probs).reshape(len(probs), -1)
    class_bins = bins_of(probs.reshape(class_gaps.shape)) + NUM_BINS * np.arange(class_gaps.shape[1])
    statistics = {
        "accuracy": mean_of(1 - wrong, higher_is_better=True),
        "brier": mean_of(squared),
        "ece": Statistic(calibration_error(confidence_gap, bins_of(1 - doubt))),
        "ece_equal_mass": Statistic(calibration_error(confidence_gap, bins_of(1 - doubt, equal_mass=True))),
        "ece_classwise": Statistic(calibration_error(class_gaps, class_bins)),
        "aurc": Statistic(over_columns(area_under_risk, wrong, doubt)),
        "eaurc": Statistic(over_columns(excess_area_under_risk, wrong, doubt)),
        "ause": Statistic(over_columns(partial(sparsification_error, root=False), squared, entropy(probs))),
    }
    curves = _against_the_rest(labels, probs)
    if not curves:
        return statistics
    auroc = _mean_defined(curves)
    counts = [number for column in labels.T for number in np.unique(column, return_counts=True)[1]]
    is_open = bool(min(counts) < (_FEWEST if auroc(np.ones(len(labels))) in (0, 1) else 2))
    return statistics | {"auroc": Statistic(auroc, higher_is_better=True, is_open=is_open)}


def _against_the_rest(labels: np.ndarray, probs: np.ndarray) -> list[Weighted]:
    """Return the area under the ROC of each class against the others; of two classes, only the second."""
    classes = range(1, 2) if probs.shape[-1] == 2 else range(probs.shape[-1])
    areas = []
    for column, scores in zip(labels.T, probs.swapaxes(0, 1), strict=True):
        for label in classes:
            if 0 < (column == label).sum() < len(column):
                areas.append(receiver_operating(column == label, scores[:, label])["auroc"])
    return areas


def _mean_defined(curves: list[Weighted]) -> Weighted:
    """Return the mean over classes, without classes that a resample has lost."""

    def of(weights: np.ndarray) -> float:
        values = np.array([curve(weights) for curve in curves])
        defined = values[np.isfinite(values)]
        return float(defined.mean()) if len(defined) else float("nan")

    return of
