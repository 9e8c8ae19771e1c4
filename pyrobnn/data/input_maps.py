"""Ranks of columns, and waves of them, as more inputs of a network; fitted on training rows."""

import math
from typing import get_args

import torch
from torch import Tensor

from pyrobnn.data import InputColumns

MOST_ROWS = 100_000
_MOST_QUANTILES = 500
PLAIN, *_NAMES = get_args(InputColumns)
NUM_WAVES: dict[str, int] = dict(zip(_NAMES, (0, 3), strict=True))
"""The waves of a rank for each kind of inputs that are not plain."""


def quantiles_of(x: Tensor, weights: Tensor | None) -> Tensor:
    """Return up to 500 quantiles (C, Q) of columns (N, C) in float64; a row of weight 2 counts as two.

    Of more than 100,000 rows as many are drawn at random.
    """
    if len(x) > MOST_ROWS:
        some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:MOST_ROWS].to(x.device)
        x, weights = x[some], None if weights is None else weights[some]
    values, order = x.double().sort(0)
    counts = torch.ones_like(values) if weights is None else (weights * max(1, len(x) / float(weights.sum())))[order]
    ends, total = counts.cumsum(0).T.contiguous(), float(counts[:, :1].sum())
    last = max(2, min(_MOST_QUANTILES, round(total))) - 1
    places = (torch.arange(last + 1, device=x.device).double() * (total - 1) / last).expand(len(ends), -1)
    low, high = (torch.searchsorted(ends, at.contiguous(), right=True) for at in (places.floor(), places.floor() + 1))
    low, high = (values.T.gather(1, at.clamp(max=len(x) - 1)) for at in (low, high))
    return low.lerp(high, places - places.floor())


def ranks_of(x: Tensor, quantiles: Tensor, waves: Tensor) -> Tensor:
    """Return ranks from -1 to 1 of columns (N, C), then sines, then cosines, (N, C + 2 C W), in x's precision.

    Ranks are linear between quantiles (C, Q), of which equal ones have the mean of their ranks. Wave k of a rank from 0
    to 1 turns by pi times `waves` (W,), that is 2^k.
    """
    last = quantiles.shape[1] - 1
    first, after = (torch.searchsorted(quantiles, quantiles, right=is_right) for is_right in (False, True))
    ranks = (first + after - 1).to(x.dtype) / (2 * last)
    ranks = ranks.where(quantiles > quantiles[:, :1], 0).where(quantiles < quantiles[:, -1:], 1)
    values = x.T.contiguous()
    right = torch.searchsorted(quantiles, values.detach(), right=True).clamp(1, last)
    low, high = quantiles.gather(1, right - 1), quantiles.gather(1, right)
    share = ((values - low) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1)
    rank = ranks.gather(1, right - 1).lerp(ranks.gather(1, right), share).T
    angles = (math.pi * rank[:, :, None] * waves).flatten(1)
    return torch.cat([2 * rank - 1, angles.sin(), angles.cos()], 1)
