"""Pictures that ArviZ draws, as figures of ours: no state is left with pyplot, and the look is that of all others."""

import warnings
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrobnn.plots._style import PANEL, Picture, tidy


def arviz_figure(
    plot: Callable[..., Any], tree: Any, num: int, *, most_columns: int = 4, **options: Any
) -> tuple[Figure, dict[str, Axes]]:
    """Have a function of ArviZ draw one panel for each variable, without its headings and legends.

    Args:
        plot: the function, such as `az.plot_ppc_dist`.
        tree: what it draws.
        num: number of panels.
        most_columns: panels in a row.
        **options: further arguments of the function.

    Returns:
        The figure, and its panels by the name of the variable.
    """
    import matplotlib.pyplot as plt

    columns = min(num, most_columns)
    size = (PANEL[0] * columns, PANEL[1] * -(-num // columns))
    options["visuals"] = {"title": False} | options.get("visuals", {})
    with plt.ioff(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found chain dimension to be longer")  # axes of a curve, not chains
        warnings.filterwarnings("ignore", message="Your data appears to have a single value")  # no line is drawn
        collection = plot(
            tree,
            backend="matplotlib",
            col_wrap=most_columns,
            figure_kwargs={"figsize": size, "FigureClass": Picture, "layout": "constrained"},
            **options,
        )
    figure = collection.viz["figure"].item()
    plt.close(figure)
    for own in [*figure.legends, *(axis.get_legend() for axis in figure.axes)]:
        if own is not None:
            own.remove()
    axes = {str(name): panel.item() for name, panel in collection.viz["plot"].data_vars.items()}
    for axis in figure.axes:
        if axis in axes.values():
            tidy(axis)
        else:
            axis.remove()
    return figure, axes
