"""Files of a run folder beside the posterior: the manifest, and rows from which missing values are drawn."""

import dataclasses
import datetime
import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save
from torch import Tensor

import pyrobnn
from pyrobnn._core.folders import new_file
from pyrobnn.data.imputed import Imputer
from pyrobnn.datasets.table import categories_of
from pyrobnn.posterior.mixture import Mixture, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.runs.spec import Prepared
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save as save_posterior

_PACKAGES = ("torch", "pyro-ppl", "numpy", "arviz", "pydantic", "scikit-learn", "safetensors")
_ROWS_FILE = "rows.safetensors"
ALL_ROWS_FOLDER = "all_rows"


def make_manifest(prepared: Prepared, posterior: Posterior, wall_seconds: float) -> dict[str, Any]:
    """Return versions, commit, seed, data, device and time of a run, and the data's properties for prediction."""
    dataset, data = prepared.dataset, prepared.dataset.data
    return {
        "pyrobnn": pyrobnn.__version__,
        "packages": {name: version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "seed": prepared.spec.fit.seed,
        "data": {
            "name": dataset.name,
            "task": dataset.task,
            "sha256": dataset.checksum,
            "source": dataset.source,
            "licence": dataset.licence,
            "feature_names": list(data.feature_names),
            "target_name": data.target_name,
            "class_names": list(dataset.class_names),
            "encoder": dataset.encoder,
        },
        "device": posterior.record.device,
        "threads": posterior.record.threads,
        "engine": dataclasses.asdict(posterior.record.engine) if posterior.record.engine else None,
        "wall_seconds": round(wall_seconds, 3),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_json(path: Path, values: Any) -> None:
    """Write a file, whole or not at all; null stands for numbers that are not finite, tables for dataclasses."""
    with new_file(path) as file:
        file.write_text(json.dumps(_plain(values), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def write_fit(place: Path, prepared: Prepared, posterior: Posterior | Mixture, seconds: float) -> dict[str, Any]:
    """Write manifest, posterior, and the rows from which missing values are drawn; return the manifest."""
    manifest, imputer = make_manifest(prepared, posterior.members[0], seconds), prepared.dataset.imputer
    write_json(place / "manifest.json", manifest)
    save_posterior(posterior, place / "posterior")
    if imputer is not None:
        (place / _ROWS_FILE).write_bytes(save({"rows": imputer.rows}))
    return manifest


def predict_run(folder: Path, x: Tensor, *, num_draws: int) -> Prediction:
    """Return the predictions of the posterior of a run for rows, with NaN where they lack a value."""
    imputer = None
    if (folder / _ROWS_FILE).is_file():
        encoder = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["data"]["encoder"]
        imputer = Imputer(load_file(folder / _ROWS_FILE)["rows"], categories_of(encoder))
    return predict_copies(load(folder / "posterior"), imputer, x.numpy().astype(np.float64), num_draws=num_draws)


def folder_for_new_rows(folder: Path) -> Path:
    """Return the folder, in a run folder or itself, with the posterior that predicts new rows."""
    return folder / ALL_ROWS_FOLDER if (folder / ALL_ROWS_FOLDER).is_dir() else folder


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
