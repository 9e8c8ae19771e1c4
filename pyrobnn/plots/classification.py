"""Predicted class probabilities against observed labels."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from pyrobnn import metrics
from pyrobnn._core.checks import as_targets
from pyrobnn._core.errors import InputError
from pyrobnn.metrics import reliability_bins
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE, ORANGE, PALE
from pyrobnn.plots._style import SQUARE, Layout, as_array, legend_below, named_ticks, one_panel, panels, plain, title
from pyrobnn.posterior.prediction import Prediction

_MOST_NAMED_CLASSES = 20
_MOST_CLASSES_WITH_COUNTS = 12
_MOST_CLASSES_WITH_SHARES = 5
_FOOT_SHARE = 0.1  # of the height, for the counts at the foot
_LETTERS_UNDER_A_SQUARE = 24  # that fit beside each other


def reliability(prediction: Prediction, y: ArrayLike, *, layout: Layout = "row", target: str = "class") -> Figure:
    """Draw the accuracy of the predicted class against the confidence in it, and the distribution of confidence.

    Confidence is the probability of the predicted class, in 15 bins of equal width; each bin shows its number of
    examples, and a bar for the range of its accuracy in 95 % of cases if its confidence is right. Several binary
    targets are pooled.

    Args:
        prediction: a prediction of classes.
        y: the observed labels, (N,) or (N, K).
        layout: panels in a "row" or in a "column".
        target: name of the target, for axes.

    Raises:
        InputError: real targets, or not one label for each prediction.

    Examples:
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1), likelihood="bernoulli").fit(x, y, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.reliability(posterior.predict(x), y)
        >>> figure.axes[0].get_ylabel()
        'share predicted correctly'
    """
    if not prediction.is_classification:
        raise InputError(f"`reliability` needs classes, got {prediction!r}: use `observed_vs_predicted`.")
    figure, axes = panels(2, layout)
    draw_reliability(axes[0], prediction, y, target)
    draw_confidence(axes[1], prediction, y, target)
    return figure


def draw_reliability(axis: Axes, prediction: Prediction, y: ArrayLike, target: str = "class") -> None:
    """Draw the accuracy of each bin of confidence, with the noise that its number of examples has if it is right."""
    from scipy.stats import binom

    bins = reliability_bins(prediction, y)
    mean, accuracy, count = bins.confidence, bins.accuracy, bins.count
    low, high = (binom.ppf(level, count, mean.clip(0, 1)) / count for level in (0.025, 0.975))
    axis.vlines(mean, low, high, color=PALE, linewidth=9, label="95 % if calibrated")
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=1)
    axis.plot(mean, accuracy, "o", color=BLUE, ms=5, label="observed")
    for x, num in zip(mean, count, strict=True):
        axis.text(x, 0.01, str(num), transform=axis.get_xaxis_transform(), fontsize=8.5, ha="center", va="bottom")
    gap = float((count * np.abs(accuracy - mean)).sum() / count.sum())
    axis.set(xlabel=f"confidence in the predicted {plain(target)}", ylabel="share predicted correctly")
    axis.set_xlim(_leftmost(mean) - 0.02, 1.03)
    bottom = _leftmost(np.concatenate([accuracy, low]))
    axis.set_ylim(bottom - _FOOT_SHARE * (1.06 - bottom), 1.06)
    title(axis, f"Reliability, with counts below; ECE {gap:.3f}")
    legend_below(axis)


def confusion(
    prediction: Prediction,
    y: ArrayLike,
    *,
    ax: Axes | None = None,
    target: str = "class",
    class_names: Sequence[str] = (),
) -> Figure:
    """Draw how often each class was predicted where each class was observed (`pyrobnn.metrics.confusion`).

    Right predictions are blue, wrong ones orange; a cell is strong in colour where a large share of an observed class
    lies. Counts are written up to 12 classes, and shares up to 5.

    Args:
        prediction: a prediction of classes.
        y: the observed labels, (N,) or (N, K).
        ax: the panel to draw in; if not given, a new figure.
        target: name of the target, for axes.
        class_names: names of the classes; their numbers if not given.

    Raises:
        InputError: real targets, not one label for each prediction, or not a name for each class.

    Examples:
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1), likelihood="bernoulli").fit(x, y, steps=20, seed=0, progress=False)
        >>> figure = bnn.plots.confusion(posterior.predict(x), y, target="side", class_names=["left", "right"])
        >>> figure.axes[0].get_ylabel()
        'observed side'
    """
    table = metrics.confusion(prediction, y, class_names=class_names)
    counts, names = table.to_numpy(), [plain(name) for name in table.index]
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure, axis = one_panel(ax, SQUARE)
    is_right = np.eye(len(names), dtype=bool)
    full = np.where(is_right[..., None], to_rgb(BLUE), to_rgb(ORANGE))
    axis.imshow(1 - share[..., None] * (1 - full), aspect="auto")
    gaps = np.arange(1, len(names)) - 0.5
    axis.hlines(gaps, -0.5, len(names) - 0.5, color="white", linewidth=3)
    axis.vlines(gaps, -0.5, len(names) - 0.5, color="white", linewidth=3)
    shown = range(0, len(names), -(-len(names) // _MOST_NAMED_CLASSES))
    named_ticks(axis, shown, [names[label] for label in shown], _LETTERS_UNDER_A_SQUARE)
    axis.set_yticks(shown, [names[label] for label in shown])
    if len(names) <= _MOST_CLASSES_WITH_COUNTS:
        for (row, column), count in np.ndenumerate(counts):
            color = "white" if row == column and share[row, column] > 0.5 else INK if count else GREY
            part = f"\n{100 * share[row, column]:.0f} %" if count and len(names) <= _MOST_CLASSES_WITH_SHARES else ""
            axis.text(column, row, f"{count}{part}", ha="center", va="center", color=color, fontsize=9)
    axis.set(xlabel=f"predicted {plain(target)}", ylabel=f"observed {plain(target)}")
    title(axis, f"Confusion: {counts.trace()} of {counts.sum()} are right")
    return figure


def draw_confidence(axis: Axes, prediction: Prediction, y: ArrayLike, target: str = "class") -> None:
    """Draw how the confidence of right and wrong predictions is distributed."""
    confidence = as_array(prediction.class_probs.amax(-1)).ravel()
    correct = as_array(prediction.label.cpu() == as_targets(y, len(prediction)).cpu()).ravel() > 0
    parts = [confidence[correct], confidence[~correct]]
    labels = [f"correct ({len(parts[0])})", f"wrong ({len(parts[1])})"]
    left = _leftmost(confidence)
    bins = np.linspace(left, 1.0, 21)
    colors, hatches = [LIGHT_BLUE, ORANGE], ["", "////"]
    axis.hist(parts, bins=list(bins), stacked=True, color=colors, hatch=hatches, edgecolor="white", label=labels)
    axis.set(xlabel=f"confidence in the predicted {plain(target)}", ylabel="examples", xlim=(left, 1.0))
    axis.locator_params(axis="y", integer=True)
    title(axis, "Distribution of confidence")
    legend_below(axis)


def class_draws(prediction: Prediction) -> np.ndarray:
    """Return the probabilities of the classes under each draw, (S, N, C); of several binary targets, of the first."""
    probs = as_array(prediction.draw_means)
    if prediction.class_probs.ndim < probs.ndim:
        return probs
    first = probs if probs.ndim == 2 else probs[..., 0]
    return np.stack([1 - first, first], -1)


def _leftmost(confidence: np.ndarray) -> float:
    return float(min(0.9, np.floor(10 * confidence.min()) / 10))
