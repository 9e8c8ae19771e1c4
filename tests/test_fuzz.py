"""Files at random: each is read, or refused in one line. A few of each kind; the benchmark of faults runs thousands."""

import fuzzing
import pytest
from hypothesis import HealthCheck, given, settings

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
@few(8)
@given(fuzzing.valid_specs())
def test_what_a_spec_describes_is_fitted_or_refused(tables):
    fuzzing.check_fit(tables)


@pytest.mark.slow
@few(60)
@given(fuzzing.csv_files(), fuzzing.TASKS)
def test_a_table_is_read_or_refused(file, task):
    fuzzing.check_table(file, task)


@pytest.mark.slow
@few(5)
@given(fuzzing.csv_files(), fuzzing.TASKS)
def test_a_table_is_fitted_or_refused(file, task):
    fuzzing.check_table_fit(file, task)


@few(6)
@given(fuzzing.specs())
def test_the_command_line_fits_or_says_why_not(tables):
    fuzzing.check_command(tables)
