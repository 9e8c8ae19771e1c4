"""Specs, changes, tables and saved posteriors at random: each is accepted, or refused in one line."""

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tqdm import tqdm

from benchmarks.faults.rows import Row, count_outcomes

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
import fuzzing

ASKED = "a result, or one line that says why not; no other exception"
FILES = st.one_of(fuzzing.csv_files(), fuzzing.parquet_files())
CHANGES = st.lists(fuzzing.overrides(), min_size=1, max_size=3)
KINDS: list[tuple[str, float, Any, Callable[..., str]]] = [
    ("spec file with changed text read", 0.15, st.tuples(fuzzing.spec_texts()), fuzzing.check_spec_text),
    ("CSV or Parquet file read", 0.27, st.tuples(FILES, fuzzing.TASKS), fuzzing.check_table),
    ("CSV or Parquet file fitted", 0.05, st.tuples(FILES, fuzzing.TASKS), fuzzing.check_table_fit),
    ("table predicted by a finished run", 0.03, st.tuples(FILES), fuzzing.check_prediction),
    ("saved posterior with changed settings, sealed anew", 0.06, fuzzing.posterior_settings(), fuzzing.check_posterior),
    ("spec fitted, predicted, saved, loaded", 0.05, st.tuples(fuzzing.specs()), fuzzing.check_fit),
    (
        "command line: fit",
        0.01,
        st.tuples(st.one_of(fuzzing.valid_specs(), fuzzing.specs()), st.lists(fuzzing.overrides(), max_size=2)),
        fuzzing.check_command,
    ),
    ("`--set` applied and prepared", 0.08, st.tuples(fuzzing.valid_specs(), CHANGES), fuzzing.check_overrides),
    ("spec prepared", 0.30, st.tuples(fuzzing.specs()), fuzzing.check_spec),
]
"""Name, share of the examples, examples, and check of each kind."""


def run(count: int = 10_000) -> Iterator[Row]:
    """Yield a row for each kind of example."""
    for what, share, cases, check in KINDS:
        yield _row(what, max(1, round(share * count)), cases, check)


def _row(what: str, count: int, cases: Any, check: Callable[..., str]) -> Row:
    with tqdm(total=count, desc=what, unit="example") as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return count_outcomes(what, ASKED, _drawn(cases, count), lambda case: check(*case), bar.update)


def _drawn(cases: Any, count: int) -> list[Any]:
    """Return examples of a strategy, the same in every run."""
    found: list[Any] = []

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def collect(case: Any) -> None:
        found.append(case)

    collect()
    return found
