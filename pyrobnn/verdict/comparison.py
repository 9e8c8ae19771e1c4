"""Does a fit predict better than a constant and a linear model? Decided by log scores, example by example."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

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
_CAUSES = {
    "clear": "The inputs do tell of the target: a linear model is better than a constant.",
    "weak": "A linear model finds something in the inputs, though this may be chance.",
    "none": "Either the inputs say nothing of the target, or the fit has missed what they say.",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How the predictions of a fit compare with the baselines.

    Attributes:
        kind: "warning" where the fit predicts no better than a constant, or far worse than a linear model; "note" where
            nothing shows that it is better than either; "fine" otherwise.
        lead: the result as a clause without numbers.
        rest: a sentence or two, the last with the numbers.
        share: goes on after `lead` with the share of the gain of a linear model, if that is the reason to warn.
        p_value: chance of such numbers of a fit that is no reason to warn, for a warning.
        is_better: whether the fit scores more than a constant, also on training examples.
        is_slight: whether its gain over a constant is less than noise may leave, and a linear model finds nothing.
        prefers_linear: whether a linear model is as good or better than a fit that is better than the constant.
        linear_finds: whether a linear model shows a sign where the fit is not shown to be better than the constant;
            None where it was not compared.
        most: the gain over the constant, in nats an example, that may be true: two standard errors above the mean.
    """

    kind: Kind
    lead: str
    rest: str
    share: str = ""
    p_value: float | None = None
    is_better: bool = False
    is_slight: bool = False
    prefers_linear: bool = False
    linear_finds: bool | None = None
    most: float = math.inf

    @property
    def text(self) -> str:
        """All that is said, with the numbers."""
        return f"{self.lead}{self.share}. {self.rest}"


def compare_with_baselines(
    posterior: Posterior | Mixture,
    train: Data,
    baselines: dict[str, Baseline],
    held_out: Data | None,
    *,
    num_draws: int,
    level: float,
    most_rows: int,
) -> Comparison | None:
    """Compare predictions with those of baselines: on data held out if there are some, else on training data.

    On training data the baselines are cross-validated, and draws of Markov chains have the scores of `leave_one_out`.
    Draws of a guide are too far from the leave-one-out posterior, so their scores flatter the fit: a warning holds all
    the more for new data, and praise does not. Training examples count by their weights; each held out counts once.
    `level` is the p-value below which a difference counts. None without baselines, or with a single example.
    """
    if not baselines or len(train if held_out is None else held_out) < 2:
        return None
    if held_out is not None:
        order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))
        part = held_out[order[:most_rows]]
        scores = posterior.predict(part.x, num_draws=num_draws).log_prob(part.y).double().cpu()
        return judge(scores, scores_of(baselines, part), level, "held out")
    rows = baselines["constant"].rows[:most_rows]
    basis: Basis = "training"
    part = train[rows]
    prediction = posterior.predict(part.x, num_draws=num_draws)
    scores = prediction.log_prob(part.y).double().cpu()
    rivals = {name: rival[: len(rows)] for name, rival in cross_validated_scores(baselines, train).items()}
    if part.weights is not None:  # a difference counts as often as its example
        share = (part.weights / part.weights.mean()).double().cpu()
        scores, rivals = share * scores, {name: share * rival for name, rival in rivals.items()}
    elif all(built(member.guide).chains() is not None for member in posterior.members):
        scores, basis = leave_one_out(prediction, part.y), "left out"
    return judge(scores, rivals, level, basis)


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


def judge(scores: Tensor, baselines: Mapping[str, Tensor], level: float, basis: Basis) -> Comparison:
    """Compare the log scores (N,) of a fit and of the baselines, "constant" and perhaps "linear", on N >= 2 examples.

    It warns if a score is not finite, if the fit is worse than the constant, or if it is not shown to be better and
    gains at most 0.05 nats per example, at a p-value below `level`. It also warns if the fit attains less than 80 % of
    the linear model's gain over the constant. To be called better than a baseline, a p-value below 0.05 is enough. The
    examples that a fit was trained on never show that it is good. Where a baseline takes a target for impossible, it
    counts with the lowest score that occurs.
    """
    if lost := int((~scores.isfinite()).sum()):
        lead = f"The fit takes {lost} of {_where(len(scores), basis)} for impossible"
        return Comparison("warning", lead, "Its score is not finite.")
    gains = _Gains.of(scores, baselines, level, basis)
    gain, linear, is_better = gains.fit, gains.linear, gains.is_better
    negligible = max(gain.below(_NEGLIGIBLE_GAIN_NATS), level if gain.above(0.0) < level else 0.0)
    if (p_value := min(negligible, gain.below(0.0))) < level:
        sign = "none"
        if linear is not None and gains.linear_finds:
            sign = "clear" if linear.above(0.0) < level else "weak"
        lead, rest = "The fit predicts no better than a constant, which ignores the inputs", f"{_CAUSES[sign]} {gains}"
        finds = gains.linear_finds
        return Comparison("warning", lead, rest, p_value=p_value, linear_finds=finds, is_slight=gains.are_slight)
    about: dict[str, Any] = {"is_better": is_better, "is_slight": gains.are_slight}
    if linear is not None and gains.over is not None and gains.short is not None:
        if linear.mean > 0 and (p_value := gains.short.below(0.0)) < level:
            share = f", with {gain.mean / linear.mean:.0%} of its gain" if gain.mean > 0 else ""
            lead = "The fit predicts worse than a linear model"
            return Comparison("warning", lead, str(gains), share, p_value, **about)
        if is_better and not gains.leads_linear:
            is_behind = gains.over.below(0.0) < level
            begin = "The fit predicts a little worse" if is_behind else "Nothing shows that the fit predicts better"
            lead, is_close = f"{begin} than a linear model, which is simpler", gains.over.mean < _LEAD_NATS
            return Comparison("note", lead, str(gains), prefers_linear=is_close, **about)
    kind: Kind = "note"
    if is_better and basis != "training":
        kind, lead = "fine", f"The fit predicts better than a constant{' and a linear model' if linear else ''}"
    elif is_better:
        lead = "How the fit compares with a constant and a linear model on new examples is open"
    elif gain.mean > _NEGLIGIBLE_GAIN_NATS:
        lead = f"{len(scores)} examples are too few to tell the fit from a constant by their log scores"
    else:
        lead = "Nothing shows that the fit predicts better than a constant, which ignores the inputs"
    finds = not is_better and gains.linear_finds
    return Comparison(kind, lead, str(gains), linear_finds=finds, most=gain.mean + 2 * gain.stderr, **about)


@dataclasses.dataclass(frozen=True)
class _Gain:
    """A mean difference of log scores, with its standard error and degrees of freedom."""

    mean: float
    stderr: float
    df: int

    @classmethod
    def of(cls, differences: Tensor) -> "_Gain":
        num = len(differences)
        return cls(float(differences.mean()), float(differences.std()) / math.sqrt(num), num - 1)

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
class _Gains:
    """Gains in log score; str() is a sentence with them.

    Attributes:
        fit, linear: the gains of the fit and of the linear model over the constant.
        over: the gain of the fit over the linear model.
        short: the gain of the fit less 80 % of the linear model's.
        level, shown: the p-values below which a difference counts, and below which a gain does.
    """

    fit: _Gain
    linear: _Gain | None
    over: _Gain | None
    short: _Gain | None
    level: float
    shown: float
    basis: Basis

    @classmethod
    def of(cls, scores: Tensor, baselines: Mapping[str, Tensor], level: float, basis: Basis) -> "_Gains":
        floored = {}
        for name, rival in baselines.items():
            is_finite = rival.isfinite()
            floored[name] = rival.where(is_finite, torch.cat([scores, rival[is_finite]]).min())
        own, shown = scores - floored["constant"], max(level, _SHOWN)
        if "linear" not in floored:
            return cls(_Gain.of(own), None, None, None, level, shown, basis)
        linear = floored["linear"] - floored["constant"]
        over, short = scores - floored["linear"], own - _FAR_LESS * linear
        return cls(_Gain.of(own), _Gain.of(linear), _Gain.of(over), _Gain.of(short), level, shown, basis)

    @property
    def is_better(self) -> bool:
        """Whether the fit is better than the constant."""
        return self.fit.above(0.0) < self.shown

    @property
    def leads_linear(self) -> bool:
        """Whether the fit is shown to be better than the linear model."""
        return self.over is not None and self.over.above(0.0) < self.shown and self.over.mean >= _LEAST_LEAD_NATS

    @property
    def linear_finds(self) -> bool | None:
        """Whether the linear model shows a sign that it is better than the constant."""
        return None if self.linear is None else self.linear.above(0.0) < self.shown

    @property
    def are_slight(self) -> bool:
        """Whether the fit gains below 0.05 nats by a standard error, and the linear model finds nothing.

        Scales that have seen the examples gain up to 3 nats in all on pure noise: from 5 nats on, a gain that chance
        does not explain is real.
        """
        is_real = self.fit.above(0.0) < self.level and self.fit.mean * (self.fit.df + 1) >= _FEWEST_NATS
        return self.linear_finds is False and not is_real and self.fit.mean + self.fit.stderr < _NEGLIGIBLE_GAIN_NATS

    def __str__(self) -> str:
        digits = 3 if self.leads_linear and self.over is not None and self.over.mean < _LEAD_NATS else 2
        beside = "" if self.linear is None else f", linear model {self.linear.said(digits)}"
        where = _where(self.fit.df + 1, self.basis)
        return f"Log score above a constant's, in nats an example, on {where}: fit {self.fit.said(digits)}{beside}."


def _where(num: int, basis: Basis) -> str:
    noun, rest = _EXAMPLES[basis]
    return f"{counted(num, noun)}{rest}"
