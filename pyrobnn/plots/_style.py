"""The common style of pictures: panels with few lines, headings, legends, bands and histograms."""

import io
import sys
import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.registry import backend_registry
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, ScalarFormatter
from matplotlib.transforms import ScaledTranslation
from torch import Tensor

from pyrobnn.plots._colors import GREY, INK

Layout = Literal["row", "column"]

PANEL = (4.8, 3.3)  # width and height of a panel in inches
SQUARE = (4.0, 3.9)  # of one whose axes share a scale
TALL = (4.0, 4.85)  # with room for three lines of a legend below
_POWERS_OF_TEN = (-4, 5)  # between which ticks are written out
_TICKS = {"nbins": 6, "steps": [1, 2, 5, 10]}  # few, and round: 2010 and 2020 fit below a panel, 2012.5 does not
_PANEL_GAP = 0.08  # inches of room above and below each of several panels
_LONGEST_NAME = 24
_LABEL_INCHES = 0.42  # that the ticks and the label of an axis reach
_WITHOUT_WINDOWS = (None, "nbagg", "webagg")


class _Numbers(ScalarFormatter):
    """Ticks of large numbers, such as prices, in thousands or millions: 150k."""

    def format_ticks(self, values: Any) -> list[str]:
        is_large = 1e5 <= max(np.abs(values), default=0.0) < 1e9
        return [EngFormatter(sep="")(value) for value in values] if is_large else super().format_ticks(values)


class Picture(Figure):
    """A figure that notebooks show as the value of a cell."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png")
        return stream.getvalue()


def pyplot_with_windows() -> Any:
    """Return pyplot where the caller uses it and it opens windows, None elsewhere.

    There `plt.show()` shows our figures, too. Without windows pyplot would only keep them in memory, and notebooks
    would show the value of a cell twice. Windows belong to the main thread.
    """
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None or threading.current_thread() is not threading.main_thread():
        return None
    _, framework = backend_registry.resolve_backend(plt.get_backend())
    return None if framework in _WITHOUT_WINDOWS else plt


def close(figure: Figure) -> None:
    """Have pyplot forget a figure that nobody is to see in a window."""
    plt = pyplot_with_windows()
    if plt is not None:
        plt.close(figure)


def plain(name: str) -> str:
    """Return a name from data, cut to a length that fits, whose dollar signs are shown and do not set mathematics."""
    return (name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…").replace("$", r"\$")


def band(axis: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, **options: Any) -> None:
    """Fill the space between two curves, without an edge unless options say so."""
    axis.fill_between(x, low, high, **({"linewidth": 0} | options))


def shares(axis: Axes, values: np.ndarray, bins: np.ndarray, **options: Any) -> None:
    """Draw a histogram of the share of the values in each bin."""
    axis.hist(values, bins=list(bins), weights=np.full(len(values), 1 / len(values)), **options)


def panels(num: int, layout: Layout = "row", panel: tuple[float, float] = PANEL) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels beside each other ("row") or below each other ("column")."""
    return grid(num, num if layout == "row" else 1, panel)


def one_panel(ax: Axes | None, panel: tuple[float, float] = PANEL) -> tuple[Figure, Axes]:
    """Return a figure with one panel of that size, or the figure and the panel that are given."""
    if ax is None:
        figure, (axis,) = panels(1, panel=panel)
        return figure, axis
    tidy(ax)
    given = ax.get_figure(root=True)
    assert given is not None
    return given, ax


def grid(num: int, most_columns: int, panel: tuple[float, float] = PANEL) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels in rows of at most `most_columns`, each panel (width, height) in inches."""
    columns = min(num, most_columns)
    rows = -(-num // columns)
    options: Any = {"figsize": (panel[0] * columns, panel[1] * rows), "layout": "constrained"}
    plt = pyplot_with_windows()
    figure = Picture(**options) if plt is None else plt.figure(FigureClass=Picture, **options)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    if rows > 1:
        figure.set_layout_engine("constrained", h_pad=_PANEL_GAP)
    for axis in axes[:num]:
        tidy(axis)
        axis.xaxis.set_major_formatter(_Numbers())
        axis.yaxis.set_major_formatter(_Numbers())
        axis.ticklabel_format(scilimits=_POWERS_OF_TEN)
        axis.locator_params(**_TICKS)
    for axis in axes[num:]:
        axis.remove()
    return figure, axes[:num]


def tidy(axis: Axes) -> None:
    """Give a panel the lines and letters of all the others."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GREY)
    axis.tick_params(colors=INK, labelsize=9)
    axis.xaxis.label.set_fontsize(10)
    axis.yaxis.label.set_fontsize(10)


def named_ticks(axis: Axes, places: Any, names: Sequence[str], most_letters: int) -> None:
    """Name places of the horizontal axis; at an angle if that takes more letters than fit beside each other."""
    is_long = sum(map(len, names)) > most_letters
    angle = 30 if len(names) < 6 else 60  # more would overlap
    options: Any = {"rotation": angle, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
    axis.set_xticks(places, names, **options)


def title(axis: Axes, text: str) -> None:
    """Give a panel a heading, flush left."""
    axis.set_title(text, fontsize=10, loc="left", color=INK)


def legend(axis: Axes, **options: Any) -> None:
    """Add a legend without a frame that hides no data more than it must."""
    axis.legend(**({"frameon": False, "fontsize": 8.5, "handlelength": 1.8} | options))


def legend_below(axis: Axes, **options: Any) -> None:
    """Add a legend under a panel whose data leave no corner free."""
    figure = axis.get_figure(root=True)
    assert figure is not None  # panels belong to figures
    under_label = axis.transAxes + ScaledTranslation(0, -_LABEL_INCHES, figure.dpi_scale_trans)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": under_label}
    legend(axis, **(below | {"ncols": 2, "columnspacing": 1.2} | options))


def as_array(values: Tensor) -> np.ndarray:
    """Return values as a NumPy array of float64 on the host."""
    return values.detach().double().cpu().numpy()


def first_column(values: Tensor) -> np.ndarray:
    """Return values (N,) or the first column of (N, K)."""
    array = as_array(values)
    return array if array.ndim == 1 else array[:, 0]
