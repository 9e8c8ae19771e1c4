"""Log scores of a fit, of rows left out of it too, beside those of a constant and a linear model."""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

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
_NEGLIGIBLE_NATS = 0.05
"""Nats an example above a constant that count as none, if chance may explain them."""
_FEWEST_NATS = 5.0
"""Nats in all that noise and prior scales, which have seen the examples left out, do not gain on pure noise."""
_SHOWN = 0.05
"""The p-value below which a fit counts as better than a baseline; a warning needs far more."""
_LEAD_NATS = 0.01
_LEAST_LEAD_NATS = 0.001
"""Nats an example that are called a lead over a linear model, and where chance does not explain them."""
_FAR_LESS = 0.8
"""Share of the gain of a linear model below which a fit has missed the linear part."""
FAR_BELOW = 5.0
"""Nats below the constant at which the score of an example is cut off."""
LOSSES = ("impossible", "constant", "linear")
"""The cases that speak against a fit."""


class Gain(NamedTuple):
    """A mean difference of log scores, with its standard error and degrees of freedom."""

    mean: float
    stderr: float
    df: int

    @classmethod
    def of(cls, differences: Tensor) -> "Gain":
        """Return the mean of differences (N,)."""
        num = len(differences)
        return cls(float(differences.mean()), float(differences.std()) / math.sqrt(num), num - 1)

    def below(self, bound: float) -> float:
        """Return the p-value of the hypothesis that the difference is at least a bound, by Student's t."""
        from scipy.special import stdtr

        return float(stdtr(self.df, (self.mean - bound) / max(self.stderr, 1e-12)))

    @property
    def is_shown(self) -> bool:
        """Whether there is a sign that the difference is above 0."""
        return 1 - self.below(0.0) < _SHOWN


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How a fit compares: the name of a finding, and the gains over a constant of the fit and of a linear model.

    A loss, one of `LOSSES`, has the chance `p` of such numbers of a fit that is no reason to warn; `num_lost` examples
    have no finite score. Gains `are_slight` if the fit gains below 0.05 nats by a standard error, and below 5 in all,
    and the linear model finds nothing.
    """

    case: str
    p: float | None
    fit: Gain
    linear: Gain | None
    num_lost: int
    are_slight: bool

    @property
    def linear_finds(self) -> bool:
        """Whether the linear model shows a sign that it is better than the constant."""
        return self.linear is not None and self.linear.is_shown


def compared(scores: Tensor, rivals: Mapping[str, Tensor], level: float) -> Comparison:
    """Compare the log scores (N,) of a fit with those of a "constant" and perhaps a "linear" model, N >= 2.

    A loss has a p-value below the level: that the fit is worse than the constant, or not shown to be better with a gain
    of at most 0.05 nats an example, or that it attains less than 80 % of the linear model's gain. A target that a
    baseline takes for impossible has the lowest score.
    """
    floored = {}
    for name, rival in rivals.items():
        is_finite = rival.isfinite()
        floored[name] = rival.where(is_finite, torch.cat([scores, rival[is_finite]]).min())
    own, num_lost = scores - floored["constant"], int((~scores.isfinite()).sum())
    fit, linear = Gain.of(own), None
    p = min(_of_no_gain(fit, level), _of_no_gain(Gain.of(own.clamp_min(-FAR_BELOW)), level))  # few may hide the others
    case = "impossible" if num_lost else "constant" if p < level else "better than constant" if fit.is_shown else "few"
    if "linear" in floored:
        gains = floored["linear"] - floored["constant"]
        linear, lead, short = (Gain.of(each) for each in (gains, own - gains, own - _FAR_LESS * gains))
        if case in ("better than constant", "few") and linear.mean > 0 and short.below(0.0) < level:
            case, p = "linear", short.below(0.0)
        elif case == "better than constant" and lead.is_shown and lead.mean >= _LEAST_LEAD_NATS:
            case = "better"
        elif case == "better than constant":
            is_like = lead.mean < _LEAD_NATS
            case = "behind linear" if lead.below(0.0) < level else "like linear" if is_like else "near linear"
    is_real = 1 - fit.below(0.0) < level and fit.mean * len(own) >= _FEWEST_NATS
    is_slight = linear is not None and not linear.is_shown and not is_real and fit.mean + fit.stderr < _NEGLIGIBLE_NATS
    return Comparison(case, p if case in ("constant", "linear") else None, fit, linear, num_lost, is_slight)


def _of_no_gain(gain: Gain, level: float) -> float:
    is_shown = 1 - gain.below(0.0) < level
    return min(max(gain.below(_NEGLIGIBLE_NATS), level if is_shown else 0.0), gain.below(0.0))


def leave_one_out(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the log score of each training example by a fit without it, (N,), from draws of the posterior.

    Draws are weighted by 1 / p(y_n | w), each weight truncated at sqrt(S) times their mean (Ionides 2008): too good
    rather than too bad.
    """
    log_prob = prediction.draw_log_prob(y).double().cpu()
    log_weights = -log_prob
    largest = log_weights.logsumexp(0) - 0.5 * math.log(len(log_prob))
    log_weights = torch.minimum(log_weights, largest)
    return (log_weights + log_prob).logsumexp(0) - log_weights.logsumexp(0)


def left_out_scores(posterior: Posterior | Mixture, train: Data, *, largest: int = LARGEST_MATRIX) -> Tensor | None:
    """Return the log score of each training example by a fit without it, (N,), from the network linearised at the mean.

    The example's term is taken out of the Laplace approximation at the guide's mean (Vehtari et al. 2016, sec. 3.3),
    exactly at a mode of a linear network with Gaussian noise. None for guides without a mean, data with weights, and a
    matrix above the largest.
    """
    found = []
    for member in posterior.members:
        with seeded(member.seed, "left out"):
            found.append(_of_member(member, train, largest))
    known = [scores for scores in found if scores is not None]
    return torch.stack(known).logsumexp(0) - math.log(len(known)) if len(known) == len(found) else None


def _of_member(posterior: Posterior, train: Data, largest: int) -> Tensor | None:
    mean = None if built(posterior.guide).chains() is not None else built(posterior.guide).mean()
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
