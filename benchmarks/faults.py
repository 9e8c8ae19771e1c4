"""What measures of faults share: the row of an action that was done many times, and the page of such rows."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.measures.harness import Options, Page
from benchmarks.rows import Row, grid


def outcome(what: str, count: int, asked: str, happened: str, *, failures: list[str], started: float) -> Row:
    """Return the row of an action; what is asked for holds where nothing failed.

    Args:
        what: the action.
        count: how often it was done.
        asked: the result that is asked for.
        happened: the result.
        failures: a message for each failure, of which the row keeps ten.
        started: when all actions began, by `time.perf_counter`.
    """
    row: Row = {"what": what, "count": count, "asked": asked, "found": happened, "holds": not failures}
    seconds = time.perf_counter() - started
    return row | {"seconds": seconds, "failures": failures[:10], "date": time.strftime("%Y-%m-%d")}


def count_outcomes(what: str, asked: str, cases: Iterable[Any], check: Callable[[Any], str]) -> Row:
    """Return the row of many cases: `check` names the outcome of each, and an exception is a failure."""
    started, outcomes, failures = time.perf_counter(), Counter[str](), []
    for case in cases:
        try:
            outcomes[check(case)] += 1
        except Exception as error:
            outcomes["failed"] += 1
            failures.append(f"{type(error).__name__}: {str(error)[:300]} for {str(case)[:1500]}")
    happened = ", ".join(f"{number} {name}" for name, number in sorted(outcomes.items()))
    return outcome(what, sum(outcomes.values()), asked, happened, failures=failures, started=started)


def page_of(title: str) -> Callable[[list[Row], Options], Page]:
    """Return the function `page` of a measure of faults: the table, and the failures."""

    def page(rows: list[Row], options: Options) -> Page:
        columns = ("what", "count", "asked", "found", "holds", "seconds", "date")
        shown = [
            row | {"holds": "yes" if row["holds"] else "**no**", "seconds": f"{row['seconds']:.1f}"} for row in rows
        ]
        header = ["what was done", "times", "asked", "happened", "holds", "seconds", "on"]
        failures = [f"- {row['what']}: `{_one_line(text)}`" for row in rows for text in row["failures"]]
        lines = grid(header, ([row[column] for column in columns] for row in shown))
        lines += ["", "What went wrong:", "", *failures] if failures else []
        return Page(title, ["One thread."], lines)

    return page


def _one_line(text: str) -> str:
    return " ".join(text.replace("`", "'").split())[:300]
