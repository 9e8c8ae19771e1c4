"""Data of a round length, so that one compiled step serves sets of about the same size."""

from collections.abc import Callable

import torch
from torch import Tensor

from pyrobnn._core.random import is_random_state, random_state, set_random_state
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.data.batches import Batch

_LEAST_STEP, _SIZES = 8, 8
"""Lengths are multiples of 8, and of so much that there are at most 8 from a length to its double."""
_RELATIVE_ERROR = 1e-4
"""Of sums in single precision, whose order depends on the length."""


def padded(data: Batch, log_density: Callable[[Batch], Tensor]) -> Batch:
    """Return data of the next round length, with weights: those of the added rows, the first again, are zero.

    Data stay as they are where such rows change the density of the others, as under batch normalisation, or draw random
    numbers, as examples with noise of their own do.

    Args:
        data: inputs (N, *in), targets (N, ...) and, where there are any, weights (N,).
        log_density: of data with weights, ().
    """
    num_rows = len(data[0])
    step = max(_LEAST_STEP, 2 ** (num_rows - 1).bit_length() // (2 * _SIZES))
    before = random_state()
    with torch.no_grad(), fast_pyro():
        alone = log_density(_repeated(data, 0))
        after = random_state()
        set_random_state(before)
        beside_others = log_density(_repeated(data, num_rows))
    unchanged = is_random_state(after) and torch.allclose(alone, beside_others, rtol=_RELATIVE_ERROR)
    set_random_state(before)
    return _repeated(data, -num_rows % step) if unchanged else data


def _repeated(data: Batch, count: int) -> Batch:
    """Return data with weights, and the first row so many times more, with weight zero."""
    x, y, *weights = data
    own = weights[0] if weights else torch.ones(len(x), device=x.device)
    longer = [torch.cat([values, values[:1].expand(count, *values.shape[1:])]) for values in (x, y)]
    return (*longer, torch.cat([own, own.new_zeros(count)]))
