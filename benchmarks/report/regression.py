"""Tables of regression suites: means over splits with standard errors, published rows beside them."""

import json
import math
from collections import Counter
from statistics import mean

from benchmarks.report import regression_figures as draw
from benchmarks.report.regression_means import PRETRAINED, QUOTES, Estimate, own_means, published_means
from benchmarks.rows import Figure, Row, Table, distinct

METRICS = {"log_score": ("Mean test log-likelihood", True), "rmse": ("Test RMSE", False)}
"""Name in rows: title, and whether more is better."""
_STANDARD_ERRORS = 2.0
_INTEGER_TARGETS = ("wine-quality-red",)
_RIVALS: dict[str, set[str]] = {
    "Beside the best published row": set(),
    "Beside PBP (2015) and MC dropout (2016)": {"PBP", "MC dropout"},
}
"""Title of a table, and the published methods that it compares with; all if none are named."""


def tables(rows: list[Row], published: list[Row]) -> list[Table]:
    """Return tables of scores, of our best beside the best published, of coverage, and of the chosen settings."""
    data = distinct(rows, "data")
    beside = published if draw.has_published_splits(rows) else []
    shown = [_score_table(rows, beside, metric, data) for metric in METRICS]
    known = [name for name in data if any(row["dataset"] == name for row in beside)]
    if known:
        beside_them = [_beside(rows, published, known, title, methods) for title, methods in _RIVALS.items()]
        shown += [table for table in beside_them if table.rows]
    shown += [_coverage(rows, data), _choices(rows)]
    return [*shown, _sources(beside, data)] if known else shown


def _score_table(rows: list[Row], published: list[Row], metric: str, data: list[str]) -> Table:
    title, more = METRICS[metric]
    ours, theirs = own_means(rows, metric), published_means(published, metric, data)
    lines = []
    for origin, means in (("", ours), ("published: ", theirs)):
        for method, sets in means.items():
            lines.append([f"{origin}{method}", *(str(sets[name]) if name in sets else "" for name in data)])
    best = {name: max(ours, key=lambda entry: _order(ours[entry].get(name), more=more)) for name in data}
    for line in lines[: len(ours)]:
        for place, name in enumerate(data, 1):
            line[place] = f"**{line[place]}**" if best[name] == line[0] else line[place]
    counts = Counter(row["data"] for row in rows if row["entry"] == rows[0]["entry"])
    splits = ", ".join(f"{name} {counts[name]}" for name in data)
    note = (
        f"Mean over splits and seeds (fits: {splits}) ± standard error over splits, in original units; "
        f"{'more' if more else 'less'} is better, the best of ours bold. Published deviations over splits were divided "
        "by the root of the number of splits; (?) marks an error of which the source does not say what it is."
    )
    return Table(title, note if theirs else note.partition(" Published")[0], ["method", *data], lines)


def _order(estimate: Estimate | None, *, more: bool) -> float:
    if estimate is None or math.isnan(estimate.value):
        return -math.inf
    return estimate.value if more else -estimate.value


def _beside(rows: list[Row], published: list[Row], data: list[str], title: str, rivals: set[str]) -> Table:
    """Return, for each set, the best entry beside the best of the rivals (all published rows if none are named)."""
    ours, theirs = own_means(rows, "log_score"), published_means(published, "log_score", data)
    covered = own_means(rows, "coverage_95")
    lines = []
    for name in data:
        candidates = {method: sets[name] for method, sets in theirs.items() if name in sets}
        candidates = {
            method: estimate
            for method, estimate in candidates.items()
            if (method in rivals if rivals else not method.endswith(PRETRAINED))
        }
        entries = {entry: sets[name] for entry, sets in ours.items() if name in sets}
        if candidates:
            entry, rival = (
                max(group, key=lambda name: _order(group[name], more=True)) for group in (entries, candidates)
            )
            standing = _standing(entries[entry], candidates[rival])
            standing += ", by density at integers" if name in _INTEGER_TARGETS else ""
            words = [f"{entry}: {entries[entry]}", str(covered[entry][name]), f"{rival}: {candidates[rival]}", standing]
            lines.append([name, *words])
    note = (
        "Log-likelihood. 'Within' means that ours is less by at most two standard errors of ours and theirs together. "
        "Pretrained networks, which have seen many other tables, are no rivals: see them above. "
        "Where there are several entries the best is taken by its test score: for a fair row take one entry above. "
        "The targets of wine-quality-red are integers and some of its rows are there twice: a density may be as "
        "high as it is narrow around an integer, so noise that can narrow wins there without better predictions "
        "(see RMSE)."
    )
    header = ["data", "best of ours", "its coverage of 95 %", "best of theirs", "standing"]
    return Table(title, note, header, lines)


def _standing(ours: Estimate, theirs: Estimate) -> str:
    if ours.value > theirs.value:
        return "beaten"
    spread = math.hypot(ours.error or 0.0, theirs.error or 0.0)
    return "within two standard errors" if theirs.value - ours.value <= _STANDARD_ERRORS * spread else "missed"


def _coverage(rows: list[Row], data: list[str]) -> Table:
    means = own_means(rows, "coverage_95")
    lines = [[entry, *(str(sets[name]) if name in sets else "" for name in data)] for entry, sets in means.items()]
    note = "Share of test targets inside the equal-tailed 95 % interval of the exact mixture, mean ± standard error."
    return Table("Coverage of 95 % intervals", note, ["method", *data], lines)


def _choices(rows: list[Row]) -> Table:
    lines = []
    for entry, name in dict.fromkeys((row["entry"], row["data"]) for row in rows):
        same = [row for row in rows if (row["entry"], row["data"]) == (entry, name)]
        chosen = Counter(_in_words(row["chosen"]) for row in same).most_common()
        words = "; ".join(f"{choice or 'nothing to choose'} ({count})" for choice, count in chosen)
        seconds = mean(row["seconds"] for row in same), mean(row["tuning_seconds"] for row in same)
        lines.append([entry, name, str(same[0]["candidates"]), words, *(f"{value:.1f}" for value in seconds)])
    note = (
        "Settings with the best mean log score on validation rows of each training split, and how many splits chose "
        "them; the test part takes no part in it. Seconds are those of a split: its share of fits done side by side."
    )
    header = ["method", "data", "candidates", "chosen (splits)", "seconds to fit and score", "seconds to tune"]
    return Table("What was chosen, and what it cost", note, header, lines)


def _sources(published: list[Row], data: list[str]) -> Table:
    """Return the sources of published rows, and the meaning of the number after ± there."""
    kinds = {"stderr": "standard error", "stddev": "standard deviation over splits", "": "none printed"}
    lines = {}
    for row in published:
        if row["dataset"] in data and row["metric"] in ("ll", "nll") and QUOTES not in row["method"]:
            kind = kinds.get(row["error_kind"], f"not said ({row['error_kind']})")
            lines[row["method"], kind] = [row["method"], row["source"], kind, row["status"]]
    note = (
        "Status: 'read' in the source named; 'read-secondary' in a document that quotes it; 'memory+rounding-read' "
        "recalled, its rounding to two decimals read elsewhere. Protocols differ: the 2015-2017 rows train 40 epochs "
        "with one hidden layer on these splits, DVI on splits of its own, others may too."
    )
    return Table(
        "Published rows: sources", note, ["method", "source", "± in the source", "status"], list(lines.values())
    )


def _in_words(chosen: str) -> str:
    return ", ".join(f"{key}={value}" for key, value in json.loads(chosen).items())


def figures(rows: list[Row]) -> list[Figure]:
    """Return forests of log scores, the critical-difference diagram, calibration, and time against log score."""
    shown = [draw.forest(rows), draw.calibration(rows), draw.pareto(rows)]
    diagram = draw.critical_differences(rows)
    return shown if diagram is None else [shown[0], diagram, *shown[1:]]
