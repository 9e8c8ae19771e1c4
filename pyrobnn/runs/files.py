"""Files of a run folder beside the posterior, and predictions from them for the rows of a table."""

import dataclasses
import datetime
import json
import math
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import load_file, save
from torch import Tensor

import pyrobnn
from pyrobnn._core.errors import counted
from pyrobnn._core.folders import new_file
from pyrobnn._core.waiting import waiting
from pyrobnn.data.imputed import Imputer
from pyrobnn.datasets.table import categories_of, load_rows
from pyrobnn.posterior.mixture import Mixture, predict_copies
from pyrobnn.posterior.posterior import Posterior
from pyrobnn.posterior.prediction import Prediction
from pyrobnn.runs.run_folders import run_folder
from pyrobnn.runs.spec import Prepared, RunSpec
from pyrobnn.storage.load import load
from pyrobnn.storage.save import save as save_posterior

_PACKAGES = ("torch", "pyro-ppl", "numpy", "arviz", "pydantic", "scikit-learn", "safetensors")
_ROWS_FILE = "rows.safetensors"
ALL_ROWS_FOLDER = "all_rows"
_DECIMALS = 6
"""Of probabilities; of numbers, those that show five digits of the smallest standard deviation."""


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


def predict_table(
    run_dir: str | Path, table: str | Path, *, on_note: Callable[[str], object] = lambda _: None
) -> pd.DataFrame:
    """Predict for the rows of a table with the posterior of a run: of all its rows, where they were fitted.

    The file has the feature columns of the training data; other columns are ignored. A row with an unknown category, or
    without a value, is predicted as a mixture over values that are drawn given the others. `on_note` is called with a
    line on each assumption about the file, and on each column with values outside of what was learned.

    Returns:
        One row per input, named by the column [data] `id` of the spec if the table has it, or else by `row`, counted
        from 1. An `id` such as mean, which is a column of the result too, becomes mean_id. Regression: mean, std,
        epistemic_std, aleatoric_std, lower_95, upper_95, and first the median of counts and positive numbers.
        Classification: class, prob_<class> for each class, entropy, mutual_information (in nats). A run of a table adds
        `outside`, the columns whose value lies outside of what was learned, or nothing.
    """
    folder = run_folder(run_dir)
    place = folder_for_new_rows(folder)
    data = json.loads((place / "manifest.json").read_text(encoding="utf-8"))["data"]
    rows = load_rows(table, data["feature_names"], data.get("encoder"))
    for note in rows.notes:
        on_note(note)
    spec = RunSpec.from_toml(folder / "spec.toml")
    outside = {} if rows.outside is None else {"outside": rows.outside}
    with waiting(f"predicting {counted(len(rows.x), 'row')}"):
        prediction = predict_run(place, rows.x, num_draws=spec.predict.num_draws)
        frame = prediction.to_frame(data["class_names"] or None).assign(**outside)
    name = spec.data.id if spec.data.id in rows.frame else None
    names = range(1, len(frame) + 1) if name is None else rows.frame[name]
    frame.insert(0, f"{name}_id" if name in frame else name or "row", names)
    return frame


def write_predictions(predictions: pd.DataFrame, out: Path) -> None:
    """Write a CSV file, whole or not at all where its folder allows it."""
    is_plain = (out.is_file() or not out.exists()) and os.access(out.parent, os.W_OK)
    with new_file(out.resolve()) if is_plain else nullcontext(out) as file:
        predictions.to_csv(file, index=False)


def rounded(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return a result of `predict_table` with the decimals that a reader needs, the same in all of its columns."""
    spread = predictions["std"] if "std" in predictions else pd.Series(dtype=float)
    spread = spread[(spread > 0) & (spread < math.inf)]
    decimals = _DECIMALS if spread.empty else 4 - math.floor(math.log10(spread.min()))
    numbers = predictions.iloc[:, 1:].select_dtypes("float")
    return predictions.assign(**(numbers.round(decimals) + 0.0))


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
