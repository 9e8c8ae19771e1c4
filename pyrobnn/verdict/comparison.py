"""Does a fit predict better than a constant and a linear model? Decided by log scores, example by example."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from pyrobnn._core.errors import counted
from pyrobnn.data.in_memory import Data
from pyrobnn.guides.base import built
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.verdict.baselines import Baseline, cross_validated_scores, scores_of
from pyrobnn.verdict.finding import Kind

_NEGLIGIBLE_GAIN_NATS = 0.05
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

Basis = Literal["held out", "left out", "training"]
"""The examples of a comparison: unseen by the fit, left out of it one by one, or those that it was trained on."""
_EXAMPLES: dict[Basis, tuple[str, str]] = {
    "held out": ("held-out example", ""),
    "left out": ("training example", ", each left out of the fit"),
    "training": ("training example", ", which flatter the fit"),
}
Case = Literal[
    "impossible", "no better", "far behind linear", "behind linear", "like linear", "ahead of linear?", "better",
    "better than constant", "open", "too few", "not shown",
]  # fmt: skip
"""How a fit compares with a constant and with a linear model."""
_SAID: dict[Case, tuple[Kind, str]] = {
    "impossible": ("warning", "The fit takes {lost} of {where} for impossible"),
    "no better": ("warning", "The fit predicts no better than a constant, which ignores the inputs"),
    "far behind linear": ("warning", "The fit predicts worse than a linear model"),
    "behind linear": ("note", "The fit predicts a little worse than a linear model, which is simpler"),
    "like linear": ("note", "Nothing shows that the fit predicts better than a linear model, which is simpler"),
    "ahead of linear?": ("note", "Nothing shows that the fit predicts better than a linear model, which is simpler"),
    "better": ("fine", "The fit predicts better than a constant and a linear model"),
    "better than constant": ("fine", "The fit predicts better than a constant"),
    "open": ("note", "How the fit compares with a constant and a linear model on new examples is open"),
    "too few": ("note", "{num} examples are too few to tell the fit from a constant by their log scores"),
    "not shown": ("note", "Nothing shows that the fit predicts better than a constant, which ignores the inputs"),
}
"""The kind of finding of each case, and what it says, without the numbers of the scores."""
_INPUTS_TELL = "The inputs do tell of the target: a linear model is better than a constant."
_INPUTS_MAY_TELL = "A linear model finds something in the inputs, though this may be chance."
_INPUTS_TELL_NOTHING = "Either the inputs say nothing of the target, or the fit has missed what they say."


@dataclasses.dataclass(frozen=True)
class BaselineComparison:
    """How a fit compares with the baselines: the case, the gains in log score, and on which examples.

    `p_value` of a warning is the chance of such numbers of a fit that is no reason to warn.
    """

    case: Case
    basis: Basis
    gains: "BaselineGains"
    num_lost: int = 0
    p_value: float | None = None

    @property
    def kind(self) -> Kind:
        """The kind of finding that it is."""
        return _SAID[self.case][0]

    @property
    def lead(self) -> str:
        """The result as a clause without the numbers of the scores."""
        return _SAID[self.case][1].format(num=self.gains.fit.df + 1, lost=self.num_lost, where=self._where)

    @property
    def plain(self) -> str:
        """The result as a clause, with the share of the gain of a linear model if that is the reason to warn."""
        fit, linear = self.gains.fit.mean, self.gains.linear
        if self.case != "far behind linear" or linear is None or fit <= 0:
            return self.lead
        return f"{self.lead}, with {fit / linear.gain.mean:.0%} of its gain"

    @property
    def text(self) -> str:
        """All that is said, with the numbers."""
        of_inputs = f" {self.gains.of_inputs}" if self.case == "no better" else ""
        return f"{self.plain}.{of_inputs} {self.numbers}"

    @property
    def numbers(self) -> str:
        """A sentence with the gains."""
        if self.num_lost:
            return "Its score is not finite."
        return f"Log score above a constant's, in nats an example, on {self._where}: {self.gains}."

    @property
    def _where(self) -> str:
        noun, rest = _EXAMPLES[self.basis]
        return f"{counted(self.gains.fit.df + 1, noun)}{rest}"


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """A fit with what it is judged by: its data, data held out, baselines, and how many draws and rows to take."""

    posterior: Posterior | Mixture
    train: Data
    held_out: Data | None
    baselines: dict[str, Baseline]
    num_draws: int
    most_rows: int


def compare_with_baselines(fit: Evaluation, level: float) -> BaselineComparison | None:
    """Compare predictions with those of baselines: on data held out if there are some, else on training data.

    On training data the baselines are cross-validated, and draws of Markov chains have the scores of `leave_one_out`.
    Draws of a guide are too far from the leave-one-out posterior, so their scores flatter the fit: a warning holds all
    the more for new data, and praise does not. Training examples count by their weights; each held out counts once.
    `level` is the p-value below which a difference counts. None without baselines, or with a single example.
    """
    train, baselines = fit.train, fit.baselines
    if not baselines or len(train if fit.held_out is None else fit.held_out) < 2:
        return None
    if fit.held_out is not None:
        order = torch.randperm(len(fit.held_out), generator=torch.Generator().manual_seed(0))
        part = fit.held_out[order[: fit.most_rows]]
        scores = fit.posterior.predict(part.x, num_draws=fit.num_draws).log_prob(part.y).double().cpu()
        return judge(scores, scores_of(baselines, part), level, "held out")
    rows = baselines["constant"].rows[: fit.most_rows]
    part = train[rows]
    prediction = fit.posterior.predict(part.x, num_draws=fit.num_draws)
    scores = prediction.log_prob(part.y).double().cpu()
    rivals = {name: rival[: len(rows)] for name, rival in cross_validated_scores(baselines, train).items()}
    if part.weights is not None:  # a difference counts as often as its example
        share = (part.weights / part.weights.mean()).double().cpu()
        rivals = {name: share * rival for name, rival in rivals.items()}
        return judge(share * scores, rivals, level, "training")
    if all(built(member.guide).chains() is not None for member in fit.posterior.members):
        return judge(leave_one_out(prediction, part.y), rivals, level, "left out")
    return judge(scores, rivals, level, "training")


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


def judge(scores: Tensor, baselines: Mapping[str, Tensor], level: float, basis: Basis) -> BaselineComparison:
    """Compare the log scores (N,) of a fit and of the baselines, "constant" and perhaps "linear", on N >= 2 examples.

    A warning has a p-value below `level`: that the fit is worse than the constant, or not shown to be better with a
    gain of at most 0.05 nats an example, or that it attains less than 80 % of the linear model's gain. Examples that a
    fit was trained on never show that it is good. A target that a baseline takes for impossible has the lowest score.
    """
    gains = _gains_of(scores, baselines, level)
    if num_lost := int((~scores.isfinite()).sum()):
        return BaselineComparison("impossible", basis, gains, num_lost)
    case, p_value = _case(gains, basis)
    return BaselineComparison(case, basis, gains, p_value=p_value)


def _case(gains: "BaselineGains", basis: Basis) -> tuple[Case, float | None]:
    """Return how a fit compares, and for a warning its p-value."""
    fit, linear, level = gains.fit, gains.linear, gains.level
    negligible = max(fit.below(_NEGLIGIBLE_GAIN_NATS), level if fit.above(0.0) < level else 0.0)
    if (p_value := min(negligible, fit.below(0.0))) < level:
        return "no better", p_value
    if linear is not None:
        if linear.gain.mean > 0 and (p_value := linear.short.below(0.0)) < level:
            return "far behind linear", p_value
        if gains.is_better and not gains.leads_linear:
            is_like = linear.lead.mean < _LEAD_NATS
            is_behind = linear.lead.below(0.0) < level
            return "behind linear" if is_behind else "like linear" if is_like else "ahead of linear?", None
    if not gains.is_better:
        return "too few" if fit.mean > _NEGLIGIBLE_GAIN_NATS else "not shown", None
    if basis == "training":
        return "open", None
    return "better than constant" if linear is None else "better", None


@dataclasses.dataclass(frozen=True)
class ScoreGain:
    """A mean difference of log scores, with its standard error and degrees of freedom."""

    mean: float
    stderr: float
    df: int

    def below(self, bound: float) -> float:
        """Return the p-value of the hypothesis that the difference is at least a bound, by Student's t."""
        from scipy.special import stdtr

        return float(stdtr(self.df, (self.mean - bound) / max(self.stderr, 1e-12)))

    def above(self, bound: float) -> float:
        """Return the p-value of the hypothesis that the difference is at most a bound."""
        return 1 - self.below(bound)

    def said(self, digits: int) -> str:
        """Return the mean with its standard error."""
        return f"{self.mean:+.{digits}f} ± {self.stderr:.{digits}f}"


@dataclasses.dataclass(frozen=True)
class BesideLinear:
    """The gain of a linear model over the constant, a fit's lead over it, and the fit's gain less 80 % of its gain."""

    gain: ScoreGain
    lead: ScoreGain
    short: ScoreGain


@dataclasses.dataclass(frozen=True)
class BaselineGains:
    """The gain in log score of a fit over the constant, and over a linear model if there is one; str() lists them.

    `level` is the p-value below which a difference counts.
    """

    fit: ScoreGain
    linear: BesideLinear | None
    level: float

    def _shows(self, gain: ScoreGain) -> bool:
        return gain.above(0.0) < max(self.level, _SHOWN)

    @property
    def is_better(self) -> bool:
        """Whether the fit is better than the constant."""
        return self._shows(self.fit)

    @property
    def leads_linear(self) -> bool:
        """Whether the fit is shown to be better than the linear model."""
        lead = None if self.linear is None else self.linear.lead
        return lead is not None and self._shows(lead) and lead.mean >= _LEAST_LEAD_NATS

    @property
    def linear_finds(self) -> bool | None:
        """Whether the linear model shows a sign that it is better than the constant; None without it."""
        return None if self.linear is None else self._shows(self.linear.gain)

    @property
    def of_inputs(self) -> str:
        """What the linear model says of the inputs where the fit is no better than the constant."""
        if self.linear is None or not self.linear_finds:
            return _INPUTS_TELL_NOTHING
        return _INPUTS_TELL if self.linear.gain.above(0.0) < self.level else _INPUTS_MAY_TELL

    @property
    def are_slight(self) -> bool:
        """Whether the fit gains below 0.05 nats by a standard error, and the linear model finds nothing.

        Scales that have seen the examples gain up to 3 nats in all on pure noise: from 5 nats on, a gain that chance
        does not explain is real.
        """
        is_real = self.fit.above(0.0) < self.level and self.fit.mean * (self.fit.df + 1) >= _FEWEST_NATS
        is_small = self.fit.mean + self.fit.stderr < _NEGLIGIBLE_GAIN_NATS
        return self.linear_finds is False and not is_real and is_small

    def __str__(self) -> str:
        if self.linear is None:
            return f"fit {self.fit.said(2)}"
        digits = 3 if self.leads_linear and self.linear.lead.mean < _LEAD_NATS else 2
        return f"fit {self.fit.said(digits)}, linear model {self.linear.gain.said(digits)}"


def _gains_of(scores: Tensor, baselines: Mapping[str, Tensor], level: float) -> BaselineGains:
    floored = {}
    for name, rival in baselines.items():
        is_finite = rival.isfinite()
        floored[name] = rival.where(is_finite, torch.cat([scores, rival[is_finite]]).min())
    over_constant = scores - floored["constant"]
    if "linear" not in floored:
        return BaselineGains(_gain_of(over_constant), None, level)
    linear = floored["linear"] - floored["constant"]
    differences = (linear, scores - floored["linear"], over_constant - _FAR_LESS * linear)
    return BaselineGains(_gain_of(over_constant), BesideLinear(*map(_gain_of, differences)), level)


def _gain_of(differences: Tensor) -> ScoreGain:
    num = len(differences)
    return ScoreGain(float(differences.mean()), float(differences.std()) / math.sqrt(num), num - 1)
