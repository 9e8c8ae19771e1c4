"""Complete rows whose values stand for what other rows lack."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pyrobnn._core.errors import InputError, warn_user

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
_MOST_KEPT = 256
"""Patterns of gaps whose regressions are kept, each of 64 kB for 2000 donors, and of 16 kB for each further gap."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Donors:
    """Rows of inputs that are complete, from which others have what they lack.

    A quadratic regression on what a row has predicts what it lacks. The donors are the rows of nearly the same
    prediction, and the values of a donor stay together (predictive mean matching: Rubin 1986, Little 1988). A number
    moves by the difference of the predictions, within the range of all (local residual draws: Schenker & Taylor 1996).
    Where the regression explains nothing, all rows are donors.

    Args:
        rows: inputs (D, features), float64; none if they were not saved.
        weights: how often each counts, (D,). Whole numbers become copies (`of`); others count in shares, and in the
            regression all donors count alike.
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
    _kept: dict[bytes, "_Matching"] = dataclasses.field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        return f"Donors({len(self.rows)} rows, {self.rows.shape[1]} columns)"

    def __reduce__(self) -> Any:
        """Return what copies and pickles hold: no regressions."""
        return Donors, (self.rows, self.weights, self.categories)

    @classmethod
    def of(cls, rows: Tensor, weights: Tensor, categories: Sequence[Sequence[int]] = ()) -> "Donors":
        """Return some of these rows as donors, 2000 at most, evenly taken; whole numbers as weights become copies."""
        is_copied = are_copies(weights)
        ends = (weights if is_copied else torch.ones_like(weights)).double().cumsum(0)
        num = int(ends[-1])
        places = torch.linspace(0, num - 1, min(num, _MOST_ROWS), dtype=torch.float64).round()
        some = torch.searchsorted(ends, places, right=True)
        return cls(rows[some], torch.ones_like(weights[some]) if is_copied else weights[some], categories)

    def without_rows(self) -> "Donors":
        """Return what `save` keeps: what is lacking is known, and nothing stands for it."""
        return Donors(self.rows[:0], self.weights[:0], self.categories)

    def tell(self, x: Tensor, remedy: str) -> None:
        """Refuse rows (N, features) that lack numbers, and warn of unknown categories, for which nothing stands.

        Args:
            x: the rows.
            remedy: what to do instead.
        """
        gaps, lacks = int(x.isnan().any(1).sum()), int(self.lacking(x).any(1).sum())
        if gaps:
            raise InputError(f"{gaps} of {len(x)} rows lack values, and there are no donors for them: {remedy}.")
        if lacks:
            warn_user(
                f"{lacks} of {len(x)} rows have an unknown category, and are predicted as surely as others, without "
                f"donors: {remedy}."
            )

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

    def errors(self, known: Tensor, y: Tensor, x: Tensor, targets: Tensor, *, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return errors of targets (N, K) of rows that lack values, and their variances, by a regression on others.

        Args:
            known: complete rows, (M, features).
            y: their targets, (M, K).
            x: other rows, (N, features).
            targets: their targets, (N, K).
            weights: how often each complete row counts, (M,).
        """
        values, shares = self.stand_ins(x)
        regression, left_out = _regressed(known, y, weights)
        predicted, share = regression(values.flatten(0, 1)).view(*shares.shape, -1), shares[..., None]
        mean = (share * predicted).sum(0)
        spread = (share * (predicted - mean).square()).sum(0)
        return targets - mean, spread + _mean(left_out.square(), weights)

    def _found(self, x: Tensor, chosen: Tensor, pattern: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield rows that lack the same, with values for that, (K, n, columns), and the share of each, (K, n)."""
        given = self.rows[:, pattern]
        matching = self._matching(pattern, given)
        expected, unit, scale, order = matching.expected, matching.unit, matching.scale, matching.order
        different, first, kind = matching.kinds
        predicted = matching.regression(x[chosen][:, ~pattern])
        most = _FEW if given.shape[1] == 1 else _MANY
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

    def _matching(self, pattern: Tensor, given: Tensor) -> "_Matching":
        """Return what rows with these gaps have in common, once for all of them."""
        key = pattern.numpy().tobytes()
        found = self._kept.get(key)
        if found is None:
            found = _Matching.of(self.rows[:, ~pattern], given)
            for oldest in [*self._kept][: max(0, len(self._kept) + 1 - _MOST_KEPT)]:
                self._kept.pop(oldest, None)
            self._kept[key] = found
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Matching:
    """How donors are found for rows that lack the same columns.

    Attributes:
        regression: of the columns that are lacking, in standard units, on the others.
        expected: its predictions for each donor without it.
        unit: the map of its errors to units of their covariance.
        scale: of the columns that move by differences of predictions; 0 of others.
        order: the donors in order along the direction in which their values vary most.
        kinds: the number of distinct values, where each occurs, and which each donor has.
    """

    regression: "_Regression"
    expected: Tensor
    unit: Tensor
    scale: Tensor
    order: Tensor
    kinds: tuple[int, Tensor, Tensor]

    @classmethod
    def of(cls, known: Tensor, given: Tensor) -> "_Matching":
        """Return it for values (D, K) that are lacking elsewhere, and the other columns (D, J) of the same donors."""
        alike = torch.ones_like(given[:, 0])
        spread = _spread(given, alike)
        lacked = _in_units(given, given.mean(0), spread)
        regression, errors = _regressed(known, lacked, alike)
        varies = torch.tensor([len(column.unique()) > _FEW for column in given.T])
        order = (lacked @ torch.linalg.svd(lacked, full_matrices=False).Vh[0]).argsort(stable=True)
        scale = torch.where(varies, spread, 0.0)
        return cls(regression, lacked - errors, _whitening(errors), scale, order, _distinct(given))


@dataclasses.dataclass(frozen=True, eq=False)
class _Regression:
    """A ridge regression on columns, their squares and their products.

    Attributes:
        loc, scale: mean and standard deviation of the columns.
        count: rows that it was fitted to, each as often as it counts.
        centre, slopes, middle: means of the terms, slopes, and means of what is predicted.
    """

    loc: Tensor
    scale: Tensor
    count: float
    centre: Tensor
    slopes: Tensor
    middle: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return predictions for other rows."""
        terms = _terms(_in_units(x, self.loc, self.scale), self.count)
        return self.middle + (terms - self.centre) @ self.slopes


def are_copies(weights: Tensor) -> bool:
    """Return whether weights are whole numbers, which say how often each row is there."""
    return torch.equal(weights, weights.round())


def _distinct(rows: Tensor) -> tuple[int, Tensor, Tensor]:
    """Return the number of distinct rows, where each occurs, and the number of the kind of each row."""
    kinds, kind = rows.unique(dim=0, return_inverse=True)
    first = torch.zeros(len(kinds), dtype=torch.int64).index_copy_(0, kind, torch.arange(len(rows)))
    return len(kinds), first, kind


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of each column."""
    return (weights[:, None] * values).sum(0) / weights.sum()


def _spread(values: Tensor, weights: Tensor) -> Tensor:
    """Return the standard deviation of each column."""
    return _mean((values - _mean(values, weights)).square(), weights).sqrt()


def _in_units(values: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return values in units of means and standard deviations of columns; constant columns become zeros."""
    return torch.where(std > 1e-9 * (1 + mean.abs()), (values - mean) / std, 0.0)


def _whitening(errors: Tensor) -> Tensor:
    """Return the map of errors (D, K) to units of their covariance, of unit mean square."""
    values, vectors = torch.linalg.eigh(errors.T @ errors / len(errors))
    size = (values > 1e-9 * values.max()).sum().clamp_min(1)
    return vectors / (values.clamp_min(1e-6) * size).sqrt()


def _regressed(known: Tensor, wanted: Tensor, weights: Tensor) -> tuple[_Regression, Tensor]:
    """Return a regression, and its errors for each of its rows with one of its copies, as weights say, left out.

    It has the ridge penalty of least error, by the closed form, and is the mean where it explains next to nothing.
    """
    loc, scale, count = _mean(known, weights), _spread(known, weights), float(weights.sum())
    inputs, root = _terms(_in_units(known, loc, scale), count), weights.sqrt()[:, None]
    centre, middle = _mean(inputs, weights), _mean(wanted, weights)
    target = wanted - middle
    u, s, vh = torch.linalg.svd(root * (inputs - centre), full_matrices=False)
    errors, slopes = target * count / max(1, count - 1), inputs.new_zeros(inputs.shape[1], wanted.shape[1])
    least = (1 - _LEAST) * (root * errors).square().sum()
    for penalty in _PENALTIES if inputs.shape[1] else ():
        shrunk = s.square() / (s.square() + penalty * count)
        left = (1 - (u.square() @ shrunk)[:, None] / weights[:, None] - 1 / count).clamp_min(1e-9)
        found = (target - (u * shrunk) @ (u.T @ (root * target)) / root) / left
        if bool((root * found).square().sum() < least):
            least, errors = (root * found).square().sum(), found
            slopes = vh.T @ ((s / (s.square() + penalty * count))[:, None] * (u.T @ (root * target)))
    return _Regression(loc, scale, count, centre, slopes, middle), errors


def _terms(values: Tensor, count: float) -> Tensor:
    """Return columns, and their squares and products where so many donors allow it."""
    values, width = values.clamp(-_FARTHEST, _FARTHEST), values.shape[1]
    terms = [values]
    if _ROWS_FOR_EACH * 2 * width <= count:
        terms.append(values.square())
    if _ROWS_FOR_EACH * width * (width + 3) // 2 <= count:
        first, second = torch.triu_indices(width, width, 1)
        terms.append(values[:, first] * values[:, second])
    return torch.cat(terms, 1)
