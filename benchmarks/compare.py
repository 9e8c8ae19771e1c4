"""Two sets of results of the same jobs: the same bits, within chance, or changed."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pyrobnn as bnn
from benchmarks.provenance import SAME_KIND, code_digest
from benchmarks.store import Record, Store
from benchmarks.suite import Row

_NOT_SCORES = {"entry", "data", "split", "seed", "key", "candidates"}
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Verdict:
    """Whether rows came out again.

    Attributes:
        holds: the same bits with the same code on the same kind of machine, or within two standard errors otherwise.
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
    changes = _changes(record.rows, rows)
    text = "\n".join([f"{record.job.label}: other bits.", *changes])
    code = code_digest(record.job.task)
    if code != record.job.code:
        others.append(f"code ({record.job.code} there, {code} here)")
    if not others:
        return Verdict(holds=False, text=f"{text}\nMachine and code are the same: the bits should be.")
    within = all("beyond" not in line for line in changes)
    return Verdict(holds=within, text=f"{text}\nNot the same: {', '.join(others)}.")


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
            lines += [f"{one.job.label}:", *_changes(one.rows, other.rows)]
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


def _changes(before: list[Row], after: list[Row]) -> list[str]:
    """Return a line on each score whose mean changed, rows compared in pairs: both are of the same splits and seeds."""
    lines = []
    for name in scores(before):
        one, other = ([row.get(name) for row in rows] for rows in (before, after))
        if len(one) != len(other) or not all(isinstance(value, int | float) for value in other):
            lines.append(f"  {name}: beyond comparison, the rows are not the same")
        elif json.dumps(one) != json.dumps(other):
            lines.append(_change(name, one, other, [row.get(f"{name}_stderr") for row in before]))
    return lines


def _change(name: str, one: list[Any], other: list[Any], errors: list[Any]) -> str:
    """Return means before and after, and how the change compares with its standard error.

    That is the error of the mean of paired differences, or of a single row the error that it states of itself.
    """
    differences = [after - before for before, after in zip(one, other, strict=True)]
    if len(differences) > 1:
        error = stdev(differences) / math.sqrt(len(differences))
    else:
        error = errors[0] if isinstance(errors[0], float) else math.nan
    where = "within" if abs(mean(differences)) <= _STANDARD_ERRORS * error else "beyond"
    known = f"({error:.2g})" if math.isfinite(error) else "(none is known of a single row)"
    return f"  {name}: {mean(one):.6g} -> {mean(other):.6g}, {where} two standard errors {known}"
