"""Scores and curves that depend on an order only, in which examples with the same number are alike."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from pyrobnn._core.errors import InputError, did_you_mean
from pyrobnn.metrics.base import Score, Scores, Weighted, as_columns, bootstrap, brier, class_columns, real_columns
from pyrobnn.posterior.prediction import Prediction

Curve = Callable[[np.ndarray], np.ndarray]
"""From weights (N,), or from the values of a curve, to values of a curve, (N,)."""


@dataclasses.dataclass(frozen=True, eq=False)
class RiskCurves:
    """Errors of the examples that are kept when the others are left out.

    Attributes:
        coverage: shares of the examples that are kept, k / N for k = 1 to N.
        error: error of the k examples of least predicted uncertainty, (N,).
        oracle: error of the k examples with the smallest errors, the least in any order, (N,).
        random: error when examples are left out at random, the same for every share.

    Examples:
        >>> from pyro.distributions import Bernoulli
        >>> prediction = bnn.Prediction(Bernoulli(torch.tensor([[0.99, 0.6, 0.9, 0.8]])))  # one draw at four inputs
        >>> bnn.metrics.selective_risk(prediction, [1, 1, 0, 1]).oracle
        array([0.  , 0.  , 0.  , 0.25])
    """

    coverage: np.ndarray
    error: np.ndarray
    oracle: np.ndarray
    random: float

    @property
    def excess(self) -> float:
        """Area between the curve and its oracle; 0 for the best order."""
        return float((self.error - self.oracle).mean())


def sparsification(prediction: Prediction, y: ArrayLike) -> RiskCurves:
    """Return the relative error that remains when the most uncertain examples are left out (Ilg et al. 2018).

    Real targets and counts: the root mean squared error by the predictive standard deviation; classes: the Brier score
    by the entropy (Gustafsson et al. 2020); over the error of all examples. Columns are averaged; `excess` is the
    "ause" of `score`.

    Args:
        prediction: predictions at N inputs.
        y: the targets in original units, (N,) or (N, K).

    Raises:
        InputError: as for `Prediction.log_prob`.

    Examples:
        >>> from pyro.distributions import Normal
        >>> prediction = bnn.Prediction(Normal(torch.zeros(1, 3), torch.tensor([[0.1, 1.0, 3.0]])))
        >>> bnn.metrics.sparsification(prediction, [0.1, -1.0, 3.0]).excess  # 0: the order of the errors was foreseen
        0.0
    """
    errors, uncertainty = errors_and_uncertainty(prediction, y)
    return _mean(errors, uncertainty, functools.partial(relative, root=not prediction.is_classification))


def selective_risk(prediction: Prediction, y: ArrayLike) -> RiskCurves:
    """Return the risk among the examples that a selective predictor answers, by coverage (Geifman & El-Yaniv 2017).

    Classes: the share of wrong labels by the probability of the label; the mean of `error` is the "aurc" of `score`.
    Real targets and counts: the mean squared error by the predictive standard deviation. Columns are averaged.
    Arguments and errors are those of `sparsification`.

    Examples:
        >>> from pyro.distributions import Bernoulli
        >>> bnn.metrics.selective_risk(bnn.Prediction(Bernoulli(torch.tensor([[0.9, 0.6]]))), [1, 0]).error
        array([0. , 0.5])
    """
    if prediction.is_classification:
        return _mean(*wrong_and_doubt(*class_columns(prediction, y)))
    return _mean(*errors_and_uncertainty(prediction, y))


def errors_and_uncertainty(prediction: Prediction, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return squared errors and standard deviations, or Brier scores and entropies of classes, each (N, K)."""
    from scipy.special import entr

    if prediction.is_classification:
        labels, probs = class_columns(prediction, y)
        return brier(labels, probs), entr(probs).sum(-1)
    targets, mean, std = real_columns(prediction, y)
    return np.square(targets - mean), std


def wrong_and_doubt(labels: np.ndarray, probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether the most probable class is wrong, as 0 and 1, and 1 less its probability, each (N, K)."""
    return (probs.argmax(-1) != labels).astype(float), 1 - probs.max(-1)


def _mean(errors: np.ndarray, uncertainty: np.ndarray, shape: Curve = np.asarray) -> RiskCurves:
    """Return the curves of columns (N, K), shaped and averaged."""
    everyone, columns = np.ones(len(errors)), zip(errors.T, uncertainty.T, strict=True)
    curves = [[shape(risk_by_coverage(error, order)(everyone)) for order in (by, error)] for error, by in columns]
    error, oracle = np.mean(curves, 0)
    return RiskCurves(np.arange(1, len(error) + 1) / len(error), error, oracle, float(error[-1]))


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


def area_under_risk(errors: np.ndarray, uncertainty: np.ndarray, shape: Curve = np.asarray) -> Weighted:
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
    """Return how well a number separates positive examples, by the scores of `score_ood`; NaN if a group is empty."""
    values, place = np.unique(-number, return_inverse=True)

    def of(score: Callable[[np.ndarray, np.ndarray], float], weights: np.ndarray) -> float:
        """Return a score of the numbers of positive and of other examples at each value, from the largest down."""
        hits = np.bincount(place, weights * positive, minlength=len(values))
        alarms = np.bincount(place, weights, minlength=len(values)) - hits
        return score(hits, alarms) if hits.any() and alarms.any() else float("nan")

    names = {"auroc": _auroc, "aupr": _aupr, "fpr_95": _fpr_95}
    return {name: functools.partial(of, score) for name, score in names.items()}


def _auroc(hits: np.ndarray, alarms: np.ndarray) -> float:
    ahead = alarms.cumsum()
    return 1 - float(hits @ (ahead - alarms / 2) / (hits.sum() * ahead[-1]))


def _aupr(hits: np.ndarray, alarms: np.ndarray) -> float:
    cumulative, shown = hits.cumsum(), (hits + alarms).cumsum()
    precision = np.divide(cumulative, shown, out=np.zeros_like(cumulative), where=shown > 0)
    return float(hits @ precision / cumulative[-1])


def _fpr_95(hits: np.ndarray, alarms: np.ndarray) -> float:
    cumulative = hits.cumsum()
    reached = int(np.argmax(cumulative >= 0.95 * cumulative[-1] * (1 - 1e-12)))
    return float(alarms[: reached + 1].sum() / alarms.sum())


_OF_CLASSES = ("mutual_information", "entropy", "max_prob")
_OF_NUMBERS = ("epistemic_std", "std")


def score_ood(inside: Prediction, outside: Prediction, *, by: str = "all") -> Scores:
    """Score how well uncertainty separates inputs outside the data from inputs inside (Hendrycks 2017).

    Of each measure of uncertainty, as entropy: "auroc_entropy"; "aupr_entropy", the average precision with the outside
    inputs as positives; "fpr_95_entropy", the share of inside inputs above the threshold that 95 % of the outside
    inputs reach. Standard errors are of 200 bootstrap resamples.

    Args:
        inside: predictions at inputs like the data.
        outside: predictions of the same posterior at other inputs.
        by: "all", or for classes "mutual_information", "entropy" or "max_prob" (1 less the probability of the most
            probable class), for real targets and counts "epistemic_std" or "std", of several columns relative to their
            mean variance inside.

    Raises:
        InputError: another measure, or predictions of different kinds.

    Examples:
        >>> from pyro.distributions import Normal
        >>> near, far = (bnn.Prediction(Normal(torch.tensor([[-width], [width]]), 1.0)) for width in (1.0, 9.0))
        >>> bnn.score_ood(near, far, by="epistemic_std")["auroc_epistemic_std"].value
        1.0
    """
    values = ood_measures(inside, outside, by=by)
    positive = np.repeat([False, True], [len(inside), len(outside)])
    functions: dict[str, Weighted] = {}
    for measure, number in values.items():
        functions |= {f"{name}_{measure}": of for name, of in receiver_operating(positive, number).items()}
    errors, everyone = bootstrap(functions, (len(inside), len(outside))), np.ones(len(positive))
    scores = {name: Score(of(everyone), errors[name], not name.startswith("fpr")) for name, of in functions.items()}
    return Scores(scores)


def ood_measures(inside: Prediction, outside: Prediction, *, by: str = "all") -> dict[str, np.ndarray]:
    """Return the measures of `score_ood`, with its arguments and errors, at the inputs inside and then outside.

    Examples:
        >>> from pyro.distributions import Normal
        >>> list(bnn.metrics.ood_measures(*[bnn.Prediction(Normal(torch.zeros(2, 1), 1.0))] * 2))
        ['epistemic_std', 'std']
    """
    kinds = [(each.is_classification, each.distribution.event_shape) for each in (inside, outside)]
    if kinds[0] != kinds[1]:
        raise InputError(f"Predictions inside and outside must be of the same kind, got {inside!r} and {outside!r}.")
    known = _OF_CLASSES if inside.is_classification else _OF_NUMBERS
    if by not in ("all", *known):
        raise InputError(f"`by` must be 'all' or one of {list(known)}, got {by!r}.{did_you_mean(by, known)}")
    return {name: _uncertainty(name, inside, outside) for name in (known if by == "all" else (by,))}


def _uncertainty(name: str, inside: Prediction, outside: Prediction) -> np.ndarray:
    pair = (inside, outside)
    if name == "max_prob":
        return np.concatenate([1 - as_columns(each.class_probs.amax(-1)).mean(1) for each in pair])
    values = [as_columns(getattr(each, name)) for each in pair]
    if inside.is_classification:
        return np.concatenate(values)[:, 0]
    usual = np.square(values[0]).mean(0)
    return np.sqrt((np.square(np.concatenate(values)) / np.where(usual > 0, usual, 1.0)).mean(1))
