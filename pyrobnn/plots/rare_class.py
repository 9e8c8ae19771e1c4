"""Predicted probabilities of what is rare, where one class makes most of the examples."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike

from pyrobnn._core.checks import as_targets
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE, ORANGE, PALE
from pyrobnn.plots._style import as_array, in_percent, legend_below, plain, shares, title
from pyrobnn.posterior.prediction import Prediction

_USUAL = 0.8
"""Share of the most frequent class from which on the others are rare."""
_CASES, _MOST_BINS = 3, 8
"""Rare cases that a bin is to expect, and the most bins."""
_LETTERS = 0.05
"""Share of an axis that the height of its letters takes."""
_LEAST = 1e-4
"""The least probability that is told apart from smaller ones."""
_WIDE, _WIDEST = 10.0, 1000.0
"""Ratios of the largest probability to the least from which on their axis is logarithmic, and has one tick a decade."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rare:
    """What is rare among labels.

    Attributes:
        words: its name, such as "'yes'", "class 1" or "not 'no'".
        value: what the target then is, such as "'yes'", "1" or "not 'no'".
        probs: its predicted probability for each example, (N,).
        observed: whether each example is a case, (N,).
    """

    words: str
    value: str
    probs: np.ndarray
    observed: np.ndarray

    @property
    def share(self) -> float:
        """The share of the cases among the examples."""
        return float(self.observed.mean())


def usual_class(counts: np.ndarray) -> int | None:
    """Return the class that makes at least 80 % of the examples, but not all of them; None without one."""
    most = int(counts.argmax())
    return most if _USUAL <= counts[most] / counts.sum() < 1 else None


def class_words(class_names: Sequence[str], num: int, kind: str = "class ") -> list[str]:
    """Return how texts call each of `num` classes: by its name in quotes, or without names by its number."""
    return [f"'{plain(name)}'" for name in class_names] or [f"{kind}{label}" for label in range(num)]


def rare_words(usual: int, words: Sequence[str]) -> str:
    """Return what all classes but the usual one are, in words."""
    return words[1 - usual] if len(words) == 2 else f"not {words[usual]}"


def rare_of(prediction: Prediction, y: ArrayLike, class_names: Sequence[str] = ()) -> Rare | None:
    """Return what is rare among labels (N,) or (N, K); None where no class is far more frequent than the others."""
    probs = as_array(prediction.class_probs)
    probs = probs.reshape(-1, probs.shape[-1])
    labels = as_array(as_targets(y, len(prediction))).ravel().astype(int)
    usual = usual_class(np.bincount(labels, minlength=probs.shape[1]))
    if usual is None:
        return None
    words, value = (rare_words(usual, class_words(class_names, probs.shape[1], kind)) for kind in ("class ", ""))
    return Rare(words, value, 1 - probs[:, usual], labels != usual)


def draw_frequencies(axis: Axes, rare: Rare, target: str) -> None:
    """Draw how often the rare occurs against its probability, in bins that expect as many cases each.

    Bins of equal width would hold nearly all examples in the first one.
    """
    from scipy.stats import binom

    index = _bins(rare.probs)
    count = np.bincount(index)
    mean, found = (np.bincount(index, values) / count for values in (rare.probs, rare.observed))
    low, high = (binom.ppf(level, count, mean) / count for level in (0.025, 0.975))
    axis.vlines(mean, low, high, color=PALE, linewidth=9, label="95 % if calibrated")
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    axis.axhline(
        rare.share, color=ORANGE, linestyle="--", linewidth=1.2, label=f"share of all: {100 * rare.share:.2g} %"
    )
    axis.plot(mean, found, "o", color=BLUE, ms=5, label="observed")
    height, reach = 1.35 * max(high.max(), found.max()), min(1.08 * mean.max(), 1.03)
    gaps = np.diff(mean, prepend=-1, append=2) < _LETTERS * reach
    for number, (x, top, share, num) in enumerate(zip(mean, np.maximum(high, found), found, count, strict=True)):
        place = "right" if gaps[number + 1] else "left" if gaps[number] else "center"
        axis.text(x, top, f"  {share * num:.0f} of {num}", rotation=90, fontsize=8.5, ha=place, va="bottom")
    axis.set(xlim=(-0.04 * reach, reach), ylim=(-0.02 * height, height))
    in_percent(axis.xaxis)
    in_percent(axis.yaxis)
    axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick < 1.001])
    axis.set(xlabel=f"probability that {plain(target)} is {rare.value}", ylabel=f"share that is {rare.words}")
    title(axis, "Reliability, cases in bins of probability")
    legend_below(axis)


def _bins(probs: np.ndarray) -> np.ndarray:
    """Return the bin of each probability; equal probabilities share one."""
    values, place, count = np.unique(probs, return_inverse=True, return_counts=True)
    cases = (values * count).cumsum() - values * count / 2
    total = max(probs.sum(), 1e-300)
    index = (np.clip(total // _CASES, 1, _MOST_BINS) * cases / total).astype(int)
    return np.unique(index, return_inverse=True)[1][place]


def draw_separation(axis: Axes, rare: Rare, target: str) -> None:
    """Draw how the probability of the rare is distributed where it occurred, and where it did not."""
    probs = np.maximum(rare.probs, _LEAST)
    low, high = probs.min(), probs.max()
    is_wide = high > _WIDE * low
    bins = np.geomspace(low, high, 21) if is_wide else np.linspace(low, max(high, low + 1e-6), 21)
    cases = int(rare.observed.sum())
    shares(axis, probs[~rare.observed], bins, color=LIGHT_BLUE, label=f"others ({len(probs) - cases})")
    drawn = {"histtype": "step", "hatch": "////", "color": ORANGE, "linewidth": 1.4}
    shares(axis, probs[rare.observed], bins, label=f"{rare.words} ({cases})", **drawn)
    axis.axvline(rare.share, color=INK, linestyle="--", linewidth=1, label=f"share of all: {100 * rare.share:.2g} %")
    if is_wide:
        axis.set(xscale="log")
    in_percent(axis.xaxis)
    in_percent(axis.yaxis)
    if is_wide:
        steps = (1, 3) if high < _WIDEST * low else (1,)
        round_ones = [step * 10.0**power for power in range(-4, 1) for step in steps]
        axis.set_xticks([one for one in round_ones if low <= one <= high], minor=False)
        axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel=f"probability that {plain(target)} is {rare.value}", ylabel="share of each group")
    title(axis, f"Probability of {rare.words} and of the others")
    legend_below(axis)
