"""Comparison of two results of the same jobs, seeds and versions aside: the same bits, within chance, or changed."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pyrobnn as bnn
from benchmarks.provenance import SAME_KIND
from benchmarks.report.parts import standard_error
from benchmarks.rows import Row, grouped_by
from benchmarks.store import Record, Store
from benchmarks.suite import label_of

_NOT_SCORES = {"entry", "data", "split", "seed", "key", "candidates"}
_RESULTS = {"chosen", "engine"}
"""Words in a row that are results."""
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Verdict:
    """Whether rows came out again.

    Attributes:
        holds: the same bits with the same seeds and code on the same kind of machine; otherwise all scores of which a
            standard error is known are within two of them.
        text: which scores changed, and by how much.
    """

    holds: bool
    text: str


def find_records(folder: str | Path, key: str) -> list[Record]:
    """Return the finished job whose key starts with these characters; without any, all of the suite as it is now.

    Raises:
        InputError: no results there, or not exactly one such key.
    """
    store = Store(folder)
    records = _not_none(folder, store.records() if key else store.current())
    those = {record.job.key: record for record in records if record.job.key.startswith(key)}
    if key and len(those) != 1:
        known = ", ".join(f"{record.job.key} ({record.job.label})" for record in records)
        raise bnn.InputError(f"{len(those)} jobs in {folder} have a key that starts with {key!r}. Jobs there: {known}.")
    return list(those.values())


def differences(before: str | Path, after: str | Path) -> str:
    """Return, for the jobs of each question, which scores changed between two folders of results.

    Raises:
        InputError: no results in one of them, or no question in common.
    """
    folders = {folder: _not_none(folder, Store(folder).current()) for folder in (before, after)}
    first, second = (grouped_by(folders[side], lambda record: record.job.question) for side in (before, after))
    shared = [question for question in first if question in second]
    if not shared:
        raise bnn.InputError(f"{before} and {after} have no job in common, whatever its seed: compare one suite.")
    lines = [compared(first[question], second[question]).text for question in shared]
    for folder, records in ((before, first), (after, second)):
        alone = [[record.job for record in records[question]] for question in records if question not in shared]
        lines += [f"only in {folder}: {label_of(jobs)}" for jobs in alone]
    return "\n".join(lines)


def compared(earlier: list[Record], later: list[Record]) -> Verdict:
    """Compare jobs that answer the same question, for they differ in the seed, the bytes of data and versions alone.

    With several seeds on both sides the means over splits are compared, in pairs if the seeds are the same; else splits
    are compared in pairs.
    """
    label, now = (label_of([record.job for record in side]) for side in (earlier, later))
    label = label if label == now else f"{label} -> seed{now.rpartition(', seed')[2]}"
    data = [(name, digest, later[0].job.data.get(name)) for name, digest in earlier[0].job.data.items()]
    changed = [f"{name} ({there:.8} there, {here:.8} here)" for name, there, here in data if there != here]
    if changed:
        return Verdict(holds=False, text=f"{label}: cannot be compared, the data have changed: {', '.join(changed)}")
    before, after = ([row for record in side for row in _seeded(record)] for side in (earlier, later))
    others = _others(earlier, later)
    if results(before) == results(after):
        told = f"; not the same: {', '.join(others)}" if others else ""
        return Verdict(holds=True, text=f"{label}: the same bits{told}")
    if not _are_alike(before, after):
        return Verdict(holds=False, text=f"{label}: cannot be compared, its methods, splits or scores are others")
    changes = _changes(before, after)
    holds, judged = _judged(changes) if others else (False, "machine and code are: the bits should be")
    lines = [f"{label}:", *_lines(changes, before, after), f"  not the same: {', '.join(others) or 'bits'}; {judged}"]
    return Verdict(holds, "\n".join(lines))


def _others(earlier: list[Record], later: list[Record]) -> list[str]:
    """Return what differs of that on which bits depend: seeds, machine, versions, and code, of which both are told."""
    there, here = earlier[-1], later[-1]
    seeds = [] if [one.job.seed for one in earlier] == [one.job.seed for one in later] else ["seeds"]
    kinds = [name for name in SAME_KIND if there.manifest.get(name) != here.manifest.get(name)]
    code = [] if there.job.code == here.job.code else [f"code ({there.job.code} there, {here.job.code} here)"]
    return seeds + kinds + code


def _judged(changes: "list[Change]") -> tuple[bool, str]:
    """Return whether scores, of which one or more have a known standard error, are within two, and a sentence on it."""
    known = [change for change in changes if not math.isnan(change.error)]
    beyond = [change.name for change in known if not change.is_small]
    if beyond:
        return False, f"beyond two standard errors: {', '.join(beyond)}"
    return bool(known), f"{'all' if known else 'no'} scores with a known standard error are within two of it"


def _not_none(folder: str | Path, records: list[Record]) -> list[Record]:
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


def _seeded(record: Record) -> list[Row]:
    """Return rows with the seed of their job, if it has one."""
    return [row | ({} if record.job.seed is None else {"seed": record.job.seed}) for row in record.rows]


def _are_alike(before: list[Row], after: list[Row]) -> bool:
    """Whether rows are of the same methods, data and splits, and measured the same."""
    earlier, later = ({(_method(row), row.get("split")) for row in rows} for rows in (before, after))
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
        error: standard error of the earlier mean over seeds or splits; of the later mean where all earlier values are
            equal; of a single row the error that it states, or NaN.
        of_change: standard error of the change, of pairs if both sides have the same seeds or splits.
    """

    name: str
    before: float
    by: float
    error: float
    of_change: float

    @property
    def is_small(self) -> bool:
        """Whether the change is finite and within two standard errors of the score."""
        return math.isfinite(self.by) and abs(self.by) <= _STANDARD_ERRORS * self.error

    def __str__(self) -> str:
        """Say what changed, and how that compares with chance."""
        words = [f"{self.name}: {self.before:.6g} -> {self.before + self.by:.6g}"]
        if math.isfinite(self.error):
            words.append(f"standard error {self.error:.2g}")
        if math.isfinite(self.of_change):
            where = "within" if abs(self.by) <= _STANDARD_ERRORS * self.of_change else "beyond"
            words.append(f"{where} two of the change ({self.of_change:.2g})")
        return ", ".join(words)


def _lines(changes: list[Change], before: list[Row], after: list[Row]) -> list[str]:
    """Return a line for each score that changed, and a line with the names of other columns that changed."""
    names = dict.fromkeys(name for row in (*before, *after) for name in row if "seconds" not in name)
    others = [name for name in names if name not in (*scores(before), "seed")]
    rest = [name for name in others if len({str([row.get(name) for row in side]) for side in (before, after)}) > 1]
    return [f"  {change}" for change in changes] + ([f"  changed too: {', '.join(rest)}"] if rest else [])


def _changes(before: list[Row], after: list[Row]) -> list[Change]:
    """Return the scores whose mean changed, over seeds if there are several on both sides, else over splits."""
    num_seeds = min(len({row.get("seed") for row in side}) for side in (before, after))
    unit = "seed" if num_seeds > 1 else "split"
    first, second = (grouped_by(side, _method) for side in (before, after))
    changes = []
    for method, rows in first.items():
        for name in scores(before):
            earlier, later = (_means(side[method], unit, name) for side in (first, second))
            if json.dumps(list(earlier.values())) != json.dumps(list(later.values())):
                label = f"{' '.join(method)}, {name}" if len(first) > 1 else name
                changes.append(_change(label, earlier, later, rows[0].get(f"{name}_stderr")))
    return changes


def _means(rows: list[Row], unit: str, name: str) -> dict[Any, float]:
    """Return the mean of a score by seed or by split."""
    groups = grouped_by(rows, lambda row: row.get(unit))
    return {key: mean(row[name] for row in group) for key, group in groups.items()}


def _change(name: str, earlier: dict[Any, float], later: dict[Any, float], stated: Any) -> Change:
    before, after = list(earlier.values()), list(later.values())
    by, errors = mean(after) - mean(before), [standard_error(side) for side in (before, after)]
    if len(before) == 1:
        return Change(name, before[0], by, stated if isinstance(stated, float) else math.nan, math.nan)
    is_paired = earlier.keys() == later.keys()
    of_change = standard_error([later[key] - earlier[key] for key in earlier]) if is_paired else math.hypot(*errors)
    return Change(name, mean(before), by, errors[0] or errors[1], of_change)
