"""What pictures of pages share: a width and letters that can be read on a phone, and few colours."""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

IMAGES = Path(__file__).parents[1] / "images"
WIDTH, LETTERS, DPI = 5.4, 10, 200
"""Inches and points: a phone of 390 pixels shows letters of 9 of them. Screens with fine pixels show them sharp."""


def write(figure: Figure, name: str, height: float | None = None) -> None:
    """Write a figure to docs/images, in the width of a page; in its own size if no height is given."""
    if height is not None:
        figure.set_size_inches(WIDTH, height)
    for axis in figure.axes:  # headings are flush left, as in the plots of the package
        heading = axis.get_title()
        axis.set_title("")
        axis.set_title(heading or axis.get_title(loc="left"), loc="left")
    for text in figure.findobj(Text):
        text.set_fontsize(LETTERS)
    path = IMAGES / f"{name}.png"
    figure.savefig(path, dpi=DPI)
    Image.open(path).convert("RGB").quantize(96).save(path, optimize=True)
    print(path, f"{path.stat().st_size / 1024:.0f} KB")
