"""A row of the table of faults, and the file that keeps the rows of parts run at different times."""

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "faults.json"


@dataclasses.dataclass(frozen=True)
class Row:
    """An action and its result.

    Attributes:
        what: what was done.
        count: how often.
        asked: what must come of it.
        found: the result.
        holds: whether that is what was asked.
        seconds: how long all of it took.
        failures: what went wrong, at most ten.
    """

    what: str
    count: int
    asked: str
    found: str
    holds: bool
    seconds: float
    failures: tuple[str, ...] = ()


def count_outcomes(
    what: str,
    asked: str,
    cases: Iterable[Any],
    check: Callable[[Any], str],
    progress: Callable[[], None] = lambda: None,
) -> Row:
    """Return the row of many cases, each of which `check` names the outcome of; an exception is a failure."""
    started, outcomes, failures = time.perf_counter(), Counter[str](), []
    for case in cases:
        try:
            outcomes[check(case)] += 1
        except Exception as error:
            outcomes["failed"] += 1
            failures.append(f"{type(error).__name__}: {str(error)[:300]} for {str(case)[:1500]}")
        progress()
    found = ", ".join(f"{number} {name}" for name, number in sorted(outcomes.items()))
    seconds = time.perf_counter() - started
    return Row(what, sum(outcomes.values()), asked, found, not failures, seconds, tuple(failures[:10]))


def keep(part: str, row: Row) -> None:
    """Put a row into the file, in the place of the one of the same name from before."""
    kept = load()
    kept.setdefault(part, {})[row.what] = dataclasses.asdict(row) | {"date": time.strftime("%Y-%m-%d")}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def load() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the rows in the file, by part and by what was done."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
