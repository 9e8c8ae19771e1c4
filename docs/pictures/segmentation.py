"""Draw segmentation.png: an image, its labels, the predicted labels and the epistemic uncertainty of each pixel.

    uv run python docs/pictures/segmentation.py

Runs the blocks of the page; half a minute.
"""

import re
from pathlib import Path

import numpy as np
from _page import write
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pyrobnn.plots._colors import BLUE, GREY, ORANGE, PALE, SHADES

DOCS = Path(__file__).parents[1]
CLASSES = {"background": PALE, "bright square": ORANGE, "brighter square": BLUE}
HEADINGS = ("image", "labels", "prediction", "epistemic")


def main() -> None:
    """Run the page, and draw two of its images."""
    page = (DOCS / "how-to" / "likelihoods.md").read_text()
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    first = next(place for place, block in enumerate(blocks) if "class UNet" in block)
    exec("import pyrobnn as bnn\nimport torch", names)
    for block in blocks[first : first + 2]:
        exec(block, names)
    images, truth, epistemic = (np.asarray(names[name]) for name in ("new", "truth", "epistemic"))
    label = np.asarray(names["prediction"].label)  # type: ignore[attr-defined]
    figure = Figure(layout="constrained")
    axes = figure.subplots(2, 4)
    colors = {"cmap": ListedColormap([*CLASSES.values()]).with_extremes(bad="white"), "vmin": 0, "vmax": 2}
    for row, axs in enumerate(axes):
        axs[0].imshow(images[row, 0], cmap="gray")
        axs[1].imshow(np.ma.masked_less(truth[row], 0), **colors)
        axs[2].imshow(label[row], **colors)
        shown = axs[3].imshow(epistemic[row], cmap=SHADES, vmin=0, vmax=epistemic[:2].max())
    for axis, heading in zip(axes[0], HEADINGS, strict=True):
        axis.set_title(heading)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_color(GREY)
    options = {"location": "bottom", "anchor": (1, 1), "shrink": 0.4, "aspect": 16, "format": "%.2f"}
    bar = figure.colorbar(shown, ax=axes, **options)
    bar.set_ticks(np.linspace(0, epistemic[:2].max(), 3))
    bar.set_label("mutual information (nats)")
    patches = [Patch(facecolor=color, edgecolor=GREY, label=name) for name, color in CLASSES.items()]
    patches.append(Patch(facecolor="white", edgecolor=GREY, label="no label"))
    figure.legend(handles=patches, loc="lower left", ncols=2, frameon=False, columnspacing=0.8, handlelength=1.4)
    write(figure, "segmentation", 4.0)


if __name__ == "__main__":
    main()
