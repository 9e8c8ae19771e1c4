"""Log scores of a fit, of rows left out of it too, beside those of a constant and a linear model."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError
from pyrobnn._core.random import seeded
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.curvature.base import Point, conditioned_likelihood
from pyrobnn.curvature.linear_model import scores_left_out
from pyrobnn.curvature.prior import prior_curvature
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import built
from pyrobnn.likelihoods.base import as_likelihood
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction

_MOST_ENTRIES = 2**24  # derivatives of outputs in weights that are looked at
LARGEST_MATRIX = 1000
_NEGLIGIBLE_NATS = 0.05  # an example above a constant that count as none, if chance may explain them
_FEWEST_NATS = 5.0  # in all, that scales, which have seen the examples left out, do not gain on pure noise
_SHOWN = 0.05  # the p-value below which a fit counts as better than a baseline; a warning needs far more
_LEAD_NATS = 0.01  # nats an example that are called a lead over a linear model
_LEAST_LEAD_NATS = 0.001  # and where chance does not explain them
_FAR_LESS = 0.8  # share of the gain of a linear model below which a fit has missed the linear part
FAR_BELOW = 5.0  # nats below the constant at which the score of an example is cut off
Case = Literal[
    "impossible", "constant", "linear",
    "few", "better", "better than constant", "behind linear", "like linear", "near linear",
]  # fmt: skip


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
class BaselineComparison:
    """How a fit compares: the name of a finding, and the gains over a constant of the fit and of a linear model.

    A loss has the chance `p` of such numbers of a good fit; `num_lost` examples have no finite score.
    Gains `are_slight` if they are below 0.05 nats by a standard error, and 5 in all, and the linear model has none.
    """

    case: Case
    p: float | None
    fit: Gain
    linear: Gain | None
    num_lost: int
    are_slight: bool

    @property
    def is_loss(self) -> bool:
        """Whether it speaks against the fit."""
        return self.case in ("impossible", "constant", "linear")

    @property
    def is_better(self) -> bool:
        """Whether the fit is better than all baselines."""
        return self.case in ("better", "better than constant")


def compared(scores: Tensor, rivals: Mapping[str, Tensor], level: float) -> BaselineComparison:
    """Compare the log scores (N,) of a fit with those of a "constant" and perhaps a "linear" model, N >= 2.

    A loss has a p-value below the level: that the fit is worse than the constant, or not shown to be better with a gain
    of at most 0.05 nats an example, or that it attains less than 80 % of the linear model's gain. A target that a
    baseline takes for impossible has the lowest score.
    """
    floored = {}
    for name, rival in rivals.items():
        is_finite = rival.isfinite()
        floored[name] = rival.where(is_finite, torch.cat([scores, rival[is_finite]]).min())
    gains = scores - floored["constant"]
    linear_gains = floored["linear"] - floored["constant"] if "linear" in floored else None
    fit = Gain.of(gains)
    linear = None if linear_gains is None else Gain.of(linear_gains)
    num_lost = int((~scores.isfinite()).sum())
    case, p = _loss(gains, linear_gains, level) or (_without_loss(gains, linear_gains, level), None)
    is_real = 1 - fit.below(0.0) < level and fit.mean * len(gains) >= _FEWEST_NATS
    is_slight = linear is not None and not linear.is_shown and not is_real and fit.mean + fit.stderr < _NEGLIGIBLE_NATS
    return BaselineComparison(case, p, fit, linear, num_lost, is_slight)


def _loss(gains: Tensor, linear: Tensor | None, level: float) -> tuple[Case, float | None] | None:
    """Return which loss gains (N,) over a constant are, beside it or those of a linear model, and its p-value."""
    if not bool(gains.isfinite().all()):
        return "impossible", None
    cut_off = Gain.of(gains.clamp_min(-FAR_BELOW))  # few examples may hide the others
    p = min(_of_no_gain(Gain.of(gains), level), _of_no_gain(cut_off, level))
    if p < level:
        return "constant", p
    if linear is not None and float(linear.mean()) > 0:
        p = Gain.of(gains - _FAR_LESS * linear).below(0.0)
        if p < level:
            return "linear", p
    return None


def _without_loss(gains: Tensor, linear: Tensor | None, level: float) -> Case:
    """Return the case of gains (N,) over a constant that are no loss."""
    if not Gain.of(gains).is_shown:
        return "few"
    if linear is None:
        return "better than constant"
    lead = Gain.of(gains - linear)
    if lead.is_shown and lead.mean >= _LEAST_LEAD_NATS:
        return "better"
    if lead.below(0.0) < level:
        return "behind linear"
    return "like linear" if lead.mean < _LEAD_NATS else "near linear"


def _of_no_gain(gain: Gain, level: float) -> float:
    """Return the p-value of a gain of 0.05 nats or more; it is `level` or more where any gain is shown."""
    is_shown = 1 - gain.below(0.0) < level
    return min(max(gain.below(_NEGLIGIBLE_NATS), level if is_shown else 0.0), gain.below(0.0))


def left_out_by_draws(prediction: Prediction, y: Tensor) -> Tensor:
    """Return the log score of each training example by a fit without it, (N,), from draws of the posterior.

    Draws are weighted by 1 / p(y_n | w), each weight truncated at sqrt(S) times their mean (Ionides 2008): too good
    rather than too bad.
    """
    log_prob = prediction.draw_log_prob(y).double().cpu()
    log_weights = -log_prob
    largest = log_weights.logsumexp(0) - 0.5 * math.log(len(log_prob))
    log_weights = torch.minimum(log_weights, largest)
    return (log_weights + log_prob).logsumexp(0) - log_weights.logsumexp(0)


def left_out_linearised(posterior: Posterior | Mixture, train: Data, *, largest: int = LARGEST_MATRIX) -> Tensor | None:
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
    """Return the scores (N,) of `left_out_linearised` for one member; None for those that have none."""
    guide, bnn, size = built(posterior.guide), posterior.bnn, posterior.bnn.num_weights
    mean = None if guide.chains() is not None else guide.mean()
    spreads = mean is not None and not guide.fixed_sites().issuperset(bnn.site_names)
    if spreads and as_likelihood(bnn.settings["likelihood"]).varies_normally:  # whose deviation is far from linear
        return None
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
            scores = scores_left_out(point, precision, x, y)
        except (InputError, FloatingPointError):
            return None
    return (scores - posterior.y_scaler.log_volume()).cpu()
