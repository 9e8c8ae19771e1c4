"""Files at random: each is read, or refused in one line. A few of each kind; the benchmark of faults runs thousands."""

import fuzzing
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("ignore")


def few(max_examples):
    return settings(
        max_examples=max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
@few(40)
@given(fuzzing.specs())
def test_a_spec_is_prepared_or_refused(tables):
    fuzzing.check_spec(tables)


@pytest.mark.slow
@few(20)
@given(fuzzing.spec_texts())
def test_a_spec_file_is_read_or_refused(text):
    fuzzing.check_spec_text(text)


@pytest.mark.slow
@few(20)
@given(fuzzing.valid_specs(), st.lists(fuzzing.overrides(), min_size=1, max_size=3))
def test_changes_to_a_spec_are_made_or_refused(tables, changes):
    fuzzing.check_overrides(tables, changes)


@pytest.mark.slow
@few(8)
@given(fuzzing.valid_specs())
def test_what_a_spec_describes_is_fitted_or_refused(tables):
    fuzzing.check_fit(tables)


@pytest.mark.slow
@few(60)
@given(st.one_of(fuzzing.csv_files(), fuzzing.parquet_files()), fuzzing.TASKS)
def test_a_table_is_read_or_refused(file, task):
    fuzzing.check_table(file, task)


@few(5)
@given(st.one_of(fuzzing.csv_files(), fuzzing.parquet_files()), fuzzing.TASKS)
def test_a_table_is_fitted_or_refused(file, task):
    fuzzing.check_table_fit(file, task)


@few(6)
@given(fuzzing.specs(), st.lists(fuzzing.overrides(), max_size=2))
def test_the_command_line_fits_or_says_why_not(tables, changes):
    fuzzing.check_command(tables, changes)
