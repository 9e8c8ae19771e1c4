"""The rows of a run folder whose values stand for those that new rows lack."""

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

from pyrobnn.data.donors import Donors

_FILE = "donors.safetensors"


def write_donors(donors: Donors | None, folder: Path) -> None:
    """Write the rows, if there are any."""
    if donors is not None:
        save_file({"rows": donors.rows, "weights": donors.weights}, folder / _FILE)


def read_donors(folder: Path, categories: Sequence[Sequence[int]]) -> Donors | None:
    """Return the rows, with the positions of the columns of each category; None if none were written."""
    if not (folder / _FILE).is_file():
        return None
    read = load_file(folder / _FILE)
    return Donors(read["rows"], read["weights"], categories)
