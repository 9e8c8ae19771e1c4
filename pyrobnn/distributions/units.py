"""Maps between the units of users and of models: standard units, and ranks of inputs."""

import dataclasses
import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pyrobnn._core.checks import CONSTANT
from pyrobnn._torch.inputs import X, single

_MOST_ROWS, _MOST_QUANTILES = 100_000, 500


@dataclasses.dataclass(frozen=True, eq=False)
class Scaler:
    """An affine map to zero mean and unit standard deviation, column by column, in float64.

    `loc` and `scale` have the shape of a row. A constant input has scale 1; a constant target, such as that of one row,
    has its size, so that predictions follow the unit of the targets.
    """

    loc: Tensor
    scale: Tensor

    @classmethod
    def identity(cls) -> "Scaler":
        """Return the map that changes nothing."""
        return cls(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))

    @property
    def is_identity(self) -> bool:
        """Whether the map changes nothing."""
        return self.loc.ndim == 0 and float(self.loc) == 0 and float(self.scale) == 1

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the map by name, of which `scaler_of` makes it again."""
        return dict(vars(self))

    def row(self, example: Tensor) -> tuple[int, ...]:
        """Return the shape of a row in original units, of an example (n, *in) in those of the model."""
        return tuple(self.loc.shape or example.shape[1:])

    @classmethod
    def fit(cls, values: Tensor, weights: Tensor | None = None, *, targets: bool = False) -> "Scaler":
        """Fit to values of shape (N, *row), inputs or targets, each row counted by its weight (N,), or once."""
        return Moments.of(values, weights).scaler(targets=targets)

    def transform[V: X](self, values: V) -> V:
        """Map original units to standard units, in at least the precision given, some rows at a time."""
        if self.is_identity:
            return values
        given = single(values, "A model with units")
        here = scaler_of(**{name: value.to(given.device) for name, value in self.tensors.items()})
        dtype = given.dtype if given.is_floating_point() else torch.float64
        return torch.cat([here.standard(part.double()).to(dtype) for part in given.split(_MOST_ROWS)])  # type: ignore[return-value]

    def standard(self, x: Tensor) -> Tensor:
        """Map values (N, *row) in the precision and place of the tensors to standard units, likewise."""
        return (x - self.loc) / self.scale

    def inverse(self, values: Tensor) -> Tensor:
        """Map standard units back to original units, in float64; the identity returns values as they are."""
        return values if self.is_identity else self.inverse_scale(values) + self.loc.to(values.device)

    def inverse_scale(self, values: Tensor) -> Tensor:
        """Map standard deviations in standard units back to original units, likewise."""
        return values if self.is_identity else values.double() * self.scale.to(values.device)

    def log_volume(self) -> float:
        """Return the log of the volume change, sum log scale: subtract it from a log density in standard units."""
        return float(self.scale.log().sum())


@dataclasses.dataclass(frozen=True, eq=False)
class InputScaler(Scaler):
    """Standard units of the `plain` columns of a table x (N, D), then ranks, and `waves` of them, of `columns` (C,).

    The column of the `offset`, (1,) or (0,), comes last, as it is.
    """

    columns: Tensor
    quantiles: Tensor
    waves: Tensor
    plain: Tensor
    offset: Tensor

    @property
    def inputs(self) -> Literal["plain", "ranks", "waves"]:
        """The inputs of the network that it makes of a table, as `Data` names them."""
        return "plain" if not len(self.columns) else "waves" if len(self.waves) else "ranks"

    def standard(self, x: Tensor) -> Tensor:
        """Map a table to all inputs, in the precision and place of the tensors."""
        ranks = _ranks_of(x[:, self.columns], self.quantiles, self.waves)
        return torch.cat([super().standard(x)[:, self.plain], ranks, x[:, self.offset]], 1)


def scaler_of(loc: Tensor, scale: Tensor, **more: Tensor) -> Scaler:
    """Return the map with these `tensors`; `TypeError` for other names. Files from before offsets have none."""
    if not more:
        return Scaler(loc, scale)
    places = {"plain": torch.arange(len(loc), device=loc.device), "offset": loc.new_empty(0, dtype=torch.int64)}
    return InputScaler(loc, scale, **(places | more))


class Moments(NamedTuple):
    """The number of rows, and mean, standard deviation and largest size of each of their columns, in float64."""

    num: int
    mean: Tensor
    deviation: Tensor
    largest: Tensor

    @classmethod
    def of(cls, values: Tensor, weights: Tensor | None = None) -> "Moments":
        """Return those of values (N, *row), each row counted by its weight (N,), or once.

        A power of two scales each column to a size near 1, where no square overflows or vanishes. The mean's rounding
        error is added to it, so that it has all its digits far from zero.
        """
        values = values.double()
        largest = values.abs().amax(0)
        unit = torch.where(largest > 0, largest / (2 * torch.frexp(largest).mantissa), 1.0)
        share = None if weights is None else (weights / weights.sum()).view(-1, *[1] * (values.ndim - 1))

        def average(numbers: Tensor) -> Tensor:
            return numbers.mean(0) if share is None else (share * numbers).sum(0)

        centred = values / unit
        mean = average(centred)
        missed = average(centred.sub_(mean))
        deviation = average(centred.sub_(missed).square_()).sqrt()
        return cls(len(values), (mean + missed) * unit, deviation * unit, largest)

    def merged(self, other: "Moments") -> "Moments":
        """Return those of the rows of both, without cancellation (Chan, Golub & LeVeque 1983)."""
        num = self.num + other.num
        share, change = other.num / num, other.mean - self.mean
        within = torch.hypot(self.deviation * math.sqrt(1 - share), other.deviation * math.sqrt(share))
        deviation = torch.hypot(within, change * math.sqrt(share * (1 - share)))
        return Moments(num, self.mean + change * share, deviation, torch.maximum(self.largest, other.largest))

    def scaler(self, *, targets: bool = False) -> Scaler:
        """Return the map of these columns to standard units."""
        constant = torch.where(self.largest > 0, self.largest, 1.0) if targets else torch.ones_like(self.deviation)
        is_constant = self.deviation <= CONSTANT * self.largest
        return Scaler(self.mean, torch.where(is_constant, constant, self.deviation))


def quantiles_of(x: Tensor, weights: Tensor | None) -> Tensor:
    """Return up to 500 quantiles (C, Q) of columns (N, C) in float64; a row of weight 2 counts as two.

    Of more than 100,000 rows as many are drawn at random.
    """
    if len(x) > _MOST_ROWS:
        some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_MOST_ROWS].to(x.device)
        x, weights = x[some], None if weights is None else weights[some]
    values, order = x.double().sort(0)
    counts = torch.ones_like(values) if weights is None else (weights * max(1, len(x) / float(weights.sum())))[order]
    ends, total = counts.cumsum(0).T.contiguous(), float(counts[:, :1].sum())
    last = max(2, min(_MOST_QUANTILES, round(total))) - 1
    places = (torch.arange(last + 1, device=x.device).double() * (total - 1) / last).expand(len(ends), -1)
    low, high = (torch.searchsorted(ends, at.contiguous(), right=True) for at in (places.floor(), places.floor() + 1))
    low, high = (values.T.gather(1, at.clamp(max=len(x) - 1)) for at in (low, high))
    return low.lerp(high, places - places.floor())


def _ranks_of(x: Tensor, quantiles: Tensor, waves: Tensor) -> Tensor:
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
