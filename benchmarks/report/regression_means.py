"""Means of regression suites over splits, and published means made comparable with them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.report.parts import standard_error
from benchmarks.rows import Row, grouped

_PUBLISHED_AS = {"log_score": {"ll": 1.0, "nll": -1.0}, "rmse": {"rmse": 1.0}}
_NUM_SPLITS = {"protein-tertiary-structure": 5, "YearPredictionMSD": 1}
QUOTES = "as quoted there"
PRETRAINED = "(pretrained)"
"""How the names of published methods end that were trained on other tables before."""


@dataclass(frozen=True)
class Estimate:
    """A mean over splits.

    Attributes:
        value: the mean.
        error: its standard error, or None where none was given.
        mark: a sign that refers to a note, or nothing.
    """

    value: float
    error: float | None = None
    mark: str = ""

    def __str__(self) -> str:
        spread = "" if self.error is None else f" ± {self.error:.3f}"
        return f"{self.value:.3f}{spread}{self.mark}"


Means = dict[str, dict[str, Estimate]]
"""By method and data set."""


def own_means(rows: Iterable[Row], metric: str) -> Means:
    """Return the mean of each entry on each data set, its standard error over splits, or over seeds of one split."""
    by_entry = {entry: grouped(group, "data") for entry, group in grouped(rows, "entry").items()}
    return {entry: {data: _estimate(group, metric) for data, group in sets.items()} for entry, sets in by_entry.items()}


def _estimate(rows: list[Row], metric: str) -> Estimate:
    splits = grouped(rows, "split")
    values = [[row[metric] for row in group] for group in splits.values()]
    units = [mean(each) for each in values] if len(splits) > 1 else values[0]
    return Estimate(mean(units), standard_error(units) if len(units) > 1 else None)


def published_means(published: Iterable[Row], metric: str, data: Sequence[str]) -> Means:
    """Return published means by method; deviations over splits are made standard errors, negative scores turned.

    Where a document quotes another that is here itself, its quotation is left out.
    """
    signs = _PUBLISHED_AS[metric]
    means: Means = {}
    for row in published:
        if row["metric"] not in signs or row["dataset"] not in data or QUOTES in row["method"]:
            continue
        name, earlier = row["method"], means.get(row["method"], {}).get(row["dataset"])
        if earlier is None or (row["error_kind"] == "stderr"):
            means.setdefault(name, {})[row["dataset"]] = _published(row, signs[row["metric"]])
    return means


def _published(row: Row, sign: float) -> Estimate:
    error, mark = row["error"], ""
    if error is not None and row["error_kind"] == "stddev":
        error /= math.sqrt(_NUM_SPLITS.get(row["dataset"], 20))
    elif error is not None and row["error_kind"] != "stderr":
        mark = " (?)"
    return Estimate(sign * row["value"], error, mark)
