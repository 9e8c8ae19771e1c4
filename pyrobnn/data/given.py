"""Data in the forms that users give them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import X
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import Loader


def as_data(given: Any) -> Data | Loader:
    """Return data as they are, a pair (x, y) as `Data`, and a DataLoader as `Loader`."""
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return Data(*given)
    given = as_loader(given)
    if not isinstance(given, (Data, Loader)):
        raise InputError(
            f"Expected Data(x, y), a pair (x, y) or a DataLoader, got {type(given).__name__}; of another "
            "iterable of batches make a bnn.Loader(iterable, num_data=N).",
            page="start",
        )
    return given


def as_loader(given: Any) -> Any:
    """Return a DataLoader as `Loader`, and anything else as it is."""
    return Loader(given) if isinstance(given, DataLoader) else given


def in_memory(data: Any, *, weighted: bool = False) -> Data:
    """Return `Data` or a pair (x, y) as `Data`; refuse data that are not in memory, and weights unless `weighted`."""
    given = as_data(data)
    if not isinstance(given, Data):
        raise InputError(f"Expected data in memory, got a {type(data).__name__}: pass bnn.Loader(loader).in_memory().")
    if given.weights is not None and not weighted:
        raise InputError("Every example counts once here, and these data have weights: pass Data(x, y) without them.")
    return given


def collected(data: Any, *, weighted: bool = False) -> Data:
    """Return data as `in_memory` does, and those of a loader collected in memory."""
    given = as_loader(data)
    return in_memory(given.in_memory() if isinstance(given, Loader) else given, weighted=weighted)


def first_rows(data: Data | Loader) -> tuple[X, Tensor]:
    """Return inputs and targets to look at: all in memory, or a loader's first batch."""
    return (data.x, data.y) if isinstance(data, Data) else data.head


def columns_by_name(x: Any, names: Sequence[str]) -> Any:
    """Return the columns of a frame in the order of training; by position where training had no names."""
    if not names or not hasattr(x, "columns"):
        return x
    labels = {str(label): label for label in x.columns}
    missing = [name for name in names if name not in labels]
    if not missing:
        return x[[labels[name] for name in names]]
    if list(names) == [f"x{i}" for i in range(len(names))]:
        return x
    raise InputError(f"`x` must have the columns of the training inputs; {missing[0]!r} is missing.")
