"""Data of a round length, so that one compiled step serves sets of about the same size."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyrobnn._core.random import is_random_state, random_state, set_random_state
from pyrobnn._torch.pyro import fast_pyro
from pyrobnn.data.batches import Batch

_LEAST_STEP, _SIZES = 8, 8
"""Lengths are multiples of 8, and of so much that there are at most 8 from a length to its double."""
_RELATIVE_ERROR = 1e-4
"""Of numbers in single precision, whose order of summation depends on the length."""
_MOVES = ((1.0, 0.0), (1.0, 0.3), (-1.0, 0.3))
"""Looks at parameters a p + b e, e standard normal: at the start a factor of zero, or units that no row activates, may
hide a part of the network."""


class Seen(NamedTuple):
    """What a step computes.

    Attributes:
        numbers: of each row, (N, ...), or of all together, ().
        buffers: as the step leaves them.
    """

    numbers: list[Tensor]
    buffers: list[Tensor]


Look = Callable[[Batch, tuple[float, float]], Seen]
"""Returns what a step computes from data with weights, its parameters moved by one of `_MOVES`; nothing changes."""


def padded(data: Sequence[Batch], look: Look) -> list[Batch]:
    """Return data of the next round length, with weights: those of the added rows, the first again, are zero.

    Data stay as they are where such rows change what is computed of the others, as under batch normalisation, or draw
    random numbers, as examples with noise of their own do, and where the network refuses another length.

    Args:
        data: of each replicate, inputs (N, *in), targets (N, ...) and, where there are any, weights (N,).
        look: at what is to stay.
    """
    num_rows = len(data[0][0])
    step = max(_LEAST_STEP, 2 ** (num_rows - 1).bit_length() // (2 * _SIZES))
    before = random_state()
    try:
        with torch.no_grad(), fast_pyro():
            unchanged = all(_is_same(look, values, move) for values in data for move in _MOVES)
    except (RuntimeError, ValueError, IndexError, AssertionError):
        unchanged = False
    set_random_state(before)
    return [_repeated(values, -num_rows % step) if unchanged else values for values in data]


def _is_same(look: Look, data: Batch, move: tuple[float, float]) -> bool:
    """Return whether as many rows again change nothing."""
    before = random_state()
    alone = look(_repeated(data, 0), move)
    after = random_state()
    set_random_state(before)
    beside_others = look(_repeated(data, len(data[0])), move)
    return (
        is_random_state(after)
        and all(map(_is_close, alone.numbers, beside_others.numbers))
        and all(map(torch.equal, alone.buffers, beside_others.buffers))
    )


def _is_close(one: Tensor, other: Tensor) -> bool:
    """Return whether numbers differ in rounding alone; what is not finite in both says nothing."""
    largest = float(one.where(one.isfinite(), 0).abs().amax())
    other = other[: len(one)] if one.ndim else other
    return torch.allclose(one, other, rtol=_RELATIVE_ERROR, atol=_RELATIVE_ERROR * largest, equal_nan=True)


def _repeated(data: Batch, count: int) -> Batch:
    """Return data with weights, and the first row so many times more, with weight zero."""
    x, y, *weights = data
    own = weights[0] if weights else torch.ones(len(x), device=x.device)
    longer = [torch.cat([values, values[:1].expand(count, *values.shape[1:])]) for values in (x, y)]
    return (*longer, torch.cat([own, own.new_zeros(count)]))
