"""All scores of a prediction in one call, the paired comparison of two predictions, and the confusion of classes."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pyrobnn._core.errors import FewDrawsWarning, InputError, shown, warn_user
from pyrobnn.metrics.base import (
    Scores,
    Statistic,
    Weighted,
    as_columns,
    class_columns,
    finish,
    mean_of,
    observed,
    real_columns,
    standard_errors,
)
from pyrobnn.metrics.calibration import bins_of, calibration_error, pit, uniformity_error
from pyrobnn.metrics.crps import ranked_probability
from pyrobnn.metrics.curves import (
    area_under_risk,
    errors_and_uncertainty,
    receiver_operating,
    sparsification_error,
    wrong_and_doubt,
)
from pyrobnn.posterior.prediction import Prediction

if TYPE_CHECKING:
    from pandas import DataFrame

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the central intervals that are scored."""
_ENERGY_SAMPLES = 400
_FEWEST = 10
"""Examples of each class from which no exception is told from few; resamples of one example, or of none, are alike."""
_MOST_COLUMNS = 20
"""Target columns that are also scored by themselves."""


def score(prediction: Prediction, y: ArrayLike, *, levels: Sequence[float] = LEVELS) -> Scores:
    """Score predictions against held-out targets.

    Every likelihood: "log_likelihood", the mean log score log 1/S sum_s p(y | x, w_s); "ause" (see `sparsification`).

    Real targets and counts: "crps" of the mixture; "rmse", "mae" and "median_error" of the predictive mean; "r2", the
    share of the targets' variance that it explains; "pit_error", the area between the distribution function of the
    transforms (see `pit`) and the diagonal; for every level, as 95 %, "coverage_95", "width_95" and "interval_score_95"
    of the central interval (Winkler 1972; Gneiting & Raftery 2007). Several columns are averaged; "energy_score" is
    added, and `by_column` has the errors of each, up to 20.

    Classes: "accuracy"; "brier", the squared error of the probabilities summed over the classes; "ece", the expected
    calibration error of the most probable class in 15 bins (Guo et al. 2017); "auroc" of each class against the rest,
    averaged; "aurc", the area under the risk-coverage curve (see `selective_risk`). Bins pool several binary columns.

    A score that the likelihood does not define, such as the RMSE without a finite mean, is left out. Standard errors
    that are not of means come from 200 bootstrap resamples, without the bias of calibration errors.

    Args:
        prediction: predictions at N inputs.
        y: the targets in original units, (N,) or (N, K).
        levels: levels of the intervals, each in (0, 1).

    Raises:
        InputError: targets that do not fit the predictions, or a level outside (0, 1).

    Examples:
        >>> from pyro.distributions import Normal
        >>> sorted(bnn.score(bnn.Prediction(Normal(torch.zeros(9, 3), 1.0)), [0.0, 1.0, 2.0], levels=[0.9]))[:4]
        ['ause', 'coverage_90', 'crps', 'interval_score_90']
    """
    if not isinstance(prediction, Prediction):
        raise InputError(f"Pass predictions to `score`, `predict_dist(X)` of an estimator, got {shown(prediction)}.")
    scores, shape = finish(_statistics(prediction, y, levels), len(prediction)), prediction.distribution.event_shape
    if not prediction.is_classification and len(shape) == 1 and 1 < shape[0] <= _MOST_COLUMNS:
        scores.by_column = tuple(finish(column, len(prediction)) for column in statistics_by_column(prediction, y))
    return scores


def compare_scores(a: Prediction, b: Prediction, y: ArrayLike, *, levels: Sequence[float] = LEVELS) -> "DataFrame":
    """Compare two predictions of the same targets, score by score.

    Means have the paired t-test; other scores are bootstrapped with the same resamples for both, and have the z-test.
    Many scores are many tests: expect one in twenty p-values to be below 0.05 by chance.

    Args:
        a: predictions at N inputs.
        b: predictions at the same inputs to compare with.
        y: the targets in original units, (N,) or (N, K).
        levels: levels of the intervals, each in (0, 1).

    Returns:
        A row for each shared score, with the columns a, b, difference (a - b), stderr, p_value (two-sided) and
        higher_is_better.

    Raises:
        InputError: predictions at different numbers of inputs, classes against real targets; as for `score`.

    Examples:
        >>> from pyro.distributions import Normal
        >>> a, b = (bnn.Prediction(Normal(torch.zeros(9, 3), scale)) for scale in (1.0, 2.0))
        >>> list(bnn.compare_scores(a, b, [0.0, 1.0, 2.0]).columns)
        ['a', 'b', 'difference', 'stderr', 'p_value', 'higher_is_better']
    """
    import pandas as pd
    from scipy.special import stdtr  # scipy.stats takes two seconds

    if len(a) != len(b) or a.is_classification != b.is_classification:
        raise InputError(f"Predictions to compare must be of the same targets, got {a!r} and {b!r}.")
    ours, theirs = (_statistics(prediction, y, levels) for prediction in (a, b))
    pairs = {name: (ours[name], theirs[name]) for name in ours if name in theirs}
    errors = standard_errors({name: _difference(*pair) for name, pair in pairs.items()}, len(a))
    rows, everyone = {}, np.ones(len(a))
    for name, pair in pairs.items():
        first, second = (statistic.of(everyone) for statistic in pair)
        df = math.inf if pair[0].by_example is None else len(a) - 1.0
        difference, stderr = first - second, errors[name]
        p_value = float(difference == 0) if stderr == 0 else 2 * stdtr(df, -abs(difference) / stderr)
        rows[name] = (first, second, difference, stderr, p_value, pair[0].higher_is_better)
    columns = ["a", "b", "difference", "stderr", "p_value", "higher_is_better"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def _statistics(prediction: Prediction, y: ArrayLike, levels: Sequence[float]) -> dict[str, Statistic]:
    if not len(prediction):
        raise InputError(f"There are no rows to score: {prediction!r}.")
    if not (isinstance(levels, Sequence) and all(0 < level < 1 for level in levels)):
        raise InputError(f"`levels` must be a list of numbers between 0 and 1, such as [0.95], got {levels!r}.")
    log_likelihood = {"log_likelihood": mean_of(as_columns(prediction.log_prob(y)), higher_is_better=True)}
    _tell_of_few(prediction, y)
    if prediction.is_classification:
        return log_likelihood | class_statistics(prediction, y)
    return log_likelihood | real_statistics(prediction, y, levels)


def _tell_of_few(prediction: Prediction, y: ArrayLike) -> None:
    """Warn of densities that few draws make up, by their effective number (Kish 1965): below 5, and a fifth of all."""
    targets, fewest = prediction.checked(y), min(5.0, prediction.num_draws / 5)
    shares = prediction.by_rows(lambda part, rows: part.draw_log_prob(rows).softmax(0).square().sum(0), targets)
    if bool(shares.nanmean() * fewest > 1):
        text = f"The log score rests on fewer than {fewest:g} of {prediction.num_draws} draws an input, and may be far"
        warn_user(f"{text} too low: predict with more (`num_draws`), or judge by the CRPS.", FewDrawsWarning)


def _difference(a: Statistic, b: Statistic) -> Statistic:
    with np.errstate(invalid="ignore"):  # of targets that cannot be
        differences = None if a.by_example is None or b.by_example is None else a.by_example - b.by_example
    is_open = a.is_open or b.is_open
    return Statistic(lambda weights: a.of(weights) - b.of(weights), a.higher_is_better, differences, is_open)


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
    if prediction.has_moments and np.isfinite(mean := as_columns(prediction.mean)).all():
        found = [dict(_errors(of[:, None], at[:, None])) for of, at in zip(targets.T, mean.T, strict=True)]
    if _has_intervals(prediction):
        bounds = (as_columns(bound).T for bound in prediction.interval(0.95))
        for statistics, of, low, high in zip(found, targets.T, *bounds, strict=True):
            statistics["coverage_95"] = mean_of((low <= of) & (of <= high), higher_is_better=True)
            statistics["width_95"] = mean_of(high - low)
    return found


def _has_intervals(prediction: Prediction) -> bool:
    """Return whether intervals of a calibrated prediction hold their level, or for counts at least that."""
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
    return lambda weights: float(np.sqrt(weights @ errors**2 / weights.sum()))


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
    """Return the unbiased energy score of each row (Gneiting & Raftery 2007), (N,), with the same seed for each."""
    import scoringrules

    samples = (prediction[[row]].sample(_ENERGY_SAMPLES, seed=seed)[:, 0] for row in range(len(targets)))
    drawn = (each.detach().cpu().double().numpy() for each in samples)
    pairs = zip(targets, drawn, strict=True)
    return np.array([float(scoringrules.es_ensemble(y, each, estimator="fair")) for y, each in pairs])


def class_statistics(prediction: Prediction, y: ArrayLike) -> dict[str, Statistic]:
    """Return the scores of classes that are defined, but for the log score; see `score`."""
    labels, probs = class_columns(prediction, y)
    wrong, doubt = wrong_and_doubt(labels, probs)
    squared, disorder = errors_and_uncertainty(prediction, y)
    statistics = {
        "accuracy": mean_of(1 - wrong, higher_is_better=True),
        "brier": mean_of(squared),
        "ece": Statistic(calibration_error(doubt - wrong, bins_of(1 - doubt))),
        "aurc": Statistic(over_columns(area_under_risk, wrong, doubt)),
        "ause": Statistic(over_columns(partial(sparsification_error, root=False), squared, disorder)),
    }
    classes = range(probs.shape[-1] == 2, probs.shape[-1])  # of two, only the second
    curves = [
        receiver_operating(column == label, scores[:, label])["auroc"]
        for column, scores in zip(labels.T, probs.swapaxes(0, 1), strict=True)
        for label in classes
        if 0 < (column == label).sum() < len(column)
    ]
    if not curves:
        return statistics

    def auroc(weights: np.ndarray) -> float:
        """Return the mean over classes, without classes that a resample has lost."""
        values = np.array([curve(weights) for curve in curves])
        defined = values[np.isfinite(values)]
        return float(defined.mean()) if len(defined) else float("nan")

    counts = [number for column in labels.T for number in np.unique(column, return_counts=True)[1]]
    is_open = bool(min(counts) < (_FEWEST if auroc(np.ones(len(labels))) in (0, 1) else 2))
    return statistics | {"auroc": Statistic(auroc, higher_is_better=True, is_open=is_open)}


def confusion(prediction: Prediction, y: ArrayLike, *, class_names: Sequence[str] = ()) -> "DataFrame":
    """Count how often each class was predicted where each class was observed; several binary targets are pooled.

    Args:
        prediction: a prediction of C classes.
        y: the observed labels, (N,) or (N, K).
        class_names: names of the classes; their numbers if not given.

    Returns:
        Counts (C, C), with a row for each observed class.

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
