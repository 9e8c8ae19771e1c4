"""`Evidence`: what a fit is judged by, each number computed once, when a check first asks for it."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from pyrobnn import nets
from pyrobnn._core.random import derive
from pyrobnn._torch.inputs import X
from pyrobnn.data.imputed import Imputer
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import built
from pyrobnn.likelihoods import Gaussian
from pyrobnn.likelihoods.base import BaseLikelihood, as_likelihood
from pyrobnn.posterior.mixture import Mixture, copies_of, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.baselines import Baseline, fit_baselines, shuffled_rows
from pyrobnn.verdict.scores import LARGEST_MATRIX, BaselineComparison, compared, left_out_by_draws, left_out_linearised

Basis = Literal["held out", "left out", "training"]
"""The examples of a comparison: unseen by the fit, left out of it one by one, or those that it was trained on."""
_CHECKED_ROWS, _FEWEST_CHECKED_ROWS = 500, 20
_CHECKED_DRAWS, _FEWEST_CHECKED_DRAWS = 100, 10
_PRODUCTS_OF_A_CHECK, _PRODUCTS_IN_A_LOOP, _SHARE_OF_FIT = 500_000_000, 50_000_000, 0.05
"""Products of a weight and an activation that the end of a fit may take, about .1 s; fewer in loops of fits."""
SIGNIFICANCE = 0.01  # the p-value of a difference to a baseline at the end of a fit
THREE_ERRORS = 0.00135  # the p-value of a normal number three standard errors from its mean, on one side
_DRAWS_OF_STEPS = 100  # for targets with point masses, whose distribution function is slow
FEW = 10  # held-out examples, of a class where there are some, below which nothing is said of predictions for them


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a judgement may cost, and how sure it has to be.

    At most `rows` of each part are predicted, `most_for_rare` held out where a class is rare. Baselines have
    `baseline_rows`, and `folds` or one fit with a weak penalty. `level` is the p-value of a difference to a baseline.
    """

    rows: int = 1000
    draws: int = 500
    most_for_rare: int = 10_000
    baseline_rows: int = 10_000
    folds: bool = True
    largest_matrix: int = LARGEST_MATRIX
    level: float = THREE_ERRORS
    false_alarm_rate: float = 0.05

    @classmethod
    def of_fit(cls, posterior: Posterior | Mixture, *, brief: bool = False) -> "Budget":
        """Return the budget at the end of a fit: a small share of its time, or .1 s; `brief` in loops of fits."""
        history = posterior.history
        steps = 0 if history is None else len(history) * min(_CHECKED_ROWS, posterior.record.num_data or 0)
        products = _PRODUCTS_IN_A_LOOP if brief else _PRODUCTS_OF_A_CHECK
        passes = max(products // posterior.bnn.num_weights, int(_SHARE_OF_FIT * steps))
        draws = max(min(_CHECKED_DRAWS, max(_FEWEST_CHECKED_DRAWS, passes // _CHECKED_ROWS)), len(posterior.members))
        rows = min(_CHECKED_ROWS, max(_FEWEST_CHECKED_ROWS, passes // draws))
        cost = cls(rows=rows, draws=draws, most_for_rare=0, baseline_rows=_CHECKED_ROWS, level=SIGNIFICANCE)
        matrix = LARGEST_MATRIX // 2 if brief else LARGEST_MATRIX
        return dataclasses.replace(cost, folds=not brief, largest_matrix=matrix)


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """A fit with its training data and those held out, if any, and what follows from them.

    `table` has all rows in the order of their file, `columns` the inputs that a column of it became, and `dropped` its
    others. `given` are inputs held out (N, features), whose NaN the `imputer` draws, for mixtures over copies of rows.
    """

    posterior: Posterior | Mixture
    train: Data
    held_out: Data | None = None
    budget: Budget = Budget()
    seed: int = 0
    class_names: Sequence[str] = ()
    table: Data | None = None
    columns: Mapping[str, Sequence[int]] | None = None
    dropped: Sequence[str] = ()
    given: np.ndarray | None = None
    imputer: Imputer | None = None

    @functools.cached_property
    def baselines(self) -> dict[str, Baseline]:
        """The constant and the linear model of the likelihood."""
        return self._fitted(self.posterior.bnn.settings["likelihood"], self.posterior.members[0].outputs.shape[-1])

    def _fitted(self, likelihood: Any, outputs: int) -> dict[str, Baseline]:
        rows, folds = self.budget.baseline_rows, self.budget.folds
        return fit_baselines(likelihood, self.train, outputs, most_rows=rows, folds=folds)

    @functools.cached_property
    def least_squares(self) -> Baseline | None:
        """The linear model of least squares, for the mean of a target that has one, whatever the likelihood."""
        if "linear" not in self.baselines or self.likelihood.has_labels:
            return None
        is_same = self.likelihood.noise is not None
        return (self.baselines if is_same else self._fitted(Gaussian(), self.train.y[0].numel()))["linear"]

    @functools.cached_property
    def train_sample(self) -> Data:
        """The training rows that are predicted, the first of those of the baselines."""
        return self.train[self._rows]

    @functools.cached_property
    def _rows(self) -> Tensor:
        return (self.baselines["constant"].rows if self.baselines else shuffled_rows(self.train))[: self.budget.rows]

    @functools.cached_property
    def judged_rows(self) -> Tensor:
        """The numbers of the held-out rows that are predicted; more of them where few are of some class."""
        assert self.held_out is not None
        data, most = self.held_out, self.budget.rows
        if self.likelihood.has_labels and data.y.ndim == 1 and self.budget.most_for_rare:
            rarest = int(data.y.unique(return_counts=True)[1].min())
            most = min(max(most, math.ceil(2 * FEW / rarest * len(data))), self.budget.most_for_rare)
        generator = torch.Generator().manual_seed(derive(self.seed, "examples"))
        return torch.randperm(len(data), generator=generator)[:most].sort().values

    @functools.cached_property
    def judged(self) -> Data:
        """The rows by which predictions are judged: held out, or else of training."""
        return self.train_sample if self.held_out is None else self.held_out[self.judged_rows]

    @functools.cached_property
    def prediction(self) -> Prediction:
        """The predictions for the rows judged."""
        return self.train_prediction if self.held_out is None else self._predicted(self.predict_judged)

    @functools.cached_property
    def train_prediction(self) -> Prediction:
        """The predictions for training rows."""
        return self._predicted(functools.partial(self.posterior.predict, self.train_sample.x))

    def predict_judged(self, *, num_draws: int, seed: int) -> Prediction:
        """Predict for the rows judged, each a mixture over copies if it lacks values."""
        if self.given is None:
            return self.posterior.predict(self.judged.x, num_draws=num_draws, seed=seed)
        rows = self.given[self.judged_rows.numpy()]
        return predict_copies(self.posterior, self.imputer, rows, num_draws=num_draws, seed=seed)

    def _predicted(self, predict: Callable[..., Prediction]) -> Prediction:
        draws = self.budget.draws
        prediction = predict(num_draws=draws, seed=self.seed)
        if prediction.is_continuous or not prediction.has_quantiles or draws <= _DRAWS_OF_STEPS:
            return prediction
        return predict(num_draws=max(_DRAWS_OF_STEPS, len(self.posterior.members)), seed=self.seed)

    @functools.cached_property
    def copies(self) -> list[X]:
        """The inputs of the rows judged, several times if some lack values."""
        if self.given is None or self.imputer is None:
            return [self.judged.x]
        return list(copies_of(self.imputer, self.given[self.judged_rows.numpy()]))

    @functools.cached_property
    def basis(self) -> Basis:
        """What the comparison rests on: draws of Markov chains have the scores of `left_out_by_draws`."""
        if self.held_out is not None:
            return "held out"
        return "left out" if self.has_chains and self.train.weights is None else "training"

    @functools.cached_property
    def scores(self) -> Tensor:
        """The log scores (N,) of the rows judged."""
        if self.basis == "left out":
            return left_out_by_draws(self.prediction, self.judged.y)
        return self.prediction.log_prob(self.judged.y).double().cpu()

    @functools.cached_property
    def baseline_scores(self) -> dict[str, Tensor]:
        """The log scores (N,) of the baselines for the rows judged, cross-validated where these are of training."""
        if self.held_out is not None:
            y, num = self.judged.y, math.log(len(self.copies))
            scores = {name: [one.predict(x).log_prob(y) for x in self.copies] for name, one in self.baselines.items()}
            return {name: torch.stack(of_copies).logsumexp(0) - num for name, of_copies in scores.items()}
        y, num = self.train.y, len(self.train_sample)
        return {name: model.cross_validated.log_prob(y[model.rows])[:num] for name, model in self.baselines.items()}

    @functools.cached_property
    def can_judge(self) -> bool:
        """Whether ten or more examples are held out, of labels ten that are not of the most frequent class; or none."""
        return self.held_out is None or len(self.judged) - max(self.counts.values(), default=0) >= FEW

    @functools.cached_property
    def counts(self) -> dict[int, int]:
        """The number of held-out examples of each class of training; empty without classes."""
        y = self.judged.y
        return {int(label): int((y == label).sum()) for label in self.train.y.unique()} if self.has_classes else {}

    @functools.cached_property
    def comparison(self) -> BaselineComparison | None:
        """The fit beside the baselines; None without them, or with a single example.

        Training examples count by their weights, those held out once.
        """
        if not self.baselines or len(self.judged) < 2 or not self.can_judge:
            return None
        scores, rivals, weights = self.scores, self.baseline_scores, self.judged.weights
        if weights is not None:
            share = (weights / weights.mean()).double().cpu()
            scores, rivals = share * scores, {name: share * rival for name, rival in rivals.items()}
        return compared(scores, rivals, self.budget.level)

    @functools.cached_property
    def left_out_linearised(self) -> Tensor | None:
        """The scores (N,) of the training rows judged, by the fit without each; None where that costs too much."""
        if not self.budget.folds and self.hidden is None:
            return None
        scores = left_out_linearised(self.posterior, self.train, largest=self.budget.largest_matrix)
        return None if scores is None else scores[self._rows]

    @property
    def has_lost(self) -> bool:
        """Whether a baseline predicts better."""
        return self.comparison is not None and self.comparison.is_loss

    @property
    def has_chains(self) -> bool:
        """Whether its draws are Markov chains."""
        return all(built(member.guide).chains() is not None for member in self.posterior.members)

    @property
    def likelihood(self) -> BaseLikelihood:
        """The likelihood, as it declares itself."""
        return as_likelihood(self.posterior.bnn.settings["likelihood"])

    @property
    def has_classes(self) -> bool:
        """Whether targets are a column of classes."""
        return self.prediction.is_classification and self.judged.y.ndim == 1

    @property
    def hidden(self) -> Sequence[int] | None:
        """The numbers of hidden units of a network of dense layers; None for another."""
        net = self.posterior.bnn.settings["net"]
        return () if isinstance(net, nn.Linear) else net.hidden if isinstance(net, nets.MLP) else None
