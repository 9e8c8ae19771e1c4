"""Maps of columns to more inputs of a network, fitted on training rows: ranks, and waves of ranks."""

import dataclasses
import math
from typing import ClassVar, Self, get_args

import torch
from torch import Tensor

from pyrobnn.data import InputColumns

_MOST_QUANTILES = 500
MOST_ROWS = 100_000


@dataclasses.dataclass(frozen=True, eq=False)
class InputMap:
    """A map of columns (N, C) to more inputs beside them, whose fields are tensors: files know it by their names."""

    @classmethod
    def fit(cls, x: Tensor, weights: Tensor | None) -> Self:
        """Return the map that training rows give, each counted by its weight (N,), or once."""
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Tensor:
        """Return the inputs (N, width), in the precision and place of x and the tensors."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class Ranks(InputMap):
    """Ranks from -1 to 1, linear between `quantiles` (C, Q), of which equal ones have the mean of their ranks.

    Then sines, then cosines: wave k of a rank from 0 to 1 turns by pi times `waves` (W,), that is 2^k.
    """

    quantiles: Tensor
    waves: Tensor
    num_waves: ClassVar[int] = 0

    @classmethod
    def fit(cls, x: Tensor, weights: Tensor | None) -> Self:
        """Take up to 500 quantiles in float64; a row of weight 2 counts as two.

        Of more than 100,000 rows as many are drawn at random.
        """
        if len(x) > MOST_ROWS:
            some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:MOST_ROWS].to(x.device)
            x, weights = x[some], None if weights is None else weights[some]
        values, order = x.double().sort(0)
        counts = (
            torch.ones_like(values) if weights is None else (weights * max(1, len(x) / float(weights.sum())))[order]
        )
        ends, total = counts.cumsum(0).T.contiguous(), float(counts[:, :1].sum())
        last = max(2, min(_MOST_QUANTILES, round(total))) - 1
        places = (torch.arange(last + 1, device=x.device).double() * (total - 1) / last).expand(len(ends), -1)
        low, high = (
            torch.searchsorted(ends, at.contiguous(), right=True) for at in (places.floor(), places.floor() + 1)
        )
        low, high = (values.T.gather(1, at.clamp(max=len(x) - 1)) for at in (low, high))
        waves = 2.0 ** torch.arange(cls.num_waves, dtype=torch.float64, device=x.device)
        return cls(low.lerp(high, places - places.floor()), waves)

    def __call__(self, x: Tensor) -> Tensor:
        """Return ranks and waves, (N, C + 2 C W)."""
        quantiles, last = self.quantiles, self.quantiles.shape[1] - 1
        first, after = (torch.searchsorted(quantiles, quantiles, right=is_right) for is_right in (False, True))
        ranks = (first + after - 1).to(x.dtype) / (2 * last)
        ranks = ranks.where(quantiles > quantiles[:, :1], 0).where(quantiles < quantiles[:, -1:], 1)
        values = x.T.contiguous()
        right = torch.searchsorted(quantiles, values.detach(), right=True).clamp(1, last)
        low, high = quantiles.gather(1, right - 1), quantiles.gather(1, right)
        share = ((values - low) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1)
        rank = ranks.gather(1, right - 1).lerp(ranks.gather(1, right), share).T
        angles = (math.pi * rank[:, :, None] * self.waves).flatten(1)
        return torch.cat([2 * rank - 1, angles.sin(), angles.cos()], 1)


class Waves(Ranks):
    """Ranks, with three waves."""

    num_waves = 3


PLAIN, *_NAMES = get_args(InputColumns)
INPUT_MAPS: dict[str, type[InputMap]] = dict(zip(_NAMES, (Ranks, Waves), strict=True))
"""The map of each kind of inputs that are not plain: a new one is a class here, and a name there."""
