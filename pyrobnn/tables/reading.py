"""Files and frames as columns to predict from and a target, without torch, so that a command answers at once."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from pyrobnn._core.errors import MOST_LISTED, InputError, counted, listed
from pyrobnn.tables.cells import DATES, NUMBERS, TEXTS, Read, Reader, order_of, rows_of
from pyrobnn.tables.files import Dialect, check_names, read_file
from pyrobnn.tables.texts import How

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["regression", "classification"]
CATEGORIES, MISSING = ("onehot", "ordinal"), ("raise", "impute")
"""How categories become numbers, and the treatments of missing values."""
LEAST_AMOUNT = 100
"""Median from which whole numbers that are not negative are amounts, such as prices, and not counts or classes."""
_MOST_CLASSES, _MOST_TEXTS = 10, 50
"""Different whole numbers that are classes where no task is given, and texts; more texts must come ten times each."""
_IN_WORDS = {NUMBERS: "numbers", DATES: "dates", TEXTS: "categories"}


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
        how: how each was read.
        frame: the whole table, as pandas has it.
        notes: what was assumed, a line for each.
        target: the target of the rows that have one, at positions `rows`; None where no column was named.
    """

    columns: "pd.DataFrame"
    how: dict[str, How]
    frame: "pd.DataFrame"
    notes: tuple[str, ...]
    target: Target | None = None
    rows: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def described(self) -> str:
        """The columns by their kinds, with the number of categories of each, in a line."""
        kinds = {
            name: "ordered categories" if "order" in how else _IN_WORDS[how["kind"]] for name, how in self.how.items()
        }
        shown = {kind: list[str]() for kind in (*_IN_WORDS.values(), "ordered categories")}
        for name, kind in kinds.items():
            is_text = self.how[name]["kind"] == TEXTS
            shown[kind].append(f"{name} ({self.columns[name].nunique(dropna=False)})" if is_text else name)
        return "; ".join(f"{kind}: {listed(each)}" for kind, each in shown.items() if each)


def read(
    source: Any,
    *,
    target: str | None = None,
    task: str | None = None,
    id: str | None = None,
    drop: Sequence[str] = (),
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    categories: str | Sequence[str] = "onehot",
    missing: str = "raise",
) -> Table:
    """Read a file or a frame of pandas or polars: numbers, dates and categories to predict from, and a target.

    Args:
        source: a path, .csv, .csv.gz, .tsv, .txt, .xlsx or .parquet, with names in its first line, or a frame.
        target: the column to predict, if any.
        task: "regression" or "classification", where the target leaves it open.
        id: a column that names the rows.
        drop: other columns that are left out.
        sep: what separates columns of a file of text; its first lines tell it if not given.
        decimal: the mark of decimals; a point if not given, and columns that leave it open are named in `notes`.
        encoding: of a file of text; UTF-8 if not given.
        categories: "onehot" or "ordinal", and columns that are categories whatever they hold, as ["ordinal", "zip"].
        missing: "raise" refuses missing numbers and dates; "impute" leaves them open, and rows without a target out.
            Missing texts are a category.

    Raises:
        InputError: a file that cannot be read, or columns that cannot be used; one message has all, with their rows.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"size": ["1,050", "990"], "kind": ["flat", "house"], "sold": ["2024-01-31"] * 2})
        >>> table = bnn.tables.read(frame)
        >>> table.described
        'numbers: size; dates: sold; categories: kind (2)'
    """
    told = [name for name in ([categories] if isinstance(categories, str) else categories) if name not in CATEGORIES]
    for name, value, values in (
        ("task", task, (None, *get_args(Task))),
        ("decimal", decimal, (None, ".", ",")),
        ("missing", missing, MISSING),
    ):
        if value not in values:
            raise InputError(f"`{name}` must be one of {', '.join(map(repr, values))}, got {value!r}.")
    wanted = [name for name in (target, id, *drop) if name is not None]
    frame = _frame(source, [*wanted, *told], Dialect(sep, decimal, encoding))
    names = [name for name in map(str, frame.columns) if name not in wanted]
    if not names:
        raise InputError(f"{source} has no feature columns, only the target {target!r}: add at least one column.")
    reader = Reader(_is_path(source), is_new=True, decimal=decimal, missing=missing, categories=told)
    faults, notes, found = list[str](), list[str](), None
    is_known = np.ones(len(frame), dtype=bool) if target is None else frame[target].notna().to_numpy()
    if target is not None:
        try:
            found = _target(frame[target], reader, task, notes)
        except InputError as error:
            faults.append(str(error))
    table = _read(source, frame, dict.fromkeys(names), reader, faults=faults, notes=notes)
    return dataclasses.replace(table, target=found, rows=np.flatnonzero(is_known))


def read_again(source: Any, before: Mapping[str, How], missing: str, dialect: Dialect) -> Table:
    """Return columns of a file or a frame for prediction, in this order, read as in training."""
    frame = _frame(source, list(before), dialect._replace(decimal=dialect.decimal or "."))
    reader = Reader(_is_path(source), is_new=False, decimal=dialect.decimal, missing=missing)
    return _read(source, frame, before, reader)


def _read(
    source: Any,
    frame: "pd.DataFrame",
    before: Mapping[str, How | None],
    reader: Reader,
    *,
    faults: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Return columns as numbers, dates or text, and how each was read; refuse their faults in one message."""
    import pandas as pd

    read, faults = dict[str, Read](), [*faults]
    for name, known in before.items():
        try:
            read[name] = reader.feature(frame[name], known)
        except InputError as error:
            faults.append(str(error))
    if faults:
        start = f"{source if reader.is_file else 'X'} cannot be used"
        if len(faults) == 1:
            raise InputError(f"{start}: {faults[0]}")
        told = "".join(f"\n  {number}. {fault}" for number, fault in enumerate(faults[:MOST_LISTED], 1))
        more = f"\n  and {len(faults) - MOST_LISTED:,} more" if len(faults) > MOST_LISTED else ""
        raise InputError(f"{start}, for {len(faults)} reasons (row {int(reader.is_file)} comes first):{told}{more}")
    columns, lines = pd.DataFrame({name: one.column for name, one in read.items()}), (one.line for one in read.values())
    return Table(columns, {name: one.how for name, one in read.items()}, frame, (*notes, *filter(None, lines)))


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame of pandas or polars; a lazy frame is refused."""
    if hasattr(type(X), "collect"):  # a frame of pandas has its columns as attributes
        raise InputError(f"X is a {type(X).__name__}, which has no values yet: collect it first, X.collect().")
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _is_path(source: Any) -> bool:
    return isinstance(source, (str, Path))


def _frame(source: Any, wanted: Sequence[str], dialect: Dialect) -> "pd.DataFrame":
    """Return a source as a frame with these columns."""
    if _is_path(source):
        check_names(Path(source), wanted, dialect)
        return read_file(Path(source), dialect)
    frame = framed(source)
    if lost := [name for name in wanted if name not in frame]:
        raise InputError(f"X has no column {lost[0]!r}: pass the columns of the fit, {listed(frame)}.")
    return frame


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
            raise InputError(f"Input y contains {noun}, in {rows_of(rows, 0)}: drop those rows.")


def _target(given: "pd.Series", reader: Reader, task: str | None, notes: list[str]) -> Target:
    """Return the target of the rows that have one; a line on how it was read goes to the notes."""
    from pandas.api import types

    label, present = f"Target column {given.name!r}", given.dropna()
    if present.empty:
        raise InputError(f"{label} has no value in any row: choose another target.")
    if reader.missing == "raise":
        reader.refuse_gaps(given, label, "drop those rows")
    elif num := len(given) - len(present):
        notes.append(f"{counted(num, 'row')} ({reader.rows(given.isna())}) without a target: left out")
    column, how, line = dataclasses.replace(reader, missing="raise").read(present.infer_objects(), label)
    notes += filter(None, [line])
    if how["kind"] == DATES:
        raise InputError(f"{label} holds dates: turn them into numbers, such as days since some date, or into classes.")
    is_whole = types.is_numeric_dtype(column.dtype) and not types.is_bool_dtype(column.dtype)
    is_whole = is_whole and bool((column % 1 == 0).all())
    is_real = types.is_float_dtype(column.dtype) and not (is_whole and len(present) < len(given))  # gaps made floats
    is_amount = is_whole and bool(column.min() >= 0) and column.median() >= LEAST_AMOUNT
    has_many = column.nunique() > _MOST_CLASSES
    if task is None and is_whole and not is_real and has_many and not is_amount:
        raise InputError(
            f"{label} holds {column.nunique()} different whole numbers, {column.min():g} to {column.max():g}: say "
            "whether they are counts (--set likelihood.type=poisson), amounts (--task regression) or classes (--task "
            "classification); in Python by `task`."
        )
    if task == "regression" or (task is None and (is_real or (is_amount and has_many))):
        return _real(column, label, reader, is_whole=is_whole, may_count=not (line or is_amount or task))
    if is_real and not is_whole:
        raise InputError(f"{label} must hold whole numbers or text for a classification: ask for a regression.")
    return _classes(column, label, order_of(given), is_told=task is not None, is_whole=is_whole)


def _real(column: "pd.Series", label: str, reader: Reader, *, is_whole: bool, may_count: bool) -> Target:
    """Return real values, finite and not all the same."""
    from pandas.api import types

    if not types.is_numeric_dtype(column.dtype):
        such = f"{column.iloc[0]!r} in {reader.rows(column.notna())}"
        raise InputError(f"{label} must be numeric for a regression, and holds text, such as {such}: mend it.")
    values = column.to_numpy(dtype=np.float64)
    if np.isinf(values).any():
        infinite = column.astype(np.float64).abs() == np.inf
        raise InputError(f"{label} must be finite, and is not in {reader.rows(infinite)}: drop those rows.")
    if len(values) > 1 and (values == values[0]).all():
        raise InputError(f"{label} is {values[0]:g} in all {len(values)} rows: there is nothing to learn from it.")
    hint = "; if they are counts, --set likelihood.type=poisson" if may_count and is_whole and min(values) >= 0 else ""
    return Target("regression", values, (), ("whole numbers" if is_whole else "real numbers") + hint)


def _classes(column: "pd.Series", label: str, order: list[Any] | None, *, is_told: bool, is_whole: bool) -> Target:
    """Return classes, the sorted values or those of an order."""
    values = column.to_numpy(np.int64) if is_whole else column.astype(str).to_numpy(dtype=str)
    classes, codes = np.unique(values, return_inverse=True)
    if order is not None:
        classes = np.array([name for name in map(str, order) if name in classes])
        codes = (values[:, None] == classes).argmax(1)
    names = tuple(str(name) for name in classes)
    if len(names) < 2:
        raise InputError(f"{label} has only one class, {names[0]!r}: a classification needs at least two.")
    if not (is_whole or is_told) and len(names) > max(_MOST_TEXTS, len(values) / 10):
        held = f"{label} holds {len(names)} different texts in {len(values)} rows, such as {names[0]!r}"
        raise InputError(f"{held}, too many for classes: make numbers of it, or say so (--task classification).")
    if odd := [name for name in names if "\0" in name]:
        raise InputError(f"{label} has a class with a null character, {odd[0]!r}: rename it.")
    shown = f", {', '.join(names[:_MOST_CLASSES])}{', ...' if len(names) > _MOST_CLASSES else ''}"
    reason = f"{len(names)} classes{'' if is_told else shown}"
    if is_whole and not is_told:
        hint = "if they are counts, --set likelihood.type=poisson, if amounts, --task regression"
        reason = f"only {len(names)} different whole numbers, {', '.join(names)}; {hint}"
    is_ordered = is_whole or order is not None or column.dtype == bool
    return Target("classification", codes, names, reason, is_ordered)
