"""The picture of docs/how-to/likelihoods.md: noise that grows, and outliers.

    uv run python docs/pictures/likelihoods.py

A minute or two. Writes docs/images/likelihoods.png.
"""

import torch
from _page import write
from matplotlib.figure import Figure

import pyrobnn as bnn
from pyrobnn.plots._colors import BLUE, GREY, INK, PALE


def main() -> None:
    """Make the picture."""
    generator = torch.Generator().manual_seed(0)
    x, drawn = torch.linspace(-2, 2, 200)[:, None], torch.randn(200, generator=generator)
    curve = torch.sin(1.5 * x[:, 0])
    growing, outliers = curve + (0.05 + 0.2 * (x[:, 0] + 2)) * drawn, curve + 0.15 * drawn
    outliers[20::45] += torch.tensor([2.5, 3.5, -3.0, 2.0])
    varying = bnn.likelihoods.Gaussian(scale="heteroscedastic")
    cases = {
        "Gaussian": (growing, 1, "gaussian"),
        'scale="heteroscedastic"': (growing, 2, varying),
        "Gaussian, outliers": (outliers, 1, "gaussian"),
        "StudentT, outliers": (outliers, 1, "student_t"),
    }
    figure = Figure(layout="constrained")
    for axis, (name, (y, outputs, likelihood)) in zip(figure.subplots(2, 2).flat, cases.items(), strict=True):
        model = bnn.BNN(bnn.MLP(1, [20], outputs, activation="tanh"), likelihood=likelihood)
        posterior = model.fit(x, y, seed=0, progress=False)
        print(name, posterior.record.stop_reason, posterior.bnn.settings["likelihood"])
        prediction = posterior.predict(x)
        low, high = (bound.numpy() for bound in prediction.interval(0.95))
        axis.fill_between(x[:, 0], low, high, facecolor=PALE, edgecolor=GREY, label="95 % predictive interval")
        axis.plot(x[:, 0], y, "o", color=INK, ms=1.8, label="data")
        axis.plot(x[:, 0], prediction.quantile(0.5), color=BLUE, linewidth=1.8, label="median")
        axis.set(xlim=(-2, 2), ylim=(-4, 4), xlabel="x", ylabel="y")
        axis.set_title(name, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    labels = axis.get_legend_handles_labels()
    figure.legend(*labels, loc="outside upper center", ncols=3, frameon=False)
    write(figure, "likelihoods", 5.0)


if __name__ == "__main__":
    main()
