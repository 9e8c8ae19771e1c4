"""Tables of numbers and categories as matrices of numbers, by scikit-learn's imputers and encoders."""

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pyrobnn._core.counts import counted
from pyrobnn._core.errors import InputError, warn_user
from pyrobnn._core.table_cells import rows_of

if TYPE_CHECKING:
    from sklearn.compose import ColumnTransformer

_NUMBERS, _CATEGORIES = "numbers", "categories"
_NUMERIC_OBJECTS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
_OTHER_OBJECTS = ("complex", "date", "datetime", "datetime64", "time", "timedelta", "timedelta64", "period")
CATEGORIES = ("onehot", "ordinal")
"""How categories become numbers."""
MISSING = ("raise", "impute")
"""The treatments of missing values."""


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame of pandas or polars; a lazy frame is refused."""
    if hasattr(X, "collect"):
        raise InputError(f"X is a {type(X).__name__}, which has no values yet: collect it first, X.collect().")
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def require_distinct_names(frame: Any) -> None:
    """Refuse a frame with two columns of the same name.

    Raises:
        InputError: such a frame.
    """
    names = [str(name) for name in frame.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"X has more than one column of the name {', '.join(map(repr, twice))}: rename or drop them.")


def as_table(X: Any, encoder: "ColumnTransformer | None" = None) -> pd.DataFrame:
    """Return a frame, or a checked array of numbers, with columns of float64 or of objects; missing is NaN or None.

    With an encoder of `make_encoder`, columns match the fitted columns by position, and must be of the same kind.
    """
    frame = X
    if not isinstance(X, pd.DataFrame):
        frame = X.to_pandas() if is_frame(X) else pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    names = [str(name) for name in frame.columns] if encoder is None else list(encoder.feature_names_in_)
    fitted = {} if encoder is None else {name: step for step, _, of_step in encoder.transformers_ for name in of_step}
    columns = (frame.iloc[:, i].reset_index(drop=True) for i in range(frame.shape[1]))
    table = pd.DataFrame(
        {name: _as_column(column, name, fitted.get(name)) for name, column in zip(names, columns, strict=True)}
    )
    if encoder is not None:
        _tell_of_new_categories(table, encoder)
    return table


def _tell_of_new_categories(table: pd.DataFrame, encoder: "ColumnTransformer") -> None:
    """Warn of categories that the fit had not seen."""
    as_what = "they are predicted as a mixture of the known ones" if onehot_positions(encoder) else "their number is -1"
    known = {
        name: values
        for step_name, step, names in encoder.transformers_
        if step_name == _CATEGORIES
        for name, values in zip(names, step.categories_, strict=True)
    }
    for name, values in known.items():
        is_new = ~table[name].isin(values) & table[name].notna()
        if is_new.any():
            warn_user(
                f"Column {name!r} has categories that the fit had not seen, such as {table[name][is_new].iloc[0]!r}, "
                f"in {int(is_new.sum())} of {len(table)} rows: {as_what}."
            )


def tell_of_new_gaps(table: pd.DataFrame, encoder: "ColumnTransformer") -> None:
    """Warn of values that are missing in columns where none was when an encoder that fills them in was fitted."""
    gaps: set[str] = set()
    for kind, step, names in encoder.transformers_:
        if kind == _NUMBERS:
            gaps |= {names[place] for place in step.indicator_.features_}
        elif kind == _CATEGORIES:
            gaps |= {name for name, values in zip(names, step.categories_, strict=True) if None in [*values]}
    for name in (name for name in table if name not in gaps and table[name].isna().any()):
        warn_user(
            f"Column {name!r} has no value in {rows_of(table[name].isna(), 0)}, and had values in all rows of the fit: "
            "a number is taken as the mean, a category as one that the fit had not seen."
        )


def _as_column(column: pd.Series, name: str, fitted: str | None) -> pd.Series:
    """Return numbers and booleans as float64, text and categories as objects."""
    if fitted is not None and column.isna().all():
        return pd.Series([None] * len(column), dtype=float if fitted == _NUMBERS else object)
    kind = _kind(column, name)
    if fitted == _NUMBERS and kind == _CATEGORIES:
        column = column.astype(object)  # categories may be numbers
        if _kind(column, name) == _CATEGORIES:
            raise InputError(
                f"Column {name!r} had only numbers when the estimator was fitted, got {column.dropna().iloc[0]!r}: "
                "turn it into numbers, or fit with text in this column."
            )
    if (fitted or kind) == _NUMBERS:
        return pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return _as_categories(column, name, is_fitted=fitted is not None)


def _kind(column: pd.Series, name: str) -> str:
    """Return whether values are numbers or categories."""
    kind = column.dtype
    if isinstance(kind, pd.CategoricalDtype):
        return _CATEGORIES
    is_object = pd.api.types.is_object_dtype(kind)
    values = pd.api.types.infer_dtype(column, skipna=True) if is_object else ""
    is_number = pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind)
    if is_number or values in _NUMERIC_OBJECTS:
        return _NUMBERS
    if values in _OTHER_OBJECTS or not (is_object or pd.api.types.is_string_dtype(kind)):
        raise InputError(
            f"Column {name!r} has dtype {kind}{f' ({values})' if values else ''}: turn it into numbers, such as days "
            "since some date, or into categories."
        )
    return _CATEGORIES


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


def make_encoder(
    table: pd.DataFrame, categories: str, missing: str, weights: np.ndarray | None = None
) -> "ColumnTransformer":
    """Return a transformer, fitted to a table, to a matrix of numbers.

    Categories become columns of 0 and 1, or numbers; an unknown category later becomes zeros, or -1.
    Missing numbers become the mean of their column, and a column of 0 and 1 marks them; a missing category is a
    category of its own.

    Args:
        table: as `as_table` returns it.
        categories: an entry of `CATEGORIES`.
        missing: an entry of `MISSING`.
        weights: positive weights of rows, for the means.
    """
    from pyrobnn._core.random import seeded

    with seeded(0, "import"):  # scikit-learn imports rich, whose import draws random numbers
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    _check_choices(categories, missing)
    numeric = list(table.select_dtypes("number").columns)
    categorical = [name for name in table.columns if name not in numeric]
    imputer = SimpleImputer(add_indicator=True, keep_empty_features=True) if missing == "impute" else "passthrough"
    unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1, "encoded_missing_value": -1}
    onehot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = [
        (_NUMBERS, imputer, numeric),
        (_CATEGORIES, onehot if categories == "onehot" else OrdinalEncoder(**unknown), categorical),
    ]
    encoder = ColumnTransformer([step for step in steps if step[2]], verbose_feature_names_out="{feature_name}")
    encoder.set_output(transform="default").fit(table)
    if missing == "impute" and numeric and weights is not None:
        encoder.named_transformers_[_NUMBERS].statistics_ = _weighted_means(table[numeric].to_numpy(), weights)
    return encoder


def _check_choices(categories: str, missing: str) -> None:
    for name, value, known in (("categories", categories, CATEGORIES), ("missing", missing, MISSING)):
        if value not in known:
            raise InputError(f"`{name}` must be one of {', '.join(map(repr, known))}, got {value!r}.")


def _weighted_means(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean of each column, missing values left out, and 0 where all are missing."""
    present = ~np.isnan(values)
    total = weights @ present
    return (weights @ np.where(present, values, 0.0)) / np.where(total > 0, total, 1.0)


def learned(table: pd.DataFrame, categories: str, missing: str) -> dict[str, Any]:
    """Return what `make_encoder` learns of a table of numbers and text, in JSON's types, for `encoded`.

    It has the mean of each column of numbers and whether values were missing, and the categories of each other column.
    """
    _check_choices(categories, missing)
    numbers = table.select_dtypes("number")
    columns: dict[str, dict[str, Any]] = {name: {} for name in table.columns}
    if missing == "impute":
        gaps = np.isnan(numbers.to_numpy())
        means = np.ma.filled(np.ma.masked_array(numbers.to_numpy(), gaps).mean(axis=0), 0.0)
        for name, mean, has_missing in zip(map(str, numbers), means, gaps.any(axis=0), strict=True):
            columns[name] = {"mean": float(mean), "has_missing": bool(has_missing)}
    for name in (name for name in columns if name not in numbers):
        values = set(table[name])
        columns[name] = {"values": [*sorted(values - {None}), *({None} & values)]}
    return {"categories": categories, "missing": missing, "columns": columns}


def encoded(table: pd.DataFrame, stored: Mapping[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Return the matrix of a table, and names of its columns, as the encoder of `make_encoder` does.

    It works without scikit-learn, whose import takes seconds.

    Args:
        table: columns of float64, or of text and None.
        stored: a result of `learned`.
    """
    columns = stored["columns"]
    numbers = [name for name, column in columns.items() if "values" not in column]
    made = {name: table[name].fillna(columns[name].get("mean", np.nan)) for name in numbers}
    gaps = [name for name in numbers if columns[name].get("has_missing")]
    parts = [*made.items(), *((f"missingindicator_{name}", table[name].isna()) for name in gaps)]
    for name in (name for name in columns if name not in made):
        values = columns[name]["values"]
        if stored["categories"] == "onehot":
            has = ((value, table[name].isna() if value is None else table[name] == value) for value in values)
            parts += [(f"{name}_{value}", column) for value, column in has]
        else:
            codes = {value: code for code, value in enumerate(values)}
            parts.append((name, table[name].map(lambda value, codes=codes: codes.get(value, -1))))
    matrix = np.stack([column.to_numpy(dtype=np.float64) for _, column in parts], axis=1)
    return matrix, _distinct(name for name, _ in parts)


def origins(stored: Mapping[str, Any]) -> list[str]:
    """Return the column of the table that is behind each column of the matrix of `encoded`."""
    columns = stored["columns"]
    texts = {name: column["values"] for name, column in columns.items() if "values" in column}
    numbers = [name for name in columns if name not in texts]
    gaps = [name for name in numbers if columns[name].get("has_missing")]
    made = [(name, len(values) if stored["categories"] == "onehot" else 1) for name, values in texts.items()]
    return numbers + gaps + [name for name, count in made for _ in range(count)]


def onehot_positions(encoder: "ColumnTransformer") -> list[list[int]]:
    """Return the positions in the matrix of an encoder of the columns of 0 and 1 of each category."""
    step = encoder.named_transformers_.get(_CATEGORIES)
    if step is None or step.handle_unknown != "ignore":
        return []
    first = encoder.output_indices_[_CATEGORIES].start
    ends = itertools.accumulate(map(len, step.categories_), initial=first)
    return [list(range(start, end)) for start, end in itertools.pairwise(ends)]


def encoded_names(encoder: "ColumnTransformer") -> list[str]:
    """Return a name for each column of the matrix; a repeated name gets a number."""
    return _distinct(map(str, encoder.get_feature_names_out()))


def _distinct(given: Iterable[str]) -> list[str]:
    names: dict[str, None] = {}
    for name in given:
        new, count = name, 1
        while new in names:
            count += 1
            new = f"{name}_{count}"
        names[new] = None
    return list(names)


def require_complete(table: pd.DataFrame) -> None:
    """Refuse missing values, naming the first column with a gap."""
    counts = table.isna().sum()
    if counts.any():
        name = counts.index[counts > 0][0]
        others = int((counts > 0).sum()) - 1
        also = f", and others in {counted(others, 'more column')}" if others else ""
        raise InputError(
            f"Input X contains NaN: {counts[name]} of {len(table)} values of column {name!r} are missing, in "
            f"{rows_of(table[name].isna(), 0)}{also}. Drop "
            "those rows, impute them in a pipeline, or pass missing='impute'."
        )
