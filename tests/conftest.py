"""Settings for all tests."""

import functools
import logging
import os

os.environ.setdefault("MPLBACKEND", "Agg")

import pyro
import pytest
import torch

torch.set_num_threads(1)

logging.getLogger("torch.__trace").propagate = False  # thousands of records for each recorded graph, each formatted


@pytest.fixture(autouse=True)
def the_same_state_whatever_ran_before():
    """Random numbers and Pyro's parameter store start alike in every order of the tests and on every worker."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)


@functools.cache
def _available() -> set[str]:
    from pyrobnn import datasets

    return {record.name for record in datasets.info() if record.available}


def skip_without_data(*names: str) -> None:
    """Skip the test where the files of any of these data sets are in no folder that is searched; nothing is loaded."""
    absent = sorted(set(names) - _available())
    if absent:
        pytest.skip(f"needs the files of {', '.join(absent)}, which are in no folder that is searched")


@pytest.fixture(scope="session")
def require_data():
    """The function that skips, for tests marked `needs_data` that know the names only when they run."""
    return skip_without_data


def pytest_runtest_setup(item):
    """Skip before any fixture is made; `-m needs_data` selects these tests."""
    skip_without_data(*(name for mark in item.iter_markers("needs_data") for name in mark.args))
