"""Calibration after the fit: one number for the spread of predictions, found by the log score of held-out rows."""

from typing import Any

import numpy as np
import torch
from pyro.distributions import Categorical
from scipy.optimize import minimize_scalar
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn.data.given import collected
from pyrobnn.distributions.spread import centre, spread
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

_GRID = np.linspace(-np.log(100), np.log(100), 41)
"""Logarithms of the factors that are tried first. The one in the middle changes nothing."""


def calibrate(posterior: Posterior | Mixture, data: Any, *, num_draws: int = 500) -> "Calibrated":
    """Return the fit with one factor for the spread of predictions, by the log score of rows that it has not seen.

    Numbers keep their predictive centre, and their distances from it are multiplied by the factor: the differences
    between draws and the noise alike. The centre is the mean; for log-normal targets it is that of the logarithms.
    Classes have their predictive log probabilities divided by the factor, the temperature (Guo et al. 2017). A factor
    of 1 changes nothing, so the log score of these rows is never lower than before. Factors lie between 0.01 and 100.

    Args:
        posterior: the fit.
        data: `Data` or a pair (x, y) of rows that took no part in the fit. Weights of rows count.
        num_draws: number of posterior draws.

    Raises:
        InputError: rows that are not in memory, several columns of classes, or numbers whose distribution has no
            location and scale, such as counts.

    Examples:
        >>> train, held_out = bnn.datasets.sinusoid(200).split(0.5, seed=0)
        >>> narrow = bnn.likelihoods.Gaussian(scale=0.1)  # the noise is 1
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1), likelihood=narrow).fit(train, steps=20, seed=0, progress=False)
        >>> calibrated = bnn.calibrate(posterior, held_out)
        >>> calibrated.factor > 1, calibrated.predict([[0.0], [0.25]]).std.shape
        (True, torch.Size([2]))
    """
    rows = collected(data, weighted=True)
    prediction = posterior.predict(rows.x, num_draws=num_draws)
    weights = torch.ones(len(rows)) if rows.weights is None else rows.weights
    return Calibrated(posterior, best_factor(prediction, rows.y, weights), num_draws)


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
    if not prediction.is_classification:
        distribution = prediction.distribution
        return Prediction(spread(distribution, centre(distribution), factor), prediction.scaler)
    if prediction.distribution.event_shape:
        raise InputError(
            f"Classes are calibrated for one target column, got {tuple(prediction.distribution.event_shape)} targets "
            "an input."
        )
    probs = prediction.class_probs
    return Prediction(Categorical(logits=probs.clamp_min(torch.finfo(probs.dtype).tiny).log()[None] / factor))


class Calibrated:
    """A fit with a factor for the spread of its predictions; made by `calibrate`.

    Attributes:
        posterior: the fit.
        factor: what distances from the predictive centre are multiplied by, or log probabilities of classes divided by.
    """

    def __init__(self, posterior: Posterior | Mixture, factor: float, num_draws: int) -> None:
        self.posterior, self.factor, self._num_draws = posterior, factor, num_draws

    def __repr__(self) -> str:
        return f"Calibrated({self.posterior!r}, factor={self.factor:.3g})"

    def predict(self, x: Any) -> Prediction:
        """Predict targets at inputs x (N, *in), as the posterior does, with the spread multiplied by the factor.

        A prediction of classes has one draw, the calibrated mean, so its `mutual_information` is 0.
        """
        return with_factor(self.posterior.predict(x, num_draws=self._num_draws), self.factor)
