"""Predictions for imputed copies of rows, joined as draws."""

import math
from collections.abc import Callable

import numpy as np
import torch

from pyrobnn._core.random import derive
from pyrobnn.data.imputed import TO_PREDICT, Imputer
from pyrobnn.distributions.latents import concatenate
from pyrobnn.distributions.parts import converted
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

Predict = Callable[[np.ndarray, int, int], Prediction]
"""From inputs, a number of draws and a seed to a prediction."""


def predict_copies(
    posterior: Posterior | Mixture, imputer: Imputer | None, x: np.ndarray, *, num_draws: int
) -> Prediction:
    """Predict for rows (N, features), with NaN where they lack a value: each copy of these rows has some of the draws.

    Args:
        posterior: the posterior.
        imputer: draws what rows lack; None if rows lack nothing.
        x: the rows.
        num_draws: number of draws, at least one for each copy, and for each member of a mixture.
    """
    if imputer is None or not imputer.lacking(x).any():
        return posterior.predict(x, num_draws=num_draws)

    def predict(rows: np.ndarray, draws: int, number: int) -> Prediction:
        return posterior.predict(rows, num_draws=draws, seed=derive(posterior.seed, f"copy {number}"))

    return joined(predict, imputer, x, max(math.ceil(num_draws / TO_PREDICT), len(members_of(posterior))))


def joined(predict: Predict, imputer: Imputer, x: np.ndarray, draws: int) -> Prediction:
    """Return the predictions of a function for rows, those that lack values as a mixture over copies.

    Args:
        predict: the function.
        imputer: draws what rows lack.
        x: the rows, (N, features).
        draws: the draws of each copy.
    """
    lacks = imputer.lacking(x).any(1)
    parts = [predict(copy, draws, number) for number, copy in enumerate(imputer.copies(x[lacks], TO_PREDICT))]
    with_gaps = Prediction(concatenate([part.distribution for part in parts]), parts[0].scaler)
    if lacks.all():
        return with_gaps
    whole = predict(x[~lacks], draws * TO_PREDICT, TO_PREDICT)
    if with_gaps.num_draws % whole.num_draws:  # of chains with few draws each copy has some of them
        parts = [predict(x[~lacks], draws, number) for number in range(TO_PREDICT)]
        whole = Prediction(concatenate([part.distribution for part in parts]), whole.scaler)
    whole = repeated(whole, with_gaps.num_draws // whole.num_draws)
    place = torch.from_numpy(np.argsort(np.concatenate([np.flatnonzero(~lacks), np.flatnonzero(lacks)])))
    together = concatenate([whole.distribution, with_gaps.distribution], 1)
    return Prediction(converted(together, lambda values: values[:, place.to(values.device)]), whole.scaler)


def repeated(prediction: Prediction, times: int) -> Prediction:
    """Return the same mixture with each of its draws so many times."""
    repeat = converted(prediction.distribution, lambda values: values.repeat_interleave(times, 0))
    return Prediction(repeat, prediction.scaler) if times > 1 else prediction
