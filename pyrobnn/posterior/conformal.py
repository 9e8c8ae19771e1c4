"""Conformal prediction: intervals and sets of classes that hold their level, whatever the fit."""

import math
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.distributions import constraints

from pyrobnn._core.checks import as_targets
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn.data.given import collected
from pyrobnn.data.in_memory import Scaler, row_index
from pyrobnn.distributions.support import base_of
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

OfNumbers = Literal["scaled", "quantiles"]
OfClasses = Literal["aps"]


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

    Args:
        posterior: the fit.
        data: `Data` or a pair (x, y) of rows that took no part in the fit, with one target column.
        method: as above. If not given, "aps" for classes, and for numbers "scaled", or "quantiles" where the likelihood
            is not symmetric, such as `LogNormal`, `Gamma` and `MixtureDensity`.
        num_draws: number of posterior draws.
        seed: seed of the random numbers of "aps"; draws of the weights have the fit's.

    Raises:
        InputError: a method for other targets, or several target columns.

    Examples:
        >>> train, held_out = bnn.datasets.sinusoid(200).split(0.5, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, steps=20, seed=0, progress=False)
        >>> lower, upper = bnn.conformal(posterior, held_out).predict([[0.0], [0.25]]).interval(0.9)
        >>> lower.shape
        torch.Size([2])
    """
    data = collected(data, weighted=True)
    prediction = posterior.predict(data.x, num_draws=num_draws)
    likelihood = as_likelihood(members_of(posterior)[0].bnn.settings["likelihood"])
    if method is None and not (prediction.is_classification or likelihood.is_symmetric):
        method = "quantiles"
    scores = ConformityScores(prediction, as_targets(data.y, len(data)), method, seed)
    return Conformal(posterior, scores, num_draws)


class ConformityScores:
    """Scores of held-out rows, smaller where a target conforms more, and their quantiles."""

    def __init__(self, prediction: Prediction, y: Tensor, method: OfNumbers | OfClasses | None, seed: int) -> None:
        if prediction.distribution.event_shape:
            raise InputError(f"Conformal prediction takes one target column, got {tuple(y.shape)}.")
        methods = get_args(OfClasses if prediction.is_classification else OfNumbers)
        self.method = methods[0] if method is None else method
        if self.method not in methods:
            kind = "classes" if prediction.is_classification else "numbers"
            raise InputError(f"`method` for {kind} must be one of {', '.join(methods)}, got {method!r}.")
        if self.method == "scaled" and not bool(prediction.std.isfinite().all()):
            raise InputError("The predictive standard deviation is not finite: take method='quantiles'.")
        self._prediction, self._y, self._seed = prediction, y, seed

    def threshold(self, level: float) -> float:
        """Return the score that new rows stay below at that level; infinite where held-out rows are too few.

        It is the held-out score of rank ceil(level (n + 1)), for the new row is one of n + 1.
        """
        scores = self._scores(level).sort().values
        rank = math.ceil(level * (len(scores) + 1) * (1 - 1e-12))
        return float(scores[rank - 1]) if rank <= len(scores) else math.inf

    def _scores(self, level: float) -> Tensor:
        """Return the score of each held-out row, (N,)."""
        if self.method == "quantiles":
            lower, upper, y = *(bound.double().cpu() for bound in self._prediction.interval(level)), self._y
            if _is_positive(self._prediction):
                lower, upper, y = lower.log(), upper.log(), y.log()
            return torch.maximum(lower - y, y - upper)
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


class Conformal:
    """A fit with held-out rows that calibrate it; made by `conformal`.

    Attributes:
        posterior: the fit.
        method: how targets conform, as for `conformal`.
    """

    def __init__(self, posterior: Posterior | Mixture, scores: ConformityScores, num_draws: int) -> None:
        self.posterior, self.method, self._scores, self._num_draws = posterior, scores.method, scores, num_draws

    def __repr__(self) -> str:
        return f"Conformal({self.posterior!r}, {self.method!r})"

    def predict(self, x: Any, *, seed: int = 0) -> "ConformalPrediction":
        """Predict targets at inputs x (N, *in), as the posterior does, with calibrated intervals or sets.

        Args:
            x: inputs in original units.
            seed: seed of the random numbers of "aps".
        """
        prediction = self.posterior.predict(x, num_draws=self._num_draws)
        return ConformalPrediction(prediction.distribution, prediction.scaler, scores=self._scores, seed=seed)


class ConformalPrediction(Prediction):
    """A prediction whose `interval`, or `label_set` of classes, holds its level on rows like the held-out ones.

    All else, such as log scores and quantiles, is the posterior's.
    """

    def __init__(self, distribution: Any, scaler: Scaler | None = None, *, scores: ConformityScores, seed: int) -> None:
        super().__init__(distribution, scaler)
        self._conformity, self._seed = scores, seed
        self._chance = _uniform(len(self), seed, "new")

    def __getitem__(self, rows: Any) -> Any:
        index = row_index(rows, len(self))
        part = Prediction(self.distribution, self.scaler)[index]
        found = ConformalPrediction(part.distribution, self.scaler, scores=self._conformity, seed=self._seed)
        found._chance = self._chance[index]
        return found

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Return bounds (N,) that hold new targets with at least this probability; infinite with too few held-out rows.

        Raises:
            InputError: a level outside (0, 1), or classes.
        """
        if self.is_classification:
            raise InputError("Classes have no intervals: use `label_set`.")
        lower, upper = super().interval(level)
        distance = torch.tensor(self._conformity.threshold(level), dtype=torch.float64).to(lower)
        if self._conformity.method == "quantiles":
            if _is_positive(self):
                return lower * (-distance).exp(), upper * distance.exp()
            lower, upper = lower - distance, upper + distance
        else:
            lower, upper = self.mean - distance * self.std, self.mean + distance * self.std
        support = base_of(self.distribution).support
        given = getattr(support, "lower_bound", -torch.inf), getattr(support, "upper_bound", torch.inf)
        least, most = self.scaler.inverse(torch.tensor(given, dtype=torch.float64)).tolist()
        return lower.clamp_min(least), upper.clamp_max(most)

    def label_set(self, level: float = 0.95) -> Tensor:
        """Return which classes are in the set that holds new labels with at least this probability, (N, C) bool.

        Examples:
            >>> x, y = [[0.0], [1.0]] * 40, [0, 1] * 40
            >>> model = bnn.BNN(bnn.MLP(1, [5], 2), likelihood="categorical")
            >>> posterior = model.fit(x, y, steps=50, seed=0, progress=False)
            >>> held_out = [[0.1], [0.9]] * 40, [0, 1] * 40
            >>> bnn.conformal(posterior, held_out).predict([[0.0]]).label_set(0.9).shape
            torch.Size([1, 2])
        """
        self._require_classes("Sets of classes")
        if not 0 < level < 1:
            raise InputError(f"`level` must lie between 0 and 1, got {level}.")
        return self._conformity.of_classes(self, self._chance) <= self._conformity.threshold(level)


def _is_positive(prediction: Prediction) -> bool:
    return base_of(prediction.distribution).support is constraints.positive


def _uniform(num: int, seed: int, purpose: str) -> Tensor:
    generator = torch.Generator().manual_seed(derive(seed, f"conformal, {purpose}"))
    return torch.rand(num, generator=generator, dtype=torch.float64)
