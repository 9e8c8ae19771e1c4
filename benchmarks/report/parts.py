"""Pictures and statistics that all reports use."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, variance
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure


def mean_cell(values: Sequence[float], digits: int) -> str:
    """Return the mean and, of several values, its standard error, as text."""
    error = f" ± {standard_error(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{error}"


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of values; 0 of a single value, whose error is unknown."""
    # not `stdev` or `math.sqrt`, which fail where a value is not finite
    return variance(values) ** 0.5 / math.sqrt(len(values)) if len(values) > 1 else 0.0


def save_picture(figure: "MatplotlibFigure", path: Path, dpi: int = 110) -> None:
    """Write a picture as PNG with a palette of 256 colours, which makes the file a third as large."""
    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def panels(count: int, columns: int, size: tuple[float, float], **shared: Any) -> Any:
    """Return a picture and the axes of its panels; the rest of the last row stays empty.

    Args:
        count: number of panels.
        columns: panels in a row, at most.
        size: width and height of a panel in inches.
        shared: axes in common, as matplotlib names them.
    """
    from matplotlib.figure import Figure as MatplotlibFigure

    columns = min(columns, count)
    lines = math.ceil(count / columns)
    picture = MatplotlibFigure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    axes = picture.subplots(lines, columns, squeeze=False, **shared).ravel()
    for axis in axes[count:]:
        axis.set_axis_off()
    return picture, axes[:count]


def panels_of_methods(data: Sequence[str], methods: Sequence[str], label: str, size: tuple[float, float]) -> Any:
    """Return a picture and its axes: a panel for each data set, side by side, in which methods are lines.

    Args:
        data: titles of the panels.
        methods: names of the lines, from top to bottom.
        label: below each panel.
        size: of the picture in inches.
    """
    from matplotlib.figure import Figure as MatplotlibFigure

    picture = MatplotlibFigure(figsize=size, layout="constrained")
    axes = picture.subplots(1, len(data), sharey=True, squeeze=False)[0]
    for axis, title in zip(axes, data, strict=True):
        axis.set(title=title, xlabel=label, yticks=range(len(methods)))
        axis.set_yticklabels(methods)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    return picture, axes
