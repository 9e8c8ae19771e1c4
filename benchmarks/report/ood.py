"""Tables and picture of out-of-distribution inputs."""

import numpy as np

from benchmarks.report.parts import mean_cell, panels_of_methods, standard_error
from benchmarks.rows import Figure, Row, Table, distinct, grouped

_MEASURES = {"mutual_information": "mutual information", "entropy": "entropy", "max_prob": "1 - largest probability"}
_LOOKS = {"mutual_information": ("#0b4f8a", "o"), "entropy": ("#d9822b", "s"), "max_prob": ("#555555", "^")}


def tables(rows: list[Row], published: list[Row]) -> list[Table]:
    """Return a table for each pair of kinds."""
    return [_table(data, methods) for data, methods in _sets(rows).items()]


def _sets(rows: list[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return rows by data and method."""
    return {data: grouped(same, "entry") for data, same in grouped(rows, "data").items()}


def _cell(same: list[Row], key: str, factor: float = 1.0, digits: int = 3) -> str:
    """Return mean and standard error over seeds; nothing for a measure that is the same for all inputs."""
    values = [factor * row[key] for row in same if row[key] is not None]
    return mean_cell(values, digits) if values else ""


def _table(data: str, methods: dict[str, list[Row]]) -> Table:
    header = [
        "method",
        "error, %",
        "log score",
        *(f"AUROC, {name}" for name in _MEASURES.values()),
        "FPR at 95 %, entropy",
    ]
    lines = []
    for name, same in methods.items():
        numbers = [_cell(same, f"auroc_{measure}") for measure in _MEASURES]
        best = [_cell(same, "error", 100, 2), _cell(same, "log_score")]
        lines.append([name, *best, *numbers, _cell(same, "fpr_95_entropy")])
    seeds = max(len(same) for same in methods.values())
    note = (
        f"Error and log score are those of held-out examples inside. ± is the standard error over {seeds} seeds, each "
        "with parts of the data of its own. AUROC: how often an input outside is less certain than one inside; 0.5 is "
        "chance, and a point (map) has no mutual information. FPR: share of inputs inside above the "
        "threshold that 95 % of those outside reach. One setting for all sets and methods of a kind, not tuned."
    )
    return Table(f"Out of distribution: {data}", note, header, lines)


def figures(rows: list[Row]) -> list[Figure]:
    """Return the AUROC of each measure, a panel for each pair of kinds."""
    sets = _sets(rows)
    methods = distinct(rows, "entry")
    size = (2.4 + 3.2 * len(sets), 1.7 + 0.34 * len(methods))
    picture, axes = panels_of_methods(list(sets), methods, "AUROC", size)
    for axis, methods_inside in zip(axes, sets.values(), strict=True):
        for shift, (measure, (colour, marker)) in enumerate(_LOOKS.items()):
            all_values = {name: [row[f"auroc_{measure}"] for row in scores] for name, scores in methods_inside.items()}
            values = {name: scores for name, scores in all_values.items() if None not in scores}
            places = [methods.index(name) + 0.18 * (shift - 1) for name in values]
            means, errors = [float(np.mean(v)) for v in values.values()], [standard_error(v) for v in values.values()]
            axis.errorbar(means, places, xerr=errors, fmt=marker, color=colour, capsize=2, label=_MEASURES[measure])
        axis.grid(axis="x", color="0.92", linewidth=0.6)
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    caption = (
        "How well each measure of uncertainty tells inputs outside from inside; bars are standard errors over seeds."
    )
    return [Figure("out-of-distribution", caption, picture)]
