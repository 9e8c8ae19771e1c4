"""Rows that lack values: imputed copies of them, to fit and to predict."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyrobnn.data.in_memory import Data

TO_FIT = 5  # copies of a row that lacks values
TO_PREDICT = 100  # with 20, rows that lack a column that nearly gives the target had .2 to 3 nats less
_FITS_A_COLUMN = 5
_MOST_LEARNED_ROWS = 2000
_ROWS_A_TERM = 40  # rows for each term of a regression with squares and products


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Imputer:
    """Draws of the values that rows lack, given those that they have.

    Each column that rows lack is regressed on the others in turn, and values are drawn from the predictive distribution
    (`sklearn.impute.IterativeImputer`; van Buuren & Groothuis-Oudshoorn 2011), with squares and products where rows
    suffice and the evidence is for them. The category of a row is that whose column is largest.

    Args:
        rows: inputs to learn from, (D, features), with NaN; 2000 at most are kept, evenly taken.
        categories: the positions of the columns of each category; rows with zeros in all of them have an unknown one.
        targets: number of the last columns, targets, which help to draw inputs (Little 1992); new rows lack them.
    """

    rows: np.ndarray
    categories: Sequence[Sequence[int]] = ()
    targets: int = 0

    def __post_init__(self) -> None:
        """Keep some of the rows; a column without any value becomes zeros."""
        places = np.linspace(0, len(self.rows) - 1, min(len(self.rows), _MOST_LEARNED_ROWS)).round().astype(int)
        rows = np.array(self.rows[places], np.float64, order="C")
        rows[:, np.isnan(rows).all(0)] = 0.0
        object.__setattr__(self, "rows", rows)

    def lacking(self, x: np.ndarray) -> np.ndarray:
        """Return what rows (N, features) lack, likewise: NaN, and columns of a category that are zeros."""
        lacks = np.isnan(x)
        for at in self.categories:
            lacks[:, at] |= (x[:, at] == 0).all(1, keepdims=True)
        return lacks

    def copies(self, x: np.ndarray, number: int) -> np.ndarray:
        """Return rows with several values for what they lack, (number, N, features)."""
        lacks = self.lacking(x)
        if not lacks.any():
            return np.repeat(x[None], number, 0)
        known = np.where(self.lacking(self.rows), np.nan, self.rows)[:, : x.shape[1]]
        targets = self.targets if x.shape[1] == self.rows.shape[1] else 0
        used = np.setdiff1d(np.arange(x.shape[1]), [at[-1] for at in self.categories])  # the last follows from others
        gaps = np.where(lacks, np.nan, x)
        # with a column that tells of no other, so that a table of one column has a regression
        rows = np.column_stack([known[:, used], np.arange(len(known)) % 2])
        new = np.column_stack([gaps[:, used], np.ones(len(gaps))])
        filled = np.repeat(gaps[None], number, 0)
        for seed, of_fit in enumerate(np.array_split(np.arange(number), min(number, _FITS_A_COLUMN))):
            drawn = _fitted(rows, new, targets, seed).transform(np.tile(new, (len(of_fit), 1)))
            filled[np.ix_(of_fit, np.arange(len(new)), used)] = drawn[:, :-1].reshape(len(of_fit), len(new), -1)
        for at in self.categories:
            scores = filled[..., at]
            scores[..., -1] = 1 - scores[..., :-1].sum(-1)
            filled[..., at] = np.eye(len(at))[scores.argmax(-1)]
        filled[:, ~lacks] = x[~lacks]
        return filled


def _fitted(known: np.ndarray, gaps: np.ndarray, targets: int, seed: int) -> Any:
    """Return an imputer, by rows that are known, of the columns that they or the rows with gaps lack, within bounds."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.feature_selection import VarianceThreshold
    from sklearn.impute import IterativeImputer
    from sklearn.linear_model import ARDRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    width = known.shape[1] - 1
    others = width - targets
    is_quadratic = _ROWS_A_TERM * width * (width + 3) // 2 <= len(known)
    # bounds keep chains of curves finite; values that targets help to draw stay in the range of their column
    powers = PolynomialFeatures(2 if is_quadratic else 1, include_bias=False)
    low, high = np.nanmin(known, 0), np.nanmax(known, 0)
    reach = np.where(high > low, high - low, 1.0) / 2
    for column in range(width):
        seen = known[~np.isnan(known[:, column]), :others]
        gone = gaps[np.isnan(gaps[:, column]), :others]
        least, most = np.nanmin(seen, 0, initial=np.inf), np.nanmax(seen, 0, initial=-np.inf)
        away = np.abs(2 * gone - least - most)[:, most > least] / (most - least)[most > least]
        furthest = np.nanmax(away, initial=1.0)  # of rows that lack the column, in half ranges of those that have it
        reach[column] *= 1 + 2 * furthest**2 if furthest > 1 or not targets else 1
    imputer = IterativeImputer(
        make_pipeline(VarianceThreshold(), StandardScaler(), powers, ARDRegression(max_iter=50)),
        sample_posterior=True,
        max_iter=5,
        skip_complete=True,
        min_value=(low + high) / 2 - reach,
        max_value=(low + high) / 2 + reach,
        random_state=seed,
    )
    # complete columns have a regression if a row lacks them
    row_of_gaps = np.where(np.isnan(gaps).any(0), np.nan, np.nanmean(known, 0))
    return imputer.fit(np.vstack([known, row_of_gaps]))


def with_targets(x: np.ndarray, targets: np.ndarray, num_labels: int) -> np.ndarray:
    """Return inputs (N, features) and, beside them, numbers or a column for each of the labels 0, 1, ..."""
    y = np.eye(num_labels)[targets.astype(int)] if num_labels else targets.reshape(len(targets), -1)
    return np.concatenate([x, y], 1)


def with_copies(
    x: np.ndarray, y: np.ndarray, num_labels: int, imputer: Imputer | None, *, weights: Any, groups: Any, **same: Any
) -> Data:
    """Return inputs (N, features) and targets as `Data`; copies of a row share its weight and its group."""
    both = with_targets(x, y, num_labels)
    if imputer is not None and (lacks := imputer.lacking(both).any(1)).any():
        filled = imputer.copies(both[lacks], TO_FIT)[..., : x.shape[1]]
        rows = np.concatenate([np.flatnonzero(~lacks), *[np.flatnonzero(lacks)] * TO_FIT])
        weights = ((np.ones(len(x)) if weights is None else weights) / np.where(lacks, TO_FIT, 1))[rows]
        groups = rows if groups is None else groups[rows]
        x, y = np.concatenate([x[~lacks], *filled]), y[rows]
    return Data(x, y, weights=weights, groups=groups, **same)
