"""Predictions from a run folder, for the rows of a table."""

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pandas as pd
from safetensors.numpy import load_file

from pyrobnn._core.errors import counted, waiting
from pyrobnn._core.folders import new_file
from pyrobnn.data.imputed import Imputer
from pyrobnn.posterior.mixture import predict_copies
from pyrobnn.runs.folder import ALL_ROWS, ROWS, Manifest, run_folder
from pyrobnn.runs.spec import RunSpec
from pyrobnn.storage.load import load
from pyrobnn.tables.encoder import Encoder

_DECIMALS = 6  # of probabilities; numbers have those that show five digits of the smallest standard deviation


def predict_table(
    run_dir: str | Path, table: str | Path, *, on_note: Callable[[str], object] = lambda _: None
) -> pd.DataFrame:
    """Predict for the rows of a table with the posterior of a run: of all its rows, where they were fitted.

    A row with an unknown category, or with a gap, is a mixture over values drawn given the others. `on_note` takes a
    line on each assumption. The columns are the `id` of the spec, or else `row`, counted from 1, those of
    `Prediction.to_frame`, and `outside`, the columns whose value lies outside of what was learned.
    """
    folder = run_folder(run_dir)
    spec = RunSpec.from_toml(folder / "spec.toml")
    fit = folder / ALL_ROWS if (folder / ALL_ROWS).is_dir() else folder
    data = Manifest.read(fit).data
    encoder = Encoder.stored(data.encoder, data.feature_names)
    rows = encoder.read(table, sep=spec.data.sep, encoding=spec.data.encoding)
    for note in rows.notes:
        on_note(note)
    if len((outside := encoder.outside(rows.columns, first=1)).table):
        on_note(f"outside of the rows of the fit:\n{outside.table.to_string()}\n{outside.warning}".rstrip())
    imputer = Imputer(load_file(fit / ROWS)["rows"], encoder.onehot()) if (fit / ROWS).is_file() else None
    with waiting(f"predicting {counted(len(rows.columns), 'row')}"):
        x = encoder.matrix(rows.columns)
        prediction = predict_copies(load(fit / "posterior"), imputer, x, num_draws=spec.predict.num_draws)
        frame = prediction.to_frame(data.class_names or None)
    if data.encoder is not None:
        frame["outside"] = outside.rows
    name = spec.data.id if spec.data.id in rows.frame else None
    names = range(1, len(frame) + 1) if name is None else rows.frame[name]
    frame.insert(0, f"{name}_id" if name in frame else name or "row", names)
    return frame


def write_table(frame: pd.DataFrame, out: Path) -> None:
    """Write a CSV file, whole or not at all where its folder allows it."""
    is_plain = (out.is_file() or not out.exists()) and os.access(out.parent, os.W_OK)
    with new_file(out.resolve()) if is_plain else nullcontext(out) as file:
        frame.to_csv(file, index=False)


def rounded(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return a result of `predict_table` with the decimals that a reader needs, the same in all of its columns."""
    spread = predictions["std"] if "std" in predictions else pd.Series(dtype=float)
    spread = spread[(spread > 0) & (spread < math.inf)]
    decimals = _DECIMALS if spread.empty else 4 - math.floor(math.log10(spread.min()))
    numbers = predictions.iloc[:, 1:].select_dtypes("float")
    return predictions.assign(**(numbers.round(decimals) + 0.0))
