"""Draw mean-field.png and mean-field-width.png: a gap under three approximations, and a network too wide."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from _page import write
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import pyrobnn as bnn
from pyrobnn.plots._colors import BLUE, GREY, INK, LIGHT_BLUE, PALE

X = torch.cat([torch.linspace(-1, -0.5, 20), torch.linspace(0.5, 1, 20)])[:, None]
DATA = bnn.Data(X, torch.sin(3 * X[:, 0]) + 0.1 * torch.randn(40, generator=torch.Generator().manual_seed(0)))
GRID = torch.linspace(-1.5, 1.5, 121)[:, None]
STEPS = 20_000
"""At most, for wide networks: collapse needs far fewer."""


def panel(axis: Axes, title: str, posterior: bnn.Posterior, text: str, *, total: bool) -> None:
    """Draw mean and epistemic band, and the predictive interval if asked for."""
    prediction = posterior.predict(GRID, num_draws=1600)
    mean = prediction.mean
    if total:
        axis.fill_between(
            GRID[:, 0],
            mean - 2 * prediction.std,
            mean + 2 * prediction.std,
            facecolor=PALE,
            edgecolor=GREY,
            label="predictive interval, ±2 sd",
        )
    spread = prediction.epistemic_std
    axis.fill_between(
        GRID[:, 0], mean - 2 * spread, mean + 2 * spread, color=LIGHT_BLUE, lw=0, label="epistemic, ±2 sd"
    )
    axis.plot(GRID[:, 0], mean, color=BLUE, linewidth=1.6, label="mean")
    axis.plot(X[:, 0], DATA.y, "o", color=INK, markersize=2.5, label="data")
    axis.set(title=title, xlim=(-1.5, 1.5), xticks=[-1, 0, 1], xlabel="x")
    axis.text(0.03, 0.98, text, transform=axis.transAxes, va="top")


def labelled(figure: Figure, axes: Sequence[Axes]) -> None:
    """Name the axis of the targets, and explain the colours below the panels."""
    axes[0].set_ylabel("y")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if len(labels) > 3 else 3, frameon=False)


def gap() -> None:
    """Draw the gap under mean-field, NUTS and a full Laplace."""
    net = bnn.MLP(1, [20], 1, activation="tanh")
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=0.1))
    methods = {
        "mean_field": bnn.SVI(guide="mean_field"),
        "NUTS": bnn.NUTS(num_draws=400, warmup=400, max_tree_depth=8),
        "Laplace, full": bnn.SVI(guide=bnn.guides.Laplace(structure="full")),
    }
    figure, axes = plt.subplots(1, 3, sharex=True, sharey=True, layout="constrained")
    for axis, (name, method) in zip(axes, methods.items(), strict=True):
        posterior = bnn.fit(model, DATA, method, seed=0, progress=False)
        at_data, at_gap = posterior.predict([[0.75], [0.0]], num_draws=1600).epistemic_std.tolist()
        panel(axis, name, posterior, f"sd at 0.75: {at_data:.2f}\nsd in the gap: {at_gap:.2f}", total=False)
    axes[0].set_ylim(-2.4, 2.4)
    labelled(figure, axes)
    write(figure, "mean-field", 3.2)


def width() -> None:
    """Draw a narrow and a wide network whose noise the guide trains, and the wide one with tuned scales."""
    cases = {
        "10 units": (10, "fan_in", "learned"),
        "100 units": (100, "fan_in", "learned"),
        "100 units, tuned": (100, "tuned", "tuned"),
    }
    figure, axes = plt.subplots(1, 3, sharex=True, sharey=True, layout="constrained")
    for axis, (name, (units, prior, noise)) in zip(axes, cases.items(), strict=True):
        net = bnn.MLP(1, [units], 1, activation="tanh")
        model = bnn.BNN(net, prior=bnn.priors.Normal(prior), likelihood=bnn.likelihoods.Gaussian(scale=noise))
        posterior = bnn.fit(model, DATA, bnn.SVI(guide="mean_field", max_steps=STEPS), seed=0, progress=False)
        found = float(posterior.predict([[0.0]]).aleatoric_std)
        kl = bnn.elbo_report(posterior, DATA).kl.mean / model.num_weights
        print(name, found, kl, posterior.record.stop_reason)
        panel(axis, name, posterior, f"noise sd {found:.2f}\nKL a weight {kl:.3f}", total=True)
    axes[0].set_ylim(-3.2, 4.8)
    labelled(figure, axes)
    write(figure, "mean-field-width", 3.4)


if __name__ == "__main__":
    plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    gap()
    width()
