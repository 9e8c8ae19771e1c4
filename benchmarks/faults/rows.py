"""A row of the table of faults."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    """An action and its result.

    Attributes:
        what: the action.
        count: how often it was done.
        asked: the result that is asked for.
        found: the result.
        holds: whether the result is as asked.
        seconds: of all actions together.
        failures: messages of the first ten failures.
    """

    what: str
    count: int
    asked: str
    found: str
    holds: bool
    seconds: float
    failures: tuple[str, ...] = ()


def row_of(what: str, count: int, asked: str, found: str, *, failures: list[str], started: float) -> Row:
    """Return the row of an action that began at `started` by `time.perf_counter`; it holds where nothing failed."""
    return Row(what, count, asked, found, not failures, time.perf_counter() - started, tuple(failures[:10]))


def count_outcomes(
    what: str,
    asked: str,
    cases: Iterable[Any],
    check: Callable[[Any], str],
    progress: Callable[[], None] = lambda: None,
) -> Row:
    """Return the row of many cases: `check` names the outcome of each, and an exception is a failure."""
    started, outcomes, failures = time.perf_counter(), Counter[str](), []
    for case in cases:
        try:
            outcomes[check(case)] += 1
        except Exception as error:
            outcomes["failed"] += 1
            failures.append(f"{type(error).__name__}: {str(error)[:300]} for {str(case)[:1500]}")
        progress()
    found = ", ".join(f"{number} {name}" for name, number in sorted(outcomes.items()))
    return row_of(what, sum(outcomes.values()), asked, found, failures=failures, started=started)
