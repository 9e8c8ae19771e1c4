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
def the_same_random_numbers_whatever_ran_before():
    """Layers made in a test start from the same weights in every order of the tests and on every worker."""
    pyro.set_rng_seed(0)
