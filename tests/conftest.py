"""Settings for all tests."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")

import torch

torch.set_num_threads(1)
