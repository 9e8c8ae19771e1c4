"""Predictions for the rows of a table from a run folder."""

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pandas as pd

from pyrobnn._core.errors import counted
from pyrobnn._core.folders import new_file
from pyrobnn._core.waiting import waiting
from pyrobnn.datasets.table import load_rows
from pyrobnn.runs.files import folder_for_new_rows, predict_run
from pyrobnn.runs.run_folders import run_folder
from pyrobnn.runs.spec import RunSpec

_SHOWN_DIGITS = 6
"""Significant digits of numbers, and decimals of probabilities."""
_FAR_RANGES = 10.0
"""Ranges of the targets that were learned, by which a mean beyond them counts as far."""
_SHOWN_DIGITS_OF_SPREAD = 4
"""Digits of a standard deviation that a mean and the ends of an interval show."""


def predict_table(
    run_dir: str | Path, table: str | Path, *, on_note: Callable[[str], None] | None = None
) -> pd.DataFrame:
    """Predict for the rows of a table with the posterior of a run: of all its rows, where they were fitted.

    Args:
        run_dir: a run folder.
        table: a file with the feature columns of the training data; other columns are ignored. A row with an unknown
            category, or without a value, is predicted as a mixture over values that are drawn given the others.
        on_note: called with a line on each assumption about the file, on each column with values outside of what was
            learned, and on rows whose mean lies far beyond all targets that were learned.

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
        if on_note is not None:
            on_note(note)
    spec = RunSpec.from_toml(folder / "spec.toml")
    outside = {} if rows.outside is None else {"outside": rows.outside}
    with waiting(f"predicting {counted(len(rows.x), 'row')}"):
        prediction = predict_run(place, rows.x, num_draws=spec.predict.num_draws)
        frame = prediction.to_frame(data["class_names"] or None).assign(**outside)
    name = spec.data.id if spec.data.id in rows.frame else None
    names = range(1, len(frame) + 1) if name is None else rows.frame[name]
    if on_note is not None and (line := _far_line(frame, data.get("target_range"))):
        on_note(line)
    frame.insert(0, f"{name}_id" if name in frame else name or "row", names)
    return frame


def _far_line(frame: pd.DataFrame, learned: Sequence[float] | None) -> str:
    """Return a line on the rows whose mean is far from every target that was learned, if there are any."""
    if learned is None:
        return ""
    (low, high), mean = learned, frame["mean"]
    far = mean[(mean > high + _FAR_RANGES * (high - low)) | (mean < low - _FAR_RANGES * (high - low))]
    if far.empty:
        return ""
    return (
        f"mean: {counted(len(far), 'row')} beyond the targets in training, {low:g} to {high:g}, by more than "
        f"{_FAR_RANGES:g} times their range, such as {far.iloc[0]:.3g} in row {far.index[0] + 1}: do not use these"
    )


def write_predictions(predictions: pd.DataFrame, out: Path) -> None:
    """Write a CSV file, whole or not at all where its folder allows it."""
    is_plain = (out.is_file() or not out.exists()) and os.access(out.parent, os.W_OK)
    with new_file(out.resolve()) if is_plain else nullcontext(out) as file:
        predictions.to_csv(file, index=False)


def rounded(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return a result of `predict_table` with the digits that a reader needs.

    Numbers have six significant digits; means, medians and intervals more where four digits of the standard deviation
    need them. Probabilities and what follows from them have six decimals.
    """
    _, *others = predictions.columns
    numbers = [name for name in others if predictions[name].dtype.kind == "f"]
    if "std" not in predictions:
        return predictions.assign(**{name: predictions[name].round(_SHOWN_DIGITS) + 0.0 for name in numbers})
    of_spread = [_decimals(value, _SHOWN_DIGITS_OF_SPREAD) for value in predictions["std"]]
    made: dict[str, list[float]] = {}
    for name in numbers:
        least = of_spread if name in ("median", "mean", "lower_95", "upper_95") else [0] * len(predictions)
        pairs = zip(predictions[name].tolist(), least, strict=True)
        made[name] = [round(value, max(_decimals(value, _SHOWN_DIGITS), decimals)) for value, decimals in pairs]
    return predictions.assign(**made)


def _decimals(value: float, digits: int) -> int:
    """Return the decimals, below 0 for tens and hundreds, that show so many significant digits of a number."""
    return digits - 1 - math.floor(math.log10(abs(value))) if value and math.isfinite(value) else 0
