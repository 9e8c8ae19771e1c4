"""The picture of README and of the home page: the fit of README's hello world, and its uncertainty.

    uv run python docs/pictures/readme.py

A few seconds. Writes docs/images/readme.png, and prints the numbers that README and the home page show below it.
"""

import torch
from _page import write

import pyrobnn as bnn


def main() -> None:
    """Fit 32 noisy points and draw the prediction far beyond them."""
    points = bnn.datasets.sinusoid()
    data = bnn.Data(points.x, points.y, standardize=True)
    model = bnn.BNN(bnn.MLP(1, [50], 1, activation="tanh"))
    posterior = bnn.fit(model, data, bnn.EvidenceFramework(), seed=0, progress=False)

    prediction = posterior.predict([[0.0], [0.25], [1.0]])
    print(prediction.mean, prediction.std, sep="\n")
    figure = bnn.plots.fit_1d(posterior, data, torch.linspace(-1, 1, 300)[:, None])
    axis = figure.axes[0]
    axis.set(xlim=(-0.85, 0.85), ylim=(-27, 23))
    none = "no data:\nuncertain"
    for x, y, text in ((-0.1, 15, "data: certain"), (-0.66, -19, none), (0.68, 15, none)):
        axis.text(x, y, text, ha="center")
    handles, _ = axis.get_legend_handles_labels()
    names = ["predictive interval, ±2 sd", "epistemic part, ±2 sd", "mean", "data"]
    axis.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    write(figure, "readme", 3.7)


if __name__ == "__main__":
    main()
