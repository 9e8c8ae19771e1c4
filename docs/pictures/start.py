"""The picture of "Get started": its fit of 32 noisy points.

    uv run python docs/pictures/start.py

A few seconds. Writes docs/images/start.png.
"""

from pathlib import Path

import pyrobnn as bnn

OUT = Path(__file__).parents[1] / "images" / "start.png"


def main() -> None:
    """Make the fit of the page, and the picture that `fit_1d` draws of it."""
    train = bnn.datasets.sinusoid()
    model = bnn.BNN(bnn.MLP(1, [50], 1, activation="tanh"))
    posterior = bnn.fit(model, train, bnn.EvidenceFramework(), seed=0, progress=False)
    figure = bnn.plots.fit_1d(posterior, train)
    figure.set_size_inches(5.6, 3.8)
    axis = figure.axes[0]
    texts = [*axis.get_xticklabels(), *axis.get_yticklabels(), *axis.get_legend().get_texts()]
    for text in (axis.xaxis.label, axis.yaxis.label, *texts):
        text.set_fontsize(11)
    OUT.parent.mkdir(exist_ok=True)
    figure.savefig(OUT, dpi=140)
    print(OUT, f"{OUT.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
