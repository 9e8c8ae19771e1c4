"""The judgement of a fit by its log scores and those of baselines, example by example."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from pyrobnn._core.counts import counted
from pyrobnn.posterior.prediction import Prediction

_NEGLIGIBLE = 0.05
"""Nats an example above a constant that count as none, if chance may explain them."""
_FEWEST_NATS = 5.0
"""Nats in all that scales which have seen the examples left out do not gain on noise."""
_SHOWN = 0.05
"""The p-value below which a fit counts as better than a baseline; a warning needs far more."""
_LEAD, _LEAST_LEAD = 0.01, 0.001
"""Nats an example that are called a lead over a linear model, and where chance does not explain them; less shows as
equal numbers."""
_FAR_LESS = 0.8
"""Share of the gain of a linear model below which a fit has missed the linear part."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a comparison with the baselines.

    Attributes:
        kind: "warning" where the fit predicts no better than a constant, or far worse than a linear model; "note" where
            nothing shows that it is better than either; "fine" otherwise.
        text: two sentences or three, the last with the numbers.
        plain: the same as a clause without numbers, for one who does not know log scores; empty if all is fine.
        p_value: chance of such numbers of a fit that is no reason to warn, for a warning.
        is_better: whether the fit scores more than a constant, also on training examples.
        prefers_linear: whether a linear model is as good or better, on the mean where the fit is not shown to be better
            than the constant.
        finds_nothing: whether neither the fit nor a linear model shows a sign of a gain, for a warning.
        linear_finds: whether a linear model shows a sign where the fit is not shown to be better than the constant.
        numbers: the last sentence of the text.
        most: the gain over the constant, in nats an example, that may be true: two standard errors above the mean.
    """

    kind: Literal["warning", "note", "fine"]
    text: str
    p_value: float | None = None
    is_better: bool = False
    plain: str = ""
    prefers_linear: bool = False
    finds_nothing: bool = False
    linear_finds: bool = False
    numbers: str = ""
    most: float = math.inf

    @property
    def brief(self) -> str:
        """The first sentence, without numbers."""
        return re.split(r"(?<=\.) |, with ", self.text)[0].rstrip(".:") + "."


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


Basis = Literal["held out", "left out", "training"]
"""The examples of a comparison: unseen by the fit, left out of it one by one, or those that it was trained on."""
_EXAMPLES: dict[Basis, str] = {
    "held out": "held-out example",
    "left out": "training example, each left out of the fit",
    "training": "training example, which flatter the fit",
}


def _examples(num: int, basis: Basis) -> str:
    noun, comma, rest = _EXAMPLES[basis].partition(",")
    return f"{counted(num, noun)}{comma}{rest}"


def _floored(rival: Tensor, scores: Tensor) -> Tensor:
    """Return the scores of a baseline, with the lowest number that occurs where it takes a target for impossible."""
    is_finite = rival.isfinite()
    return rival.where(is_finite, torch.cat([scores, rival[is_finite]]).min())


NOTHING_FOUND = "nothing was found that predicts better than a constant"
NO_BETTER = "The fit predicts no better than a constant, which ignores the inputs."


def _no_ranks(_: str) -> bool:
    return False


def judge(
    scores: Tensor,
    baselines: Mapping[str, Tensor],
    level: float,
    basis: Basis,
    *,
    linear: str = "a linear model",
    ranks: Callable[[str], bool] = _no_ranks,
) -> Verdict:
    """Compare the log scores of a fit and of the baselines, example by example.

    It warns if a score is not finite, if the fit is worse than the constant, or if it is not shown to be better and
    gains at most 0.05 nats per example with that confidence. It also warns if the fit attains less than 80 % of the
    linear model's gain over the constant. To be called better than a baseline, a p-value below 0.05 is enough. The
    examples that a fit was trained on never show that it is good. Where a baseline takes a target for impossible, it
    counts with the lowest score that occurs.

    Args:
        scores: log density or probability of each target, (N,), N at least 2.
        baselines: the scores of baselines by name, "constant" and perhaps "linear".
        level: the p-value below which a difference counts.
        basis: the examples.
        linear: what the linear model is called in clauses without numbers.
        ranks: whether "fit" or "linear" ranks labels better than guessing, which is asked where a log score shows
            no gain over the constant.
    """
    if lost := int((~scores.isfinite()).sum()):
        text = f"The fit takes {lost} of {_examples(len(scores), basis)} for impossible: its score is not finite."
        return Verdict("warning", text, plain="it takes targets for impossible that are there")
    finite = {name: _floored(rival, scores) for name, rival in baselines.items()}
    scored = _Scored(scores, finite["constant"], finite.get("linear"), level, basis, linear, ranks)
    return _no_better_than_constant(scored) or _no_better_than_linear(scored) or _otherwise(scored)


def hardly_better(scores: Tensor, constant: Tensor, linear: Tensor, level: float) -> str | None:
    """Report a fit that gains little over a constant on examples left out, where a linear model finds nothing.

    Its gain is below 0.05 nats an example by a standard error. Noise and prior scales, which have seen the examples
    left out, gain up to 3 nats in all on pure noise: from 5 nats on, a gain that chance does not explain is one.

    Args:
        scores: log density or probability of each target, left out of the fit, (N,).
        constant: those of the constant.
        linear: those of the linear model.
        level: the p-value below which a gain counts.

    Returns:
        Three sentences, the last with the numbers, or None.
    """
    none = _floored(constant, scores)
    scored = _Scored(scores, none, _floored(linear, scores), level, "left out", "a linear model", _no_ranks)
    gain = scored.gain
    is_gain = gain.above(0.0) < level and gain.mean * len(scores) >= _FEWEST_NATS
    if is_gain or scored.linear_finds or not gain.mean + gain.stderr < _NEGLIGIBLE:
        return None
    return (
        "The fit predicts hardly better than a constant, which ignores the inputs, if at all. More rows may show more, "
        f"or columns that tell more of the target. {scored.numbers}"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Scored:
    """The log scores of a fit and of baselines, each (N,), and how they are to be compared, as in `judge`."""

    scores: Tensor
    constant: Tensor
    linear: Tensor | None
    level: float
    basis: Basis
    name: str
    ranks: Callable[[str], bool]

    @functools.cached_property
    def gain(self) -> _Gain:
        """The gain of the fit over the constant."""
        return _Gain.of(self.scores - self.constant)

    @functools.cached_property
    def of_linear(self) -> _Gain | None:
        """The gain of the linear model over the constant."""
        return None if self.linear is None else _Gain.of(self.linear - self.constant)

    @functools.cached_property
    def over_linear(self) -> _Gain | None:
        """The gain of the fit over the linear model."""
        return None if self.linear is None else _Gain.of(self.scores - self.linear)

    @property
    def is_shown_over_linear(self) -> bool:
        """Whether the fit is shown to be better than the linear model."""
        over = self.over_linear
        return over is not None and over.above(0.0) < self.shown and over.mean >= _LEAST_LEAD

    @property
    def shown(self) -> float:
        """The p-value below which the fit counts as better."""
        return max(self.level, _SHOWN)

    @property
    def is_better(self) -> bool:
        """Whether the fit is better than the constant."""
        return self.gain.above(0.0) < self.shown

    @property
    def linear_finds(self) -> bool:
        """Whether the linear model shows a sign that it is better than the constant, by log score or order."""
        return self.of_linear is not None and (self.of_linear.above(0.0) < self.shown or self.ranks("linear"))

    @property
    def numbers(self) -> str:
        """A sentence with the gains."""
        over = self.over_linear
        digits = 3 if self.is_shown_over_linear and over is not None and over.mean < _LEAD else 2
        beside = "" if self.of_linear is None else f", linear model {self.of_linear.said(digits)}"
        where = _examples(len(self.scores), self.basis)
        return f"Log score above a constant's, in nats an example, on {where}: fit {self.gain.said(digits)}{beside}."


def _no_better_than_constant(scored: _Scored) -> Verdict | None:
    worse = scored.gain.below(0.0)
    negligible = max(scored.gain.below(_NEGLIGIBLE), scored.level if scored.gain.above(0.0) < scored.level else 0.0)
    p_value = min(negligible, worse)
    if not p_value < scored.level:
        return None
    plain, finds = "its predictions, uncertainty included, are no better than those of a constant", scored.linear_finds
    nothing = not finds and scored.of_linear is not None and not scored.ranks("fit")
    cause = "Either the inputs say nothing of the target, or the fit has missed what they say."
    if finds:
        is_clear = scored.of_linear is not None and scored.of_linear.above(0.0) < scored.level
        cause = "The inputs do tell of the target: a linear model is better than a constant."
        cause = cause if is_clear else "A linear model finds something in the inputs, though this may be chance."
        plain = f"{plain}, though {scored.name} finds something in the inputs"
    elif nothing:
        plain = f"{NOTHING_FOUND}, uncertainty included"
    text = f"{NO_BETTER} {cause} {scored.numbers}"
    return Verdict("warning", text, p_value, plain=plain, finds_nothing=nothing, linear_finds=finds)


def _no_better_than_linear(scored: _Scored) -> Verdict | None:
    """Warn if the fit is far worse than the linear model, and note if it is not shown to be better."""
    if scored.linear is None or scored.of_linear is None or scored.over_linear is None:
        return None
    short = _Gain.of(scored.scores - scored.constant - _FAR_LESS * (scored.linear - scored.constant)).below(0.0)
    if scored.of_linear.mean > 0 and short < scored.level:
        share = scored.gain.mean / scored.of_linear.mean
        of_gain = f", with {share:.0%} of its gain" if share > 0 else ""
        text = f"The fit predicts worse than a linear model{of_gain}. {scored.numbers}"
        plain = "its predictions, uncertainty included, are worse than those of a linear model"
        return Verdict("warning", text, short, scored.is_better, plain, prefers_linear=scored.is_better)
    if scored.is_shown_over_linear or not scored.is_better:
        return None
    over_linear = scored.over_linear
    keep, text = "keep it unless more data tell them apart", "Nothing shows that the fit predicts better than"
    plain = f"nothing shows that the network predicts better than {scored.name}, which is simpler"
    if over_linear.mean >= _LEAD:
        plain = f"by its log score the network is ahead of {scored.name}, though this may be chance"
    elif over_linear.below(0.0) < scored.level:
        keep, text = "keep it", "The fit predicts a little worse than"
        plain = f"{scored.name}, which is simpler, predicts a little better, uncertainty included"
    text = f"{text} a linear model. The linear model is simpler: {keep}. {scored.numbers}"
    is_as_good = over_linear.mean < _LEAD
    return Verdict("note", text, is_better=True, plain=plain, prefers_linear=is_as_good, numbers=scored.numbers)


def _otherwise(scored: _Scored) -> Verdict:
    """Say whether the fit is shown to be good."""
    if scored.is_better and scored.basis != "training":
        than_linear = "" if scored.linear is None else " and a linear model"
        text = f"The fit predicts better than a constant{than_linear}. {scored.numbers}"
        return Verdict("fine", text, is_better=True)
    finds = not scored.is_better and scored.linear_finds
    if scored.is_better:
        text = "How the fit compares with a constant and a linear model on new examples is open."
        plain = "how well it predicts new examples is open"
    elif scored.gain.mean > _NEGLIGIBLE:
        text = f"{len(scored.scores)} examples are too few to tell the fit from a constant by their log scores"
        text += ": a gain below two standard errors or so may be chance."
        plain = "by its log score the network is ahead of a constant, though this may be chance"
    else:
        text = "Nothing shows that the fit predicts better than a constant."
        said = "nothing shows that it predicts better than a constant" if finds else NOTHING_FOUND
        plain = f"{said}, which ignores the inputs"
    most, of, over = scored.gain.mean + 2 * scored.gain.stderr, scored.of_linear, scored.over_linear
    prefers = not scored.is_better and of is not None and over is not None and of.mean > 0 and over.mean < _LEAD
    text = f"{text} {scored.numbers}"
    return Verdict(
        "note", text, None, scored.is_better, plain, prefers, linear_finds=finds, numbers=scored.numbers, most=most
    )


RARE = 0.2
"""Share of the labels up to which a class is rare."""
_SURE = 0.05
"""The p-value below which an order may be better than guessing, so that a fit is not called of no use."""


def rarest_class(y: Tensor) -> tuple[int, bool]:
    """Return the rarest label that occurs in y (N,), and whether it is rare."""
    labels, counts = y.unique(return_counts=True)
    return int(labels[counts.argmin()]), float(counts.min()) <= RARE * len(y)


def ranks_better(prediction: Prediction, y: Tensor, label: int) -> bool:
    """Return whether the examples of a class have larger probabilities of it than the others, by Mann and Whitney."""
    from scipy.stats import mannwhitneyu

    probs, is_one = prediction.class_probs[:, label].cpu().double(), y.cpu() == label
    if bool(is_one.all()):
        return False
    p_value = mannwhitneyu(probs[is_one].numpy(), probs[~is_one].numpy(), alternative="greater").pvalue
    return bool(p_value < _SURE)
