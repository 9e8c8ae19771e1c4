"""Whether a fit has memorised its targets: what it says of an example that is left out."""

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
from pyrobnn.guides.built import built
from pyrobnn.guides.empirical import EmpiricalGuide
from pyrobnn.posterior.mixture import Mixture, members_of
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.verdict.baselines import Baseline, judge

_DRAWS = 100
_MOST_ENTRIES = 2**24
"""Derivatives of outputs in weights that are looked at."""
_LARGEST = 1000
"""Rows and columns of the matrix whose eigenvalues it takes."""
_FAR_BELOW = 5.0
"""Nats below the constant at which the score of an example counts no further."""
_LOST, _SHARE = 2.0, 0.8
"""Nats an example that a fit has to lose; of labels and counts, at most this share of what a constant leaves open."""
_LEVEL = 0.01


def memorised_targets(
    posterior: Posterior | Mixture, train: Data, baselines: dict[str, Baseline], advice: str
) -> str | None:
    """Say so if training examples are far more likely than they would be left out, and a linear model is as good.

    It loses at least 2 nats an example; of labels and counts, 80 % of the constant's own loss where that is less. The
    network is linearised at the mean of the guide (see `left_out_scores`), so this is for large effects: noise that is
    set too small, or learned where all targets are met. Networks for which it takes seconds are not looked at.
    """
    left_out = left_out_scores(posterior, train)
    if left_out is None or "linear" not in baselines:
        return None
    rows = baselines["constant"].rows
    found = {name: one.cross_validated.log_prob(train.y[rows]) for name, one in baselines.items()}
    part, constant = train[rows], found["constant"]
    draws = max(_DRAWS, len(members_of(posterior)))
    kept = posterior.predict(part.x, num_draws=draws).log_prob(part.y).double().cpu()
    scores = torch.maximum(left_out[rows], constant - _FAR_BELOW)
    lost = float((kept - scores).mean())
    threshold = _LOST
    if posterior.bnn.settings["likelihood"].integer_targets:
        threshold = min(_LOST, -_SHARE * float(constant.mean()))
    if lost < threshold or judge(scores, found, _LEVEL, where="", advice="").kind == "fine":
        return None
    return (
        f"The fit has memorised its targets: an example is {lost:.1f} nats less likely where it is left out, which is "
        f"{float((scores - constant).mean()):+.2f} on a constant, where a linear model has "
        f"{float((found['linear'] - constant).mean()):+.2f}. Its intervals are too narrow for new data. {advice}"
    )


def left_out_scores(posterior: Posterior | Mixture, train: Data) -> Tensor | None:
    """Return the log score of each training example by a fit without it, (N,), from the network linearised at the mean.

    The example's own term is taken out of the Laplace approximation at the guide's mean (Vehtari et al. 2016,
    sec. 3.3). At a mode of a linear network with Gaussian noise that is exact.

    Returns:
        In the original units of the targets. None for guides without a mean, Markov chains, data with weights, and
        where it would cost too much.
    """
    found = []
    for member in members_of(posterior):
        with seeded(member.seed, "left out"):
            scores = None if isinstance(member.guide, EmpiricalGuide) else _of_member(member, train)
        if scores is None:
            return None
        found.append(scores)
    return torch.stack(found).logsumexp(0) - math.log(len(found))


def _of_member(posterior: Posterior, train: Data) -> Tensor | None:
    mean = built(posterior.guide).mean()
    bnn, size = posterior.bnn, posterior.bnn.num_weights
    if mean is None or train.weights is not None or any(name not in mean for name in bnn.site_names):
        return None
    columns = len(train) * posterior.outputs.shape[-1]
    if columns * size > _MOST_ENTRIES or min(columns, size) > _LARGEST:
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
