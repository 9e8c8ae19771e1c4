"""Findings on a fit, and its judgement by log scores and those of baselines, example by example."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from pyrobnn._core.errors import counted
from pyrobnn._core.remedies import Remedy, Spelling, mended
from pyrobnn.posterior.prediction import Prediction

Kind = Literal["warning", "note", "fine"]
BASELINE = "baseline"
"""Name of the finding that compares a fit with a constant and a linear model; it comes first."""
_MARKS = {"warning": "!", "note": "-", "fine": "+"}
_NEGLIGIBLE = 0.05
"""Nats an example above a constant that count as none, if chance may explain them."""
_FEWEST_NATS = 5.0
"""Nats in all that scales which have seen the examples left out do not gain on noise."""
_SHOWN = 0.05
"""The p-value below which a fit counts as better than a baseline; a warning needs far more."""
_LEAD, _LEAST_LEAD = 0.01, 0.001
"""Nats an example that are called a lead over a linear model, and where chance does not explain them."""
_FAR_LESS = 0.8
"""Share of the gain of a linear model below which a fit has missed the linear part."""
_SURE = 0.05
"""The p-value below which an order may be better than guessing, so that a fit is not called of no use."""
RARE = 0.2
"""Share of the labels up to which a class is rare."""

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
class Finding:
    """The result of a check.

    Attributes:
        name: the subject of the check, such as "elbo" or "bias".
        kind: "warning" for a reason not to trust the fit, "note" for information, "fine" otherwise.
        text: a sentence or more.
        p_value: chance of a number as extreme if the fit is good, in both tails; None without a test.
        remedies: what to try, for a reader of Python and for one at the command line.
        plain: the finding as a clause without numbers, for the verdict, where the text is longer.
        is_open: of a note on baselines, whether a gain over a constant that would be of use may be there all the same.
        value, expected, error: the number behind the text, that of a good fit, and the standard error of their
            difference; None if there is none.
    """

    name: str
    kind: Kind
    text: str
    p_value: float | None = None
    remedies: tuple[Remedy, ...] = ()
    plain: str = ""
    is_open: bool = False
    value: float | None = None
    expected: float | None = None
    error: float | None = None

    @property
    def in_plain_words(self) -> str:
        """The finding as a clause without numbers."""
        lead = self.plain or self.text.removesuffix(".")
        return lead[:1].lower() + lead[1:]

    def said(self, spelling: Spelling = "python") -> str:
        """Return the text with its numbers, and what to try."""
        numbers = ""
        if self.value is not None and self.expected is not None:
            error = "" if self.error is None else f" ± {self.error:.2g}"
            numbers = f" It is {self.value:.3g}, where {self.expected:.3g}{error} is expected."
        return mended(f"{self.text}{numbers}", self.remedies, spelling)

    def __str__(self) -> str:
        return f"{_MARKS[self.kind]} {self.said()}"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a comparison with the baselines.

    Attributes:
        kind: "warning" where the fit predicts no better than a constant, or far worse than a linear model; "note" where
            nothing shows that it is better than either; "fine" otherwise.
        text: two sentences or three, the last with the numbers.
        brief: the first sentence, without numbers.
        plain: the same as a clause, which may have a share.
        p_value: chance of such numbers of a fit that is no reason to warn, for a warning.
        is_better: whether the fit scores more than a constant, also on training examples.
        prefers_linear: whether a linear model is as good or better than a fit that is better than the constant.
        linear_finds: whether a linear model shows a sign where the fit is not shown to be better than the constant;
            None where it was not compared.
        most: the gain over the constant, in nats an example, that may be true: two standard errors above the mean.
    """

    kind: Kind
    text: str
    brief: str
    plain: str
    p_value: float | None = None
    is_better: bool = False
    prefers_linear: bool = False
    linear_finds: bool | None = None
    most: float = math.inf


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


def judge(scores: Tensor, baselines: Mapping[str, Tensor], level: float, basis: Basis) -> Verdict:
    """Compare the log scores (N,) of a fit and of the baselines, "constant" and perhaps "linear", on N >= 2 examples.

    It warns if a score is not finite, if the fit is worse than the constant, or if it is not shown to be better and
    gains at most 0.05 nats per example, at a p-value below `level`. It also warns if the fit attains less than 80 % of
    the linear model's gain over the constant. To be called better than a baseline, a p-value below 0.05 is enough. The
    examples that a fit was trained on never show that it is good. Where a baseline takes a target for impossible, it
    counts with the lowest score that occurs.
    """
    if lost := int((~scores.isfinite()).sum()):
        lead = f"The fit takes {lost} of {_where(len(scores), basis)} for impossible"
        text = f"{lead}: its score is not finite."
        return Verdict("warning", text, text, lead)
    scored = _Scored.of(scores, baselines, level, basis)
    gain, linear, numbers, is_better = scored.gain, scored.linear, scored.numbers, scored.is_better
    negligible = max(gain.below(_NEGLIGIBLE), level if gain.above(0.0) < level else 0.0)
    if (p_value := min(negligible, gain.below(0.0))) < level:
        sign = "none"
        if linear is not None and scored.linear_finds:
            sign = "clear" if linear.above(0.0) < level else "weak"
        lead = "The fit predicts no better than a constant, which ignores the inputs"
        text = f"{lead}. {_CAUSES[sign]} {numbers}"
        return Verdict("warning", text, f"{lead}.", lead, p_value, linear_finds=scored.linear_finds)
    if linear is not None and scored.over is not None and scored.short is not None:
        if linear.mean > 0 and (p_value := scored.short.below(0.0)) < level:
            share = gain.mean / linear.mean
            lead = "The fit predicts worse than a linear model"
            plain = f"{lead}, with {share:.0%} of its gain" if share > 0 else lead
            return Verdict("warning", f"{plain}. {numbers}", f"{lead}.", plain, p_value, is_better)
        if is_better and not scored.leads_linear:
            is_behind = scored.over.below(0.0) < level
            begin = "The fit predicts a little worse" if is_behind else "Nothing shows that the fit predicts better"
            lead, is_close = f"{begin} than a linear model, which is simpler", scored.over.mean < _LEAD
            return Verdict("note", f"{lead}. {numbers}", f"{lead}.", lead, is_better=True, prefers_linear=is_close)
    kind: Kind = "note"
    if is_better and basis != "training":
        kind, lead = "fine", f"The fit predicts better than a constant{' and a linear model' if linear else ''}"
    elif is_better:
        lead = "How the fit compares with a constant and a linear model on new examples is open"
    elif gain.mean > _NEGLIGIBLE:
        lead = f"{len(scores)} examples are too few to tell the fit from a constant by their log scores"
    else:
        lead = "Nothing shows that the fit predicts better than a constant, which ignores the inputs"
    finds, most = not is_better and scored.linear_finds, gain.mean + 2 * gain.stderr
    return Verdict(kind, f"{lead}. {numbers}", f"{lead}.", lead, None, is_better, linear_finds=finds, most=most)


def hardly_better(scores: Tensor, baselines: Mapping[str, Tensor], level: float) -> str | None:
    """Report a fit that gains little over a constant on examples left out, where a linear model finds nothing.

    Its gain is below 0.05 nats an example by a standard error. Noise and prior scales, which have seen the examples
    left out, gain up to 3 nats in all on pure noise: from 5 nats on, a gain that chance does not explain is one.
    """
    scored = _Scored.of(scores, baselines, level, "left out")
    gain = scored.gain
    is_gain = gain.above(0.0) < level and gain.mean * len(scores) >= _FEWEST_NATS
    if scored.linear is None or is_gain or scored.linear_finds or not gain.mean + gain.stderr < _NEGLIGIBLE:
        return None
    return (
        "The fit predicts hardly better than a constant, which ignores the inputs, if at all. More rows may show more, "
        f"or columns that tell more of the target. {scored.numbers}"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Scored:
    """Gains of a fit over the constant, of a linear model over the constant, and of the fit over the linear model.

    Attributes:
        short: the gain of the fit less 80 % of the linear model's.
        shown: the p-value below which the fit counts as better.
    """

    gain: _Gain
    linear: _Gain | None
    over: _Gain | None
    short: _Gain | None
    shown: float
    basis: Basis

    @classmethod
    def of(cls, scores: Tensor, baselines: Mapping[str, Tensor], level: float, basis: Basis) -> "_Scored":
        floored = {}
        for name, rival in baselines.items():
            is_finite = rival.isfinite()
            floored[name] = rival.where(is_finite, torch.cat([scores, rival[is_finite]]).min())
        constant, linear, shown = floored["constant"], floored.get("linear"), max(level, _SHOWN)
        gain = _Gain.of(scores - constant)
        if linear is None:
            return cls(gain, None, None, None, shown, basis)
        over, short = _Gain.of(scores - linear), _Gain.of(scores - constant - _FAR_LESS * (linear - constant))
        return cls(gain, _Gain.of(linear - constant), over, short, shown, basis)

    @property
    def is_better(self) -> bool:
        """Whether the fit is better than the constant."""
        return self.gain.above(0.0) < self.shown

    @property
    def leads_linear(self) -> bool:
        """Whether the fit is shown to be better than the linear model."""
        return self.over is not None and self.over.above(0.0) < self.shown and self.over.mean >= _LEAST_LEAD

    @property
    def linear_finds(self) -> bool | None:
        """Whether the linear model shows a sign that it is better than the constant."""
        return None if self.linear is None else self.linear.above(0.0) < self.shown

    @property
    def numbers(self) -> str:
        """A sentence with the gains."""
        digits = 3 if self.leads_linear and self.over is not None and self.over.mean < _LEAD else 2
        beside = "" if self.linear is None else f", linear model {self.linear.said(digits)}"
        where = _where(self.gain.df + 1, self.basis)
        return f"Log score above a constant's, in nats an example, on {where}: fit {self.gain.said(digits)}{beside}."


def _where(num: int, basis: Basis) -> str:
    noun, rest = _EXAMPLES[basis]
    return f"{counted(num, noun)}{rest}"


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
