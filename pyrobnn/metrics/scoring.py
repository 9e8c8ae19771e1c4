"""All scores of a prediction in one call, and the paired comparison of two predictions of the same targets."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from pyrobnn._core.errors import InputError
from pyrobnn.metrics.base import Scores, Statistic, as_columns, finish, mean_of, standard_errors
from pyrobnn.metrics.classification import class_statistics
from pyrobnn.metrics.regression import real_statistics, statistics_by_column
from pyrobnn.posterior.prediction import Prediction

if TYPE_CHECKING:
    from pandas import DataFrame

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the central intervals that are scored."""
_MOST_COLUMNS = 20
"""Target columns that are also scored by themselves."""


def score(prediction: Prediction, y: ArrayLike, *, levels: Sequence[float] = LEVELS) -> Scores:
    """Score predictions against held-out targets.

    Every likelihood: "log_likelihood", the mean log score log 1/S sum_s p(y | x, w_s); "ause", the area between the
    sparsification curve and its oracle (see `sparsification`).

    Real targets and counts: "crps", the continuous ranked probability score of the mixture; "rmse", "mae" and
    "median_error" of the predictive mean; "r2", the share of the targets' variance that it explains; "pit_error", the
    area between the distribution function of the transforms (see `pit`) and the diagonal; for every level, as 95 %,
    "coverage_95", "width_95" and "interval_score_95" of the central interval (Winkler 1972; Gneiting & Raftery 2007),
    which for counts holds at least its level. With several target columns all but the log score are averaged,
    "energy_score" is added, from 400 samples, and `by_column` of the result has the errors and the coverage of each
    column, up to 20.

    Classes: "accuracy"; "brier", the squared error of the probabilities summed over the classes (Brier 1950); "ece",
    the expected calibration error of the most probable class in 15 bins (Guo et al. 2017); "auroc" of each class
    against the rest, averaged over the classes that occur; "aurc", the area under the risk-coverage curve (see
    `selective_risk`). Several binary columns are averaged, too; the bins pool them.

    A score that the likelihood does not define, such as the RMSE without a finite mean, is left out. Standard errors
    of means are exact up to the estimated variance; others come from 200 bootstrap resamples under a fixed seed, and
    do not include the bias of calibration errors.

    Args:
        prediction: predictions at N inputs.
        y: the targets in original units, (N,) or (N, K).
        levels: levels of the intervals, each in (0, 1).

    Returns:
        Scores by name, a dictionary that prints as a table.

    Raises:
        InputError: not numeric, not finite, not one row per input, labels out of range, counts that are not whole, or a
            level outside (0, 1).

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(data, steps=20, seed=0, progress=False)
        >>> scores = bnn.score(posterior.predict(data.x, num_draws=100), data.y, levels=[0.9])
        >>> sorted(scores)[:4]
        ['ause', 'coverage_90', 'crps', 'interval_score_90']
        >>> scores["rmse"].higher_is_better
        False
    """
    scores = finish(_statistics(prediction, y, levels), len(prediction))
    shape = prediction.distribution.event_shape
    if not prediction.is_classification and len(shape) == 1 and 1 < shape[0] <= _MOST_COLUMNS:
        by_column = statistics_by_column(prediction, y)
        scores.by_column = tuple(finish(statistics, len(prediction)) for statistics in by_column)
    return scores


def compare_scores(a: Prediction, b: Prediction, y: ArrayLike, *, levels: Sequence[float] = LEVELS) -> "DataFrame":
    """Compare two predictions of the same targets, score by score.

    Means have the paired t-test; other scores are bootstrapped with the same resamples for both predictions, and have
    the z-test. Many scores are many tests: expect one in twenty to be below 0.05 by chance.

    Args:
        a: predictions at N inputs.
        b: predictions to compare with, at the same inputs.
        y: the targets in original units, (N,) or (N, K).
        levels: levels of the intervals, each in (0, 1).

    Returns:
        A row for each shared score, with the columns a, b, difference (a - b), stderr, p_value (two-sided) and
        higher_is_better.

    Raises:
        InputError: predictions at different numbers of inputs, classes against real targets; as for `score`.

    Examples:
        >>> data = bnn.datasets.sinusoid()
        >>> model = bnn.BNN(bnn.MLP(1, [10], 1), likelihood=bnn.likelihoods.Gaussian(scale=1.0))
        >>> a, b = (model.fit(data, guide=guide, steps=20, seed=0, progress=False) for guide in ("map", "mean_field"))
        >>> table = bnn.compare_scores(a.predict(data.x, num_draws=100), b.predict(data.x, num_draws=100), data.y)
        >>> list(table.columns)
        ['a', 'b', 'difference', 'stderr', 'p_value', 'higher_is_better']
    """
    import pandas as pd

    if len(a) != len(b) or a.is_classification != b.is_classification:
        raise InputError(f"Predictions to compare must be of the same targets, got {a!r} and {b!r}.")
    ours, theirs = (_statistics(prediction, y, levels) for prediction in (a, b))
    pairs = {name: (ours[name], theirs[name]) for name in ours if name in theirs}
    errors = standard_errors({name: _difference(*pair) for name, pair in pairs.items()}, len(a))
    rows = {name: _row(*pair, errors[name], len(a)) for name, pair in pairs.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def _statistics(prediction: Prediction, y: ArrayLike, levels: Sequence[float]) -> dict[str, Statistic]:
    if not len(prediction):
        raise InputError(f"There are no rows to score: {prediction!r}.")
    if not isinstance(levels, Sequence):
        raise InputError(f"`levels` must be a list of numbers between 0 and 1, got {levels!r}: pass [{levels!r}].")
    for level in levels:
        if not 0 < level < 1:
            raise InputError(f"`levels` must lie between 0 and 1, got {level}: for 95 % pass 0.95.")
    log_likelihood = {"log_likelihood": mean_of(as_columns(prediction.log_prob(y)), higher_is_better=True)}
    if prediction.is_classification:
        return log_likelihood | class_statistics(prediction, y)
    return log_likelihood | real_statistics(prediction, y, levels)


def _difference(a: Statistic, b: Statistic) -> Statistic:
    with np.errstate(invalid="ignore"):  # of targets that cannot be
        differences = None if a.by_example is None or b.by_example is None else a.by_example - b.by_example
    is_open = a.is_open or b.is_open
    return Statistic(lambda weights: a.of(weights) - b.of(weights), a.higher_is_better, differences, is_open)


def _row(a: Statistic, b: Statistic, stderr: float, num: int) -> dict[str, Any]:
    values = a.value(num), b.value(num)
    difference = values[0] - values[1]
    return {
        "a": values[0],
        "b": values[1],
        "difference": difference,
        "stderr": stderr,
        "p_value": _p_value(difference, stderr, math.inf if a.by_example is None else num - 1.0),
        "higher_is_better": a.higher_is_better,
    }


def _p_value(difference: float, stderr: float, df: float) -> float:
    from scipy.special import stdtr  # scipy.stats takes two seconds

    if math.isnan(stderr):
        return math.nan
    if stderr == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * stdtr(df, -abs(difference) / stderr))
