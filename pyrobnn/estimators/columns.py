"""Tables of numbers and categories as matrices of numbers, by scikit-learn's imputers and encoders."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from pyrobnn._errors import InputError

_NUMERIC_OBJECTS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
_ENCODERS = {
    "onehot": lambda: OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    "ordinal": lambda: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1),
}
_MISSING = ("raise", "impute")


def is_frame(X: Any) -> bool:
    """Whether X is a data frame of pandas or polars."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def as_table(X: Any) -> pd.DataFrame:
    """Return a frame, or a checked array of numbers, with columns of float64 or of objects; missing is NaN or None."""
    if not is_frame(X):
        return pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    frame = X if isinstance(X, pd.DataFrame) else X.to_pandas()
    return pd.DataFrame({str(name): _as_column(frame[name]) for name in frame.columns})


def _as_column(column: pd.Series) -> pd.Series:
    """Return numbers and booleans as float64, text and categories as objects."""
    kind = column.dtype
    is_number = _is_numeric(column)
    if pd.api.types.is_complex_dtype(kind) or not (is_number or _is_text(kind)):
        raise InputError(
            f"Column {column.name!r} has dtype {kind}: turn it into numbers, such as days since some date, or into "
            "categories."
        )
    if is_number:
        return pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan))
    values = column.astype(object).to_numpy(copy=True)
    values[column.isna().to_numpy()] = None
    return pd.Series(values, dtype=object)


def _is_numeric(column: pd.Series) -> bool:
    kind = column.dtype
    if pd.api.types.is_object_dtype(kind):
        return pd.api.types.infer_dtype(column, skipna=True) in _NUMERIC_OBJECTS
    return not isinstance(kind, pd.CategoricalDtype) and bool(pd.api.types.is_numeric_dtype(kind))


def _is_text(kind: Any) -> bool:
    is_text = pd.api.types.is_string_dtype(kind) or pd.api.types.is_object_dtype(kind)
    return bool(is_text) or isinstance(kind, pd.CategoricalDtype)


def make_encoder(table: pd.DataFrame, categories: str, missing: str) -> ColumnTransformer:
    """Return a transformer, fitted to a table, to a matrix of numbers.

    Categories become columns of 0 and 1, or numbers; one that the table does not have later becomes zeros, or -1.
    Missing numbers become the mean of their column, and a column of 0 and 1 tells where; a missing category is a
    category of its own, or -1.

    Raises:
        InputError: an unknown way to encode categories or to treat missing values.
    """
    for name, value, known in (("categories", categories, tuple(_ENCODERS)), ("missing", missing, _MISSING)):
        if value not in known:
            raise InputError(f"`{name}` must be one of {', '.join(map(repr, known))}, got {value!r}.")
    numeric = list(table.select_dtypes("number").columns)
    other = [name for name in table.columns if name not in numeric]
    imputer = SimpleImputer(add_indicator=True, keep_empty_features=True) if missing == "impute" else "passthrough"
    steps = [("numbers", imputer, numeric), ("categories", _ENCODERS[categories](), other)]
    encoder = ColumnTransformer([step for step in steps if step[2]], verbose_feature_names_out=False)
    return encoder.fit(table)


def require_complete(table: pd.DataFrame) -> None:
    """Refuse missing values, saying in which column the first stand.

    Raises:
        InputError: NaN or None.
    """
    counts = table.isna().sum()
    if counts.any():
        name = counts.index[counts > 0][0]
        others = int((counts > 0).sum()) - 1
        also = f", and others in {others} more column(s)" if others else ""
        raise InputError(
            f"Input X contains NaN: {counts[name]} of {len(table)} values of column {name!r} are missing{also}. Drop "
            "those rows, impute them in a pipeline, or pass missing='impute'."
        )
