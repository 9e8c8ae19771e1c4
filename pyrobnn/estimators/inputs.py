"""Inputs and targets of an estimator, as scikit-learn's users give them."""

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_X_y
from sklearn.utils.validation import validate_data

from pyrobnn._core.checks import as_tensor, check_unmasked
from pyrobnn._core.columns import Encoder, as_table, is_frame, require_distinct_names, require_known
from pyrobnn._core.errors import InputError
from pyrobnn._core.table_cells import How

NO_TARGETS = "no_validation"
"""In place of targets where there are none, as in scikit-learn."""


def read_rows(
    estimator: BaseEstimator, X: Any, y: Any, encoder: Encoder | None, *, words: bool, options: Mapping[str, Any]
) -> tuple[pd.DataFrame, dict[str, How], Any]:
    """Return inputs as a table, how each column was read, and targets, after scikit-learn's checks.

    The estimator keeps the names and the number of columns. `encoder` is None for a new fit; `words` among numbers or
    dates count as missing, or not; `options` are those of scikit-learn's validators for targets.
    """
    for values, name in ((X, "X"), (y, "y")):  # scikit-learn drops masks
        check_unmasked(values, name)
        if isinstance(values, torch.Tensor):
            as_tensor(values, name)
    require_known(y)
    reset, has_targets = encoder is None, not (isinstance(y, str) and y == NO_TARGETS)
    of_numbers = {"dtype": np.float64, "ensure_all_finite": False}
    if is_frame(X):
        require_distinct_names(X)
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        table, how = as_table(X, encoder, words=words)
        numbers = table.select_dtypes("number").to_numpy()
        rows = numbers if numbers.shape[1] else np.zeros((len(table), 1))
        _, y = check_X_y(rows, y if has_targets else np.zeros(len(rows)), **of_numbers, **options)
        return table, how, y
    _require_numbers(X, encoder)
    if has_targets:
        X, y = validate_data(estimator, X, y, reset=reset, **of_numbers, **options)
    else:
        X = validate_data(estimator, X, reset=reset, **of_numbers)
    return *as_table(X, encoder), y


def _require_numbers(X: Any, encoder: Encoder | None) -> None:
    """Refuse an array with texts that are no numbers, or dates: only the columns of a frame have a kind."""
    odd = _first_odd(X.to_numpy() if isinstance(X, pd.Series) else X)
    if odd is not None:
        names = "its columns" if encoder is None else f"the columns of the fit, {', '.join(encoder.made_from())}"
        raise InputError(f"X is an array with {str(odd)!r}, and arrays hold numbers: pass a data frame with {names}.")


def require_no_text(y: Any) -> None:
    """Refuse targets that are texts; objects may be texts of numbers, which scikit-learn reads."""
    values = np.zeros(0) if isinstance(y, torch.Tensor) else np.asarray(y)
    odd = values.flat[0] if values.dtype.kind == "U" and values.size else _first_odd(values)
    if isinstance(odd, str):
        raise InputError(
            f"BNNRegressor predicts numbers, and `y` holds text such as {str(odd)!r}: use BNNClassifier for classes, "
            "or make numbers of text that stands for them."
        )


def _first_odd(values: Any) -> Any:
    """Return the first text that is no number, or the first date, of an array; None if there is none."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "OUM":
        return None
    for value in values.flat:
        if isinstance(value, (datetime.date, np.datetime64)):
            return value
        if isinstance(value, str):
            try:
                float(value)
            except ValueError:
                return value
    return None
