"""Would the fitted model make data like those observed, and are its class probabilities the frequencies they claim?"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pyrobnn._core.checks import as_targets
from pyrobnn._core.errors import InputError
from pyrobnn.diagnostics.simulation import VsbcReport
from pyrobnn.plots._arviz import arviz_figure
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE
from pyrobnn.plots._style import first_column, grid, legend, panels, title
from pyrobnn.plots.uncertainty import distance_from_uniform
from pyrobnn.posterior.prediction import Prediction

_SHOWN_DRAWS = 50
_MOST_QUANTITIES = 12


def predictive_check(prediction: Prediction, y: Any, *, seed: int = 0) -> Figure:
    """Draw data sets that the fit simulates beside the observed one: real data should not stand out.

    Of real targets the density (`arviz.plot_ppc_dist`) of the observed ones and of 50 simulated sets; of counts, and
    where limits hold probability, the distribution function. Of classes the frequencies, with the interval that holds
    95 % of the simulated ones. All targets of a set share a draw of the weights. Of several targets, the first.

    A prediction of `BNN.sample_prior_predictive` at the inputs of y makes it a check of the prior.

    Args:
        prediction: a prediction at N inputs.
        y: the observed targets, (N,) or (N, K).
        seed: seed of the simulated targets.

    Raises:
        InputError: not one target for each prediction.
    """
    observed, simulated = _targets(prediction, y, seed)
    if prediction.is_classification:
        return _frequencies(simulated, observed, prediction.class_probs.shape[-1])
    import arviz as az

    kind = "kde" if prediction.is_continuous else "ecdf"
    groups = {"posterior_predictive": {"y": simulated[None]}, "observed_data": {"y": observed}}
    figure, axes = arviz_figure(
        az.plot_ppc_dist,
        az.from_dict(groups, dims={"y": ["obs_id"]}),
        1,
        kind=kind,
        num_samples=min(_SHOWN_DRAWS, len(simulated)),
        visuals={
            "predictive_dist": {"color": LIGHT_BLUE, "alpha": 0.5, "width": 0.8},
            "observed_dist": {"color": INK, "width": 1.8},
            "remove_axis": False,
        },
    )
    axis = axes["y"]
    title(axis, "Observed and simulated targets")
    axis.set(xlabel="y", ylabel="density" if kind == "kde" else "share of targets up to y")
    lines = [Line2D([], [], color=INK, linewidth=1.8), Line2D([], [], color=LIGHT_BLUE)]
    legend(axis, handles=lines, labels=["observed", "simulated"], loc="best")
    return figure


def _targets(prediction: Prediction, y: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the observed targets (N,), and one simulated set for each draw, (S, N); of several targets, the first."""
    observed = first_column(as_targets(y, len(prediction)))
    return observed, np.stack([first_column(values) for values in prediction.sample(seed=seed)])


def _frequencies(simulated: np.ndarray, observed: np.ndarray, num_classes: int) -> Figure:
    classes = np.arange(num_classes)
    share = np.stack([(simulated == label).mean(1) for label in classes])
    low, high = np.quantile(share, [0.025, 0.975], axis=1)
    figure, (axis,) = panels(1)
    axis.vlines(classes, low, high, color=LIGHT_BLUE, linewidth=7, label="simulated, 95 %")
    axis.plot(classes, share.mean(1), "_", color=BLUE, ms=12, mew=1.6, label="simulated, mean")
    axis.plot(classes, [(observed == label).mean() for label in classes], "o", color=INK, ms=5, label="observed")
    axis.set(xlabel="class", ylabel="share of the targets", xlim=(-0.6, num_classes - 0.4))
    axis.set_xticks(classes[:: max(1, num_classes // 10)])
    axis.set_ylim(0, 1.3 * axis.get_ylim()[1])
    title(axis, "Observed and simulated frequencies")
    legend(axis, loc="upper right", ncols=3, columnspacing=1.0)
    return figure


def calibration(prediction: Prediction, y: Any, *, seed: int = 0) -> Figure:
    """Draw how often each class occurred against its predicted probability, without bins.

    The frequencies are the isotonic regression of the labels on the probabilities; the band holds 95 % of those of
    labels simulated from the fit, where all labels of a set share a draw of the weights (`arviz.plot_ppc_pava`;
    Dimitriadis et al. 2021). Where `reliability` shows the confidence in the predicted class, this shows every class by
    itself. Probabilities are the shares of one simulated label a draw: predict with 500 draws or more. Of several
    binary targets, the first.

    Args:
        prediction: a prediction of classes at N inputs.
        y: the observed labels, (N,) or (N, K).
        seed: seed of the simulated labels.

    Raises:
        InputError: real targets, or not one label for each prediction.
    """
    if not prediction.is_classification:
        raise InputError(f"`calibration` needs classes, got {prediction!r}: use `pit` for real targets and counts.")
    import arviz as az

    observed, simulated = _targets(prediction, y, seed)
    classes = [1] if prediction.class_probs.shape[-1] == 2 else list(range(prediction.class_probs.shape[-1]))
    columns = {f"class {label}": (simulated == label, observed == label) for label in classes}
    groups = {
        "posterior_predictive": {name: pair[0][None].astype(np.int8) for name, pair in columns.items()},
        "observed_data": {name: pair[1].astype(np.int8) for name, pair in columns.items()},
    }
    figure, axes = arviz_figure(
        az.plot_ppc_pava,
        az.from_dict(groups, dims={name: ["obs_id"] for name in columns}),
        len(classes),
        data_type="binary",
        ci_prob=0.95,
        visuals={
            "lines": {"color": BLUE, "width": 1.6},
            "reference_line": False,
            "credible_interval": {"color": LIGHT_BLUE, "alpha": 0.4},
        },
    )
    for name, axis in axes.items():
        title(axis, f"{name} ({int(columns[name][1].sum())} of {len(observed)})")
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=1)
        axis.set(xlabel="predicted probability", ylabel="observed frequency", xlim=(0, 1), ylim=(-0.02, 1.02))
    handles = [Line2D([], [], color=BLUE, linewidth=1.6), Patch(color=LIGHT_BLUE, alpha=0.4, linewidth=0)]
    legend(next(iter(axes.values())), handles=handles, labels=["observed", "simulated, 95 %"], loc="lower right")
    return figure


def vsbc(report: VsbcReport) -> Figure:
    """Draw, for each quantity of `pyrobnn.vsbc`, how the ranks of the truth are distributed: flat if calibrated.

    A curve is the share of ranks up to p, less p. Above zero: draws are too high; below: too low; first above, then
    below: too narrow; first below, then above: too wide. At most 12 quantities, those with the smallest p-values.

    Args:
        report: what `pyrobnn.vsbc` returned.
    """
    tests = report.table[["symmetric", "uniform"]].min(axis=1).sort_values(kind="stable")
    shown = list(tests.index[:_MOST_QUANTITIES])
    ranks = _ranks(report)
    figure, axes = grid(len(shown), 4)
    for axis, name in zip(axes, shown, strict=True):
        distance_from_uniform(axis, np.sort(ranks[name]), report.num_simulations)
        axis.set(xlabel="rank p of the truth", ylabel="share of ranks up to p, less p")
        title(axis, f"{name}; p = {tests[name]:.2g}")
    ends = np.array([axis.get_ylim() for axis in axes])
    for axis in axes:
        axis.set_ylim(ends[:, 0].min(), ends[:, 1].max())
    legend(axes[0], loc="upper right", ncols=2)
    return figure


def _ranks(report: VsbcReport) -> dict[str, np.ndarray]:
    """Return the ranks (M,) by the names of the rows of the table."""
    ranks = {}
    for name, values in report.tree["prior_sbc"].data_vars.items():
        for place in np.ndindex(*values.shape[1:]):
            ranks[f"{name}{list(place) if place else ''}"] = values.values[(slice(None), *place)]
    return ranks
