"""How a fit went: the ELBO and its two parts step by step."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrobnn._core.errors import InputError, shown
from pyrobnn.plots._colors import BLUE, INK, LIGHT_BLUE, ORANGE
from pyrobnn.plots._style import Layout, legend_below, panels, title
from pyrobnn.posterior.mixture import Mixture
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.record import History

_NUM_WINDOWS = 50
_WARM_UP_SHARE = 0.2


def elbo(history: History | Posterior | Mixture, *, layout: Layout = "row") -> Figure:
    """Draw the ELBO beside its two parts, and the validation score if any.

    The strong lines are running means over a fiftieth of the fit; the limits follow the steps after the first fifth.

    Args:
        history: the posterior of a fit by steps, or its record, `posterior.history`.
        layout: panels in a "row" or in a "column".

    Raises:
        InputError: no history, or one without steps.

    Examples:
        >>> posterior = bnn.BNN(bnn.MLP(1, [10], 1)).fit(bnn.datasets.sinusoid(), steps=50, seed=0, progress=False)
        >>> figure = bnn.plots.elbo(posterior)
        >>> figure.savefig("elbo.png")
    """
    given = history.history if isinstance(history, (Posterior, Mixture)) else history
    if not (isinstance(given, History) and len(given)):
        need = f"the posterior of a fit by steps, or its history with a step or more, got {shown(given)}"
        others = "fits without such steps, as by EvidenceFramework, have the history None"
        raise InputError(f"`elbo` takes {need}: of an estimator pass `posterior_`; {others}.")
    figure, axes = panels(3 if given.validation_steps else 2, layout)
    parts = [given.log_likelihood, -given.kl]
    _curve(axes[0], given.elbo, BLUE, "running mean", steps="single steps")
    _curve(axes[1], parts[0], ORANGE, "log-likelihood", steps="its single steps")
    _curve(axes[1], parts[1], INK, "minus KL", "--", steps="its single steps")
    hidden = [_limit(axes[0], [given.elbo]), _limit(axes[1], parts), 0]
    axes[0].set_ylabel("ELBO (nats)")
    title(axes[0], "Evidence lower bound")
    axes[1].set_ylabel("part (nats)")
    title(axes[1], "Its two parts, which add up to it")
    for axis in axes[:2]:
        legend_below(axis)
    if given.validation_steps:
        axes[2].plot(given.validation_steps, given.validation_scores, "o-", color=BLUE, mfc=LIGHT_BLUE, ms=4)
        axes[2].set_ylabel("mean log score (nats per example)")
        title(axes[2], "Validation data")
    for axis, num in zip(axes, hidden, strict=False):
        axis.set_xlabel(f"step ({num} early steps lie below the picture)" if num else "step")
        axis.set_xlim(0, max(len(given), 2))
        axis.locator_params(axis="x", integer=True)
    return figure


def running_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over a window that ends at each step, a fiftieth of the steps long."""
    window = max(1, len(values) // _NUM_WINDOWS)
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _curve(axis: Axes, values: np.ndarray, color: str, label: str, style: str = "-", *, steps: str) -> None:
    x = np.arange(1, len(values) + 1)
    axis.plot(x, values, color=color, alpha=0.25, linewidth=0.6)
    axis.plot(x, running_mean(values), color=color, linestyle=style, linewidth=1.6, label=label)
    axis.plot([], [], color=color, alpha=0.25, linewidth=6, label=steps)  # wide enough to be seen in the legend


def _limit(axis: Axes, curves: list[np.ndarray]) -> int:
    """Limit the axis to the steps after the first fifth, and count the earlier steps that fall off the picture."""
    late = np.concatenate([values[int(_WARM_UP_SHARE * len(values)) :] for values in curves])
    low, high = np.quantile(late, [0.005, 0.995])
    margin = 0.08 * (high - low) or 1.0
    axis.set_ylim(low - margin, high + margin)
    return max(int((values[: int(_WARM_UP_SHARE * len(values))] < low - margin).sum()) for values in curves)
