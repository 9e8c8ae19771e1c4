"""The draws of a prediction: their blocks, their variance, and whether a few of them make up the mean."""

import torch
from torch import Tensor

from pyrobnn._core.errors import FewDrawsWarning, warn_user
from pyrobnn._core.remedies import Remedy, reader
from pyrobnn._core.table_cells import rows_of
from pyrobnn._torch.vectorize import is_alike

_WIDEST = 2.0
"""Deviation over draws of the mean of counts, as a multiple of that mean, above which the mean is unreliable."""
MEDIAN = Remedy("take the median, `prediction.quantile(0.5)`", "take the median, the column `median` of predictions")
"""What to do where a few draws make up the mean."""


def joined(parts: list[Tensor]) -> Tensor:
    """Return blocks of draws as one tensor; equal draws share their memory, as in the blocks."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if is_alike(first) and all((is_alike(part) or len(part) == 1) and part[0].equal(first[0]) for part in parts[1:]):
        return first[:1].expand(sum(len(part) for part in parts), *first.shape[1:])
    return torch.cat(parts)


def variance_over_draws(values: Tensor) -> Tensor:
    """Return the population variance over the first axis, exactly 0 for equal values.

    Two passes over the distances to the first value are many times quicker than `Tensor.var(0)`.
    """
    distances = values - values[0]
    return distances.sub_(distances.mean(0)).square_().mean(0)


def rest_on_few(means: Tensor) -> Tensor:
    """Return the inputs (N,) where less than a fifth of the draws make up the mean, from non-negative means (S, N, *K).

    Means that are not finite count as such.
    """
    values = means.double().flatten(2) if means.ndim > 2 else means.double()[..., None]
    is_shared: Tensor = variance_over_draws(values).sqrt() <= _WIDEST * values.mean(0)
    return ~is_shared.all(1)


def tell_of_few_draws(rests_on_few: Tensor, num_draws: int, first_row: int) -> None:
    """Warn of inputs at which a few draws make up the mean; rows count from 1 at the command line, else from 0."""
    few = int(rests_on_few.sum())
    if few:
        first = first_row + (reader.get() == "command")
        where = f"{few} of {len(rests_on_few)} inputs ({rows_of(rests_on_few.tolist(), first)})"
        warn_user(
            f"The mean over {num_draws} draws rests on less than a fifth of them at {where}: a few draws predict far "
            "larger targets than the others. See docs/how-to/likelihoods.md.",
            FewDrawsWarning,
            remedies=(MEDIAN,),
        )
