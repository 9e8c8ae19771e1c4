"""Methods beside each other: their scores, and what to beware of."""

from matplotlib.figure import Figure

from pyrobnn.diagnostics.methods import MethodComparison
from pyrobnn.plots._colors import BLUE, LIGHT_BLUE, ORANGE
from pyrobnn.plots._style import panels, plain, title


def compare_methods(compared: MethodComparison) -> Figure:
    """Draw the scores of methods with two standard errors, the best on top, and each seed as a pale point.

    Orange marks methods of which a fit warns or failed.

    Args:
        compared: the result of `pyrobnn.compare_methods`.

    Examples:
        >>> train, test = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> methods = {"A": bnn.SVI(guide="laplace", steps=50)}
        >>> compared = bnn.compare_methods(bnn.BNN(bnn.MLP(1, [5], 1)), train, methods, held_out=test, seeds=[0])
        >>> figure = bnn.plots.compare_methods(compared)
    """
    table, names = compared.table, [name for name in compared.scores if name != "difference"]
    figure, axes = panels(len(names), "row", (3.4, 1 + 0.32 * len(table)))
    marked = [f"{'! ' * bool(warning)}{plain(str(name))}" for name, warning in table["warning"].items()]
    for axis, name in zip(axes, names, strict=True):
        for place, (method, row) in enumerate(table.iterrows()):
            each = compared.fits.loc[compared.fits["method"] == method, name]
            axis.plot(each, [place] * len(each), "o", ms=3, color=LIGHT_BLUE)
            color, error = ORANGE if row["warning"] else BLUE, 2 * row[f"{name}_stderr"]
            axis.errorbar(row[name], place, xerr=error, fmt="o", ms=5, capsize=2, color=color)
        axis.set_yticks(range(len(table)), marked)
        axis.set_ylim(len(table) - 0.5, -0.5)
        axis.tick_params(labelleft=axis is axes[0])
        title(axis, name)
    return figure
