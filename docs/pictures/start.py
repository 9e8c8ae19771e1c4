"""The picture of "Get started": its fit of 32 noisy points.

    uv run python docs/pictures/start.py

A few seconds. Writes docs/images/start.png.
"""

from _page import write

import pyrobnn as bnn


def main() -> None:
    """Make the fit of the page, and the picture that `fit_1d` draws of it."""
    points = bnn.datasets.sinusoid()
    train = bnn.Data(points.x, points.y, standardize=True)
    model = bnn.BNN(bnn.MLP(1, [50], 1, activation="tanh"))
    posterior = bnn.fit(model, train, bnn.EvidenceFramework(), seed=0, progress=False)
    figure = bnn.plots.fit_1d(posterior, train)
    write(figure, "start", 3.7)


if __name__ == "__main__":
    main()
