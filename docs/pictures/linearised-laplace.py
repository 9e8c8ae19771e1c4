"""Draw linearised-laplace.png: the same Laplace posterior in the network itself, linearised, beside NUTS."""

import matplotlib.pyplot as plt
import torch
from _page import write

import pyrobnn as bnn
from pyrobnn.plots._colors import BLUE, INK, LIGHT_BLUE


def main() -> None:
    """Fit and draw."""
    x = torch.linspace(-0.5, 0.5, 24)[:, None]
    data = bnn.Data(x, torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(24, generator=torch.Generator().manual_seed(0)))
    net = bnn.MLP(1, [20], 1, activation="tanh")
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=bnn.likelihoods.Gaussian(scale=0.1))
    laplace = model.fit(data, guide=bnn.guides.Laplace(structure="full"), seed=0, progress=False)
    nuts = bnn.fit(model, data, bnn.NUTS(num_draws=400, warmup=400, max_tree_depth=8), seed=0, progress=False)
    grid = torch.linspace(-1, 1, 121)[:, None]
    predictions = {
        "Laplace,\nnetwork itself": laplace.predict(grid, num_draws=1600, linearized=False),
        "Laplace,\nlinearised": laplace.predict(grid, num_draws=1600),
        "NUTS": nuts.predict(grid, num_draws=1600),
    }
    plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}
    figure, axes = plt.subplots(1, 3, sharex=True, sharey=True, layout="constrained")
    for axis, (name, prediction) in zip(axes, predictions.items(), strict=True):
        mean, std = prediction.mean, prediction.epistemic_std
        axis.fill_between(grid[:, 0], mean - 2 * std, mean + 2 * std, color=LIGHT_BLUE, lw=0, label="epistemic, ±2 sd")
        axis.plot(grid[:, 0], mean, color=BLUE, linewidth=1.6, label="mean")
        axis.plot(x[:, 0], data.y, "o", color=INK, markersize=2.5, label="data")
        axis.set(title=name, xlim=(-1, 1), ylim=(-3.7, 3.7), xticks=[-1, 0, 1])
        at_data, outside = (float(std[(grid[:, 0] - place).abs().argmin()]) for place in (0.25, 1.0))
        axis.set_xlabel(f"x\nsd at 0.25: {at_data:.2f}\nsd at 1: {outside:.2f}")
    axes[0].set_ylabel("y")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    write(figure, "linearised-laplace", 3.7)


if __name__ == "__main__":
    main()
