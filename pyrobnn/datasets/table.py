"""Tables of the user's own: CSV and Parquet files with one column as the target."""

import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from torch import Tensor

from pyrobnn._checks import as_tensor, check_inputs
from pyrobnn._errors import InputError, did_you_mean
from pyrobnn.data import Data
from pyrobnn.datasets._files import sha256
from pyrobnn.datasets.base import Dataset, Task

_ENDINGS = (".csv", ".csv.gz", ".parquet")
_MOST_CLASSES = 20
_MOST_CLASSES_BY_ROW = 0.05


def load_table(path: str | Path, target: str, *, task: str | None = None) -> Dataset:
    """Return a CSV (.csv, .csv.gz) or Parquet (.parquet) file as a data set without published splits.

    All columns but the target are features and must be numeric or boolean. A target of text, booleans or integers
    makes a classification: its distinct values, sorted, become the classes 0..C-1. Any other makes a regression.
    Integers with more distinct values than 20 and than 5 % of the rows could be either, so `task` must say.

    Args:
        path: the file, with column names in the first line of a CSV.
        target: name of the target column.
        task: "regression" or "classification" where the rule above is not what you want, as for counts.

    Raises:
        InputError: the file cannot be read or is empty, a column is not there, has no name, has missing values or is
            not numeric, or the target does not fit the task or leaves it open.
    """
    if task not in (None, *get_args(Task)):
        raise InputError(f"`task` must be 'regression', 'classification' or None, got {task!r}.")
    path = Path(path)
    frame = _read(path)
    _check_columns(frame, [target], path)
    features = [name for name in frame.columns if name != target]
    if not features:
        raise InputError(f"{path} has no feature columns, only the target {target!r}: add at least one numeric column.")
    unnamed = [name for name in features if name.startswith("Unnamed: ")]
    if unnamed:
        raise InputError(f"{path} has columns without a name ({', '.join(unnamed)}): name them or drop a saved index.")
    _check_missing(frame[target], path)
    x = _features(frame, features, path)
    y, classes = _target(frame[target], task, path)
    data = Data(x, y, standardize=True, feature_names=features, target_name=target)
    name = path.name.removesuffix(_ending(path))
    return Dataset(
        name, "classification" if classes else "regression", data, (), classes, str(path), "not stated", sha256(path)
    )


def load_features(path: str | Path, feature_names: Sequence[str]) -> Tensor:
    """Return the named feature columns of a CSV or Parquet file, for prediction; other columns are ignored.

    Args:
        path: the file, as for `load_table`.
        feature_names: the columns wanted, in this order; those of the training data.

    Returns:
        Inputs of shape (N, features), float64.

    Raises:
        InputError: the file cannot be read or is empty, or a column is not there, not numeric or has missing values.
    """
    path = Path(path)
    frame = _read(path)
    _check_columns(frame, feature_names, path)
    x = as_tensor(_features(frame, list(feature_names), path), "x")
    check_inputs(x)
    return x


def _ending(path: Path) -> str:
    return next((ending for ending in _ENDINGS if path.name.lower().endswith(ending)), "")


def _read(path: Path) -> Any:
    import pandas as pd

    if not path.is_file():
        raise InputError(f"There is no file {path}: check the path.")
    if not _ending(path):
        raise InputError(f"{path} must end in {', '.join(_ENDINGS)}: save the table as CSV or Parquet.")
    try:
        frame = pd.read_parquet(path) if _ending(path) == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise InputError(f"{path} cannot be read as a table ({reason}): save it again as CSV or Parquet.") from None
    if frame.empty:
        raise InputError(f"{path} has no rows: pass a table with at least one row below the column names.")
    frame = frame.rename(columns=str)
    _check_names(list(frame.columns), path)
    return frame


def _check_names(names: list[str], path: Path) -> None:
    """Refuse names that files cannot hold, and those that stand for two columns."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{path} has two columns with the name {twice!r}: rename one of them.")
    odd = next((name for name in names if "\0" in name), None)
    if odd is not None:
        raise InputError(f"{path} has a column or class with a null character, {odd!r}: rename it.")


def _check_columns(frame: Any, wanted: Sequence[str], path: Path) -> None:
    absent = [name for name in wanted if name not in frame.columns]
    if absent:
        raise InputError(
            f"{path} has no column {absent[0]!r}.{did_you_mean(absent[0], frame.columns)} "
            f"Its columns: {', '.join(frame.columns)}."
        )


def _check_missing(column: Any, path: Path) -> None:
    count = int(column.isna().sum())
    if count:
        raise InputError(f"Column {column.name!r} of {path} has {count} missing value(s): drop or impute those rows.")


def _features(frame: Any, names: list[str], path: Path) -> np.ndarray:
    from pandas.api.types import is_numeric_dtype

    for name in names:
        _check_missing(frame[name], path)
    bad = [name for name in names if not is_numeric_dtype(frame[name].dtype)]
    if bad:
        raise InputError(
            f"Columns of {path} that are not numeric: {', '.join(bad)}: encode them as numbers or drop them."
        )
    return frame[names].to_numpy(dtype=np.float64)


def _target(column: Any, task: str | None, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    from pandas.api import types

    label = f"Target column {column.name!r} of {path}"
    numeric = types.is_numeric_dtype(column.dtype)
    discrete = not types.is_float_dtype(column.dtype)
    if not numeric and types.is_datetime64_any_dtype(column.dtype):
        raise InputError(f"{label} holds dates: turn them into numbers or classes.")
    strange = [] if numeric else [value for value in column if not isinstance(value, (str, bool, float, int))]
    if strange:
        found = f"{strange[0]!r} of the kind {type(strange[0]).__name__}"
        raise InputError(f"{label} holds neither text nor numbers but {found}: turn it into one of them.")
    if task == "regression" or (task is None and not discrete):
        if not numeric:
            raise InputError(
                f"{label} must be numeric for a regression, got {column.dtype}: pass task='classification'."
            )
        return column.to_numpy(dtype=np.float64), ()
    if task is None and types.is_integer_dtype(column.dtype):
        _check_few_classes(column, label)
    values = column.to_numpy() if numeric else column.astype(str).to_numpy(dtype=str)
    if not discrete:
        if not np.array_equal(values, np.round(values)):
            raise InputError(f"{label} must hold whole numbers or text for a classification: pass task='regression'.")
        values = values.astype(np.int64)
    classes, y = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"{label} has one class only, {str(classes[0])!r}: a classification needs at least two.")
    names = [str(name) for name in classes]
    _check_names(names, path)
    return y, tuple(names)


def _check_few_classes(column: Any, label: str) -> None:
    count = column.nunique()
    if count > max(_MOST_CLASSES, _MOST_CLASSES_BY_ROW * len(column)):
        raise InputError(
            f"{label} holds {count} distinct whole numbers, which could be classes or quantities: pass "
            'task="regression" or task="classification" (in a spec: [data] task).'
        )
