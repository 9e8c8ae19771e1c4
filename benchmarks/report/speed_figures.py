"""The results as pictures: a dot for each engine in each case, and growth curves. Shapes carry what colours do."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benchmarks.peers.cases import CASES, MAIN
from benchmarks.peers.engines import ENGINES
from benchmarks.peers.ratios import Results

_INK, _GREY, _PALE = "#1c1c1c", "#767676", "#dde3ea"
_OURS, _OTHERS = "#0b4f8a", "#d9822b"
_TITLES = {
    "sine": "1-20-20-1, N = 32",
    "uci": "13-50-1, batch 100",
    "mlp400": "784-400-400-10, batch 128",
    "mlp1200": "784-1200-1200-10, batch 128",
    "lenet": "LeNet-5, batch 128",
    "replicates": "1-20-20-1, 20 replicates",
    "predict": "1-20-20-1, predict 500 x 1000",
}
_UNITS = {"replicates": "ms per step and replicate", "predict": "ms per call"}
_CURVES = {
    "weights": "weights of 16-h-h-1, batch 100",
    "batch": "batch size of 13-50-1",
    "replicates": "replicates of 1-20-20-1",
}
_LINES = {
    "pyrobnn": {"color": _OURS, "marker": "o", "linestyle": "-"},
    "numpyro_scan": {"color": _OTHERS, "marker": "s", "linestyle": "--"},
    "pyro": {"color": _GREY, "marker": "^", "linestyle": ":"},
}


def pictures(results: Results) -> dict[str, Figure]:
    """Return the figures beside the page of a machine, by the end of their names."""
    return {"": _draw_cases(results), "-growth": _draw_growth(results)}


def _draw_cases(results: Results) -> Figure:
    names = [case.name for case in MAIN if case.kind != "compile"]
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    axes = list(figure.subplots(2, 4, sharey=True).flat)
    for axis, name in zip(axes, names, strict=False):
        _draw_case(axis, results.get(name, {}))
        axis.set_title(_TITLES[name], fontsize=10, loc="left", color=_INK)
        axis.set_xlabel(_UNITS.get(name, "ms per step"), fontsize=9)
    _draw_key(axes[-1], results)
    return figure


def _draw_case(axis: Axes, entries: dict[str, Any]) -> None:
    """Draw a line for each engine: the median as a dot with its number, quartiles as a bar."""
    _tidy(axis)
    axis.set_xscale("log")
    axis.set_yticks(range(len(ENGINES)), list(ENGINES))
    axis.set_ylim(len(ENGINES) - 0.5, -0.6)
    axis.hlines(range(len(ENGINES)), 0, 1, transform=axis.get_yaxis_transform(), color=_PALE, linewidth=0.8, zorder=0)
    medians = []
    for row, name in enumerate(ENGINES):
        entry = entries.get(name, {})
        if "median" in entry:
            medians.append(entry["median"])
            _draw_dot(axis, row, entry, ours=name.startswith("pyrobnn"))
    if medians:
        axis.set_xlim(min(medians) / 2, max(max(medians) * 5, min(medians) * 20))  # room for the numbers
    _plain_numbers(axis.xaxis, axis.get_xlim())


def _draw_dot(axis: Axes, row: int, entry: dict[str, Any], *, ours: bool) -> None:
    low, high = entry["quartiles"]
    colour = _OURS if ours else _INK
    axis.hlines(row, low, high, color=colour, linewidth=3, alpha=0.5)
    axis.plot(entry["median"], row, "o", markersize=7, color=colour, markerfacecolor=colour if ours else "white")
    axis.annotate(
        f"{entry['median']:.3g}",
        (entry["median"], row),
        xytext=(7, 0),
        textcoords="offset points",
        fontsize=8,
        va="center",
    )


def _draw_key(axis: Axes, results: Results) -> None:
    axis.set_axis_off()
    machine = next(row for rows in results.values() for row in rows.values())
    lines = (
        f"{machine['cpu']}, {machine['cores']} cores",
        "filled: pyrobnn",
        "open: other engines",
        "dot: median, bar: quartiles",
        "further left is faster",
    )
    axis.text(0.02, 0.95, "\n".join(lines), transform=axis.transAxes, va="top", fontsize=9.5, linespacing=1.7)


def _draw_growth(results: Results) -> Figure:
    figure = Figure(figsize=(10, 3.3), layout="constrained")
    axes = list(figure.subplots(1, len(_CURVES)).flat)
    for axis, (family, label) in zip(axes, _CURVES.items(), strict=True):
        _tidy(axis)
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel=_UNITS.get(family, "ms per step"))
        for engine, style in _LINES.items():
            points = _points(results, family, engine)
            if points:
                axis.plot(*zip(*points, strict=True), label=engine, markersize=5, **style)
        _plain_numbers(axis.xaxis, axis.get_xlim())
        _plain_numbers(axis.yaxis, axis.get_ylim())
    if axes[0].lines:
        axes[0].legend(frameon=False, fontsize=9)
    return figure


def _points(results: Results, family: str, engine: str) -> list[tuple[float, float]]:
    """Return (size, median) of the cases of a family that an engine was measured in."""
    points = []
    for name, case in CASES.items():
        kind, _, size = name.partition("-")
        entry = results.get(name, {}).get(engine, {})
        if kind == family and size and "median" in entry:
            points.append((case.num_weights if family == "weights" else float(size), entry["median"]))
    return points


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=9, colors=_INK, labelleft=True)


def _plain_numbers(scale: Any, limits: tuple[float, float]) -> None:
    """Write decades without exponents where they are short, and 2 and 5 too on a scale of few decades."""
    few = limits[1] < 100 * limits[0]
    scale.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=10))
    scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}" if 1e-4 <= value < 1e5 else f"{value:.0e}"))
    scale.set_minor_formatter(NullFormatter())
