"""Calibration by rows that a fit has not seen: a factor for the spread, or conformal intervals and sets of classes."""

import math
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from pyro.distributions import Categorical
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.distributions import constraints

from pyrobnn._core.errors import InputError, PoorFitWarning, warn_user
from pyrobnn._core.random import derive
from pyrobnn.data.loader import in_memory
from pyrobnn.distributions.spread import centre, spread
from pyrobnn.distributions.support import base_of, ends
from pyrobnn.distributions.units import Scaler
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.base import require_posterior
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

OfNumbers = Literal["scaled", "quantiles"]
OfClasses = Literal["aps"]
_HeldOut = tuple[Prediction, Tensor, Tensor]

_GRID = np.linspace(-np.log(100), np.log(100), 41)
"""Logarithms of the factors that are tried first. The one in the middle changes nothing."""
_FEWEST = 10
"""Effective rows for a factor: of normal rows 10 cost 0.07 nats a new row in a right fit, 5 cost 0.23, 2 any number."""


def calibrate(posterior: Posterior | Mixture, data: Any, *, num_draws: int = 500) -> "Calibrated":
    """Return the fit with one factor for the spread of predictions, by the log score of rows that it has not seen.

    Numbers keep their predictive mean (of logarithms for log-normal targets), and their distances from it are
    multiplied by the factor. Classes have their log probabilities divided by it, the temperature (Guo et al. 2017). The
    log score of these rows is never lower than before. Factors lie between 0.01 and 100; there `PoorFitWarning` warns,
    and with fewer than 10 rows.

    Args:
        posterior: the fit.
        data: `Data` or a pair (x, y) of rows that took no part in the fit. Weights of rows count.
        num_draws: number of posterior draws.

    Raises:
        InputError: targets that the likelihood refuses in a fit, rows that are not in memory, several columns of
            classes, or numbers whose distribution has no location and scale, such as counts.

    Examples:
        >>> train, held_out = bnn.datasets.sinusoid(200).split(0.5, seed=0)
        >>> narrow = bnn.likelihoods.Gaussian(scale=0.1)  # the noise is 1
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1), likelihood=narrow).fit(train, steps=20, seed=0, progress=False)
        >>> calibrated = bnn.calibrate(posterior, held_out)
        >>> calibrated.factor > 1
        True
    """
    prediction, y, weights = _held_out(posterior, data, num_draws)
    factor, effective = best_factor(prediction, y, weights), float(weights.sum() ** 2 / weights.square().sum())
    is_limit = abs(math.log(factor)) > _GRID[-1] - 1e-3
    if is_limit or effective < _FEWEST:
        reason = "lies at a limit: no factor in between suits these targets" if is_limit else "is hardly determined"
        text = f"The factor {factor:.3g} {reason}; by their weights, the held-out rows count as {effective:.3g}. It may"
        remedy = f"hold out {_FEWEST} rows or more, and look at the fit"
        warn_user(f"{text} make predictions of new rows worse: {remedy}.", PoorFitWarning)
    return Calibrated(posterior, factor, num_draws)


def _held_out(posterior: Posterior | Mixture, data: Any, num_draws: int) -> _HeldOut:
    """Return the predictions for held-out rows, their targets, checked as in a fit, and their weights."""
    require_posterior(posterior)
    rows = in_memory(data, collect=True, weighted=True)
    check_targets(posterior, rows.y)
    weights = torch.ones(len(rows), dtype=torch.float64) if rows.weights is None else rows.weights.double().cpu()
    return posterior.predict(rows.x, num_draws=num_draws), rows.y, weights


def check_targets(posterior: Posterior | Mixture, y: Tensor) -> None:
    """Refuse targets as a fit does."""
    member = posterior.members[0]
    likelihood = member.bnn.settings["likelihood"]
    has_positions = as_likelihood(likelihood).has_positions
    likelihood.check_targets(y, likelihood.num_outputs(y) if has_positions else member.outputs.shape[-1])


def best_factor(prediction: Prediction, y: Tensor, weights: Tensor) -> float:
    """Return the factor of the highest weighted log score: the best of a grid, and then of what lies around it."""

    def loss(log_factor: float) -> float:
        scores = with_factor(prediction, float(np.exp(log_factor))).log_prob(y).double().cpu()
        return -float((weights.double().cpu() * scores).sum())

    losses = [loss(each) for each in _GRID]
    best = int(np.argmin(losses))
    around = (_GRID[max(best - 1, 0)], _GRID[min(best + 1, len(_GRID) - 1)])
    found = minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 1e-4})
    return float(np.exp(found.x if found.fun < losses[best] else _GRID[best]))


def with_factor(prediction: Prediction, factor: float) -> Prediction:
    """Return a prediction with the spread of numbers multiplied by a factor, or the logits of classes divided by it."""
    distribution = prediction.distribution
    if not prediction.is_classification:
        return Prediction(spread(distribution, centre(distribution), factor), prediction.scaler)
    if shape := tuple(distribution.event_shape):
        raise InputError(f"Classes are calibrated for one target column, got {shape} targets an input.")
    probs = prediction.class_probs
    return Prediction(Categorical(logits=probs.clamp_min(torch.finfo(probs.dtype).tiny).log()[None] / factor))


class Calibrated:
    """A fit, `posterior`, with a `factor` for the spread of its predictions; made by `calibrate`."""

    def __init__(self, posterior: Posterior | Mixture, factor: float, num_draws: int) -> None:
        self.posterior, self.factor, self._num_draws = posterior, factor, num_draws

    def __repr__(self) -> str:
        return f"Calibrated({self.posterior!r}, factor={self.factor:.3g})"

    def predict(self, x: Any) -> Prediction:
        """Predict targets at inputs x (N, *in), as the posterior does, with the spread multiplied by the factor.

        A prediction of classes has one draw, the calibrated mean, so its `mutual_information` is 0.
        """
        return with_factor(self.posterior.predict(x, num_draws=self._num_draws), self.factor).named_as(x)


def conformal(
    posterior: Posterior | Mixture,
    data: Any,
    *,
    method: OfNumbers | OfClasses | None = None,
    num_draws: int = 500,
    seed: int = 0,
) -> "Conformal":
    """Return a fit calibrated by data that it has not seen: split conformal prediction (Vovk et al. 2005, sec. 4.2).

    An interval of level 0.95 then holds at least 95 % of new targets, on average over inputs, and at most 1 / (n + 1)
    more for n rows of data without ties, if these rows and the new ones are exchangeable, however bad the fit is.

    | method | a target conforms by |
    |---|---|
    | "scaled" | its distance to the predictive mean, in predictive standard deviations (Lei et al. 2018, sec. 5.2) |
    | "quantiles" | its distance, in logs if positive, to the interval of the level: CQR (Romano et al. 2019) |
    | "aps" | the probability of classes at least as probable, randomised (Romano, Sesia & Candès 2020) |

    Inside an interval the distance is a share of half its width, so that bounds never cross. Weights count as rows.

    Args:
        posterior: the fit.
        data: `Data` or a pair (x, y) of rows that took no part in the fit, with one target column.
        method: as above. If not given, "aps" for classes, and for numbers "scaled", or "quantiles" where the likelihood
            is not symmetric, such as `LogNormal`, `Gamma` and `MixtureDensity`.
        num_draws: number of posterior draws.
        seed: seed of the random numbers of "aps"; draws of the weights have the fit's.

    Raises:
        InputError: a method for other targets, targets that the likelihood refuses in a fit, or several columns.

    Examples:
        >>> train, held_out = bnn.datasets.sinusoid(200).split(0.5, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, steps=20, seed=0, progress=False)
        >>> lower, upper = bnn.conformal(posterior, held_out).predict([[0.0], [0.25]]).interval(0.9)
    """
    held_out = _held_out(posterior, data, num_draws)
    likelihood = as_likelihood(posterior.members[0].bnn.settings["likelihood"])
    if method is None and not (held_out[0].is_classification or likelihood.is_symmetric):
        method = "quantiles"
    return Conformal(posterior, held_out, method, num_draws, seed)


class Conformal:
    """A fit with held-out rows that calibrate it; `conformal` makes it from a `posterior` and a `method`."""

    def __init__(
        self, posterior: Posterior | Mixture, held_out: _HeldOut, method: str | None, num_draws: int, seed: int
    ) -> None:
        prediction, y, weights = held_out
        if prediction.distribution.event_shape:
            raise InputError(f"Conformal prediction takes one target column, got {tuple(y.shape)}.")
        methods = get_args(OfClasses if prediction.is_classification else OfNumbers)
        self.method = methods[0] if method is None else method
        if self.method not in methods:
            kind = "classes" if prediction.is_classification else "numbers"
            raise InputError(f"`method` for {kind} must be one of {', '.join(methods)}, got {method!r}.")
        if self.method == "scaled" and not bool(((std := prediction.std).isfinite() & (std > 0)).all()):
            raise InputError("The predictive standard deviation is zero or not finite: take method='quantiles'.")
        self.posterior, self._num_draws, self._seed = posterior, num_draws, seed
        self._prediction, self._y, self._weights = prediction, y, weights

    def __repr__(self) -> str:
        return f"Conformal({self.posterior!r}, {self.method!r})"

    def predict(self, x: Any, *, seed: int = 0) -> "ConformalPrediction":
        """Predict targets at inputs x (N, *in), as the posterior does, with calibrated intervals or sets.

        Args:
            x: inputs in original units.
            seed: seed of the random numbers of "aps".
        """
        prediction = self.posterior.predict(x, num_draws=self._num_draws)
        found = ConformalPrediction(prediction.distribution, prediction.scaler, scores=self, seed=seed)
        return found.named_as(x)

    def threshold(self, level: float) -> float:
        """Return the score of rank ceil(level (n + 1)), below which new rows stay; infinite if there are few rows."""
        scores, order = self._scores(level).sort()
        ranks, total = self._weights[order].cumsum(0), float(self._weights.sum())
        if (rank := level * (total + 1) * (1 - 1e-12)) > total:
            needed = f"need {math.ceil(level / (1 - level) * (1 - 1e-12)):,} held-out rows, got {total:g}"
            text = f"Intervals and sets of level {level} {needed}: they hold everything."
            warn_user(f"{text} Hold out more rows, or lower the level.", PoorFitWarning)
            return math.inf
        return float(scores[int(torch.searchsorted(ranks, rank))])

    def _scores(self, level: float) -> Tensor:
        """Return the score of each held-out row, (N,): smaller where a target conforms more."""
        if self.method == "quantiles":
            lower, upper, y = *(bound.double().cpu() for bound in self._prediction.interval(level)), self._y
            if _is_in_logs(self._prediction):
                lower, upper, y = lower.log(), upper.log(), y.log()
            distance = torch.maximum(lower - y, y - upper)
            return torch.where(distance < 0, distance / ((upper - lower) / 2), distance)
        if self.method == "scaled":
            return (self._y - self._prediction.mean.double().cpu()).abs() / self._prediction.std.double().cpu()
        chance = _uniform(len(self._y), self._seed, "held out")
        return self.of_classes(self._prediction, chance)[torch.arange(len(self._y)), self._y.long()]

    def of_classes(self, prediction: Prediction, chance: Tensor) -> Tensor:
        """Return the score of each class, (N, C), with a number between 0 and 1 for each row, (N,)."""
        probs = prediction.class_probs.double().cpu()
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        scores = ordered.cumsum(-1) - chance[:, None] * ordered
        return torch.empty_like(scores).scatter(-1, order, scores)


class ConformalPrediction(Prediction):
    """A prediction whose `interval`, or `label_set` of classes, holds its level on rows like the held-out ones.

    All else, such as log scores and quantiles, is the posterior's.
    """

    def __init__(self, distribution: Any, scaler: Scaler | None = None, *, scores: Conformal, seed: int) -> None:
        super().__init__(distribution, scaler)
        self._conformity, self._seed = scores, seed
        self._chance = _uniform(len(self), seed, "new")

    def _at(self, distribution: Any, rows: Tensor | slice) -> Any:
        part = ConformalPrediction(distribution, self.scaler, scores=self._conformity, seed=self._seed)
        part._chance = self._chance[rows]
        return part

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return bounds (N,) that hold new targets with at least this probability; infinite with too few rows."""
        if self.is_classification:
            raise InputError("Classes have no intervals: use `label_set`.")
        lower, upper = super().interval(level)
        distance = torch.tensor(self._conformity.threshold(level), dtype=torch.float64).to(lower)
        if is_in_logs := _is_in_logs(self):
            lower, upper = (bound.clamp_min(torch.finfo(bound.dtype).tiny) for bound in (lower, upper))
        if self._conformity.method == "scaled":
            lower, upper = self.mean - distance * self.std, self.mean + distance * self.std
        else:
            if distance < 0:
                distance = distance * ((upper / lower).log() if is_in_logs else upper - lower) / 2
            if is_in_logs:
                lower, upper = lower * (-distance).exp(), upper * distance.exp()
            else:
                lower, upper = lower - distance, upper + distance
            lower = torch.minimum(lower, upper)  # rounding may cross them
        limits = torch.tensor(ends(base_of(self.distribution).support), dtype=torch.float64)
        least, most = self.scaler.inverse(limits).tolist()
        return lower.clamp_min(least), upper.clamp_max(most)

    def label_set(self, level: float = 0.95) -> Tensor:
        """Return which classes are in the set that holds new labels with at least this probability, (N, C) bool."""
        self._require_classes("Sets of classes")
        if not (isinstance(level, Real) and 0 < level < 1):
            raise InputError(f"`level` must lie between 0 and 1, got {level}.")
        return self._conformity.of_classes(self, self._chance) <= self._conformity.threshold(level)


def _is_in_logs(prediction: Prediction) -> bool:
    return base_of(prediction.distribution).support is constraints.positive


def _uniform(num: int, seed: int, purpose: str) -> Tensor:
    generator = torch.Generator().manual_seed(derive(seed, f"conformal, {purpose}"))
    return torch.rand(num, generator=generator, dtype=torch.float64)
