"""The picture of docs/how-to/arviz.md: predictions against the input, and the calibration of held-out targets.

    uv run python docs/pictures/arviz-plots.py

Seconds. Named so that it does not hide the package. Writes docs/images/arviz-plots.png.
"""

import io
from collections.abc import Sequence

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
from _page import DPI, IMAGES, LETTERS, WIDTH
from PIL import Image

import pyrobnn as bnn

PANEL = {"figsize": (WIDTH, 3.0), "layout": "constrained"}


def as_image(plot: object, x: str, y: str, names: Sequence[str]) -> Image.Image:
    """Return the figure of a plot of ArviZ as an image, with labels of its axes and names of what it holds."""
    figure = plot.viz["figure"].item()
    axis = figure.axes[0]
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title("")
    for text in axis.texts:
        text.set(text=text.get_text().replace("(", "  ("), fontsize=LETTERS)
    axis.spines[["top", "right"]].set_visible(False)
    for legend in [*figure.legends, axis.get_legend()]:
        if legend is not None:
            legend.remove()
    for text in (axis.xaxis.label, axis.yaxis.label, *axis.get_xticklabels(), *axis.get_yticklabels()):
        text.set_fontsize(LETTERS)
    options = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": LETTERS}
    figure.legend(axis.get_children()[: len(names)], names, **options)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DPI)
    plt.close(figure)
    return Image.open(buffer).convert("RGB")


def main() -> None:
    """Make the picture."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(120, 1))
    y = np.sin(3 * x[:, 0]) + 0.2 * rng.normal(size=120)
    train, test = bnn.Data(x, y).split(0.4, seed=0)
    net, likelihood = bnn.MLP(1, [10], 1, activation="tanh"), bnn.likelihoods.Gaussian(0.2)
    model = bnn.BNN(net, prior=bnn.priors.Normal(1.0), likelihood=likelihood)
    posterior = model.fit(train, guide="laplace", steps=150, lr=0.05, seed=0, progress=False)
    grid = np.linspace(-1.5, 1.5, 40)[:, None]
    tree = bnn.to_datatree(posterior, train, x_pred=grid, num_draws=500)
    held_out = bnn.eval_datatree(posterior, test, num_draws=500)
    lines = az.plot_lm(
        tree,
        x="x",
        y="mu",
        y_obs="y",
        group="predictions",
        plot_dim="pred_id",
        ci_prob=(0.5, 0.9),
        smooth=False,
        figure_kwargs=PANEL,
    )
    pit = az.plot_ppc_pit(held_out, figure_kwargs=PANEL)
    bands = ("50 % of the draws", "90 % of the draws", "their mean", "training data")
    upper = as_image(lines, "x", "mean of y", bands)
    lower = as_image(pit, "rank of the target", "difference from uniform", ("uniform ranks", "held-out targets"))
    whole = Image.new("RGB", (upper.width, upper.height + lower.height), "white")
    whole.paste(upper, (0, 0))
    whole.paste(lower, (0, upper.height))
    whole.quantize(96).save(IMAGES / "arviz-plots.png", optimize=True)  # few colours, a small file


if __name__ == "__main__":
    main()
