"""Pictures of regression suites."""

import math
from statistics import mean
from textwrap import shorten

import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import LogLocator, NullFormatter
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from benchmarks.published import load_published
from benchmarks.report.parts import panels
from benchmarks.report.regression_means import PRETRAINED, Estimate, own_means, published_means
from benchmarks.rows import Figure, Row, distinct

_OURS, _THEIRS = "#0072B2", "#999999"
_LEVEL = 0.05
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX*<>hp"


def _short(method: str) -> str:
    """Return the name of a published method without what follows in brackets, unless it was pretrained."""
    name = method.replace(f" {PRETRAINED}", ", pretrained")
    return shorten(name.split(" (")[0], 36, placeholder="…")


def forest(rows: list[Row]) -> Figure:
    """Return the log scores of all methods on each data set, best on top, with two standard errors."""
    data = distinct(rows, "data")
    ours = own_means(rows, "log_score")
    theirs = published_means(load_published(), "log_score", data) if has_published_splits(rows) else {}
    count = max(sum(name in sets for sets in [*ours.values(), *theirs.values()]) for name in data)
    picture, axes = panels(len(data), 2, (4.1, 0.21 * count + 0.8))
    for axis, name in zip(axes, data, strict=True):
        _forest_of(axis, name, [*_marked(ours, name, _OURS), *_marked(theirs, name, _THEIRS)])
    whose = ": ours in blue, published numbers in grey" if theirs else ""
    caption = (
        f"Mean test log-likelihood over splits, bars of two standard errors where there are any{whose}. Scores far "
        "below the others are drawn as arrows at the left edge, where bars may be cut off too."
    )
    return Figure("forest", caption, picture)


def has_published_splits(rows: list[Row]) -> bool:
    """Whether the rows are of the published splits, so that published numbers stand beside them."""
    return rows[0].get("splits", "published") == "published"


def _marked(means: dict[str, dict[str, Estimate]], name: str, colour: str) -> list[tuple[str, Estimate, str]]:
    return [(method, sets[name], colour) for method, sets in means.items() if name in sets]


def _forest_of(axis, name: str, lines: list[tuple[str, Estimate, str]]) -> None:
    lines = sorted(lines, key=lambda line: line[1].value)
    values = np.array([estimate.value for _, estimate, _ in lines])
    top, typical = values.max(), np.median(values)
    lowest = min(estimate.value - 2 * (estimate.error or 0.0) for _, estimate, _ in lines)
    left = max(lowest, top - 3 * max(top - typical, 0.1))
    right = max(estimate.value + 2 * (estimate.error or 0.0) for _, estimate, _ in lines)
    for place, (method, estimate, colour) in enumerate(lines):
        width = 2 * (estimate.error or 0.0)
        if estimate.value < left:
            axis.plot(left, place, marker="<", color=colour)
            text, ends = f"{estimate.value:.2f}, {method}", (left, left)
        else:
            axis.errorbar(estimate.value, place, xerr=width, fmt="o", ms=4, color=colour)
            text, ends = method, (max(estimate.value - width, left), estimate.value + width)
        is_left = ends[0] - left > right - ends[1]
        axis.annotate(
            text if colour == _OURS else _short(text),
            (ends[0] if is_left else ends[1], place),
            (-6 if is_left else 6, 0),
            textcoords="offset points",
            ha="right" if is_left else "left",
            va="center",
            fontsize=8,
            color="black" if colour == _OURS else "#555555",
        ).set_in_layout(False)
    axis.set_xlim(left - 0.35 * (right - left), right + 0.35 * (right - left))
    axis.set_ylim(-0.6, len(lines) - 0.4)
    axis.set_yticks([])
    axis.locator_params(axis="x", nbins=5)
    axis.spines[["left", "top", "right"]].set_visible(False)
    axis.set_title(name)
    axis.set_xlabel("log-likelihood, nats an example")
    axis.grid(axis="x", alpha=0.3)


def critical_differences(rows: list[Row]) -> Figure | None:
    """Return mean ranks of the entries over data sets, and which do not differ (Nemenyi), after Demšar (2006).

    "Statistical Comparisons of Classifiers over Multiple Data Sets". Entries that have all sets; None with fewer than
    three entries or sets.
    """
    data = distinct(rows, "data")
    means = {entry: sets for entry, sets in own_means(rows, "log_score").items() if len(sets) == len(data)}
    if len(means) < 3 or len(data) < 3:
        return None
    scores = np.array([[means[entry][name].value for entry in means] for name in data])
    ranks = rankdata(-scores, axis=1).mean(0)
    critical = critical_difference(len(means), len(data))
    p_value = friedmanchisquare(*scores.T).pvalue
    picture = MatplotlibFigure(figsize=(8, 0.32 * len(means) + 1.6), layout="constrained")
    axis = picture.subplots()
    order = np.argsort(ranks)
    for place, index in enumerate(order):
        axis.plot(ranks[index], -place, "o", color=_OURS)
        axis.plot([ranks[index], ranks[index] + critical], [-place, -place], color=_OURS, alpha=0.25, lw=5)
    axis.set_yticks([-place for place in range(len(order))], [list(means)[index] for index in order])
    axis.set_xlim(0.8, len(means) + 0.2)
    axis.set_xlabel(f"mean rank over {len(data)} data sets (1 is best)")
    axis.grid(axis="x", alpha=0.3)
    caption = (
        "Mean ranks by log-likelihood of the entries fitted to all sets. The pale bar is the critical difference of "
        f"the Nemenyi test at {_LEVEL:.0%} ({critical:.2f}): methods whose points lie within it do not differ. "
        f"Friedman test: p = {p_value:.2g}."
    )
    return Figure("critical-differences", caption, picture)


def critical_difference(methods: int, sets: int) -> float:
    """Return the difference of mean ranks that chance exceeds in 5 % of cases (Demšar 2006, section 3.2.2)."""
    quantile = studentized_range.ppf(1 - _LEVEL, methods, np.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(methods * (methods + 1) / (6 * sets)))


def calibration(rows: list[Row]) -> Figure:
    """Return, for each data set, the share of test targets below each quantile of their predictive distribution."""
    data, entries = distinct(rows, "data"), distinct(rows, "entry")
    picture, axes = panels(len(data), 3, (2.9, 2.7), sharey=True)
    levels = np.linspace(0, 1, 11)
    for axis, name in zip(axes, data, strict=True):
        for index, entry in enumerate(entries):
            counts = np.array([row["pit"] for row in rows if (row["entry"], row["data"]) == (entry, name)])
            if len(counts):
                shares = np.concatenate([[0], np.cumsum(counts.sum(0)) / counts.sum()])
                look = {"color": _COLOURS[index % 7], "ls": ("-", "--", ":")[index // 7 % 3], "label": entry}
                axis.plot(levels, shares - levels, **look)
        axis.axhline(0, color="black", lw=0.8)
        axis.set_title(name)
        axis.set_xlabel("level of the quantile")
    axes[0].set_ylabel("share below, less level")
    _legend(picture, entries)
    return Figure(
        "calibration",
        "How many test targets, of all splits, lie below each quantile of their predictive distribution, less "
        "the level: zero everywhere for a calibrated method; up at the left and down at the right for one that is too "
        "sure.",
        picture,
    )


def _legend(picture: MatplotlibFigure, entries: list[str]) -> None:
    """Add a legend with each entry that any panel shows."""
    by_axis = [axis.get_legend_handles_labels() for axis in picture.axes]
    shown = {label: handle for pairs in by_axis for handle, label in zip(*pairs, strict=True)}
    names = [entry for entry in entries if entry in shown]
    picture.legend([shown[name] for name in names], names, loc="outside lower center", ncols=3, fontsize=9)


def pareto(rows: list[Row]) -> Figure:
    """Return the log score against the seconds that tuning, fitting and scoring of a split took."""
    data, entries = distinct(rows, "data"), distinct(rows, "entry")
    means = own_means(rows, "log_score")
    picture, axes = panels(len(data), 3, (2.9, 2.7))
    for axis, name in zip(axes, data, strict=True):
        for index, entry in enumerate(entries):
            same = [row for row in rows if (row["entry"], row["data"]) == (entry, name)]
            if same:
                estimate = means[entry][name]
                seconds = mean(row["seconds"] + row["tuning_seconds"] for row in same)
                look = {"fmt": _MARKERS[index % len(_MARKERS)], "color": _COLOURS[index % 7], "label": entry}
                axis.errorbar(seconds, estimate.value, yerr=2 * (estimate.error or 0.0), ms=5, **look)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.tick_params(axis="x", labelsize=8)
        axis.set_title(name)
        axis.set_xlabel("seconds a split")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("log-likelihood, nats")
    _legend(picture, entries)
    return Figure(
        "time",
        "Log-likelihood (bars of two standard errors) against the seconds of a split, tuning included, where all "
        "splits of a set run side by side. Up and to the left is better.",
        picture,
    )
