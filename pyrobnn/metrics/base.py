"""Scores: a function of how often each example counts, its value, and its standard error."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn.distributions.support import base_of
from pyrobnn.distributions.targets import CensoredNormal
from pyrobnn.posterior.prediction import Prediction

_RESAMPLES, _ROUNDING = 200, 1e-14
"""Resamples of a bootstrap, and the share of a value below which its standard error is rounding."""
_MOST_DIGITS = 8
"""Digits before the decimal point, and after it, beyond which numbers are written with powers of ten."""

Weighted = Callable[[np.ndarray], float]
"""A score as a function of the number of times (N,) that each example counts."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A score of predictions.

    Attributes:
        value: the score.
        stderr: its standard error over the examples; NaN for a single example, and for an AUROC of a single case.
        higher_is_better: the direction; for coverages, whose aim is their level, the safer side.

    Examples:
        >>> print(bnn.metrics.Score(value=0.8712, stderr=0.0123, higher_is_better=True))
        0.871 ± 0.012
    """

    value: float
    stderr: float
    higher_is_better: bool

    def __str__(self) -> str:
        return plus_minus(self.value, self.stderr)


class Scores(dict[str, Score]):
    """Scores by name; printed as a table with the standard errors and the directions.

    Attributes:
        by_column: the scores of each target column by itself, where there are several, up to 20.

    Examples:
        >>> print(bnn.metrics.Scores(rmse=bnn.metrics.Score(1.25, 0.1, higher_is_better=False)))
        rmse        1.25 ± 0.10     lower is better
    """

    by_column: "tuple[Scores, ...]" = ()

    def __repr__(self) -> str:
        width = max((len(name) for name in self), default=0)
        lines = []
        for name, entry in self.items():
            value, error = digits(entry.value, entry.stderr)
            is_coverage, better = name.startswith("coverage_"), "higher" if entry.higher_is_better else "lower"
            aim = f"0.{name.removeprefix('coverage_')} is right" if is_coverage else f"{better} is better"
            lines.append(f"{name:<{width}}  {value:>10} {error and f'± {error}':<10} {aim}")
        for number, column in enumerate(self.by_column, 1):
            told = ", ".join(f"{name} {entry}" for name, entry in column.items())
            lines.append(f"column {number}: {told}")
        return "\n".join(lines)


def digits(value: float, stderr: float, sign: str = "") -> tuple[str, str]:
    """Return a value and its standard error as texts, to the second digit of the error; the value to four without."""
    stderr = 0.0 if stderr < _ROUNDING * abs(value) else stderr
    plain_error = "" if math.isnan(stderr) else f"{stderr:.2g}"
    if not math.isfinite(value):
        return f"{value:{sign}g}", plain_error
    has_error = 0 < stderr < math.inf
    leading, more = (stderr, 1) if has_error else (value, 3)
    decimals = more - int(f"{leading:.{more}e}".partition("e")[2])
    if abs(decimals) > _MOST_DIGITS or abs(value) >= 10**_MOST_DIGITS:
        return f"{value:{sign}.4g}", plain_error
    value, form = round(value, decimals) + 0.0, f".{max(decimals, 0)}f"  # 0.0 has no sign
    return f"{value:{sign}{form}}", f"{round(stderr, decimals):{form}}" if has_error else plain_error


def plus_minus(value: float, stderr: float, sign: str = "") -> str:
    """Return a value and its standard error as one text, such as "16500 ± 2400"; see `digits`."""
    return " ± ".join(text for text in digits(value, stderr, sign) if text)


@dataclasses.dataclass(frozen=True, eq=False)
class Statistic:
    """A score without its standard error: its value as a function of the examples' counts, and its direction.

    `by_example` has the values (N,) if the score is their mean; `is_open` tells that they are too few for an error.
    """

    of: Weighted
    higher_is_better: bool = False
    by_example: np.ndarray | None = None
    is_open: bool = False


def mean_of(values: np.ndarray, *, higher_is_better: bool = False) -> Statistic:
    """Return the statistic that is the mean over columns and examples of values (N,) or (N, K)."""
    by_example = values.reshape(len(values), -1).mean(1)
    return Statistic(lambda weights: float(weights @ by_example / weights.sum()), higher_is_better, by_example)


def finish(statistics: Mapping[str, Statistic], num_examples: int) -> Scores:
    """Return the scores with standard errors, of means by their variance, of others by 200 bootstrap resamples."""
    errors = standard_errors(statistics, num_examples)
    values = {name: statistic.of(np.ones(num_examples)) for name, statistic in statistics.items()}
    return Scores({name: Score(values[name], errors[name], of.higher_is_better) for name, of in statistics.items()})


def standard_errors(statistics: Mapping[str, Statistic], num_examples: int) -> dict[str, float]:
    """Return the standard error of each statistic by name; NaN where it is open, of one example, or infinite."""
    others = {name: entry.of for name, entry in statistics.items() if entry.by_example is None and not entry.is_open}
    means = {name: entry.by_example for name, entry in statistics.items() if entry.by_example is not None}
    errors = dict.fromkeys(statistics, math.nan)
    if num_examples > 1:
        with np.errstate(invalid="ignore"):  # of targets that cannot be
            errors |= {name: float(values.std(ddof=1)) / math.sqrt(len(values)) for name, values in means.items()}
    return errors | bootstrap(others, (num_examples,))


def bootstrap(functions: Mapping[str, Weighted], sizes: tuple[int, ...]) -> dict[str, float]:
    """Return the standard deviation of each function over resamples of each group of examples, of these sizes."""
    if min(sizes) < 2 or not functions:
        return dict.fromkeys(functions, math.nan)
    generator = np.random.default_rng(0)
    values = np.empty((_RESAMPLES, len(functions)))
    for row in values:
        counts = [np.bincount(generator.integers(size, size=size), minlength=size) for size in sizes]
        weights = np.concatenate(counts).astype(float)
        row[:] = [function(weights) for function in functions.values()]
    columns = [column[np.isfinite(column)] for column in values.T]  # without resamples where the score does not exist
    spreads = [float(column.std(ddof=1)) if len(column) > 1 else math.nan for column in columns]
    return dict(zip(functions, spreads, strict=True))


def as_columns(values: Tensor) -> np.ndarray:
    """Return values (N,) or (N, K) as an array (N, K) of float64."""
    return values.detach().cpu().double().numpy().reshape(len(values), -1)


def observed(prediction: Prediction, y: ArrayLike) -> Tensor:
    """Return targets as a tensor; censored targets beyond a limit count as observed at the limit."""
    targets = prediction.checked(y).to(prediction.device)
    base = base_of(prediction.distribution)
    if not isinstance(base, CensoredNormal):
        return targets
    limits = [None if limit is None else limit.flatten(0, -1)[0] for limit in (base.lower, base.upper)]
    return targets.to(base.loc.dtype).clamp(*limits)


def real_columns(prediction: Prediction, y: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return targets, predictive means and predictive standard deviations, each (N, K)."""
    return as_columns(observed(prediction, y)), as_columns(prediction.mean), as_columns(prediction.std)


def class_columns(prediction: Prediction, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (N, K) and class probabilities (N, K, C); K is 1 but for several binary targets."""
    labels = as_columns(prediction.checked(y)).astype(np.int64)
    if labels.size and labels.min() < 0:  # labels that a likelihood ignores
        remedy = f"keep = y.flatten() != {labels.min()}, with prediction.by_target[keep] and y.flatten()[keep]"
        raise InputError(f"Some labels are no class, {labels.min()}: score the others, {remedy}.")
    probs = prediction.class_probs
    return labels, probs.detach().cpu().double().numpy().reshape(*labels.shape, probs.shape[-1])


def brier(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Return the squared errors of the probabilities, summed over the classes, (N, K)."""
    one_hot = labels[..., None] == np.arange(probs.shape[-1])
    return np.square(probs - one_hot).sum(-1)
