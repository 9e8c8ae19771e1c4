"""Specs, changes, tables and saved posteriors at random: each is accepted, or refused in one line."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.faults import count_outcomes, page_of
from benchmarks.measures.harness import Options
from benchmarks.rows import Row
from tests import fuzzing

KEY = ("what",)
OPTIONS = {"count": 10_000}
ASKED = "a result, or one line that says why not; no other exception"
FILES = st.one_of(fuzzing.csv_files(), fuzzing.parquet_files())
CHANGES = st.lists(fuzzing.overrides(), min_size=1, max_size=3)
KINDS: dict[str, tuple[float, Any, Callable[..., str]]] = {
    "spec file with changed text read": (0.15, st.tuples(fuzzing.spec_texts()), fuzzing.check_spec_text),
    "CSV or Parquet file read": (0.27, st.tuples(FILES, fuzzing.TASKS), fuzzing.check_table),
    "CSV or Parquet file fitted": (0.05, st.tuples(FILES, fuzzing.TASKS), fuzzing.check_table_fit),
    "table predicted by a finished run": (0.03, st.tuples(FILES), fuzzing.check_prediction),
    "saved posterior with changed settings, sealed anew": (0.06, fuzzing.posterior_settings(), fuzzing.check_posterior),
    "spec fitted, predicted, saved, loaded": (0.05, st.tuples(fuzzing.specs()), fuzzing.check_fit),
    "command line: fit": (
        0.01,
        st.tuples(st.one_of(fuzzing.valid_specs(), fuzzing.specs()), st.lists(fuzzing.overrides(), max_size=2)),
        fuzzing.check_command,
    ),
    "`--set` applied and prepared": (0.08, st.tuples(fuzzing.valid_specs(), CHANGES), fuzzing.check_overrides),
    "spec prepared": (0.30, st.tuples(fuzzing.specs()), fuzzing.check_spec),
}
"""Share of the examples, examples, and check of each kind."""


def jobs(options: Options) -> list[Row]:
    """Return the kinds of examples."""
    return [{"what": what} for what in KINDS]


def run(job: Row, options: Options) -> list[Row]:
    """Return the row of a kind of example."""
    share, cases, check = KINDS[job["what"]]
    examples = _drawn(cases, max(1, round(share * options.count)))
    return [count_outcomes(job["what"], ASKED, examples, lambda case: check(*case))]


page = page_of("Files and settings at random")


def _drawn(cases: Any, count: int) -> list[Any]:
    """Return examples of a strategy, the same in every run."""
    examples: list[Any] = []

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
        examples.append(case)

    collect()
    return examples
