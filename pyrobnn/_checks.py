"""Checks on what users pass in; each refuses with a message that says what came, what was expected and what to do."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyrobnn._errors import InputError


def as_tensor(value: Any, name: str) -> Tensor:
    """Return numbers (tensor, array, data frame, nested list) as a tensor; refuse text, objects and ragged lists."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        array = value.to_numpy() if hasattr(value, "to_numpy") else _as_array(value, name)
        if array.dtype == object:
            array = _from_objects(array, name)
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"`{name}` must be numeric, got dtype {array.dtype}: encode text and dates as numbers first."
            )
        tensor = torch.from_numpy(np.array(array, dtype=_torch_dtype(array.dtype), order="C"))
    if tensor.is_complex():
        raise InputError(f"`{name}` must be real, got dtype {tensor.dtype}: split it into real and imaginary columns.")
    return tensor


def _as_array(value: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"`{name}` must be a rectangular array of numbers, got rows of unequal length.") from None


def _from_objects(array: np.ndarray, name: str) -> np.ndarray:
    try:
        return array.astype(float)
    except (TypeError, ValueError):
        raise InputError(
            f"`{name}` must be numeric, got dtype object (text or mixed values): encode them as numbers first."
        ) from None


def _torch_dtype(dtype: np.dtype) -> np.dtype:
    if dtype.kind in "bui":
        return np.dtype(np.int64)
    return dtype if dtype.itemsize in (4, 8) and dtype.isnative else np.dtype(np.float64)


def check_finite(value: Tensor, name: str) -> None:
    """Refuse NaN and infinite values, saying where the first one is."""
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        bad = (~torch.isfinite(value)).nonzero()
        raise InputError(
            f"`{name}` must be finite, got {len(bad)} NaN or infinite value(s), the first at index "
            f"{tuple(bad[0].tolist())}: drop or impute those rows."
        )


def check_inputs(x: Tensor, name: str = "x") -> None:
    """Refuse inputs that are not a non-empty, finite batch of rank two or more."""
    if x.ndim < 2:
        raise InputError(
            f"`{name}` must have shape (N, features), got {tuple(x.shape)}: for one feature pass {name}[:, None]."
        )
    if x.shape[0] == 0 or x.shape[1:].numel() == 0:
        raise InputError(f"`{name}` must not be empty, got shape {tuple(x.shape)}: pass at least one row and column.")
    check_finite(x, name)


def as_targets(value: Any, num_rows: int) -> Tensor:
    """Return targets as a finite tensor of shape (N,) or (N, K); a single column becomes (N,)."""
    y = as_tensor(value, "y")
    if y.ndim not in (1, 2):
        raise InputError(f"`y` must have shape (N,) or (N, K), got {tuple(y.shape)}: flatten it to one row an example.")
    if len(y) != num_rows:
        raise InputError(f"`x` and `y` must have the same number of rows, got {num_rows} and {len(y)}.")
    check_finite(y, "y")
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
