"""Files and frames as columns to predict from and a target, without torch, so that a command answers at once."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrobnn._core.errors import MOST_LISTED, InputError, counted, listed
from pyrobnn._core.remedies import advised
from pyrobnn.tables.column_reader import ColumnReader, ReadColumn, order_of, rows_of
from pyrobnn.tables.reading import LEAST_AMOUNT, check_names, read_file
from pyrobnn.tables.schema import Categories, Column, Dates, Reading, Task
from pyrobnn.tables.texts import Fault

if TYPE_CHECKING:
    import pandas as pd

_COUNTS, _AMOUNTS, _CLASSES = "likelihood.type=poisson", "data.task=regression", "data.task=classification"
FEWEST_ROWS = 10  # that a fit needs
_MOST_CLASSES = 10  # different whole numbers that are classes where no task is given
_NUMBER_CHARACTERS = re.compile(r"[-+\d.,\s]")
_MOST_TEXTS = 50  # different texts that are; more must come ten times each


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A target column: real values (N,), or classes 0..C-1 with their names in order, and the reason for this task."""

    task: Task
    values: np.ndarray
    classes: tuple[str, ...]
    reason: str
    is_ordered: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A checked table, as `read` returns it.

    Attributes:
        columns: the columns to predict from, all N rows: float64, dates, or texts with None.
        schema: what each is, numbers, dates or categories.
        frame: the whole table, as pandas has it.
        notes: what was assumed, a line for each.
        reading: how it was read.
        target: the target of the rows that have one, at positions `rows`; None where no column was named.
    """

    columns: "pd.DataFrame"
    schema: dict[str, Column]
    frame: "pd.DataFrame"
    notes: tuple[str, ...]
    reading: Reading
    target: Target | None = None
    rows: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def described(self) -> str:
        """The columns by their kinds, with the number of categories of each, in a line."""
        by_kind: dict[str, list[str]] = {kind: [] for kind in ("numbers", "dates", "categories", "ordered categories")}
        for name, column in self.schema.items():
            kind = "ordered categories" if isinstance(column, Categories) and column.is_ordered else column.kind
            count = f" ({self.columns[name].nunique(dropna=False)})" if column.kind == "categories" else ""
            by_kind[kind].append(name + count)
        return "; ".join(f"{kind}: {listed(names)}" for kind, names in by_kind.items() if names)


def read(source: Any, reading: Reading | None = None) -> Table:
    """Read a file or a frame of pandas or polars: numbers, dates and categories to predict from, and a target.

    Args:
        source: a path, .csv, .csv.gz, .tsv, .txt, .xlsx or .parquet, with names in its first line, or a frame.
        reading: what the columns are for, how a file of text is written, and what may be missing; None for no target.

    Raises:
        InputError: a file that cannot be read, or columns that cannot be used; one message has all, with their rows.

    Examples:
        >>> import pandas as pd
        >>> from pyrobnn.tables import read
        >>> frame = pd.DataFrame({"size": ["1,050", "990"], "kind": ["flat", "house"], "sold": ["2024-01-31"] * 2})
        >>> read(frame).described
        'numbers: size; dates: sold; categories: kind (2)'
    """
    reading = reading or Reading()
    target, no_features = reading.target, reading.no_features
    frame, file = frame_of(source, [*no_features, *reading.category_columns], reading)
    features: dict[str, Column | None] = {str(name): None for name in frame if str(name) not in no_features}
    if not features:
        raise InputError(f"{source} has no feature columns, only the target {target!r}: add at least one column.")
    reader = ColumnReader(reading, file, is_fit=True)
    if target is None:
        return read_columns(frame, features, reader)
    found, notes, faults = None, list[str](), list[str]()
    try:
        found, notes = _read_target(frame[target], reader)
    except Fault as error:
        faults.append(f"Target column {target!r} {error}")
    table = read_columns(frame, features, reader, *faults)  # refuses with the faults of all columns
    rows = np.flatnonzero(frame[target].notna())
    return dataclasses.replace(table, target=found, rows=rows, notes=(*notes, *table.notes))


def read_columns(
    frame: "pd.DataFrame", known: Mapping[str, Column | None], reader: ColumnReader, *faults: str
) -> Table:
    """Return columns, by names and what they were in a fit, as numbers, dates or text; refuse all with `faults`."""
    import pandas as pd

    read_by_name, told = dict[str, ReadColumn](), [*faults]
    for name, before in known.items():
        try:
            read_by_name[name] = reader.feature(frame[name], before)
        except Fault as error:
            told.append(f"Column {name!r} {error}")
    if told:
        start = f"{reader.file or 'X'} cannot be used"
        if len(told) == 1:
            raise InputError(f"{start}: {told[0]}")
        listing = "".join(f"\n  {number}. {fault}" for number, fault in enumerate(told[:MOST_LISTED], 1))
        more = f"\n  and {len(told) - MOST_LISTED:,} more" if len(told) > MOST_LISTED else ""
        raise InputError(f"{start}, for {len(told)} reasons (row {reader.first_row} comes first):{listing}{more}")
    columns = pd.DataFrame({name: read.column for name, read in read_by_name.items()})
    schema = {name: read.schema for name, read in read_by_name.items()}
    notes = tuple(read.note for read in read_by_name.values() if read.note)
    return Table(columns, schema, frame, notes, reader.reading)


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame of pandas or polars; a lazy frame is refused."""
    if hasattr(type(X), "collect"):  # a frame of pandas has its columns as attributes
        raise InputError(f"X is a {type(X).__name__}, which has no values yet: collect it first, X.collect().")
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def frame_of(source: Any, wanted: Sequence[str], reading: Reading) -> "tuple[pd.DataFrame, Path | None]":
    """Return a source as a frame with these columns, and its path if it is a file."""
    if isinstance(source, (str, Path)):
        check_names(Path(source), wanted, reading)
        return read_file(Path(source), reading), Path(source)
    frame = framed(source)
    if lost := [name for name in wanted if name not in frame]:
        raise InputError(f"X has no column {lost[0]!r}: pass the columns of the fit, {listed(frame)}.")
    return frame, None


def framed(source: Any) -> "pd.DataFrame":
    """Return a frame as one of pandas, whose rows have numbers and columns different names."""
    if not is_frame(source):
        raise InputError(f"A table is a path or a data frame, got {type(source).__name__}.")
    frame = source.to_pandas() if hasattr(source, "to_pandas") else source
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"X has more than one column of the name {listed(map(repr, twice))}: rename or drop them.")
    return frame.set_axis(names, axis=1).reset_index(drop=True)


def require_known(y: Any) -> None:
    """Refuse targets that are missing or infinite, naming their rows; other targets are for scikit-learn to check."""
    import pandas as pd

    values = np.asarray(y)
    if values.ndim and not values.size:
        raise InputError(f"`y` must not be empty, got shape {values.shape}: pass a target for each row.")
    if not values.ndim or values.dtype.kind not in "fO":
        return
    infinite = np.isinf(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
    for bad, noun in ((pd.isna(values), "NaN"), (infinite, "infinity")):
        if (rows := bad.reshape(len(bad), -1).any(1)).any():
            raise InputError(f"Input y contains {noun}, in {rows_of(np.flatnonzero(rows).tolist())}: drop those rows.")


def _read_target(given: "pd.Series", reader: ColumnReader) -> tuple[Target, list[str]]:
    """Return the target of the rows that have one, and notes on how it was read."""
    present = given.dropna()
    if present.empty:
        raise Fault("has no value in any row: choose another target.")
    reader.refuse_gaps(given, "drop those rows")
    without_gaps = dataclasses.replace(reader.reading, missing="raise")
    # `is_fit=True` would advise to let odd texts count as missing, but targets are never drawn
    column, schema, note = ColumnReader(without_gaps, reader.file, is_fit=False).as_typed(present.infer_objects())
    notes = [note] if note else []
    if isinstance(schema, Dates):
        raise Fault("holds dates: turn them into numbers, such as days since some date, or into classes.")
    if num_gaps := len(given) - len(present):
        notes.insert(0, f"{counted(num_gaps, 'row')} ({reader.rows(given.isna())}) without a target: left out")
        column = column.astype(np.int64) if _is_whole(column) else column  # gaps made floats of them
    task, hint = _task_of(column) if reader.reading.task is None else (reader.reading.task, "")
    if task == "regression":
        return _real(column, reader, hint), notes
    return _classes(column, order_of(given), is_told=reader.reading.task is not None, hint=hint), notes


def _is_whole(column: "pd.Series") -> bool:
    """Return whether a column holds whole numbers; flags are none."""
    return column.dtype.kind in "iuf" and bool((column % 1 == 0).all())


def _task_of(column: "pd.Series") -> tuple[Task, str]:
    """Return the task that a target asks for, and what else it may be; refuse whole numbers that leave it open."""
    counts, is_float = advised("; say so if they are counts", _COUNTS), column.dtype.kind == "f"
    if not _is_whole(column):
        return "regression" if is_float else "classification", ""
    is_amount = bool(column.min() >= 0) and column.median() >= LEAST_AMOUNT
    if is_float:
        return "regression", "" if is_amount or column.min() < 0 else counts
    if (num := column.nunique()) <= _MOST_CLASSES:
        return "classification", f"{counts} or {advised('amounts', _AMOUNTS)}"
    if is_amount:
        return "regression", ""
    held = f"holds {num} different whole numbers, {column.min():g} to {column.max():g}"
    kinds = f"{advised('counts', _AMOUNTS, _COUNTS)}, {advised('amounts', _AMOUNTS)} or {advised('classes', _CLASSES)}"
    raise Fault(f"{held}: say whether they are {kinds}.")


def _real(column: "pd.Series", reader: ColumnReader, hint: str) -> Target:
    """Return real values, finite and not all the same."""
    if column.dtype.kind not in "iufb":
        such = f"{column.iloc[0]!r} in {reader.rows(column.notna())}"
        raise Fault(f"must be numeric for a regression, and holds text, such as {such}: mend it.")
    if (infinite := column.astype(np.float64).abs() == np.inf).any():
        raise Fault(f"must be finite, and is not in {reader.rows(infinite)}: drop those rows.")
    values = column.to_numpy(dtype=np.float64)
    if len(values) > 1 and (values == values[0]).all():
        raise Fault(f"is {values[0]:g} in all {len(values)} rows: there is nothing to learn from it.")
    return Target("regression", values, (), ("whole numbers" if _is_whole(column) else "real numbers") + hint)


def _classes(column: "pd.Series", order: list[Any] | None, *, is_told: bool, hint: str) -> Target:
    """Return classes, the sorted values or those of an order."""
    is_whole = _is_whole(column)
    if column.dtype.kind == "f" and not is_whole:
        raise Fault("must hold whole numbers or text for a classification: ask for a regression.")
    values = column.to_numpy(np.int64) if is_whole else column.astype(str).to_numpy(dtype=str)
    classes, codes = np.unique(values, return_inverse=True)
    if order is not None:
        classes = np.array([name for name in map(str, order) if name in classes])
        codes = (values[:, None] == classes).argmax(1)
    names = tuple(str(name) for name in classes)
    if len(names) < 2:
        raise Fault(f"has only one class, {names[0]!r}: a classification needs at least two.")
    if not (is_whole or is_told) and len(names) > max(_MOST_TEXTS, len(values) / 10):
        held = f"holds {len(names)} different texts in {len(values)} rows, such as {names[0]!r}"
        rest = {_NUMBER_CHARACTERS.sub("", name) for name in names}
        numbers = f"remove {min(rest)!r} from its numbers" if len(rest) == 1 and all(rest) else "make numbers of it"
        raise Fault(f"{held}, too many for classes: {numbers}, or {advised('say so', _CLASSES)}.")
    if odd := [name for name in names if "\0" in name]:
        raise Fault(f"has a class with a null character, {odd[0]!r}: rename it.")
    shown = "" if is_told else f", {', '.join(names[:_MOST_CLASSES])}{', ...' if len(names) > _MOST_CLASSES else ''}"
    noun = f"{len(names)} classes" if is_told or not is_whole else f"only {len(names)} different whole numbers"
    is_ordered = is_whole or order is not None or column.dtype == bool
    return Target("classification", codes, names, f"{noun}{shown}{hint}", is_ordered)
