"""Predictions for imputed copies of rows, joined as draws."""

import math

import numpy as np
import torch

from pyrobnn._core.random import derive
from pyrobnn.data.imputed import TO_PREDICT, Imputer
from pyrobnn.distributions.parts import converted
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction, joined


def predict_copies(
    posterior: Posterior | Mixture, imputer: Imputer | None, x: np.ndarray, *, num_draws: int
) -> Prediction:
    """Predict for rows (N, features), with NaN where they lack a value: each copy of these rows has some of the draws.

    The draws are at least one for each copy and each member of a mixture. The imputer is None if rows lack nothing.
    """
    if imputer is None or not imputer.lacking(x).any():
        return posterior.predict(x, num_draws=num_draws)
    draws = max(math.ceil(num_draws / TO_PREDICT), len(posterior.members))

    def predict(rows: np.ndarray, count: int, number: int) -> Prediction:
        return posterior.predict(rows, num_draws=count, seed=derive(posterior.seed, f"copy {number}"))

    lacks = imputer.lacking(x).any(1)
    copies = enumerate(imputer.copies(x[lacks], TO_PREDICT))
    with_gaps = joined([predict(copy, draws, number) for number, copy in copies])
    if lacks.all():
        return with_gaps
    whole = predict(x[~lacks], draws * TO_PREDICT, TO_PREDICT)
    if with_gaps.num_draws % whole.num_draws:  # of chains with few draws each copy has some of them
        whole = joined([predict(x[~lacks], draws, number) for number in range(TO_PREDICT)])
    times = with_gaps.num_draws // whole.num_draws
    if times > 1:
        repeated = converted(whole.distribution, lambda values: values.repeat_interleave(times, 0))
        whole = Prediction(repeated, whole.scaler)
    place = torch.from_numpy(np.argsort(np.concatenate([np.flatnonzero(~lacks), np.flatnonzero(lacks)])))
    return joined([whole, with_gaps], 1)[place]
