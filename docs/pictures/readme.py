"""The picture of README and of the home page: the fit of README's hello world, and its uncertainty.

    uv run python docs/pictures/readme.py

A few seconds. Writes docs/images/readme.png, and prints the numbers that README and the home page show below it.
"""

from pathlib import Path

import torch

import pyrobnn as bnn

OUT = Path(__file__).parents[1] / "images" / "readme.png"
WIDTH, HEIGHT, DPI = 5.6, 3.8, 140


def main() -> None:
    """Fit 32 noisy points and draw the prediction far beyond them."""
    data = bnn.datasets.sinusoid()
    model = bnn.BNN(bnn.MLP(1, [50], 1, activation="tanh"))
    posterior = bnn.fit(model, data, bnn.EvidenceFramework(), seed=0, progress=False)

    prediction = posterior.predict([[0.0], [0.25], [1.0]])
    print(prediction.mean, prediction.std, sep="\n")
    figure = bnn.plots.fit_1d(posterior, data, torch.linspace(-1, 1, 300)[:, None])
    figure.set_size_inches(WIDTH, HEIGHT)
    axis = figure.axes[0]
    axis.set(xlim=(-0.85, 0.85), ylim=(-27, 23))
    none = "no data:\nuncertain"
    for x, y, text in ((-0.1, 15, "data: certain"), (-0.66, -19, none), (0.68, 15, none)):
        axis.text(x, y, text, ha="center", fontsize=11)
    for label in (axis.xaxis.label, axis.yaxis.label, *axis.get_xticklabels(), *axis.get_yticklabels()):
        label.set_fontsize(11)
    handles, _ = axis.get_legend_handles_labels()
    names = ["predictive interval, ±2 sd", "epistemic part, ±2 sd", "mean", "data"]
    axis.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=11)
    OUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUT, dpi=DPI)
    print(OUT, f"{OUT.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
