"""What plots are given: posteriors, data and names of classes."""

from collections.abc import Iterable, Sequence
from typing import Any

from pyrobnn.data.in_memory import Data
from pyrobnn.data.loader import in_memory
from pyrobnn.plots._style import plain
from pyrobnn.posterior.base import require_posterior


def examples(posteriors: Iterable[Any], data: Any) -> Data:
    """Return the data of a plot in memory; refuse what is no posterior, such as an estimator."""
    for given in posteriors:
        require_posterior(given)
    return in_memory(data, collect=True, weighted=True)


def class_name(label: int, names: Sequence[str], otherwise: str) -> str:
    """Return the name of a class, short enough for a heading."""
    return plain(names[label]) if label < len(names) else f"{otherwise}{label}"
