"""Draw how data flow through the package: `python docs/pictures/architecture.py` writes docs/images/architecture.svg.

The background is transparent and all text stands in boxes of middle tones, so that it reads on light and dark pages.
"""

import itertools
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

IMAGES = Path(__file__).resolve().parents[1] / "images"
BLUE, TEAL, RED, GREY, LINE = "#3f51b5", "#00796b", "#bf360c", "#546e7a", "#8a8a8a"
Pair = tuple[float, float]
WIDTH, HEIGHT = 10.0, 15.2
"""Units of the drawing."""


def box(axes: Axes, centre: Pair, size: Pair, color: str, words: tuple[str, str]) -> None:
    """Draw a box with a title and, below it, the room and its floor."""
    (x, y), (width, height), (title, room) = centre, size, words
    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.18", fc=color, ec="none"
    )
    axes.add_patch(shape)
    axes.text(x, y + 0.2, title, ha="center", va="center", color="white", fontsize=11, fontweight="bold")
    axes.text(x, y - 0.32, room, ha="center", va="center", color="white", fontsize=10)


def arrow(axes: Axes, start: Pair, end: Pair) -> None:
    """Draw an arrow."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": LINE, "lw": 1.8, "mutation_scale": 14})


def draw() -> None:
    """Write the picture."""
    mpl.rcParams |= {"svg.hashsalt": "architecture", "svg.fonttype": "none"}
    figure = plt.figure(figsize=(4.8, 4.8 * HEIGHT / WIDTH))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    columns, narrow, high = (1.75, 5.0, 8.25), 3.05, 1.25

    parts = [("Data", "data, floor 3"), ("BNN", "bnn, floor 5"), ("method", "inference, floor 9")]
    made_of = [
        ("data sets", "datasets, floor 4"),
        ("declared parts", "priors, nets: floor 4"),
        ("guide", "guides, floor 4"),
    ]
    for x, part, source in zip(columns, parts, made_of, strict=True):
        box(axes, (x, 14.4), (narrow, 1.25), GREY, source)
        box(axes, (x, 12.4), (narrow, high), BLUE, part)
        arrow(axes, (x, 13.75), (x, 13.05))
        arrow(axes, (x, 11.75), (x, 11.1))

    frame = FancyBboxPatch(
        (0.22, 6.55), 9.56, 4.5, boxstyle="round,pad=0,rounding_size=0.25", fc="none", ec=RED, lw=2.2
    )
    axes.add_patch(frame)
    box(axes, (5.0, 10.2), (9.0, high), RED, ("fit", "inference, floor 9"))
    steps = [("scales", "are measured"), ("state", "starts copies"), ("engine", "is chosen")]
    inner = (1.85, 5.0, 8.15)
    for x, step in zip(inner, steps, strict=True):
        box(axes, (x, 8.6), (2.7, high), RED, step)
    box(axes, (5.0, 7.27), (9.0, 1.08), RED, ("training", "blocks of steps, watch, checkpoints"))
    for left, right in itertools.pairwise(inner):
        arrow(axes, (left + 1.3, 8.6), (right - 1.3, 8.6))

    arrow(axes, (5.0, 6.5), (5.0, 5.85))
    box(axes, (5.0, 5.2), (9.0, high), BLUE, ("Posterior or Mixture", "posterior, floor 7, with the record of the fit"))
    after = [
        ("Prediction", "posterior, floor 7"),
        ("DataTree", "diagnostics, floor 10"),
        ("save, load", "storage, floor 10"),
    ]
    judged = [("score", "metrics, floor 8"), ("diagnose", "diagnostics, floor 10"), ("plots", "plots, floor 11")]
    for x, upper, lower in zip(columns, after, judged, strict=True):
        arrow(axes, (x, 4.55), (x, 3.95))
        box(axes, (x, 3.3), (narrow, high), TEAL, upper)
        box(axes, (x, 1.95), (narrow, high), TEAL, lower)
    box(axes, (5.0, 0.62), (9.55, 1.15), GREY, ("report, runs, estimators, cli", "floors 12 to 14"))

    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / "architecture.svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw()
