"""Tables of numbers and categories as matrices of numbers."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pyrobnn._core.errors import InputError, counted, listed, warn_user
from pyrobnn.tables.cells import DATES, MARK, NUMBERS, TEXTS, expanded, order_of, read_cells, require_repeated, rows_of
from pyrobnn.tables.files import Sheet, has_decimal_commas
from pyrobnn.tables.texts import How, date_names

_NUMERIC_OBJECTS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
_OTHER_OBJECTS = ("complex", "date", "datetime", "datetime64", "time", "timedelta", "timedelta64", "period")
CATEGORIES = ("onehot", "ordinal")
"""How categories become numbers."""
MISSING = ("raise", "impute")
"""The treatments of missing values."""
_WORDS = "let it count as missing (missing='impute')"
"""What else to do about words among numbers or dates."""


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame of pandas or polars; a lazy frame is refused."""
    if hasattr(type(X), "collect"):  # a frame of pandas has its columns as attributes
        raise InputError(f"X is a {type(X).__name__}, which has no values yet: collect it first, X.collect().")
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def require_distinct_names(frame: Any) -> None:
    """Refuse a frame with two columns of the same name."""
    names = [str(name) for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"X has more than one column of the name {listed(map(repr, twice))}: rename or drop them.")


def as_table(X: Any, encoder: "Encoder | None" = None, *, words: bool = False) -> tuple[pd.DataFrame, dict[str, How]]:
    """Return a frame, or a checked array of numbers, as columns of float64, objects or dates, and how each was read.

    Texts that are numbers or dates are read as in files, unless they are categories of pandas. With an encoder, columns
    match the fitted columns by position. `words` tells whether words among numbers or dates count as missing.
    """
    frame = X
    if not isinstance(X, pd.DataFrame):
        frame = X.to_pandas() if is_frame(X) else pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    names = [str(name) for name in frame.columns] if encoder is None else [*encoder.made_from()]
    if len(names) != frame.shape[1]:
        raise InputError(f"X has {counted(frame.shape[1], 'column')}, and the fit had {len(names)}: pass those.")
    fitted = {} if encoder is None else encoder.read
    frame = frame.set_axis(names, axis=1).reset_index(drop=True)
    sheet = Sheet(frame, is_frame(X) and has_decimal_commas(frame), (), first_row=0)
    read = {name: _read(sheet, name, fitted.get(name), words=words) for name in names}
    table = pd.DataFrame({name: column for name, (column, _) in read.items()})
    return table, {name: how for name, (_, how) in read.items()}


def _read(sheet: Sheet, name: str, fitted: How | None, *, words: bool) -> tuple[pd.Series, How]:
    """Return a column, and how it was read."""
    column = sheet.frame[name]
    is_told = isinstance(column.dtype, pd.CategoricalDtype)
    if is_told and fitted is None:
        order = order_of(column)
        return as_column(column, name), {"kind": TEXTS} if order is None else {"kind": TEXTS, "order": order}
    if is_told:
        sheet = dataclasses.replace(sheet, frame=column.astype(object).to_frame())
    advice = _WORDS if fitted is None else "drop those rows"
    values, how, line = read_cells(sheet, name, f"Column {name!r}", fitted, words=words, advice=advice)
    if "words" in how:
        warn_user(f"C{line[1:]}.")
    if how["kind"] == DATES:
        return values, how
    values = as_column(values, name, None if fitted is None else fitted["kind"])
    if values.dtype == np.float64:
        return values, how
    if fitted is None:
        require_repeated(values, name, "drop it, or say that they are categories, X[...].astype('category')")
    return values, {"kind": TEXTS}


def tell_of_new_values(table: pd.DataFrame, encoder: "Encoder") -> None:
    """Warn of categories that the fit had not seen, and of missing values in columns where none was in the fit."""
    is_ordinal = encoder.categories == "ordinal"
    as_what = "their number is -1" if is_ordinal else "they are predicted as a mixture of the known ones"
    for name, (place, *_) in encoder.made_from().items():
        is_new, is_gap = encoder.new_values(table, place)
        if is_new.any():
            warn_user(
                f"Column {name!r} has categories that the fit had not seen, such as {table[place][is_new].iloc[0]!r}, "
                f"in {int(is_new.sum())} of {len(table)} rows: {as_what}."
            )
        if is_gap.any():
            warn_user(
                f"Column {name!r} has no value in {rows_of(is_gap, 0)}, and had values in all rows of the fit: "
                "it is predicted as a mixture over values that are drawn given the others."
            )


def as_column(column: pd.Series, name: str, fitted: str | None = None) -> pd.Series:
    """Return numbers and booleans as float64, text and categories as objects."""
    if fitted is not None and column.isna().all():
        return pd.Series([None] * len(column), dtype=float if fitted == NUMBERS else object)
    kind = _kind(column, name)
    if fitted == NUMBERS and kind == TEXTS:
        column = column.astype(object)  # categories may be numbers
        if _kind(column, name) == TEXTS:
            raise InputError(
                f"Column {name!r} had only numbers when the estimator was fitted, got {column.dropna().iloc[0]!r}: "
                "turn it into numbers, or fit with text in this column."
            )
    if (fitted or kind) == NUMBERS:
        return pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return _as_categories(column, name, is_fitted=fitted is not None)


def _kind(column: pd.Series, name: str) -> str:
    """Return whether values are numbers or categories."""
    kind = column.dtype
    if isinstance(kind, pd.CategoricalDtype):
        return TEXTS
    is_object = pd.api.types.is_object_dtype(kind)
    values = pd.api.types.infer_dtype(column, skipna=True) if is_object else ""
    is_number = pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind)
    if is_number or values in _NUMERIC_OBJECTS:
        return NUMBERS
    if values in _OTHER_OBJECTS or not (is_object or pd.api.types.is_string_dtype(kind)):
        raise InputError(
            f"Column {name!r} has dtype {kind}{f' ({values})' if values else ''}: turn it into numbers, such as days "
            "since some date, or into categories."
        )
    return TEXTS


def _as_categories(column: pd.Series, name: str, *, is_fitted: bool) -> pd.Series:
    """Return categories as objects, after a check that an encoder can compare them."""
    values = column.astype(object).to_numpy(copy=True)
    values[column.isna().to_numpy()] = None
    try:
        different = set(values) - {None}
        if not is_fitted:
            sorted(different)
    except TypeError:
        kinds = " and ".join(sorted({type(value).__name__ for value in values if value is not None}))
        raise InputError(
            f"Column {name!r} has values of type {kinds}: a column must have numbers alone, or text alone."
        ) from None
    return pd.Series(values, dtype=object)


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """From a table of numbers and categories to a matrix of numbers, as learned from the rows of a fit.

    The matrix has the numbers, NaN where they are missing, then marks of 0 and 1 for numbers of which some were missing
    in the fit, then the categories; an unknown category becomes zeros, or -1.

    Attributes:
        categories: an entry of `CATEGORIES`.
        missing: an entry of `MISSING`.
        columns: of categories their `values`, sorted, None last; of numbers of which one was missing `has_missing`.
        read: how each column of the table was read, with what `learned_reading` adds for dates.
    """

    categories: str
    missing: str
    columns: Mapping[str, Mapping[str, Any]]
    read: Mapping[str, How] = dataclasses.field(default_factory=dict)

    @classmethod
    def learn(
        cls, table: pd.DataFrame, categories: str, missing: str, *, read: Mapping[str, How] | None = None
    ) -> "Encoder":
        """Return the encoder that rows teach, as `as_table` and then `expanded` return them."""
        for name, value, known in (("categories", categories, CATEGORIES), ("missing", missing, MISSING)):
            if value not in known:
                raise InputError(f"`{name}` must be one of {', '.join(map(repr, known))}, got {value!r}.")

        def learned(column: pd.Series) -> dict[str, Any]:
            if column.dtype != np.float64:
                values = set(column)
                return {"values": [*sorted(values - {None}), *({None} & values)]}
            return {"has_missing": True} if column.isna().any() else {}

        return cls(categories, missing, {str(name): learned(table[name]) for name in table}, read or {})

    def is_numeric(self, name: str) -> bool:
        """Return whether a column, dates as numbers, holds numbers, and not categories."""
        return "values" not in self.columns[name]

    def transform(self, X: Any) -> np.ndarray:
        """Return the matrix of a frame with the columns of the fit, or of an array with as many."""
        if is_frame(X):
            names, given = [*self.made_from()], {str(name): name for name in X.columns}
            if lost := [name for name in names if name not in given]:
                raise InputError(f"X has no column {lost[0]!r}: pass the columns of the fit, {listed(names)}.")
            X = X[[given[name] for name in names]]
        return self.matrix(expanded(as_table(X, self)[0], self.read))

    def matrix(self, table: pd.DataFrame) -> np.ndarray:
        """Return the matrix, float64 with NaN in gaps, of a table that `as_table` and then `expanded` returned."""
        numbers, gaps, texts = self._kinds()
        parts = [table[numbers].to_numpy(dtype=np.float64), table[gaps].isna().to_numpy(dtype=np.float64)]
        for name, values in texts.items():
            codes = {value: code for code, value in enumerate(values)}
            code = np.array([codes.get(value, -1) for value in table[name]])[:, None]
            parts.append(code == np.arange(len(values)) if self.categories == "onehot" else code)
        return np.concatenate(parts, axis=1, dtype=np.float64)

    def get_feature_names_out(self) -> np.ndarray:
        """Return a name for each column of the matrix; a repeated name gets a number."""
        return np.array(_distinct(name for _, name in self._layout()), dtype=object)

    def positions(self) -> dict[str, list[int]]:
        """Return for each column of the table the columns of the matrix that are made from it."""
        places = self.places()
        return {name: sorted(at for one in made for at in places[one]) for name, made in self.made_from().items()}

    def places(self) -> dict[str, list[int]]:
        """Return what `positions` does, with the numbers of a date as columns of their own."""
        found: dict[str, list[int]] = {}
        for position, (name, _) in enumerate(self._layout()):
            found.setdefault(name, []).append(position)
        return found

    def made_from(self) -> dict[str, list[str]]:
        """Return for each column of the table its name, or those of the numbers of its dates."""
        made = {name: date_names(name, how) for name, how in self.read.items() if how["kind"] == DATES}
        return {name: made.get(name, [name]) for name in self.read or self.columns}

    def first_days(self) -> dict[str, str]:
        """Return for each column of dates the first date, from which its days count."""
        return {name: how["start"] for name, how in self.read.items() if how["kind"] == DATES}

    def onehot(self) -> list[list[int]]:
        """Return for each category the positions in the matrix of its columns of 0 and 1."""
        positions = self.places()
        return [positions[name] for name in self._kinds()[2] if self.categories == "onehot"]

    def new_values(self, table: pd.DataFrame, name: str) -> tuple[pd.Series, pd.Series]:
        """Return which values of a column are unknown categories, and which are missing as none was in the fit."""
        values, learned = table[name], self.columns[name]
        known = learned.get("values", ())
        is_gap = values.isna() & (not learned.get("has_missing", None in known))
        return values.notna() & (not self.is_numeric(name)) & ~values.isin(known), is_gap

    def _kinds(self) -> tuple[list[str], list[str], dict[str, list[Any]]]:
        """Return the columns of numbers, those of them with marks, and the values of the others."""
        numbers = [name for name in self.columns if self.is_numeric(name)]
        gaps = [name for name in numbers if self.columns[name].get("has_missing")]
        return numbers, gaps, {name: each["values"] for name, each in self.columns.items() if "values" in each}

    def _layout(self) -> list[tuple[str, str]]:
        """Return for each column of the matrix the column of the table behind it, and a name."""
        numbers, gaps, texts = self._kinds()
        made = {
            name: [f"{name}_{value}" for value in values] if self.categories == "onehot" else [name]
            for name, values in texts.items()
        }
        return [
            *zip(numbers, numbers, strict=True),
            *((name, f"{MARK}{name}") for name in gaps),
            *((name, made_of) for name, names in made.items() for made_of in names),
        ]


def _distinct(given: Iterable[str]) -> list[str]:
    names: dict[str, None] = {}
    for name in given:
        new, count = name, 1
        while new in names:
            count += 1
            new = f"{name}_{count}"
        names[new] = None
    return list(names)


def require_finite(table: pd.DataFrame, *, gaps: bool) -> None:
    """Refuse infinite numbers, and missing values unless `gaps`, naming the first column with any and its rows."""
    infinite = table.select_dtypes(np.number).isin([np.inf, -np.inf])
    for bad, noun, adjective in ((infinite, "infinity", "infinite"), (table.isna() & (not gaps), "NaN", "missing")):
        counts = bad.sum()
        if counts.any():
            name = counts.index[counts > 0][0]
            raise InputError(
                f"Input X contains {noun}: {counts[name]} of {len(table)} values of column {name!r} are {adjective}, "
                f"in {rows_of(bad[name], 0)}. Drop or impute them, or pass missing='impute'."
            )


def require_known(y: Any) -> None:
    """Refuse targets that are missing or infinite, naming their rows; other targets are for scikit-learn to check."""
    values = np.asarray(y)
    if values.ndim and not values.size:
        raise InputError(f"`y` must not be empty, got shape {values.shape}: pass a target for each row.")
    if not values.ndim or values.dtype.kind not in "fO":
        return
    infinite = np.isinf(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
    for bad, noun in ((pd.isna(values), "NaN"), (infinite, "infinity")):
        rows = bad.reshape(len(bad), -1).any(1)
        if rows.any():
            raise InputError(
                f"Input y contains {noun}, in {rows_of(rows, 0)}: a fit needs all targets. Drop those rows."
            )
