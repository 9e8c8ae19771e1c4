"""Targets and predictions as arrays with a column for each target, in double precision."""

import numpy as np
from numpy.typing import ArrayLike

from pyrobnn._core.checks import as_targets
from pyrobnn._core.errors import InputError
from pyrobnn.metrics.base import as_columns
from pyrobnn.metrics.calibration import observed
from pyrobnn.posterior.prediction import Prediction


def real_columns(prediction: Prediction, y: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return targets, predictive means and predictive standard deviations, each (N, K)."""
    return as_columns(observed(prediction, y)), as_columns(prediction.mean), as_columns(prediction.std)


def class_columns(prediction: Prediction, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (N, K) and class probabilities (N, K, C); K is 1 but for several binary targets."""
    labels = as_columns(as_targets(y, len(prediction))).astype(np.int64)
    if labels.size and labels.min() < 0:
        raise InputError(
            f"Some labels are no class, {labels.min()}: score the others, keep = y.flatten() != {labels.min()}, with "
            "prediction.by_target[keep] and y.flatten()[keep]."
        )
    probs = prediction.class_probs
    return labels, probs.detach().cpu().double().numpy().reshape(*labels.shape, probs.shape[-1])


def brier(labels: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """Return the squared errors of the probabilities, summed over the classes, (N, K)."""
    one_hot = labels[..., None] == np.arange(probs.shape[-1])
    return np.square(probs - one_hot).sum(-1)


def entropy(probs: np.ndarray) -> np.ndarray:
    """Return the entropies in nats of class probabilities, (N, K)."""
    from scipy import special

    return special.entr(probs).sum(-1)
