"""Methods beside each other: their scores, and what to beware of."""

from matplotlib.figure import Figure

from pyrobnn.diagnostics.methods import MethodComparison
from pyrobnn.plots._colors import BLUE, GREY, LIGHT_BLUE, ORANGE
from pyrobnn.plots._style import Layout, panels, plain, title

_TITLES = {
    "log_likelihood": "Log score, higher is better",
    "rmse": "RMSE, lower is better",
    "accuracy": "Accuracy, higher is better",
    "coverage_95": "Coverage of 95 % intervals",
}
_LINE, _HEAD = 0.32, 1.0  # inches


def compare_methods(compared: MethodComparison, *, layout: Layout = "row") -> Figure:
    """Draw the scores of methods with two standard errors, the best log score on top, and each seed as a pale point.

    Orange marks methods of which a fit warns or failed; a dashed line is the level of the intervals.

    Args:
        compared: the result of `pyrobnn.compare_methods`.
        layout: panels in a "row" or in a "column".

    Examples:
        >>> train, test = bnn.datasets.sinusoid(60).split(0.5, seed=0)
        >>> model, method = bnn.BNN(bnn.MLP(1, [5], 1)), bnn.SVI(guide="laplace", steps=50)
        >>> compared = bnn.compare_methods(model, train, {"A": method}, held_out=test, seeds=[0], progress=False)
        >>> bnn.plots.compare_methods(compared).axes[0].get_title(loc="left")
        'Log score, higher is better'
    """
    table, fits, names = compared.table, compared.fits, [name for name in _TITLES if name in compared.table]
    figure, axes = panels(len(names), layout, (3.4, _HEAD + _LINE * len(table)))
    for axis, name in zip(axes, names, strict=True):
        for place, (method, row) in enumerate(table.iterrows()):
            each = fits.loc[fits["method"] == method, name]
            axis.plot(each, [place] * len(each), "o", ms=3, color=LIGHT_BLUE)
            color, error = ORANGE if row["warning"] else BLUE, 2 * row[f"{name}_stderr"]
            axis.errorbar(row[name], place, xerr=error, fmt="o", ms=5, capsize=2, color=color)
        marked = zip(table.index, table["warning"], strict=True)
        axis.set_yticks(range(len(table)), [f"{'! ' * bool(warning)}{plain(str(each))}" for each, warning in marked])
        axis.set_ylim(len(table) - 0.5, -0.5)
        if name == "coverage_95":
            axis.axvline(0.95, color=GREY, linewidth=1, linestyle="--")
        if name in ("coverage_95", "accuracy"):
            axis.set_xlim(right=min(1.005, axis.get_xlim()[1]))
        if layout == "row":
            axis.tick_params(labelleft=axis is axes[0])
        title(axis, _TITLES[name])
    return figure
