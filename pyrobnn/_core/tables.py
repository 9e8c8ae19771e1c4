"""Users' tables, read and checked without torch, so that a command answers at once."""

import csv
import dataclasses
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pyrobnn._core.errors import InputError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["regression", "classification"]

ENDINGS = (".csv", ".csv.gz", ".parquet")
_MOST_CLASSES = 10
"""Most distinct whole numbers that count as classes without a given task."""
_MOST_CATEGORIES = 20
"""Different texts that a column may always hold; more must come back in every second row, else they are names."""
_MOST_ROWS = 5
"""Rows that a message names."""
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?")


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A target column as numbers.

    Attributes:
        task: the task that it implies.
        values: real values, float64, or classes 0..C-1, int64; (N,).
        classes: the name of each class, sorted; empty for a regression.
        reason: the reason for this task, in words.
    """

    task: Task
    values: np.ndarray
    classes: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A checked table.

    Attributes:
        inputs: the columns to predict from: float64, or text and None.
        target: the column to predict.
    """

    inputs: "pd.DataFrame"
    target: Target

    @property
    def is_numeric(self) -> bool:
        """Whether the inputs are numbers alone, none of them missing."""
        return bool((self.inputs.dtypes == np.float64).all() and not self.inputs.isna().any(axis=None))


def read_table(
    path: Path, target: str, *, task: str | None = None, id_column: str | None = None, missing: str = "raise"
) -> Table:
    """Return a CSV or Parquet file as inputs and a target.

    Args:
        path: the file.
        target: name of the target column.
        task: "regression" or "classification", or None to infer it from the target.
        id_column: a column that names the rows and is not an input, or None.
        missing: "raise" or "impute": whether inputs may be missing.

    Raises:
        InputError: no such file or column, not a table, or values that cannot be used: all of them in one message.
    """
    if task not in (None, *get_args(Task)):
        raise InputError(f"`task` must be 'regression', 'classification' or None, got {task!r}.")
    wanted = [target] if id_column is None else [target, id_column]
    check_names(path, wanted)
    frame = read_frame(path)
    _require(wanted, list(frame.columns), path)
    features = [name for name in frame.columns if name not in wanted]
    if not features:
        raise InputError(f"{path} has no feature columns, only the target {target!r}: add at least one column.")
    faults: list[str] = []
    target_column = _collected(faults, lambda: _target(frame[target], task))
    inputs = _inputs(frame, features, missing, faults)
    _refuse(faults, path)
    assert target_column is not None  # a target without a fault
    return Table(inputs, target_column)


def read_inputs(path: Path, names: Sequence[str], *, missing: str = "raise", texts: Sequence[str] = ()) -> Any:
    """Return the named columns of a file for prediction, in this order, and its whole frame.

    `texts` are the columns that held text in the training data.
    """
    check_names(path, names)
    frame = read_frame(path)
    _require(names, list(frame.columns), path)
    faults: list[str] = []
    inputs = _inputs(frame, list(names), missing, faults, texts)
    _refuse(faults, path)
    return inputs, frame


def ending(path: Path) -> str:
    """Return which of `ENDINGS` a path has, or nothing."""
    return next((suffix for suffix in ENDINGS if path.name.lower().endswith(suffix)), "")


def check_names(path: Path, wanted: Sequence[str]) -> None:
    """Refuse a file that does not exist, is no table or lacks these columns, from its first line alone."""
    if not path.is_file():
        raise InputError(f"There is no file {path}: check the path.")
    if not ending(path):
        raise InputError(f"{path} must end in {', '.join(ENDINGS)}: save the table as CSV or Parquet.")
    _require(wanted, column_names(path), path)


def column_names(path: Path) -> list[str]:
    """Return the names of the columns, as pandas has them, reading the first line of a CSV or the schema alone."""
    if ending(path) == ".parquet":
        import pyarrow.parquet

        names = _read(path, lambda: pyarrow.parquet.read_schema(path).names)
        return [name for name in names if not re.fullmatch(r"__index_level_\d+__", name)]
    first = _read(path, lambda: _first_line(path))
    if not first:
        raise InputError(f"{path} cannot be read as a table (it is empty): save it again as CSV or Parquet.")
    seen: Counter[str] = Counter()
    names = []
    for i, name in enumerate(first):
        plain = name or f"Unnamed: {i}"
        names.append(f"{plain}.{seen[plain]}" if seen[plain] else plain)
        seen[plain] += 1
    return names


def _first_line(path: Path) -> list[str]:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        return next((line for line in csv.reader(file) if line), [])


def read_frame(path: Path) -> "pd.DataFrame":
    """Return the whole file; refuse a file without rows, or with names that files cannot hold."""
    import pandas as pd

    read = pd.read_parquet if ending(path) == ".parquet" else pd.read_csv
    frame: pd.DataFrame = _read(path, lambda: read(path))
    if frame.empty:
        raise InputError(f"{path} has no rows: pass a table with at least one row below the column names.")
    frame = frame.rename(columns=str)
    given = list(frame.columns) if ending(path) == ".parquet" else list(filter(None, _first_line(path)))
    twice = next((name for name, count in Counter(given).items() if count > 1), None)  # pandas renames them in CSV
    if twice is not None:
        raise InputError(f"{path} has two columns with the name {twice!r}: rename one of them.")
    odd = next((name for name in frame.columns if "\0" in name), None)
    if odd is not None:
        raise InputError(f"{path} has a column with a null character, {odd!r}: rename it.")
    return frame


def _read[R](path: Path, read: Callable[[], R]) -> R:
    try:
        return read()
    except (ValueError, OSError, EOFError, zlib.error, csv.Error) as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise InputError(f"{path} cannot be read as a table ({reason}): save it again as CSV or Parquet.") from None


def _require(wanted: Sequence[str], names: Sequence[str], path: Path) -> None:
    absent = [name for name in wanted if name not in names]
    if absent:
        raise InputError(
            f"{path} has no column {absent[0]!r}.{did_you_mean(absent[0], names)} Its columns: {', '.join(names)}."
        )


def _collected[R](faults: list[str], make: Callable[[], R]) -> R | None:
    """Return the result of `make`, or note its refusal."""
    try:
        return make()
    except InputError as error:
        faults.append(str(error))
        return None


def _refuse(faults: Sequence[str], path: Path) -> None:
    if len(faults) == 1:
        raise InputError(f"{path} cannot be used: {faults[0]}")
    if faults:
        listed = "".join(f"\n  {number}. {fault}" for number, fault in enumerate(faults, 1))
        raise InputError(f"{path} cannot be used, for {len(faults)} reasons (row 1 is below the names):{listed}")


def _rows(chosen: Any) -> str:
    """Return which rows a mask has, counted from 1 below the names of the columns."""
    numbers = [str(i + 1) for i in np.flatnonzero(np.asarray(chosen, dtype=bool))]
    if len(numbers) == 1:
        return f"row {numbers[0]}"
    listed = ", ".join(numbers[:_MOST_ROWS])
    return f"rows {listed}" if len(numbers) <= _MOST_ROWS else f"rows {listed} and {len(numbers) - _MOST_ROWS} more"


def _missing(column: Any, label: str, advice: str) -> None:
    gaps = column.isna()
    if gaps.any():
        raise InputError(f"{label} has {int(gaps.sum())} missing value(s), in {_rows(gaps)}: {advice}.")


# Inputs


def _inputs(
    frame: "pd.DataFrame", names: list[str], missing: str, faults: list[str], texts: Sequence[str] | None = None
) -> "pd.DataFrame":
    """Return columns as numbers or text, and note the faults of each; `texts` were text in training."""
    import pandas as pd

    columns = {name: _collected(faults, partial(_input, frame[name], name, missing, texts)) for name in names}
    return pd.DataFrame({name: column for name, column in columns.items() if column is not None})


def _input(column: Any, name: str, missing: str, texts: Sequence[str] | None) -> "pd.Series":
    from pyrobnn._core.columns import as_table

    label = f"Column {name!r}"
    if name.startswith("Unnamed: "):
        raise InputError(f"{label} has no name in the file: name it, or drop it if it is a saved index.")
    if missing == "raise":
        instead = "let them be replaced by means, with columns that tell where (data.missing=impute)"
        _missing(column, label, f"drop those rows, or {instead}")
    values = as_table(column.to_frame(name))[name]
    if texts is not None and name in texts:
        return _as_text(column)
    if values.dtype == np.float64:
        infinite = np.isinf(values)
        if infinite.any():
            raise InputError(f"{label} must be finite, and is not in {_rows(infinite)}: drop those rows or mend them.")
        return values
    text = _as_text(values)
    _check_categories(text, name, texts)
    return text


def _as_text(values: "pd.Series") -> "pd.Series":
    """Return categories as text, in any type of the file; whole numbers read as 2 and 2.0 are the same category."""
    import pandas as pd

    def name(value: Any) -> str:
        whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
        return str(int(value) if whole else value)

    named = [None if gap else name(value) for value, gap in zip(values, values.isna(), strict=True)]
    return pd.Series(named, dtype=object)


def _check_categories(text: "pd.Series", name: str, texts: Sequence[str] | None) -> None:
    """Refuse text that is no category: dates, numbers with a few words among them, and names of rows."""
    import pandas as pd

    label, present = f"Column {name!r}", text.dropna()
    if len(present) and present.map(lambda value: bool(_DATE.fullmatch(value))).all():
        raise InputError(
            f"{label} holds dates, such as {present.iloc[0]!r}: turn them into numbers, such as days since some date, "
            "or drop the column."
        )
    strange = text.notna() & pd.to_numeric(text, errors="coerce").isna()
    if texts is not None or 0 < strange.sum() <= len(present) / 2:
        first = text[strange].iloc[0] if strange.any() else present.iloc[0]
        raise InputError(
            f"{label} holds numbers, but text in {_rows(strange)}, such as {first!r}: turn it into numbers, or leave "
            "the cell empty if the value is missing."
        )
    count = present.nunique()
    if count > _MOST_CATEGORIES and count > len(present) / 2:
        raise InputError(
            f"{label} holds {count} different texts in {len(text)} rows, such as {present.iloc[0]!r}, which are no "
            f"categories: turn it into numbers, drop it, or say that it names the rows (data.id={name})."
        )


# The target


def _target(column: "pd.Series", task: str | None) -> Target:
    from pandas.api import types

    label = f"Target column {column.name!r}"
    _missing(column, label, "drop those rows")
    numeric = types.is_numeric_dtype(column.dtype)
    _check_kind(column, label, is_numeric=numeric)
    is_whole = numeric and bool((column % 1 == 0).all()) if not types.is_bool_dtype(column.dtype) else False
    if task is None and types.is_integer_dtype(column.dtype) and column.nunique() > _MOST_CLASSES:
        counts = "counts (likelihood.type=poisson), " if column.min() >= 0 else ""
        raise InputError(
            f"{label} holds {column.nunique()} different whole numbers, {column.min()} to {column.max()}: say whether "
            f"they are {counts}amounts (data.task=regression) or classes (data.task=classification); on the command "
            "line after --set, in Python by `task`."
        )
    if task == "regression" or (task is None and types.is_float_dtype(column.dtype)):
        return _numbers(column, label, is_told=task is not None, is_whole=is_whole)
    return _classes(column, label, is_told=task is not None, is_whole=is_whole)


def _check_kind(column: "pd.Series", label: str, *, is_numeric: bool) -> None:
    from pandas.api import types

    if not is_numeric and types.is_datetime64_any_dtype(column.dtype):
        raise InputError(f"{label} holds dates: turn them into numbers or classes.")
    strange = [] if is_numeric else [value for value in column if not isinstance(value, (str, bool, float, int))]
    if strange:
        description = f"{strange[0]!r} of the kind {type(strange[0]).__name__}"
        raise InputError(f"{label} holds neither text nor numbers but {description}: turn it into text or numbers.")


def _numbers(column: "pd.Series", label: str, *, is_told: bool, is_whole: bool) -> Target:
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column.dtype):
        strange = pd.to_numeric(column, errors="coerce").isna()
        where = f", with text such as {column[strange].iloc[0]!r} in {_rows(strange)}" if strange.any() else ""
        raise InputError(
            f"{label} must be numeric for a regression, got {column.dtype}{where}: mend it, or ask for a "
            "classification (task='classification', a likelihood of classes)."
        )
    values = column.to_numpy(dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError(f"{label} must be finite, and is not in {_rows(~np.isfinite(values))}: drop those rows.")
    if len(values) > 1 and (values == values[0]).all():
        raise InputError(f"{label} is {values[0]:g} in all {len(values)} rows: there is nothing to learn from it.")
    kind = "whole numbers" if is_whole else "real numbers"
    hint = "; if they are counts, likelihood.type=poisson" if is_whole and not is_told and values.min() >= 0 else ""
    return Target("regression", values, (), kind + hint)


def _classes(column: "pd.Series", label: str, *, is_told: bool, is_whole: bool) -> Target:
    from pandas.api import types

    numeric = types.is_numeric_dtype(column.dtype)
    if types.is_float_dtype(column.dtype) and not is_whole:
        raise InputError(f"{label} must hold whole numbers or text for a classification: ask for a regression.")
    values = column.to_numpy() if numeric else column.astype(str).to_numpy(dtype=str)
    if types.is_float_dtype(column.dtype):
        values = values.astype(np.int64)
    classes, codes = np.unique(values, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"{label} has only one class, {str(classes[0])!r}: a classification needs at least two.")
    names = tuple(str(name) for name in classes)
    odd = next((name for name in names if "\0" in name), None)
    if odd is not None:
        raise InputError(f"{label} has a class with a null character, {odd!r}: rename it.")
    reason = f"{len(names)} classes"
    if is_whole and not is_told:
        hint = "if they are counts, likelihood.type=poisson, if amounts, data.task=regression"
        reason = f"only {len(names)} different whole numbers, {', '.join(names)}; {hint}"
    elif not is_told:
        reason += f", {', '.join(names[:_MOST_CLASSES])}{', ...' if len(names) > _MOST_CLASSES else ''}"
    return Target("classification", codes, names, reason)
