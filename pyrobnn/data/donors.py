"""Complete rows whose values stand for what other rows lack."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError

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
_MOST_PATTERNS = 128
"""Sets of columns that rows lack, whose regressions are kept."""


@dataclasses.dataclass(frozen=True, eq=False)
class Donors:
    """Rows of inputs that are complete, from which others have what they lack.

    A quadratic regression on what a row has predicts what it lacks. The donors are the rows of nearly the same
    prediction, and the values of a donor stay together (predictive mean matching: Rubin 1986, Little 1988). A number
    moves by the difference of the predictions, within the range of all (local residual draws: Schenker & Taylor 1996).
    Where the regression explains nothing, all rows are donors.

    Args:
        rows: inputs (D, features), float64 on the CPU.
        weights: how often each counts, positive, (D,), likewise: in means, in the regression, and in the shares of
            donors. The nearest donors are as many rows whatever they weigh.
        categories: for each category the positions of its columns of 0 and 1; a row with zeros in all of them has an
            unknown one.

    Raises:
        InputError: rows with NaN.

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
    _matches: dict[bytes, "_Match"] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if num := int(self.rows.isnan().any(1).sum()):
            raise InputError(f"Donors must be complete, got {num} of {len(self.rows)} rows with NaN: leave these out.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rows, self.weights, self.categories)

    @classmethod
    def of(cls, rows: Tensor, weights: Tensor, categories: Sequence[Sequence[int]] = ()) -> "Donors":
        """Return some of these rows as donors, 2000 at most, evenly taken.

        Args:
            rows: inputs (N, features), float64 on the CPU.
            weights: how often each counts, (N,), likewise.
            categories: as `Donors` has them.

        Raises:
            InputError: NaN among the rows taken.
        """
        some = torch.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS), dtype=torch.float64).round().long()
        return cls(rows[some], weights[some], categories)

    def lacking(self, x: Tensor) -> Tensor:
        """Return what rows (N, features) lack, bool of that shape: NaN, and columns of a category that are zeros."""
        lacks = x.isnan()
        for at in self.categories:
            lacks[:, at] |= x[:, at].eq(0).all(1, keepdim=True)
        return lacks

    def stand_ins(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows with what they lack from donors, (K, N, features), and the share of each, (K, N).

        Args:
            x: inputs (N, features), float64 on the CPU, as what is returned.
        """
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

    def errors(self, known: Tensor, y: Tensor, weights: Tensor, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return errors of targets (N, K) of rows that lack values, and their variances, by a regression on others.

        All are float64 on the CPU, and so are the two results, (N, K).

        Args:
            known: complete rows, (M, features).
            y: their targets, (M, K).
            weights: how often each counts, (M,).
            x: other rows, (N, features).
            targets: their targets, (N, K).
        """
        values, shares = self.stand_ins(x)
        regression = _regressed(known, y, weights)
        predicted, share = regression.predict(values.flatten(0, 1)).view(*shares.shape, -1), shares[..., None]
        mean = (share * predicted).sum(0)
        return targets - mean, (share * (predicted - mean).square()).sum(0) + _mean(regression.errors.square(), weights)

    def _found(self, x: Tensor, chosen: Tensor, pattern: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield rows that lack the same, with values for that, (K, n, columns), and the share of each, (K, n)."""
        given, match = self.rows[:, pattern], self._match(pattern)
        predicted = match.regression.predict(x[chosen][:, ~pattern])
        most = _FEW if given.shape[1] == 1 else _MANY
        for part in torch.arange(len(chosen)).split(max(1, _AT_ONCE // len(given))):
            distance = torch.cdist(predicted[part] @ match.unit, match.expected @ match.unit)
            reach = distance.kthvalue(min(_NEAREST, len(given)), dim=1).values.clamp_min(_NEAR)
            counts = (distance <= reach[:, None]) * self.weights
            if len(match.first) <= most:
                of_kind = counts.new_zeros(len(part), len(match.first)).index_add_(1, match.kind, counts)
                shares = (of_kind / of_kind.sum(1, keepdim=True)).T
                yield chosen[part], given[match.first][:, None].expand(-1, len(part), -1), shares
                continue
            ends = counts[:, match.order].cumsum(1)
            levels = (torch.arange(most, dtype=ends.dtype) + 0.5) / most * ends[:, -1:]
            picks = match.order[torch.searchsorted(ends, levels).clamp_max(len(given) - 1)].T
            found = given[picks] + match.scale * (predicted[part] - match.expected[picks])
            found = found.clamp(given.amin(0), given.amax(0))
            yield chosen[part], found, counts.new_full((most, len(part)), 1 / most)

    def _match(self, pattern: Tensor) -> "_Match":
        """Return what is the same for all rows that lack the columns of a pattern; some patterns are kept."""
        key = pattern.numpy().tobytes()
        found = self._matches.get(key)
        if found is None:
            found = _Match.of(self.rows, self.weights, pattern)
            if len(self._matches) >= _MOST_PATTERNS:
                self._matches.clear()
            self._matches[key] = found
        return found


class _Regression(NamedTuple):
    """A quadratic regression.

    Attributes:
        errors: those of each of its rows if left out, (D, K).
        known: mean and standard deviation of regressors, two of (features,).
        num: the number of rows.
        centre: mean terms.
        slopes: of terms, (terms, K).
        middle: mean of what is predicted, (K,).
    """

    errors: Tensor
    known: tuple[Tensor, Tensor]
    num: int
    centre: Tensor
    slopes: Tensor
    middle: Tensor

    def predict(self, x: Tensor) -> Tensor:
        """Return predictions (N, K) for rows (N, features)."""
        return self.middle + (_terms(_standard(x, *self.known), self.num) - self.centre) @ self.slopes


class _Match(NamedTuple):
    """Donors for rows that lack the same.

    Attributes:
        regression: of what they lack on what they have.
        expected: its predictions for donors that are left out, (D, K).
        unit: the map to units of the errors' covariance.
        scale: standard deviations of numbers, and 0 for columns of few values.
        order: donors along the direction of most variance, (D,).
        first: where each distinct donor is first.
        kind: the number of the distinct donor that each is, (D,).
    """

    regression: _Regression
    expected: Tensor
    unit: Tensor
    scale: Tensor
    order: Tensor
    first: Tensor
    kind: Tensor

    @classmethod
    def of(cls, rows: Tensor, weights: Tensor, pattern: Tensor) -> "_Match":
        given = rows[:, pattern]
        mean, std = _moments(given, weights)
        lacked = _standard(given, mean, std)
        regression = _regressed(rows[:, ~pattern], lacked, weights)
        are_numbers = torch.tensor([len(column.unique()) > _FEW for column in given.T])
        along = torch.linalg.svd(weights.sqrt()[:, None] * lacked, full_matrices=False).Vh[0]
        return cls(
            regression,
            lacked - regression.errors,
            _whitening(regression.errors, weights),
            torch.where(are_numbers, std, 0.0),
            (lacked @ along).argsort(stable=True),
            *_distinct(given),
        )


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each distinct row occurs, and the number of the kind of each row."""
    kinds, kind = rows.unique(dim=0, return_inverse=True)
    return torch.zeros(len(kinds), dtype=torch.int64).index_copy_(0, kind, torch.arange(len(rows))), kind


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return weights @ values / weights.sum()


def _moments(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each column."""
    mean = _mean(values, weights)
    return mean, _mean((values - mean).square(), weights).sqrt()


def _standard(values: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return values in units of these; constant columns become zeros."""
    return torch.where(std > 1e-9 * (1 + mean.abs()), (values - mean) / std, 0.0)


def _whitening(errors: Tensor, weights: Tensor) -> Tensor:
    """Return the map of errors (D, K) to units of their covariance, of unit mean square."""
    values, vectors = torch.linalg.eigh(errors.T @ (weights[:, None] * errors) / weights.sum())
    size = (values > 1e-9 * values.max()).sum().clamp_min(1)
    return vectors / (values.clamp_min(1e-6) * size).sqrt()


def _regressed(known: Tensor, wanted: Tensor, weights: Tensor) -> _Regression:
    """Return a weighted regression, with the error of each row if that is left out with all its weight.

    It has the ridge penalty of least error, by the closed form, and is the mean where it explains next to nothing. The
    slopes are those of copies of rows. A row that stands for several is left out as a whole: its copies would foretell
    it, and weights that are not whole numbers have no copies.
    """
    moments, total = _moments(known, weights), weights.sum()
    inputs = _terms(_standard(known, *moments), len(known))
    centre, middle = _mean(inputs, weights), _mean(wanted, weights)
    root, own = weights.sqrt()[:, None], weights / total
    target = root * (wanted - middle)
    u, s, vh = torch.linalg.svd(root * (inputs - centre), full_matrices=False)
    found, slopes = target / (1 - own).clamp_min(1e-9)[:, None], inputs.new_zeros(inputs.shape[1], wanted.shape[1])
    least, errors = (1 - _LEAST) * found.square().sum(), found
    for penalty in _PENALTIES if inputs.shape[1] else ():
        shrunk = s.square() / (s.square() + penalty * total)
        left = (1 - u.square() @ shrunk - own).clamp_min(1e-9)[:, None]
        found = (target - (u * shrunk) @ (u.T @ target)) / left
        if bool(found.square().sum() < least):
            least, errors = found.square().sum(), found
            slopes = vh.T @ ((s / (s.square() + penalty * total))[:, None] * (u.T @ target))
    return _Regression(errors / root, moments, len(known), centre, slopes, middle)


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
