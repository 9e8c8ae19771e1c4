"""Data in the forms that users give them."""

from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from pyrobnn._core.errors import InputError
from pyrobnn._torch.inputs import X
from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import LoaderData
from pyrobnn.data.stored import StoredData


def as_data(given: Any) -> Data | StoredData | LoaderData:
    """Return data as they are, a pair (x, y) as `Data`, and a DataLoader as `LoaderData`."""
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return Data(*given)
    if isinstance(given, DataLoader):
        return LoaderData(given)
    if not isinstance(given, (Data, StoredData, LoaderData)):
        raise InputError(
            f"Expected Data(x, y), a pair (x, y), StoredData or a DataLoader, got {type(given).__name__}.", page="start"
        )
    return given


def first_rows(data: Data | StoredData | LoaderData) -> tuple[X, Tensor]:
    """Return inputs and targets to look at: all in memory, the first in files, or a loader's first batch."""
    return (data.x, data.y) if isinstance(data, Data) else data.head
