"""Scores of classes, and which are taken for which."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pyrobnn._core.errors import InputError
from pyrobnn.metrics.base import Statistic, Weighted, brier, class_columns, entropy, mean_of
from pyrobnn.metrics.calibration import bins_of, calibration_error
from pyrobnn.metrics.curves import area_under_risk, receiver_operating, sparsification_error, wrong_and_doubt
from pyrobnn.metrics.regression import over_columns
from pyrobnn.posterior.prediction import Prediction

if TYPE_CHECKING:
    from pandas import DataFrame

_FEWEST = 10
"""Examples of each class from which no exception is told from few; resamples of one example, or of none, are alike."""


def class_statistics(prediction: Prediction, y: ArrayLike) -> dict[str, Statistic]:
    """Return the scores of classes that are defined, but for the log score; see `score`."""
    labels, probs = class_columns(prediction, y)
    wrong, doubt = wrong_and_doubt(labels, probs)
    squared = brier(labels, probs)
    statistics = {
        "accuracy": mean_of(1 - wrong, higher_is_better=True),
        "brier": mean_of(squared),
        "ece": Statistic(calibration_error(doubt - wrong, bins_of(1 - doubt))),
        "aurc": Statistic(over_columns(area_under_risk, wrong, doubt)),
        "ause": Statistic(over_columns(partial(sparsification_error, root=False), squared, entropy(probs))),
    }
    if not (curves := _against_the_rest(labels, probs)):
        return statistics

    def auroc(weights: np.ndarray) -> float:
        """Return the mean over classes, without classes that a resample has lost."""
        values = np.array([curve(weights) for curve in curves])
        defined = values[np.isfinite(values)]
        return float(defined.mean()) if len(defined) else float("nan")

    counts = [number for column in labels.T for number in np.unique(column, return_counts=True)[1]]
    is_open = bool(min(counts) < (_FEWEST if auroc(np.ones(len(labels))) in (0, 1) else 2))
    return statistics | {"auroc": Statistic(auroc, higher_is_better=True, is_open=is_open)}


def _against_the_rest(labels: np.ndarray, probs: np.ndarray) -> list[Weighted]:
    """Return the area under the ROC of each class against the others; of two classes, only the second."""
    classes = range(1, 2) if probs.shape[-1] == 2 else range(probs.shape[-1])
    return [
        receiver_operating(column == label, scores[:, label])["auroc"]
        for column, scores in zip(labels.T, probs.swapaxes(0, 1), strict=True)
        for label in classes
        if 0 < (column == label).sum() < len(column)
    ]


def confusion(prediction: Prediction, y: ArrayLike, *, class_names: Sequence[str] = ()) -> "DataFrame":
    """Count how often each class was predicted where each class was observed.

    Several binary targets are pooled.

    Args:
        prediction: a prediction of C classes.
        y: the observed labels, (N,) or (N, K).
        class_names: names of the classes; their numbers if not given.

    Returns:
        Counts (C, C): a row for each observed class, a column for each predicted one. Right predictions are on the
        diagonal.

    Raises:
        InputError: real targets, not one label for each prediction, or not a name for each class.

    Examples:
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1), likelihood="bernoulli").fit(x, y, steps=20, seed=0, progress=False)
        >>> table = bnn.metrics.confusion(posterior.predict(x), y, class_names=["low", "high"])
        >>> int(table.loc["low"].sum()), int(table.loc["high"].sum())
        (20, 20)
    """
    import pandas as pd

    if not prediction.is_classification:
        raise InputError(f"`confusion` needs classes, got {prediction!r}.")
    labels, probs = class_columns(prediction, y)
    num_classes = probs.shape[-1]
    if class_names and len(class_names) != num_classes:
        raise InputError(f"`class_names` must name {num_classes} classes, got {len(class_names)} names.")
    counts = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(counts, (labels.ravel(), probs.argmax(-1).ravel()), 1)
    names = list(class_names) or [str(label) for label in range(num_classes)]
    return pd.DataFrame(counts, pd.Index(names, name="observed"), pd.Index(names, name="predicted"))
