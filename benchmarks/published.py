"""Published numbers: facts from papers and repositories, each with where it was read."""

import csv
from pathlib import Path

from benchmarks.rows import Row

_FILE = Path(__file__).parent / "published.csv"


def load_published() -> list[Row]:
    """Return the published numbers: method, dataset, metric, value, error, error_kind, source, status, where_read.

    `error_kind` is "stderr" or "stddev" (over splits), "stderr?" or "as printed" where the source does not say, or
    empty; value and error are numbers, an error that was not printed None. `status` says how a number was verified:
    read in the source, in a document that quotes it, or recalled with its rounding read.
    """
    with _FILE.open(encoding="utf-8", newline="") as file:
        rows = [dict(row) for row in csv.DictReader(file)]
    return [
        row | {"value": float(row["value"]), "error": float(row["error"]) if row["error"] else None} for row in rows
    ]
