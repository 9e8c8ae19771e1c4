"""Comparison of two results of the same jobs: the same bits, within chance, or changed."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pyrobnn as bnn
from benchmarks.provenance import SAME_KIND, code_digest
from benchmarks.report.parts import standard_error
from benchmarks.rows import Row
from benchmarks.store import Record, Store

_NOT_SCORES = {"entry", "data", "split", "seed", "key", "candidates"}
_RESULTS = {"chosen", "engine"}
"""Words in a row that are results."""
_STANDARD_ERRORS = 2.0
_NOT_PAIRED = "cannot be compared, the rows are not of the same methods, splits and scores"


@dataclass(frozen=True)
class Verdict:
    """Whether rows came out again.

    Attributes:
        holds: the same bits with the same code on the same kind of machine; otherwise all scores of which a standard
            error is known are within two of them.
        text: which scores changed, and by how much.
    """

    holds: bool
    text: str


def find_record(folder: str | Path, key: str) -> Record:
    """Return the finished job whose key starts with these characters.

    Raises:
        InputError: no results there, or not exactly one such key.
    """
    records = _not_none(folder, Store(folder).records())
    those = {record.job.key: record for record in records if record.job.key.startswith(key)}
    if len(those) != 1:
        known = ", ".join(f"{record.job.key} ({record.job.label})" for record in records)
        raise bnn.InputError(f"{len(those)} jobs in {folder} have a key that starts with {key!r}. Jobs there: {known}.")
    return next(iter(those.values()))


def verdict(record: Record, rows: list[Row], manifest: dict[str, Any]) -> Verdict:
    """Compare rows made anew with those on record.

    Args:
        record: the finished job.
        rows: what it gave now.
        manifest: machine, versions and code of now.
    """
    if results(record.rows) == results(rows):
        return Verdict(holds=True, text=f"{record.job.label}: the same bits in {len(rows)} rows.")
    others = [name for name in SAME_KIND if record.manifest.get(name) != manifest.get(name)]
    code = code_digest(record.job.task)
    if code != record.job.code:
        others.append(f"code ({record.job.code} there, {code} here)")
    if not _are_paired(record.rows, rows):
        return Verdict(holds=False, text=f"{record.job.label}: {_NOT_PAIRED}")
    changes = _changes(record.rows, rows)
    text = "\n".join([f"{record.job.label}: other bits.", *_lines(changes, record.rows, rows)])
    if not others:
        return Verdict(holds=False, text=f"{text}\nMachine and code are the same: the bits should be.")
    holds, judgement = _judged(changes)
    return Verdict(holds=holds, text=f"{text}\nNot the same: {', '.join(others)}; {judgement}.")


def _judged(changes: "list[Change]") -> tuple[bool, str]:
    """Return whether scores are within two standard errors, and the sentence that says so.

    Only scores with a known standard error count; there must be at least one.
    """
    known = [change for change in changes if not math.isnan(change.error)]
    beyond = [change.name for change in known if not change.is_small]
    if beyond:
        return False, f"beyond two standard errors: {', '.join(beyond)}"
    if not known:
        return False, "of no score is a standard error known"
    unknown = [change.name for change in changes if math.isnan(change.error)]
    apart = f"; not judged, for want of a standard error: {', '.join(unknown)}" if unknown else ""
    return True, f"scores are within two standard errors{apart}"


def differences(before: str | Path, after: str | Path) -> str:
    """Return, job by job, which scores changed between two folders of results.

    Raises:
        InputError: no results in one of them, or no job in common.
    """
    records = (_not_none(folder, Store(folder).current()) for folder in (before, after))
    first, second = ({record.job.work: record for record in side} for side in records)
    shared = [work for work in first if work in second]
    if not shared:
        raise bnn.InputError(f"{before} and {after} have no job in common: compare two runs of one suite.")
    lines = []
    for work in shared:
        earlier, later = first[work], second[work]
        if results(earlier.rows) == results(later.rows):
            lines.append(f"{earlier.job.label}: the same bits")
        elif _are_paired(earlier.rows, later.rows):
            lines += [f"{earlier.job.label}:", *_lines(_changes(earlier.rows, later.rows), earlier.rows, later.rows)]
        else:
            lines.append(f"{earlier.job.label}: {_NOT_PAIRED}")
    for folder, mine, theirs in ((before, first, second), (after, second, first)):
        alone = [record.job.label for work, record in mine.items() if work not in theirs]
        lines += [f"only in {folder}: {label}" for label in alone]
    return "\n".join(lines)


def _not_none(folder: str | Path, records: list[Record]) -> list[Record]:
    """Refuse a folder without results; return its records otherwise."""
    if not records:
        raise bnn.InputError(f"There are no results in {folder}: give a folder that `run` has written.")
    return records


def scores(rows: Iterable[Row]) -> list[str]:
    """Return the columns that are scores: numbers that are neither settings nor times."""
    return [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name not in _NOT_SCORES
        and "seconds" not in name
        and not name.endswith("_stderr")
        and all(isinstance(row.get(name), int | float) for row in rows)
    ]


def results(rows: list[Row]) -> str:
    """Return rows without times as text, which is equal where the bits are equal, also for NaN."""
    return json.dumps([{name: value for name, value in row.items() if "seconds" not in name} for row in rows])


def _are_paired(before: list[Row], after: list[Row]) -> bool:
    """Whether rows are of the same methods, data and splits, in the same order, and measured the same."""
    earlier, later = ([(_method(row), row.get("split"), row.get("seed")) for row in rows] for rows in (before, after))
    return earlier == later and scores(before) == scores(after)


def _method(row: Row) -> tuple[str, ...]:
    """Return the columns that replicates of a row share."""
    return tuple(value for name, value in row.items() if isinstance(value, str) and name not in _RESULTS)


@dataclass(frozen=True)
class Change:
    """How the mean of a score over replicates changed.

    Attributes:
        name: of the score, and of the method where a job has several.
        before: mean of the earlier rows.
        by: change of the mean.
        error: standard error of the earlier mean over splits and seeds; of the later mean where all earlier rows are
            equal; of a single row the error that it states, or NaN.
        paired: standard error of the mean change of a row.
    """

    name: str
    before: float
    by: float
    error: float
    paired: float

    @property
    def is_small(self) -> bool:
        """Whether the change is finite and within two standard errors of the score."""
        return math.isfinite(self.by) and abs(self.by) <= _STANDARD_ERRORS * self.error

    def __str__(self) -> str:
        """Say what changed, and how that compares with chance."""
        words = [f"{self.name}: {self.before:.6g} -> {self.before + self.by:.6g}"]
        if math.isfinite(self.error):
            words.append(f"standard error {self.error:.2g}")
        if math.isfinite(self.paired):
            where = "within" if abs(self.by) <= _STANDARD_ERRORS * self.paired else "beyond"
            words.append(f"{where} two of the change ({self.paired:.2g})")
        return ", ".join(words)


def _lines(changes: list[Change], before: list[Row], after: list[Row]) -> list[str]:
    """Return a line for each score that changed, and a line with the names of other columns that changed."""
    names = dict.fromkeys(name for row in (*before, *after) for name in row if "seconds" not in name)
    rest = [name for name in names if name not in scores(before) and _column(before, name) != _column(after, name)]
    return [f"  {change}" for change in changes] + ([f"  changed too: {', '.join(rest)}"] if rest else [])


def _column(rows: list[Row], name: str) -> str:
    return json.dumps([row.get(name) for row in rows])


def _changes(before: list[Row], after: list[Row]) -> list[Change]:
    """Return the scores whose mean changed, rows compared in pairs."""
    groups: dict[tuple[str, ...], list[tuple[Row, Row]]] = {}
    for pair in zip(before, after, strict=True):
        groups.setdefault(_method(pair[0]), []).append(pair)
    changes = []
    for method, pairs in groups.items():
        for name in scores(before):
            earlier, later = [row[name] for row, _ in pairs], [row[name] for _, row in pairs]
            if json.dumps(earlier) != json.dumps(later):
                label = f"{' '.join(method)}, {name}" if len(groups) > 1 else name
                changes.append(_change(label, earlier, later, pairs[0][0].get(f"{name}_stderr")))
    return changes


def _change(name: str, earlier: list[float], later: list[float], stated: Any) -> Change:
    changes = [after - before for before, after in zip(earlier, later, strict=True)]
    if len(changes) > 1:
        error = standard_error(earlier) or standard_error(later)
        return Change(name, mean(earlier), mean(changes), error, standard_error(changes))
    return Change(name, earlier[0], changes[0], stated if isinstance(stated, float) else math.nan, math.nan)
