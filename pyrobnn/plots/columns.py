"""How much a fit relies on each column."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyrobnn._core.errors import InputError
from pyrobnn.plots._colors import BLUE, GREY, LIGHT_BLUE
from pyrobnn.plots._style import PANEL, legend, one_panel, plain, title

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_COLUMNS = 15
_FRAME_INCHES = 1.4
_ROW_INCHES = 0.28


def importance(table: "DataFrame", *, ax: Axes | None = None) -> Figure:
    """Draw the permutation importance of columns with bars of ±2 standard errors, the largest on top.

    A column whose bar holds 0 may as well not matter. At most the first 15 columns are shown.

    Args:
        table: what `pyrobnn.metrics.permutation_importance` returns.
        ax: the panel to draw in; if not given, a new figure.

    Raises:
        InputError: a table without columns importance and stderr, or without rows.

    Examples:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"importance": [0.9, 0.0], "stderr": [0.2, 0.1]}, index=["size", "noise"])
        >>> figure = bnn.plots.importance(table)
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['size', 'noise']
    """
    if not {"importance", "stderr"} <= set(table.columns) or not len(table):
        raise InputError(
            f"`importance` draws what `permutation_importance` returns, got a table of {len(table)} rows with the "
            f"columns {list(table.columns)}."
        )
    shown = table.iloc[:_MOST_COLUMNS]
    figure, axis = one_panel(ax, (PANEL[0], _FRAME_INCHES + _ROW_INCHES * len(shown)))
    rows, loss, error = np.arange(len(shown)), shown["importance"].to_numpy(), shown["stderr"].to_numpy()
    axis.axvline(0, color=GREY, linewidth=1)
    axis.hlines(rows, loss - 2 * error, loss + 2 * error, color=LIGHT_BLUE, linewidth=5, label="±2 se")
    axis.plot(loss, rows, "o", color=BLUE, ms=5)
    axis.set_yticks(rows, [plain(str(name)) for name in shown.index])
    axis.set(ylim=(len(shown) - 0.4, -0.6), xlabel="loss in log score (nats an example)")
    title(axis, f"Importance, {len(shown)} of {len(table)} columns" if len(shown) < len(table) else "Importance")
    legend(axis, loc="lower right", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.1)
    return figure
