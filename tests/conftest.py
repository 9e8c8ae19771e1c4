"""Settings for all tests."""

import logging
import os

os.environ.setdefault("MPLBACKEND", "Agg")

import torch

torch.set_num_threads(1)

logging.getLogger("torch.__trace").propagate = False  # thousands of records for each recorded graph, each formatted
