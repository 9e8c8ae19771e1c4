"""Complete rows whose values stand for what other rows lack."""

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_FEW, _MANY = 32, 64
"""Values that stand for a gap, and for several gaps of a row."""
_NEAREST, _NEAR = 32, 1.0
"""Donors at least, and the distance of predictions, in standard deviations of their errors, within which all are."""
_LEAST = 0.02
"""Share of the variance that a regression explains of rows left out, below which all donors are alike."""
_MOST_ROWS = 2000
_ROWS_FOR_EACH = 4
"""Donors for each term of a regression with squares and products."""
_FARTHEST = 4.0
"""Standard deviations at which regressors are cut off."""
_PENALTIES = tuple(10.0**power for power in range(-4, 3))
_AT_ONCE = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class Donors:
    """Rows of inputs that are complete, from which others have what they lack.

    A quadratic regression on what a row has predicts what it lacks. The donors are the rows of nearly the same
    prediction, and the values of a donor stay together (predictive mean matching: Rubin 1986, Little 1988). A number
    moves by the difference of the predictions, within the range of all (local residual draws: Schenker & Taylor 1996).
    Where the regression explains nothing, all rows are donors.

    Args:
        rows: inputs (D, features), float64.
        weights: how often each counts, (D,).
        categories: for each category the positions of its columns of 0 and 1; a row with zeros in all of them has an
            unknown one.

    Examples:
        >>> from pyrobnn.data.donors import Donors
        >>> rows = torch.arange(40.0).double()[:, None] * torch.tensor([1.0, 2.0])
        >>> donors = Donors(rows, torch.ones(40))
        >>> values, shares = donors.stand_ins(torch.tensor([[20.0, torch.nan]]).double())
        >>> float((shares * values[:, :, 1]).sum())
        39.0
    """

    rows: Tensor
    weights: Tensor
    categories: Sequence[Sequence[int]] = ()

    @classmethod
    def of(cls, rows: Tensor, weights: Tensor, categories: Sequence[Sequence[int]] = ()) -> "Donors":
        """Return some of these rows as donors, 2000 at most, evenly taken; whole numbers as weights become copies."""
        are_copies = torch.equal(weights, weights.round())
        ends = (weights if are_copies else torch.ones_like(weights)).double().cumsum(0)
        num = int(ends[-1])
        places = torch.linspace(0, num - 1, min(num, _MOST_ROWS), dtype=torch.float64).round()
        some = torch.searchsorted(ends, places, right=True)
        return cls(rows[some], torch.ones_like(weights[some]) if are_copies else weights[some], categories)

    def lacking(self, x: Tensor) -> Tensor:
        """Return what rows (N, features) lack, likewise: NaN, and columns of a category that are zeros."""
        lacks = x.isnan()
        for at in self.categories:
            lacks[:, at] |= x[:, at].eq(0).all(1, keepdim=True)
        return lacks

    def stand_ins(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows with what they lack from donors, (K, N, features), and the share of each, (K, N)."""
        lacks = self.lacking(x)
        values = x.nan_to_num().expand(_MANY, *x.shape).clone()
        shares = x.new_zeros(_MANY, len(x))
        shares[0] = 1.0
        for pattern in lacks[lacks.any(1)].unique(dim=0):
            chosen = (lacks == pattern).all(1).nonzero()[:, 0]
            for rows, found, parts in self._found(x, chosen, pattern):
                shares[:, rows] = 0.0
                shares[: len(parts), rows] = parts
                values[: len(parts), rows[:, None], pattern.nonzero()[:, 0]] = found
        used = int(shares.any(1).nonzero().max()) + 1
        return values[:used], shares[:used]

    def errors(self, known: Tensor, y: Tensor, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return errors of targets (N, K) of rows that lack values, and their variances, by a regression on others.

        Args:
            known: complete rows, (M, features).
            y: their targets, (M, K).
            x: other rows, (N, features).
            targets: their targets, (N, K).
        """
        values, shares = self.stand_ins(x)
        left_out, flat = _regressed(known, y, values.flatten(0, 1))
        predicted, share = flat.view(*shares.shape, -1), shares[..., None]
        mean = (share * predicted).sum(0)
        return targets - mean, (share * (predicted - mean).square()).sum(0) + left_out.square().mean(0)

    def _found(self, x: Tensor, chosen: Tensor, pattern: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield rows that lack the same, with values for that, (K, n, columns), and the share of each, (K, n)."""
        given = self.rows[:, pattern]
        lacked = _standard(given, given)
        errors, predicted = _regressed(self.rows[:, ~pattern], lacked, x[chosen][:, ~pattern])
        expected, unit = lacked - errors, _whitening(errors)
        different, first, kind = _distinct(given)
        most = _FEW if given.shape[1] == 1 else _MANY
        scale = torch.where(torch.tensor([len(column.unique()) > _FEW for column in given.T]), _spread(given), 0.0)
        order = (lacked @ torch.linalg.svd(lacked, full_matrices=False).Vh[0]).argsort(stable=True)
        for part in torch.arange(len(chosen)).split(max(1, _AT_ONCE // len(given))):
            distance = torch.cdist(predicted[part] @ unit, expected @ unit)
            reach = distance.kthvalue(min(_NEAREST, len(given)), dim=1).values.clamp_min(_NEAR)
            counts = (distance <= reach[:, None]) * self.weights
            if different <= most:
                of_kind = counts.new_zeros(len(part), different).index_add_(1, kind, counts)
                shares = (of_kind / of_kind.sum(1, keepdim=True)).T
                yield chosen[part], given[first][:, None].expand(-1, len(part), -1), shares
                continue
            ends = counts[:, order].cumsum(1)
            levels = (torch.arange(most, dtype=ends.dtype) + 0.5) / most * ends[:, -1:]
            picks = order[torch.searchsorted(ends, levels).clamp_max(len(order) - 1)].T
            found = given[picks] + scale * (predicted[part] - expected[picks])
            found = found.clamp(given.amin(0), given.amax(0))
            yield chosen[part], found, counts.new_full((most, len(part)), 1 / most)


def _distinct(rows: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return the number of distinct rows, where each occurs, and the number of the kind of each row."""
    kinds, kind = rows.unique(dim=0, return_inverse=True)
    first = torch.zeros(len(kinds), dtype=torch.int64).index_copy_(0, kind, torch.arange(len(rows)))
    return len(kinds), first, kind


def _spread(values: Tensor) -> Tensor:
    """Return the standard deviation of each column."""
    return (values - values.mean(0)).square().mean(0).sqrt()


def _standard(values: Tensor, like: Tensor) -> Tensor:
    """Return values in units of the columns of others; constant columns become zeros."""
    mean, std = like.mean(0), _spread(like)
    return torch.where(std > 1e-9 * (1 + mean.abs()), (values - mean) / std, 0.0)


def _whitening(errors: Tensor) -> Tensor:
    """Return the map of errors (D, K) to units of their covariance, of unit mean square."""
    values, vectors = torch.linalg.eigh(errors.T @ errors / len(errors))
    size = (values > 1e-9 * values.max()).sum().clamp_min(1)
    return vectors / (values.clamp_min(1e-6) * size).sqrt()


def _regressed(known: Tensor, wanted: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the errors of a regression for each of its rows left out, and its predictions for others.

    It has the ridge penalty of least error, by the closed form, and is the mean where it explains next to nothing.
    """
    inputs, rows = (_terms(_standard(values, known), len(known)) for values in (known, x))
    centre, middle, count = inputs.mean(0), wanted.mean(0), len(wanted)
    target = wanted - middle
    u, s, vh = torch.linalg.svd(inputs - centre, full_matrices=False)
    errors, slopes = target * count / max(1, count - 1), inputs.new_zeros(inputs.shape[1], wanted.shape[1])
    least = (1 - _LEAST) * errors.square().sum()
    for penalty in _PENALTIES if inputs.shape[1] else ():
        shrunk = s.square() / (s.square() + penalty * count)
        left = (1 - u.square() @ shrunk - 1 / count).clamp_min(1e-9)[:, None]
        found = (target - (u * shrunk) @ (u.T @ target)) / left
        if bool(found.square().sum() < least):
            least, errors = found.square().sum(), found
            slopes = vh.T @ ((s / (s.square() + penalty * count))[:, None] * (u.T @ target))
    return errors, middle + (rows - centre) @ slopes


def _terms(values: Tensor, count: int) -> Tensor:
    """Return columns, and their squares and products where so many donors allow it."""
    values, width = values.clamp(-_FARTHEST, _FARTHEST), values.shape[1]
    terms = [values]
    if _ROWS_FOR_EACH * 2 * width <= count:
        terms.append(values.square())
    if _ROWS_FOR_EACH * width * (width + 3) // 2 <= count:
        first, second = torch.triu_indices(width, width, 1)
        terms.append(values[:, first] * values[:, second])
    return torch.cat(terms, 1)
