"""Scores of training examples by fits without them: by draws of Markov chains, and of the network linearised."""

import math

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.curvature.base import Point, conditioned_likelihood
from pyrobnn.curvature.linear_model import linear_model, log_scores
from pyrobnn.curvature.metric import score_columns
from pyrobnn.curvature.prior import prior_curvature
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import built
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

_MOST_ENTRIES = 2**24
"""Derivatives of outputs in weights that are looked at."""
LARGEST_MATRIX = 1000


def leave_one_out(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the log score of each training example by a fit without it, (N,), from draws of the posterior.

    Draws are weighted by 1 / p(y_n | w), each weight truncated at sqrt(S) times their mean (Ionides 2008, "Truncated
    Importance Sampling"), which moves the score towards the training score: too good rather than too bad.
    """
    log_prob = prediction.draw_log_prob(y).double().cpu()
    log_weights = -log_prob
    largest = log_weights.logsumexp(0) - 0.5 * math.log(len(log_prob))
    log_weights = torch.minimum(log_weights, largest)
    return (log_weights + log_prob).logsumexp(0) - log_weights.logsumexp(0)


def left_out_scores(posterior: Posterior | Mixture, train: Data, *, largest: int = LARGEST_MATRIX) -> Tensor | None:
    """Return the log score of each training example by a fit without it, (N,), from the network linearised at the mean.

    The example's term is taken out of the Laplace approximation at the guide's mean (Vehtari et al. 2016,
    sec. 3.3). This is exact at a mode of a linear network with Gaussian noise. The scores are in original units; None
    for guides without a mean, Markov chains, data with weights, and a matrix above the largest.
    """
    member_scores = []
    for member in posterior.members:
        with seeded(member.seed, "left out"):
            scores = None if built(member.guide).chains() is not None else _of_member(member, train, largest)
        if scores is None:
            return None
        member_scores.append(scores)
    return torch.stack(member_scores).logsumexp(0) - math.log(len(member_scores))


def _of_member(posterior: Posterior, train: Data, largest: int) -> Tensor | None:
    mean = built(posterior.guide).mean()
    bnn, size = posterior.bnn, posterior.bnn.num_weights
    if mean is None or train.weights is not None or any(name not in mean for name in bnn.site_names):
        return None
    columns = len(train) * posterior.outputs.shape[-1]
    if columns * size > _MOST_ENTRIES or min(columns, size) > largest:
        return None
    weights = {name: mean[name] for name in bnn.site_names}
    others = {name: value for name, value in mean.items() if name not in weights}
    x = posterior.inputs(train.x)
    y = bnn.cast_targets(posterior.y_scaler.transform(train.y), bnn.like)
    point = Point(bnn, weights, conditioned_likelihood(bnn, others), list(weights))
    with fast_pyro():
        try:
            precision = point.flat(prior_curvature(bnn, weights, others, point.sites).precision).double()
            model, f = linear_model(point, x, y)
            solution = model.solve(precision)
        except (InputError, FloatingPointError):
            return None
        (column,) = score_columns(point.likelihood, f.to(bnn.like.dtype), y)
        with torch.no_grad():
            centre, covariance = solution.left_out(f, column.double())
            scores = log_scores(point, y, centre, covariance, None)
    return (scores - posterior.y_scaler.log_volume()).cpu()
