"""Checks of users' arguments; each message names the value, the expectation and a remedy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.masked import MaskedTensor

from pyrobnn._core.errors import InputError, counted
from pyrobnn._core.modes import plain

CONSTANT = 1e-14  # standard deviation of a column, as a share of its largest size, up to which it is constant
_WIDER = "the precision of the network: standardise the data, or use a network in float64 (`net.double()`)"
_FILLED = "drop those rows, or take BNNRegressor or BNNClassifier with missing='impute'"
_LEFT_OUT = "drop those rows, or have a likelihood of your own leave out what is missing"
_ENCODE = dict.fromkeys("xy", "encode text and dates as numbers first, or fit BNNRegressor or BNNClassifier, which do")


def check_flag(value: Any, name: str) -> bool:
    """Return True or False; text, for example, is refused, since any text counts as true."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"`{name}` must be True or False, got {value!r}.")
    return bool(value)


def check_count(value: Any, name: str) -> int:
    """Return a whole number of at least 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f"`{name}` must be a whole number, at least 1, got {value!r}.")
    return int(value)


def as_tensor(value: Any, name: str) -> Tensor:
    """Return numbers (tensor, array, data frame, nested list) as a dense tensor with all their digits."""
    if is_several(value):
        said = f"`{name}` must be one array or tensor, got a {type(value).__name__} of several."
        raise InputError(said, page="how-to/own-network")
    if isinstance(value, Tensor):
        tensor, is_wide = _plain(value, name), value.dtype == torch.uint64
    else:
        array = _as_array(value, name)
        if array.dtype.kind not in "biuf":
            raise InputError(f"`{name}` must be numeric, got dtype {array.dtype}: {_ENCODE.get(name, 'pass numbers')}.")
        is_kept = array.dtype.itemsize in (4, 8) and array.dtype.isnative
        dtype = np.int64 if array.dtype.kind in "bui" else array.dtype if is_kept else np.float64
        tensor = torch.from_numpy(np.array(array, dtype=dtype, order="C"))
        is_wide = array.dtype.kind == "u" and array.dtype.itemsize == 8
    if is_wide and bool((tensor < 0).any()):
        raise InputError(f"`{name}` has whole numbers beyond {2**63 - 1:,}: pass labels from 0, or float numbers.")
    if tensor.is_complex():
        raise InputError(f"`{name}` must be real, got dtype {tensor.dtype}: split it into real and imaginary columns.")
    return plain(tensor)


def _plain(value: Tensor, name: str) -> Tensor:
    """Return a dense tensor of a dtype that torch computes with."""
    is_odd = isinstance(value, MaskedTensor) or value.is_nested or value.is_quantized or value.is_meta
    if is_odd or value.layout != torch.strided:
        raise InputError(f"`{name}` must hold a number in each place: pass a dense tensor, as from `to_dense()`.")
    tensor = value.detach().resolve_neg()
    is_unsigned = tensor.dtype in (torch.uint16, torch.uint32, torch.uint64)
    is_byte = tensor.is_floating_point() and tensor.itemsize == 1
    return tensor.to(torch.int64) if is_unsigned else tensor.float() if is_byte else tensor


def check_unmasked(value: Any, name: str) -> None:
    """Refuse NumPy arrays, or lists of these, with masked values."""
    if isinstance(value, (list, tuple)) and any(map(np.ma.is_masked, value)):
        value = np.ma.array(value)
    if np.ma.is_masked(value):
        count = counted(int(np.ma.count_masked(value)), "masked value")
        raise InputError(f"`{name}` must hold a number in each place, got {count}: drop or impute those rows.")


def is_several(value: Any) -> bool:
    """Return whether a value is several arrays: a mapping, or a tuple with an array of two axes or more."""
    has_tables = isinstance(value, tuple) and any(getattr(part, "ndim", 0) > 1 for part in value)
    return has_tables or isinstance(value, Mapping)


def _as_array(value: Any, name: str) -> np.ndarray:
    """Return an array, of numbers where its values were objects."""
    if hasattr(value, "toarray"):
        raise InputError(f"`{name}` must hold a number in each place, got a {type(value).__name__}: pass `toarray()`.")
    check_unmasked(value, name)
    try:
        array: np.ndarray = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    except ValueError:
        raise InputError(f"`{name}` must be a rectangular array of numbers, got rows of unequal length.") from None
    except (TypeError, RuntimeError) as error:
        raise InputError(f"`{name}` cannot be read as an array ({error}): pass one tensor or array.") from None
    if array.dtype != object:
        return array
    try:
        return array.astype(float)
    except (TypeError, ValueError, OverflowError):
        remedy = f"{_ENCODE.get(name, 'pass numbers')}, and drop or impute missing values"
        raise InputError(f"`{name}` must be numeric, got text or mixed values (dtype object): {remedy}.") from None


def _is_finite(value: Tensor) -> bool:
    """Return whether all values are finite; the extremes take one pass over the data, `isfinite` three."""
    if not value.is_floating_point() or value.numel() == 0:
        return True
    return bool(torch.stack(value.aminmax()).isfinite().all())


def check_finite(value: Tensor, name: str, remedy: str = _FILLED, page: str | None = None) -> None:
    """Refuse NaN and infinite values, naming the place of the first."""
    if not _is_finite(value):
        bad = (~torch.isfinite(value)).nonzero()
        got = f"{counted(len(bad), 'NaN or infinite value')}, the first at index {tuple(bad[0].tolist())}"
        raise InputError(f"`{name}` must be finite, got {got}: {remedy}.", page=page)


def check_inputs(x: Tensor, name: str = "x", row: tuple[int, ...] | None = None) -> None:
    """Refuse inputs that are not a non-empty, finite batch of rank two or more; `row` is for `wrong_shape`."""
    if x.ndim < 2:
        raise InputError(wrong_shape(tuple(x.shape), row, name))
    if x.shape[0] == 0 or x.shape[1:].numel() == 0:
        raise InputError(f"`{name}` must not be empty, got shape {tuple(x.shape)}: pass at least one row and column.")
    check_finite(x, name)


def wrong_shape(got: tuple[int, ...] | str, row: tuple[int, ...] | None, name: str = "x") -> str:
    """Say that inputs of this shape are no rows, and what to do; `row` is the shape of one, where it is known."""
    hints = {
        f"for one feature pass {name}[:, None]": row is None or (row == (1,) and got != row and len(got) == 1),
        f"for one row pass {name}[None]": row is None or got == row,
        f"a fit to a mapping, {{{name!r}: {name}}}, takes sequences of any length": 2 < len(got) == len(row or ()) + 1,
    }
    hint = ", ".join(words for words, is_so in hints.items() if is_so)
    expected = "features" if row is None else ", ".join(map(str, row))
    return f"`{name}` must have shape (N, {expected}), got {got}{hint and ': '}{hint}."


def as_targets(value: Any, num_rows: int) -> Tensor:
    """Return targets as a finite tensor (N,), (N, K) or (N, *positions); a single column becomes (N,)."""
    y = as_tensor(value, "y")
    if not y.ndim:
        raise InputError("`y` must have shape (N,), (N, K) or (N, *positions), got a single number.")
    if len(y) != num_rows:
        raise InputError(f"`x` and `y` must have the same number of rows, got {num_rows} and {len(y)}.")
    if not y.numel():
        raise InputError(f"`y` must not be empty, got shape {tuple(y.shape)}: pass at least one target for each row.")
    check_finite(y, "y", *([_LEFT_OUT, "how-to/likelihoods"] if y.ndim > 1 else []))
    y = y.long() if y.dtype == torch.bool else y
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def check_range(value: Tensor, name: str) -> None:
    """Refuse numbers that became infinite in the precision of the network."""
    if not _is_finite(value):
        raise InputError(f"`{name}` has values beyond the range of {str(value.dtype)[6:]}, {_WIDER}.")


def check_digits(given: Tensor, cast: Tensor, name: str) -> None:
    """Refuse columns (N, ...) whose variation is lost to rounding in the network's precision, as far from zero."""
    if not cast.is_floating_point() or given.dtype == cast.dtype:
        return
    values = given.double().reshape(len(given), -1)
    lost = (values - cast.double().reshape(values.shape)).abs().amax(0)
    spread, largest = values.std(0, correction=0), values.abs().amax(0)
    most = max(0.01, 8 * torch.finfo(cast.dtype).eps)  # bfloat16 rounds standardised numbers by 1 % and more
    for column in ((spread > CONSTANT * largest) & (lost > most * spread)).nonzero()[:1].flatten().tolist():
        varies = f"varies by {float(spread[column]):.2g} about {float(values[:, column].mean()):.6g}"
        rounded = f"rounded by up to {float(lost[column]):.2g} in {str(cast.dtype)[6:]}"
        raise InputError(f"`{name}`, column {column}, {varies}, and is {rounded}, {_WIDER}.")
