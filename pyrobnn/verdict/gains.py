"""Does a fit predict better than a constant and a linear model? Decided by log scores, example by example."""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

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
    """The gain in log score of a fit over a constant, and how it stands to a linear model if there is one.

    `linear` is the linear model's own gain, `lead` the fit's gain over it, and `short` the fit's gain less 80 % of its
    gain. `bounded` has gains of -5 nats an example at least, where few would hide what most say. `level` is the p-value
    below which a difference counts, `num_lost` the examples without a finite score.
    """

    fit: Gain
    bounded: Gain
    level: float
    linear: Gain | None = None
    lead: Gain | None = None
    short: Gain | None = None
    num_lost: int = 0

    @property
    def linear_finds(self) -> bool | None:
        """Whether the linear model shows a sign that it is better than the constant; None without it."""
        return None if self.linear is None else self.linear.is_shown

    @property
    def are_slight(self) -> bool:
        """Whether the fit gains below 0.05 nats by a standard error, and the linear model finds nothing.

        Scales that have seen the examples gain up to 3 nats in all on pure noise: from 5 nats on, a gain that chance
        does not explain is real.
        """
        is_real = 1 - self.fit.below(0.0) < self.level and self.fit.mean * (self.fit.df + 1) >= _FEWEST_NATS
        is_small = self.fit.mean + self.fit.stderr < _NEGLIGIBLE_NATS
        return self.linear_finds is False and not is_real and is_small

    def _of_no_gain(self, gain: Gain) -> float:
        is_shown = 1 - gain.below(0.0) < self.level
        return min(max(gain.below(_NEGLIGIBLE_NATS), self.level if is_shown else 0.0), gain.below(0.0))

    @property
    def case(self) -> str:
        """How the fit compares: the name of a finding."""
        return self.judged[0]

    @property
    def judged(self) -> tuple[str, float | None]:
        """The case, and for a loss the chance of such numbers of a fit that is no reason to warn.

        A loss has a p-value below the level: that the fit is worse than the constant, or not shown to be better with a
        gain of at most 0.05 nats an example, or that it attains less than 80 % of the linear model's gain.
        """
        fit, linear, lead, short, level = self.fit, self.linear, self.lead, self.short, self.level
        if self.num_lost:
            return "impossible", None
        if (p := min(self._of_no_gain(fit), self._of_no_gain(self.bounded))) < level:
            return "constant", p
        if linear is not None and lead is not None and short is not None:
            if linear.mean > 0 and (p := short.below(0.0)) < level:
                return "linear", p
            if fit.is_shown and not (lead.is_shown and lead.mean >= _LEAST_LEAD_NATS):
                is_like = lead.mean < _LEAD_NATS
                return "behind linear" if lead.below(0.0) < level else "like linear" if is_like else "near linear", None
        if not fit.is_shown:
            return "few", None
        return "better than constant" if linear is None else "better", None


def compared(scores: Tensor, rivals: Mapping[str, Tensor], level: float) -> Comparison:
    """Compare the log scores (N,) of a fit with those of a "constant" and perhaps a "linear" model, N >= 2.

    A target that a baseline takes for impossible has the lowest score.
    """
    floored = {}
    for name, rival in rivals.items():
        is_finite = rival.isfinite()
        floored[name] = rival.where(is_finite, torch.cat([scores, rival[is_finite]]).min())
    own, num_lost = scores - floored["constant"], int((~scores.isfinite()).sum())
    gains = Gain.of(own), Gain.of(own.clamp_min(-FAR_BELOW))
    if "linear" not in floored:
        return Comparison(*gains, level, num_lost=num_lost)
    linear = floored["linear"] - floored["constant"]
    lead, short = Gain.of(scores - floored["linear"]), Gain.of(own - _FAR_LESS * linear)
    return Comparison(*gains, level, Gain.of(linear), lead, short, num_lost)
