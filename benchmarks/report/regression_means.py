"""Means of regression suites over splits, and published means made comparable with them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.report.parts import standard_error
from benchmarks.rows import Row

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
    """Return the mean over splits of each entry on each data set, with standard errors (deviation over root n)."""
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        values.setdefault(row["entry"], {}).setdefault(row["data"], []).append(row[metric])
    return {entry: {data: _estimate(scores) for data, scores in sets.items()} for entry, sets in values.items()}


def _estimate(values: Sequence[float]) -> Estimate:
    return Estimate(mean(values), standard_error(values) if len(values) > 1 else None)


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
