"""Tables and picture of active learning."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure

from benchmarks.report.parts import mean_cell, standard_error
from benchmarks.rows import Figure, Row, Table, distinct

_LOOKS = {"uncertainty": ("#0b4f8a", "-"), "random": ("#d9822b", "--")}


def tables(rows: list[Row], published: list[Row]) -> list[Table]:
    """Return a table for each data set."""
    return [_table(data, [row for row in rows if row["data"] == data]) for data in distinct(rows, "data")]


def _table(data: str, rows: list[Row]) -> Table:
    header = ["method", "acquisition", "error, all rounds", "error, last round", "log score, last round", "difference"]
    lines = []
    for entry in distinct(rows, "entry"):
        by_acquisition = {
            how: {row["seed"]: row for row in rows if (row["entry"], row["acquisition"]) == (entry, how)}
            for how in _LOOKS
        }
        paired = [
            by_acquisition["uncertainty"][seed]["mean_error"] - by_acquisition["random"][seed]["mean_error"]
            for seed in by_acquisition["random"]
        ]
        for how, by_seed in by_acquisition.items():
            columns = [
                mean_cell([row[key] for row in by_seed.values()], 3) for key in ("mean_error", "error", "log_score")
            ]
            lines.append([entry, how, *columns, mean_cell(paired, 3) if how == "uncertainty" else ""])
    labels = rows[0]["labels"]
    note = (
        f"From {labels[0]} random labels to {labels[-1]}, {labels[1] - labels[0]} a round (those of largest score, "
        "with no regard for each other), both acquisitions of one seed from the same labels; networks are fitted anew "
        "in each round. Uncertainty is the mutual information of label and weights (BALD), for real targets the "
        "standard deviation of the mean function. Error is the share of wrong labels, or the root mean squared error "
        "in standard deviations of the targets; difference is that of the error, mean over all rounds, uncertainty "
        "less random, seed by seed. ± is the standard error over seeds. Inputs (and real targets) are standardised by "
        "the whole pool. The prior N(0, 1) of all methods, and its tuning by the marginal likelihood for Laplace, "
        "were chosen among two after a look at the curves of digits."
    )
    return Table(f"Active learning: {data}", note, header, lines)


def figures(rows: list[Row]) -> list[Figure]:
    """Return learning curves, a panel a method and a row of panels a data set."""
    sets, entries = distinct(rows, "data"), distinct(rows, "entry")
    size = (1.2 + 2.5 * len(entries), 0.6 + 2.5 * len(sets))
    picture = MatplotlibFigure(figsize=size, layout="constrained")
    axes = picture.subplots(len(sets), len(entries), sharex="row", sharey="row", squeeze=False)
    for line, data in zip(axes, sets, strict=True):
        for axis, entry in zip(line, entries, strict=True):
            _curves(axis, [row for row in rows if (row["data"], row["entry"]) == (data, entry)])
            axis.set_title(f"{data}: {entry}", fontsize=10)
            axis.set_xlabel("labels")
        line[0].set_ylabel("test error")
        line[0].set_ylim(bottom=0)
    axes[0][-1].legend(frameon=False)
    caption = "Test error against the number of labels; bands are standard errors over seeds."
    return [Figure("active-learning", caption, picture)]


def _curves(axis: Any, rows: list[Row]) -> None:
    for how, (colour, dash) in _LOOKS.items():
        same = [row for row in rows if row["acquisition"] == how]
        if not same:
            continue
        curves, labels = np.array([row["errors"] for row in same]), same[0]["labels"]
        mean, error = curves.mean(0), np.array([standard_error(errors) for errors in curves.T])
        axis.plot(labels, mean, dash, color=colour, linewidth=1.6, label=how)
        axis.fill_between(labels, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)
    axis.grid(color="0.93", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
