"""Pictures drawn by ArviZ, as figures in our style: pyplot keeps them only where it opens windows."""

import warnings
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrobnn.plots._style import PANEL, Picture, pyplot_with_windows, tidy

_MOST_COLUMNS = 4


def arviz_figure(plot: Callable[..., Any], tree: Any, num: int, **options: Any) -> tuple[Figure, dict[str, Axes]]:
    """Have a function of ArviZ draw `num` panels, for the variables of a tree, without its headings and legends.

    Returns the figure, and its panels by the name of the variable.
    """
    keeps = pyplot_with_windows() is not None
    import matplotlib.pyplot as plt

    columns = min(num, _MOST_COLUMNS)
    size = (PANEL[0] * columns, PANEL[1] * -(-num // columns))
    options["visuals"] = {"title": False} | options.get("visuals", {})
    with plt.ioff(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer")  # axes of a curve, not chains
        warnings.filterwarnings("ignore", message="Your data appears to have a single value")  # no line is drawn
        collection = plot(
            tree,
            backend="matplotlib",
            col_wrap=_MOST_COLUMNS,
            figure_kwargs={"figsize": size, "FigureClass": Picture, "layout": "constrained"},
            **options,
        )
    figure = collection.viz["figure"].item()
    if not keeps:
        plt.close(figure)
    for legend in [*figure.legends, *(axis.get_legend() for axis in figure.axes)]:
        if legend is not None:
            legend.remove()
    axes = {str(name): panel.item() for name, panel in collection.viz["plot"].data_vars.items()}
    for axis in figure.axes:
        if axis in axes.values():
            tidy(axis)
        else:
            axis.remove()
    return figure, axes
