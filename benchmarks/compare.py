"""Two sets of results of the same jobs: the same bits, within chance, or changed."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pyrobnn as bnn
from benchmarks.provenance import SAME_KIND
from benchmarks.store import Record, Store
from benchmarks.suite import Row

_NOT_SCORES = {"entry", "data", "split", "seed", "key", "candidates"}
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Verdict:
    """Whether rows came out again.

    Attributes:
        holds: the same bits on the same kind of machine, or within two standard errors on another.
        text: what was found.
    """

    holds: bool
    text: str


def find_record(folder: str | Path, key: str) -> Record:
    """Return the finished job with this key, or the start of one.

    Raises:
        InputError: none, or several.
    """
    records = Store(folder).records()
    found = {record.job.key: record for record in records if record.job.key.startswith(key)}
    if len(found) != 1:
        known = ", ".join(f"{record.job.key} ({record.job.label})" for record in records) or "none"
        raise bnn.InputError(f"{len(found)} jobs in {folder} have a key that starts with {key!r}. Jobs there: {known}.")
    return next(iter(found.values()))


def verdict(record: Record, rows: list[Row], manifest: dict[str, Any]) -> Verdict:
    """Compare rows made anew with those on record.

    Args:
        record: the finished job.
        rows: what it gave now.
        manifest: with what it was done now.
    """
    others = [name for name in SAME_KIND if record.manifest.get(name) != manifest.get(name)]
    if _results(record.rows) == _results(rows):
        return Verdict(holds=True, text=f"{record.job.label}: the same bits in {len(rows)} rows.")
    changes = [line for name in scores(record.rows) for line in _change(name, record.rows, rows)]
    text = "\n".join([f"{record.job.label}: other bits.", *changes])
    if not others:
        return Verdict(holds=False, text=f"{text}\nThe kind of machine is the same: they should be equal.")
    within = all("beyond" not in line for line in changes)
    return Verdict(holds=within, text=f"{text}\nAnother kind of machine: {', '.join(others)} differ.")


def differences(before: str | Path, after: str | Path) -> str:
    """Return, job by job, which scores changed between two folders of results.

    Raises:
        InputError: no job in common.
    """
    first, second = ({record.job.work: record for record in Store(folder).records()} for folder in (before, after))
    shared = [work for work in first if work in second]
    if not shared:
        raise bnn.InputError(f"{before} and {after} have no job in common: compare two runs of one suite.")
    lines = []
    for work in shared:
        one, other = first[work], second[work]
        if _results(one.rows) == _results(other.rows):
            lines.append(f"{one.job.label}: the same bits")
        else:
            changes = [line for name in scores(one.rows) for line in _change(name, one.rows, other.rows)]
            lines += [f"{one.job.label}:", *changes]
    for folder, mine, theirs in ((before, first, second), (after, second, first)):
        alone = [record.job.label for work, record in mine.items() if work not in theirs]
        lines += [f"only in {folder}: {label}" for label in alone]
    return "\n".join(lines)


def scores(rows: Iterable[Row]) -> list[str]:
    """Return the names of what is measured: numbers that are neither settings nor times."""
    return [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name not in _NOT_SCORES
        and "seconds" not in name
        and all(isinstance(row.get(name), int | float) for row in rows)
    ]


def _results(rows: list[Row]) -> str:
    """Return all but times, in words that are equal where the bits are, also those of what is not a number."""
    return json.dumps([{name: value for name, value in row.items() if "seconds" not in name} for row in rows])


def _change(name: str, before: list[Row], after: list[Row]) -> list[str]:
    """Return a line on a score whose mean over rows changed, with the standard error of one of the means."""
    one, other = ([float(row[name]) for row in rows] for rows in (before, after))
    if one == other:
        return []
    error = stdev(one) / math.sqrt(len(one)) if len(one) > 1 else math.nan
    change = mean(other) - mean(one)
    where = "beyond" if not abs(change) <= _STANDARD_ERRORS * error else "within"
    return [f"  {name}: {mean(one):.6g} -> {mean(other):.6g}, {where} two standard errors ({error:.2g})"]
