"""The rows of a run folder from which values that new rows lack are drawn, and predictions with them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save
from torch import Tensor

from pyrobnn.data.imputed import Imputer
from pyrobnn.datasets.table import categories_of
from pyrobnn.posterior.copies import predict_copies
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.storage.load import load

_FILE = "rows.safetensors"


def write_rows(imputer: Imputer | None, folder: Path) -> None:
    """Write the rows, if there are any."""
    if imputer is not None:
        (folder / _FILE).write_bytes(save({"rows": imputer.rows}))


def predict_run(folder: Path, x: Tensor, *, num_draws: int) -> Prediction:
    """Return the predictions of the posterior of a run for rows, with NaN where they lack a value."""
    imputer = None
    if (folder / _FILE).is_file():
        encoder = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]["encoder"]
        imputer = Imputer(load_file(folder / _FILE)["rows"], categories_of(encoder))
    return predict_copies(load(folder / "posterior"), imputer, x.numpy().astype(np.float64), num_draws=num_draws)
