"""Draw segmentation.png: an image, its labels, the predicted labels and the doubt of each pixel."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

DOCS = Path(__file__).parents[1]
COLORS = ["#e3e9ef", "#8fb8db", "#0b4f8a"]


def main() -> None:
    """Run the page, and draw three of its images."""
    page = (DOCS / "how-to" / "segmentation.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]:
        exec(block, names)
    images, truth, doubt = (np.asarray(names[name]) for name in ("new", "truth", "doubt"))
    label = np.asarray(names["prediction"].label)  # type: ignore[attr-defined]
    figure, axes = plt.subplots(3, 4, figsize=(7, 5.4), layout="constrained")
    classes = plt.matplotlib.colors.ListedColormap(COLORS).with_extremes(bad="white")
    for row, axs in enumerate(axes):
        axs[0].imshow(images[row, 0], cmap="gray")
        axs[1].imshow(np.ma.masked_less(truth[row], 0), cmap=classes, vmin=0, vmax=2)
        axs[2].imshow(label[row], cmap=classes, vmin=0, vmax=2)
        shown = axs[3].imshow(doubt[row], cmap="magma", vmin=0, vmax=doubt[:3].max())
    for axis, title in zip(axes[0], ("image", "labels", "predicted", "mutual information"), strict=True):
        axis.set_title(title, fontsize=10)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    figure.colorbar(shown, ax=axes[:, 3], label="nats", shrink=0.6)
    figure.savefig(DOCS / "images" / "segmentation.png", dpi=120)


if __name__ == "__main__":
    main()
