"""Users' tables, checked without torch, so that a command answers at once."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pyrobnn._core.errors import MOST_LISTED, InputError, counted
from pyrobnn.tables.cells import (
    DATES,
    NAMELESS,
    TEXTS,
    names_rows,
    order_of,
    read_cells,
    refuse_missing,
    refuse_words,
    require_repeated,
    rows_of,
)
from pyrobnn.tables.files import Sheet, check_names, read_sheet, require
from pyrobnn.tables.texts import How

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["regression", "classification"]

_MOST_CLASSES = 10
"""Most distinct whole numbers that count as classes without a given task."""
_MOST_TEXTS = 50
"""Different texts that a target may always hold; more must come back ten times each, else they are no classes."""
_GAPS = {
    True: "drop those rows, or let them be left out of the fit and predicted as mixtures (--set data.missing=impute)",
    False: "fill them in or drop those rows; only a new fit with --set data.missing=impute can predict for them",
}
"""What to do about missing values, in training and in a prediction."""
_WORDS = {True: "let it count as missing, as empty cells do (--set data.missing=impute)", False: "drop those rows"}
"""What else to do about words among numbers or dates, likewise."""


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A target column: real values (N,), or classes 0..C-1 with their names in order, and the reason for this task."""

    task: Task
    values: np.ndarray
    classes: tuple[str, ...]
    reason: str
    is_ordered: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """The columns to predict from, float64, text and None, or dates; how each was read; and the whole table."""

    columns: "pd.DataFrame"
    how: dict[str, How]
    notes: tuple[str, ...]
    frame: "pd.DataFrame"


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A checked table: features of all rows, and the target of those that have one, at positions `rows`.

    `compared` are the columns that tell whether rows are copies: all but the target and names of rows.
    """

    features: Features
    target: Target
    rows: np.ndarray
    compared: tuple[str, ...]


def read_table(
    path: Path,
    target: str,
    *,
    sheet: Sheet | None = None,
    task: str | None = None,
    id_column: str | None = None,
    drop: Sequence[str] = (),
    missing: str = "raise",
) -> Table:
    """Return a file as features and a target; `sheet` has its cells if they were read."""
    if task not in (None, *get_args(Task)):
        raise InputError(f"`task` must be 'regression', 'classification' or None, got {task!r}.")
    wanted = [target, *drop] if id_column is None else [target, id_column, *drop]
    check_names(path, wanted)
    sheet = read_sheet(path) if sheet is None else sheet
    require(wanted, list(sheet.frame.columns), path)
    names = [name for name in sheet.frame.columns if name not in wanted]
    if not names:
        raise InputError(f"{path} has no feature columns, only the target {target!r}: add at least one column.")
    faults: list[str] = []
    notes, is_known = list(sheet.notes), sheet.frame[target].notna()
    if missing == "impute" and not is_known.all():
        gone = counted(int((~is_known).sum()), "row")
        notes.append(f"{gone} ({rows_of(~is_known)}) without a target: left out")
    target_column = _collected(faults, lambda: _target(sheet, target, task, missing, notes))
    features = _features(sheet, dict.fromkeys(names), missing, faults, notes)
    _refuse(faults, path)
    assert target_column is not None  # a target without a fault
    compared = [name for name in sheet.frame.columns if name != target and not names_rows(sheet, name)]
    return Table(features, target_column, np.flatnonzero(is_known), tuple(compared))


def read_features(path: Path, how: Mapping[str, How], *, missing: str = "raise") -> Features:
    """Return columns of a file for prediction, in this order, read as in training."""
    check_names(path, list(how))
    sheet = read_sheet(path)
    require(list(how), list(sheet.frame.columns), path)
    faults: list[str] = []
    features = _features(sheet, how, missing, faults, list(sheet.notes))
    _refuse(faults, path)
    return features


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
        told = "".join(f"\n  {number}. {fault}" for number, fault in enumerate(faults[:MOST_LISTED], 1))
        more = f"\n  and {len(faults) - MOST_LISTED:,} more" if len(faults) > MOST_LISTED else ""
        raise InputError(f"{path} cannot be used, for {len(faults)} reasons (row 1 is below the names):{told}{more}")


def _features(
    sheet: Sheet, before: Mapping[str, How | None], missing: str, faults: list[str], notes: list[str]
) -> Features:
    """Return columns as numbers, dates or text, and note the faults of each; `before` is how training read them."""
    import pandas as pd

    read = {name: _collected(faults, partial(_feature, sheet, name, missing, known)) for name, known in before.items()}
    good = {name: column for name, column in read.items() if column is not None}
    notes += [line for _, _, line in good.values() if line]
    columns = pd.DataFrame({name: values for name, (values, _, _) in good.items()})
    return Features(columns, {name: how for name, (_, how, _) in good.items()}, tuple(notes), sheet.frame)


def _feature(sheet: Sheet, name: str, missing: str, before: How | None) -> tuple["pd.Series", How, str]:
    import pandas as pd

    from pyrobnn.tables.encoder import as_column

    label = f"Column {name!r}"
    if name.startswith(NAMELESS):
        raise InputError(f"{label} has no name in the file: name it, or drop it if it is a saved index.")
    column, how, line = read_cells(sheet, name, label, before, words=missing == "impute", advice=_WORDS[before is None])
    if missing == "raise":
        if before is None and column.isna().all():
            raise InputError(f"{label} has no value in any row: leave it out (--drop {shlex.quote(name)}).")
        refuse_missing(column, label, _GAPS[before is None])
    if how["kind"] == DATES:
        return column, how, line
    if how["kind"] == TEXTS and before is not None:
        return _as_text(column), how, line
    values = as_column(column.reset_index(drop=True), name)
    if values.dtype == np.float64:
        infinite = np.isinf(values)
        if infinite.any():
            raise InputError(f"{label} must be finite, and is not in {rows_of(infinite)}: drop or mend those rows.")
        return values, how, line
    text = _as_text(values)
    if before is not None:
        refuse_words(text, text.notna(), label, "numbers, but text", _WORDS[False])
    options = f"(--drop {shlex.quote(name)}), or say it names the rows (--set {shlex.quote(f'data.id={name}')})"
    require_repeated(text, name, f"leave it out {options}")
    how = {**how, "kind": TEXTS}
    if (order := order_of(sheet.frame[name])) is not None:
        how["order"] = _as_text(pd.Series(order, dtype=object)).tolist()
    return text, how, line


def _as_text(values: "pd.Series") -> "pd.Series":
    """Return categories as text, in any type of the file; whole numbers read as 2 and 2.0 are the same category."""
    import pandas as pd

    def name(value: Any) -> str:
        whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
        return str(int(value) if whole else value)

    named = [None if gap else name(value) for value, gap in zip(values, values.isna(), strict=True)]
    return pd.Series(named, dtype=object)


LEAST_AMOUNT = 100
"""Median from which whole numbers that are not negative are amounts, such as prices, and not counts or classes."""


def _target(sheet: Sheet, name: str, task: str | None, missing: str, notes: list[str]) -> Target:
    from pandas.api import types

    label = f"Target column {name!r}"
    if missing == "raise":
        refuse_missing(sheet.frame[name], label, "drop those rows")
    if sheet.frame[name].isna().all():
        raise InputError(f"{label} has no value in any row: choose another target.")
    column, how, line = read_cells(sheet, name, label, None, advice="drop those rows")
    notes += [line] if line else []
    if how["kind"] == DATES:
        raise InputError(f"{label} holds dates: turn them into numbers, such as days since some date, or into classes.")
    column = _known(column) if column.hasnans else column
    numeric = types.is_numeric_dtype(column.dtype)
    odd = next((value for value in column if not isinstance(value, (str, bool, float, int))), None)
    if not numeric and odd is not None:
        given = f"{odd!r} of the kind {type(odd).__name__}"
        raise InputError(f"{label} holds neither text nor numbers but {given}: turn it into text or numbers.")
    is_whole = numeric and bool((column % 1 == 0).all()) if not types.is_bool_dtype(column.dtype) else False
    is_amount = is_whole and bool(column.min() >= 0) and column.median() >= LEAST_AMOUNT
    if task is None and types.is_integer_dtype(column.dtype) and column.nunique() > _MOST_CLASSES and not is_amount:
        counts = "counts (--set likelihood.type=poisson), " if column.min() >= 0 else ""
        raise InputError(
            f"{label} holds {column.nunique()} different whole numbers, {column.min()} to {column.max()}: say whether "
            f"they are {counts}amounts (--set data.task=regression) or classes (--set data.task=classification); in "
            "Python by `task`."
        )
    is_many = is_amount and column.nunique() > _MOST_CLASSES
    if task == "regression" or (task is None and (types.is_float_dtype(column.dtype) or is_many)):
        may_count = is_whole and not (line or is_amount or task)
        return _numbers(column, label, is_whole=is_whole, may_count=may_count)
    return _classes(column, label, is_told=task is not None, is_whole=is_whole)


def _known(column: "pd.Series") -> "pd.Series":
    """Return the values that are there, in the type that they would have without gaps: whole numbers as integers."""
    known = column.dropna().infer_objects()
    is_whole = known.dtype == np.float64 and bool((known % 1 == 0).all())
    return known.astype(np.int64) if is_whole else known


def _rows(chosen: "pd.Series") -> str:
    """Return which rows of the file a mask has, some of whose rows may have been left out."""
    return rows_of(chosen.reindex(range(int(chosen.index[-1]) + 1), fill_value=False))


def _numbers(column: "pd.Series", label: str, *, is_whole: bool, may_count: bool) -> Target:
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column.dtype):
        strange = pd.to_numeric(column, errors="coerce").isna()
        where = f", with text such as {column[strange].iloc[0]!r} in {_rows(strange)}" if strange.any() else ""
        raise InputError(f"{label} must be numeric for a regression, got {column.dtype}{where}: mend it.")
    values = column.to_numpy(dtype=np.float64)
    if (infinite := column.astype(np.float64).abs() == np.inf).any():
        raise InputError(f"{label} must be finite, and is not in {_rows(infinite)}: drop those rows.")
    if len(values) > 1 and (values == values[0]).all():
        raise InputError(f"{label} is {values[0]:g} in all {len(values)} rows: there is nothing to learn from it.")
    kind = "whole numbers" if is_whole else "real numbers"
    hint = "; if they are counts, likelihood.type=poisson" if may_count and values.min() >= 0 else ""
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
    if (order := order_of(column)) is not None:
        classes = np.array([name for name in map(str, order) if name in classes])
        codes = (values[:, None] == classes).argmax(1)
    if len(classes) < 2:
        raise InputError(f"{label} has only one class, {str(classes[0])!r}: a classification needs at least two.")
    names = tuple(str(name) for name in classes)
    if not (numeric or is_told) and len(names) > max(_MOST_TEXTS, len(values) / 10):
        raise InputError(
            f"{label} holds {len(names)} different texts in {len(values)} rows, such as {names[0]!r}, too many for "
            "classes: turn it into numbers, or say that they are classes (--set data.task=classification)."
        )
    odd = next((name for name in names if "\0" in name), None)
    if odd is not None:
        raise InputError(f"{label} has a class with a null character, {odd!r}: rename it.")
    reason = f"{len(names)} classes"
    if is_whole and not is_told:
        hint = "if they are counts, likelihood.type=poisson, if amounts, data.task=regression"
        reason = f"only {len(names)} different whole numbers, {', '.join(names)}; {hint}"
    elif not is_told:
        reason += f", {', '.join(names[:_MOST_CLASSES])}{', ...' if len(names) > _MOST_CLASSES else ''}"
    has_order = numeric or order is not None or types.is_bool_dtype(column.dtype)
    return Target("classification", codes, names, reason, has_order)
