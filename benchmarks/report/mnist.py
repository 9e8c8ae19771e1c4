"""Tables and pictures of the digits suites, published rows beside ours."""

import json
from collections.abc import Iterator
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.rows import Figure, Row, Table, grouped

_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#999999")
_MARKERS = "os^Dv<>P"
_DASHES = ("-", "--", "-.", ":")
_WIDE = 10.0
"""Test error in % from which on a logarithmic axis shows more."""
_UNITS = (400, 800, 1200)
_TABLE_OF_ERRORS, _TABLE_OF_PRUNING = "Blundell et al. 2015 (ICML), Table 1", "Blundell et al. 2015 (ICML), Table 2"
_PROTOCOL = (
    "Two hidden ReLU layers, pixels divided by 126, the first 50,000 training images to train on, mini-batches of "
    "128, the other 10,000 to choose hyper-parameters on, error on the 10,000 test images at the end of training. "
    "Departures from the published protocol: Adam, whose learning rate falls to 0 along half a cosine, in all entries, "
    "also those called SGD; the KL has a factor that rises from 0 to 1 over the first part of the steps of Bayes by "
    "Backprop, and is 1 from there on; epochs are those of the last table; settings are those of the suite file, which "
    "says how they were chosen."
)
_SPREAD = "± is the standard error over the test images; with several seeds both are means over them."


def tables(rows: list[Row], published: list[Row]) -> list[Table]:
    """Return tables of test errors, of scores, of pruning, and of how the fits were made."""
    shown = [_errors(rows, published), _scores(rows)]
    if any(row.get("pruned") for row in rows):
        shown.append(_pruning(rows, published))
    return [*shown, _budget(rows)]


def _cell(group: list[Row], name: str, digits: int) -> str:
    values, errors = ([row.get(key) for row in group] for key in (name, f"{name}_stderr"))
    if None in values:
        return ""
    return f"{mean(values):.{digits}f}" + ("" if None in errors else f" ± {mean(errors):.{digits}f}")


def _errors(rows: list[Row], published: list[Row]) -> Table:
    groups = grouped(rows, "entry", "units")
    units = sorted({*_UNITS, *(width for _, width in groups)})
    lines = [
        [entry, *(_cell(groups[entry, width], "test_error", 2) if (entry, width) in groups else "" for width in units)]
        for entry in dict.fromkeys(entry for entry, _ in groups)
    ]
    theirs: dict[str, dict[int, float]] = {}
    for row in published:
        name, _, width = row["method"].rpartition(", 2x")
        if row["source"] == _TABLE_OF_ERRORS and name:
            theirs.setdefault(name, {})[int(width.removesuffix(" units"))] = row["value"]
    lines += [
        [f"published: {name}", *(f"{values[width]:.2f}" if width in values else "" for width in units)]
        for name, values in theirs.items()
    ]
    header = ["method", *(f"{width} units" for width in units)]
    note = f"{_PROTOCOL} {_SPREAD} Published: Blundell et al. (2015), Table 1, about 600 epochs, no errors given."
    return Table("Test error on MNIST, %", note, header, lines)


_COLUMNS = {
    "test_error": ("test error, %", 2),
    "nll": ("NLL, nats", 4),
    "ece": ("ECE", 4),
    "auroc_entropy": ("AUROC, entropy", 4),
    "auroc_information": ("AUROC, mutual information", 4),
}


def _scores(rows: list[Row]) -> Table:
    lines = [
        [entry, str(units), *(_cell(group, name, digits) for name, (_, digits) in _COLUMNS.items())]
        for (entry, units), group in grouped(rows, "entry", "units").items()
    ]
    draws = "/".join(str(count) for count in sorted({row["num_draws"] for row in rows}))
    note = (
        f"Mixtures of {draws} draws; the network that was trained to a point is one. NLL is the mean negative log "
        "score of the mixture, ECE that of the most probable class in 15 bins. AUROC: how well the uncertainty tells "
        "the 10,000 test images of Fashion-MNIST from those of MNIST, 0.5 by chance, 1 at best; a single network has "
        f"no mutual information. Laplace: draws of the outputs of the linearised network. {_SPREAD}"
    )
    return Table("Scores", note, ["method", "units", *(title for title, _ in _COLUMNS.values())], lines)


def _pruning(rows: list[Row], published: list[Row]) -> Table:
    groups = {key: group for key, group in grouped(rows, "entry", "units").items() if group[0].get("pruned")}
    shares = sorted({share for group in groups.values() for share in group[0]["pruned"]})
    lines = [
        [entry, str(units), _cell(group, "test_error", 2), *(_pruned_cell(group, share) for share in shares)]
        for (entry, units), group in groups.items()
    ]
    theirs = {_published_share(row): row["value"] for row in published if row["source"] == _TABLE_OF_PRUNING}
    if theirs:
        cells = [
            f"{theirs[share]:.2f} ({theirs[share] - theirs[0.0]:+.2f})" if share in theirs else "" for share in shares
        ]
        lines.append(["published: Bayes by Backprop", "1200", f"{theirs[0.0]:.2f}", *cells])
    note = (
        "Test error in %, and in brackets its change in points with the standard error over the test images, when the "
        "weights with the smallest |mean| / standard deviation are set to zero; nothing is trained afterwards. "
        "Published: Blundell et al. (2015), Table 2."
    )
    header = ["method", "units", "all weights", *(f"{share:.0%} removed" for share in shares)]
    return Table("Pruning by signal-to-noise ratio", note, header, lines)


def _pruned_cell(group: list[Row], share: float) -> str:
    place = group[0]["pruned"].index(share) if share in group[0]["pruned"] else None
    if place is None:
        return ""
    error, spread = (mean(row[name][place] for row in group) for name in ("pruned_error", "pruned_cost_stderr"))
    return f"{error:.2f} ({error - mean(row['test_error'] for row in group):+.2f} ± {spread:.2f})"


def _published_share(row: Row) -> float:
    return float(row["method"].partition(" units, ")[2].partition("%")[0]) / 100


def _budget(rows: list[Row]) -> Table:
    lines = []
    for (entry, units), group in grouped(rows, "entry", "units").items():
        first = group[0]
        elbo = [
            f"{mean(row[name] for row in group):.3f}" if first.get(name) is not None else ""
            for name in ("log_likelihood", "kl")
        ]
        chosen = ", ".join(f"{key}={value}" for key, value in json.loads(first.get("chosen", "{}")).items())
        fitted = [f"{first['epochs']:.0f}", str(first["candidates"]), chosen] if "epochs" in first else ["", "", ""]
        lines.append([entry, str(units), *fitted, _cell(group, "validation_error", 2), *elbo, _seconds(group)])
    note = (
        "Candidates of one job were compared by their error on the 10,000 validation images. Log-likelihood and "
        "KL(q || prior) are the two parts of the ELBO in nats a training image, means over the last epoch, where the "
        "KL has factor 1. Points and dropout have no ELBO that bounds the evidence. Seconds: choosing and fitting, "
        "without measuring; not known of fits that were interrupted."
    )
    chosen_by = ["epochs", "candidates", "chosen", "validation error, %"]
    header = ["method", "units", *chosen_by, "log-likelihood", "KL", "seconds"]
    return Table("How the fits were made", note, header, lines)


def _seconds(group: list[Row]) -> str:
    seconds = [time for row in group for time in (row["seconds"], row.get("tuning_seconds", 0.0))]
    return "" if None in seconds else f"{sum(seconds) / len(group):.0f}"


def figures(rows: list[Row]) -> list[Figure]:
    """Return the predictions of rotated digits, and the test error against the weights that are left."""
    return [_rotation(rows), *([_pruning_curve(rows)] if any(row.get("pruned") for row in rows) else [])]


def _styled(rows: list[Row]) -> Iterator[tuple[Row, str, dict[str, Any]]]:
    """Yield the first row of each entry and width with a label and a style."""
    groups = grouped(rows, "entry", "units")
    several = len({units for _, units in groups}) > 1
    for number, ((entry, units), group) in enumerate(groups.items()):
        look = {"color": _COLOURS[number % 8], "marker": _MARKERS[number % 8], "ls": _DASHES[number // 8 % 4], "ms": 4}
        yield group[0], f"{entry}, {units}" if several else entry, look


def _tidy(axis: Axes, x: str, y: str) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel(x)
    axis.set_ylabel(y)


def _rotation(rows: list[Row]) -> Figure:
    picture = MatplotlibFigure(figsize=(9, 3.9), layout="constrained")
    panels = {
        "rotation_accuracy": "accuracy, %",
        "rotation_entropy": "mean entropy, nats",
        "rotation_information": "mean mutual information, nats",
    }
    for axis, (name, title) in zip(picture.subplots(1, 3), panels.items(), strict=True):
        for row, label, look in _styled(rows):
            if row[name] is not None:
                axis.errorbar(row["rotation"], row[name], yerr=row.get(f"{name}_stderr"), label=label, lw=1.3, **look)
        axis.set_xticks(range(0, 181, 45))
        axis.set_ylim(bottom=0)
        _tidy(axis, "rotation, degrees", title)
    picture.legend(
        *picture.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    caption = (
        "Test digits turned against the clock: accuracy, entropy of the predicted classes, and mutual information of "
        "class and weights (a single network has none). Bars: a standard error over the images. Seed "
        f"{rows[0]['seed']}."
    )
    return Figure("rotation", caption, picture)


def _pruning_curve(rows: list[Row]) -> Figure:
    picture = MatplotlibFigure(figsize=(6, 4), layout="constrained")
    axis = picture.subplots()
    pruned = [shown for shown in _styled(rows) if shown[0].get("pruned")]
    for row, label, look in pruned:
        left = [100.0, *(100 * (1 - share) for share in row["pruned"])]
        error = [row["test_error"], *row["pruned_error"]]
        bars = [row["test_error_stderr"], *row["pruned_cost_stderr"]]
        axis.errorbar(left, error, yerr=bars, label=label, lw=1.3, capsize=2, **look)
    axis.set_xscale("log")
    axis.invert_xaxis()
    ticks = sorted({100.0, *(round(100 * (1 - share), 6) for row, _, _ in pruned for share in row["pruned"])})
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axis.set_xticks([], minor=True)
    if axis.get_ylim()[1] > _WIDE:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    _tidy(axis, "weights left, %", "test error, %")
    axis.legend(frameon=False, fontsize=9)
    caption = (
        "Test error when the weights with the smallest signal-to-noise ratio are set to zero. Bars: a standard error "
        "over the test images, of the error itself at 100 %, of its change elsewhere."
    )
    return Figure("pruning", caption, picture)
