"""Directions of inputs, along which errors may grow or have a sign."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Directions:
    """Columns of inputs, along which errors may grow or have a sign.

    Attributes:
        names: names of the D columns of more than two values; gaps are none.
        ranks: ranks of each, and then of each distance from the median of a column, (N, 2 D), as `ranks` has them.
    """

    names: Sequence[str]
    ranks: np.ndarray

    @classmethod
    def of(cls, x: object, names: Sequence[str]) -> "Directions":
        """Return those of inputs (N, columns); none of images or sequences."""
        if not isinstance(x, Tensor) or x.ndim != 2:
            return cls((), np.zeros((0, 0)))
        values = x.double().cpu().numpy()
        kept = [at for at, column in enumerate(values.T) if len(np.unique(column[~np.isnan(column)])) > 2]
        values = values[:, kept]
        shown = [names[at] if names else f"column {at}" for at in kept]
        return cls(shown, ranks(np.hstack([values, np.abs(values - np.nanmedian(values, axis=0))])))


def ranks(values: Tensor | np.ndarray) -> np.ndarray:
    """Return the ranks in each column of values (N,) or (N, K) as vectors of mean 0 and length 1, or 0 if all alike.

    Their products are Spearman's rank correlations. NaN has no rank and becomes 0, so that it says nothing.
    """
    import pandas as pd

    array = values.cpu().numpy() if isinstance(values, Tensor) else values
    found = pd.DataFrame(array.reshape(len(array), -1)).rank().to_numpy()
    found = np.nan_to_num(found - np.nanmean(found, axis=0))
    return found / np.linalg.norm(found, axis=0).clip(1e-9)
