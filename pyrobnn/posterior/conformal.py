"""Conformal prediction: intervals and sets of classes that hold their level, whatever the fit."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from pyrobnn._core.checks import as_targets, as_tensor, check_finite
from pyrobnn._core.errors import InputError
from pyrobnn._core.random import derive
from pyrobnn.data.given import as_data
from pyrobnn.data.in_memory import Data, Scaler, row_index
from pyrobnn.data.loader import Loader
from pyrobnn.distributions.support import base_of
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

OfNumbers = Literal["scaled", "quantiles"]
OfClasses = Literal["aps", "raps"]
_PENALTY, _FREE = 0.01, 5
"""The penalty of RAPS for each class, by rank, after the first five."""


class Grouping(NamedTuple):
    """What is known of rows beside their inputs.

    Attributes:
        group: number of the group, (N,).
        weight: weight, (N,).
    """

    group: Tensor
    weight: Tensor


def conformal(
    posterior: Posterior | Mixture,
    data: Any,
    *,
    method: OfNumbers | OfClasses | None = None,
    groups: Any = None,
    weights: Any = None,
    num_draws: int = 500,
    seed: int = 0,
) -> "Conformal":
    """Calibrate a fit by data that it has not seen: split conformal prediction (Vovk et al. 2005, sec. 4.2).

    An interval of level 0.95 then holds at least 95 % of new targets, and at most 1 / (n + 1) more for n rows of data
    without ties, if these rows and the new ones are exchangeable. This is so however bad the fit is; a bad one has wide
    intervals. It holds on average over inputs, and within each group where groups are given.

    | method | a target conforms by |
    |---|---|
    | "scaled" | its distance to the predictive mean, in predictive standard deviations (Lei et al. 2018, sec. 5.2) |
    | "quantiles" | its distance, in logs if positive, to the interval of the level: CQR (Romano et al. 2019) |
    | "aps" | the probability of classes at least as probable, randomised (Romano, Sesia & Candès 2020) |
    | "raps" | the same, plus 0.01 for each class after five (Angelopoulos et al. 2021) |

    Args:
        posterior: the fit.
        data: `Data` or a pair (x, y) of rows that took no part in the fit, with one target column.
        method: as above. If not given, "aps" for classes, and for numbers "scaled", or "quantiles" where the likelihood
            is not symmetric, such as `LogNormal`, `Gamma` and `MixtureDensity`.
        groups: the group of each row, (N,), whole numbers or texts: each group is calibrated alone (Mondrian).
        weights: how likely each row's inputs are among new rows over how likely they are here, (N,) up to a factor,
            under a shift of inputs (Tibshirani et al. 2019); 1 for each if not given.
        num_draws: number of posterior draws.
        seed: seed of the random numbers of "aps" and "raps"; draws of the weights have the fit's.

    Returns:
        The calibrated fit, whose `predict` gives predictions with intervals or sets of classes of any level.

    Warns:
        UserWarning: rows that the fit was trained on.

    Raises:
        InputError: a method for other targets, several target columns, or groups and weights that do not fit the rows.

    Examples:
        >>> train, held_out = bnn.datasets.sinusoid(200).split(0.5, seed=0)
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(train, steps=20, seed=0, progress=False)
        >>> lower, upper = bnn.conformal(posterior, held_out).predict([[0.0], [0.25]]).interval(0.9)
        >>> lower.shape
        torch.Size([2])
    """
    data = held_out_rows(posterior, data)
    prediction = posterior.predict(data.x, num_draws=num_draws)
    likelihood = as_likelihood(members_of(posterior)[0].bnn.settings["likelihood"])
    if method is None and not (prediction.is_classification or likelihood.is_symmetric):
        method = "quantiles"
    names = None if groups is None else _names(groups, len(data))
    group = torch.zeros(len(data), dtype=torch.int64) if names is None else _numbers(names, sorted(set(names)))
    rows = Grouping(group, _weights(weights, len(data)))
    scores = ConformityScores(prediction, as_targets(data.y, len(data)), rows, method, seed)
    return Conformal(posterior, scores, None if names is None else sorted(set(names)), num_draws)


class ConformityScores:
    """Scores of held-out rows, smaller where a target conforms more, and their quantiles.

    Args:
        prediction: predictions at the rows.
        y: their targets, (N,).
        rows: their groups and weights.
        method: as for `conformal`.
        seed: likewise.
    """

    def __init__(
        self, prediction: Prediction, y: Tensor, rows: Grouping, method: OfNumbers | OfClasses | None, seed: int
    ) -> None:
        if prediction.distribution.event_shape:
            raise InputError(f"Conformal prediction takes one target column, got {tuple(y.shape)}.")
        methods = get_args(OfClasses if prediction.is_classification else OfNumbers)
        self.method = methods[0] if method is None else method
        if self.method not in methods:
            kind = "classes" if prediction.is_classification else "numbers"
            raise InputError(f"`method` for {kind} must be one of {', '.join(methods)}, got {method!r}.")
        if self.method == "scaled" and not bool(prediction.std.isfinite().all()):
            raise InputError("The predictive standard deviation is not finite: take method='quantiles'.")
        self._prediction, self._y, self._rows, self._seed = prediction, y, rows, seed

    def thresholds(self, rows: Grouping, level: float) -> Tensor:
        """Return the score that new rows stay below at that level, (N,); infinite where held-out rows are too few.

        It is the smallest score at which held-out rows have the level's share of the weight of all, with that of the
        new row (Tibshirani et al. 2019, lemma 3).
        """
        scores = self._scores(level)
        found = torch.full((len(rows.group),), torch.inf, dtype=torch.float64)
        for number in rows.group.unique().tolist():
            here, there = self._rows.group == number, rows.group == number
            order = scores[here].argsort()
            total = self._rows.weight[here][order].cumsum(0)
            all_of_it = total[-1] if len(total) else torch.zeros((), dtype=torch.float64)
            needed = level * (all_of_it + rows.weight[there])
            padded = torch.cat([scores[here][order], torch.tensor([torch.inf], dtype=torch.float64)])
            found[there] = padded[torch.searchsorted(total, needed * (1 - 1e-12))]
        return found

    def _scores(self, level: float) -> Tensor:
        """Return the score of each held-out row, (N,)."""
        if self.method == "quantiles":
            lower, upper, y = *(bound.double().cpu() for bound in self._prediction.interval(level)), self._y
            if is_positive(self._prediction):
                lower, upper, y = lower.log(), upper.log(), y.log()
            return torch.maximum(lower - y, y - upper)
        if self.method == "scaled":
            return (self._y - self._prediction.mean.double().cpu()).abs() / self._prediction.std.double().cpu()
        chance = uniform(len(self._y), self._seed, "held out")
        return self.of_classes(self._prediction, chance)[torch.arange(len(self._y)), self._y.long()]

    def of_classes(self, prediction: Prediction, chance: Tensor) -> Tensor:
        """Return the score of each class, (N, C), with a number between 0 and 1 for each row, (N,)."""
        probs = prediction.class_probs.double().cpu()
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        scores = ordered.cumsum(-1) - chance[:, None] * ordered
        if self.method == "raps":
            scores = scores + _PENALTY * (torch.arange(1, probs.shape[1] + 1) - _FREE).clamp_min(0)
        return torch.empty_like(scores).scatter(-1, order, scores)


class Conformal:
    """A fit with held-out rows that calibrate it; made by `conformal`."""

    def __init__(
        self, posterior: Posterior | Mixture, scores: ConformityScores, groups: list[str] | None, num_draws: int
    ) -> None:
        self.posterior, self._scores, self._groups, self._num_draws = posterior, scores, groups, num_draws

    def __repr__(self) -> str:
        groups = "" if self._groups is None else f", groups={len(self._groups)}"
        return f"Conformal({self.posterior!r}, {self.method!r}{groups})"

    @property
    def method(self) -> str:
        """How targets conform, as for `conformal`."""
        return self._scores.method

    def predict(self, x: Any, *, groups: Any = None, weights: Any = None, seed: int = 0) -> "ConformalPrediction":
        """Predict targets at inputs x (N, *in), as the posterior does, with calibrated intervals or sets.

        Args:
            x: inputs in original units.
            groups: the group of each, (N,), if the fit was calibrated by groups.
            weights: as for `conformal`, in the same units; 1 for each if not given.
            seed: seed of the random numbers of "aps" and "raps".

        Raises:
            InputError: groups that are missing, or that no held-out row has.
        """
        prediction = self.posterior.predict(x, num_draws=self._num_draws)
        rows = Grouping(self._group(groups, len(prediction)), _weights(weights, len(prediction)))
        return ConformalPrediction(
            prediction.distribution, prediction.scaler, scores=self._scores, rows=rows, seed=seed
        )

    def _group(self, groups: Any, num_rows: int) -> Tensor:
        if (groups is None) != (self._groups is None):
            given = "with" if self._groups is not None else "without"
            raise InputError(f"The fit was calibrated {given} `groups`: predict {given} them, too.")
        if self._groups is None:
            return torch.zeros(num_rows, dtype=torch.int64)
        return _numbers(_names(groups, num_rows), self._groups)


class ConformalPrediction(Prediction):
    """A prediction whose `interval`, or `label_set` of classes, holds its level on rows like the held-out ones.

    All else, such as log scores and quantiles, is the posterior's.

    Args:
        distribution: as for `Prediction`.
        scaler: likewise.
        scores: scores of the held-out rows.
        rows: groups and weights of these rows.
        seed: seed of the random numbers of "aps" and "raps".
    """

    def __init__(
        self, distribution: Any, scaler: Scaler | None = None, *, scores: ConformityScores, rows: Grouping, seed: int
    ) -> None:
        super().__init__(distribution, scaler)
        self._conformity, self._of_rows, self._seed = scores, rows, seed
        self._chance = uniform(len(self), seed, "new")

    def __getitem__(self, rows: Any) -> Any:
        """Return the prediction at some inputs, as `Prediction` does."""
        index = row_index(rows, len(self))
        part = Prediction(self.distribution, self.scaler)[index]
        few = Grouping(self._of_rows.group[index], self._of_rows.weight[index])
        found = ConformalPrediction(part.distribution, self.scaler, scores=self._conformity, rows=few, seed=self._seed)
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
        distance = self._conformity.thresholds(self._of_rows, level).to(lower)
        if self._conformity.method == "quantiles":
            if is_positive(self):
                return lower * (-distance).exp(), upper * distance.exp()
            lower, upper = lower - distance, upper + distance
        else:
            lower, upper = self.mean - distance * self.std, self.mean + distance * self.std
        least, most = ends(self)
        return lower.clamp_min(least), upper.clamp_max(most)

    def label_set(self, level: float = 0.95) -> Tensor:
        """Return which classes are in the set that holds new labels with at least this probability, (N, C) bool.

        Raises:
            InputError: a level outside (0, 1), or targets that are no classes.

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
        limits = self._conformity.thresholds(self._of_rows, level)
        return self._conformity.of_classes(self, self._chance) <= limits[:, None]


def held_out_rows(posterior: Posterior | Mixture, data: Any) -> Data:
    """Return rows that calibrate a fit, in memory.

    Raises:
        InputError: rows that are not in memory.
    """
    data = as_data(data, donors=posterior.donors)
    return data.in_memory() if isinstance(data, Loader) else data


def is_positive(prediction: Prediction) -> bool:
    """Return whether targets are positive real numbers."""
    return base_of(prediction.distribution).support is constraints.positive


def ends(prediction: Prediction) -> tuple[float, float]:
    """Return the smallest and the largest number that targets can be, infinite where there is none."""
    support = base_of(prediction.distribution).support
    given = getattr(support, "lower_bound", -torch.inf), getattr(support, "upper_bound", torch.inf)
    least, most = prediction.scaler.inverse(torch.tensor(given, dtype=torch.float64)).tolist()
    return least, most


def uniform(num: int, seed: int, purpose: str) -> Tensor:
    """Return numbers between 0 and 1, (num,)."""
    generator = torch.Generator().manual_seed(derive(seed, f"conformal, {purpose}"))
    return torch.rand(num, generator=generator, dtype=torch.float64)


def _weights(values: Any, num_rows: int) -> Tensor:
    if values is None:
        return torch.ones(num_rows, dtype=torch.float64)
    weights = as_tensor(values, "weights").double()
    check_finite(weights, "weights")
    if weights.shape != (num_rows,) or bool((weights < 0).any()):
        raise InputError(f"`weights` must be {num_rows} numbers from 0 up, one for each row.")
    return weights


def _names(groups: Any, num_rows: int) -> list[str]:
    names = [str(value) for value in np.asarray(groups).reshape(-1).tolist()]
    if len(names) != num_rows:
        raise InputError(f"`groups` must name a group for each of {num_rows} rows, got {len(names)}.")
    return names


def _numbers(names: Sequence[str], known: Sequence[str]) -> Tensor:
    unknown = sorted({*names} - {*known})
    if unknown:
        raise InputError(f"No held-out row has the group {unknown[0]!r}: known are {', '.join(known)}.")
    places = {name: number for number, name in enumerate(known)}
    return torch.tensor([places[name] for name in names], dtype=torch.int64)
