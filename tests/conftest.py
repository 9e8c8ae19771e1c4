"""Settings for all tests."""

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
