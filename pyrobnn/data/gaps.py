"""Rows with gaps: left out of a fit where they are few and like the others."""

from collections.abc import Mapping
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from pyrobnn._core.columns import Encoder
from pyrobnn._core.table_cells import How
from pyrobnn.data.donors import Donors, are_copies

_LEAST_SHARE, _FEWEST = 2 / 3, 20
"""Share and number of complete rows from which the others are left out."""
_ENOUGH = 10
"""Incomplete rows from which a column's gaps may tell of the target."""
_CHANCE = NormalDist().cdf(-3)
"""That the error of a single column's gaps is above three standard deviations by chance; several share it."""


class Rows(NamedTuple):
    """Checked rows.

    Attributes:
        table: inputs as `as_table` returns them.
        targets: targets as numbers.
        weights: positive weights, or None.
        read: how each column was read.
    """

    table: pd.DataFrame
    targets: np.ndarray
    weights: np.ndarray | None = None
    read: Mapping[str, How] | None = None

    @property
    def counts(self) -> np.ndarray:
        """How often each row counts."""
        return np.ones(len(self.table)) if self.weights is None else self.weights

    def where(self, chosen: np.ndarray) -> "Rows":
        """Return some of the rows."""
        table = self.table[chosen].reset_index(drop=True)
        weights = None if self.weights is None else self.weights[chosen]
        return Rows(table, self.targets[chosen], weights, self.read)


class Learned(NamedTuple):
    """What the rows to train on teach of gaps.

    Attributes:
        encoder: from their columns to inputs.
        donors: rows whose values stand for gaps in others; None where none can have any.
        kept: which rows are to be fitted, (N,).
    """

    encoder: Encoder
    donors: Donors | None
    kept: np.ndarray


def learn(rows: Rows, *, categories: str, missing: str, has_classes: bool, leaves_out: bool = True) -> Learned:
    """Return the encoder of rows to train on, and which of them to fit.

    Incomplete rows are left out if they are a third at most and their targets are as the others foretell. Else all
    rows stay: means fill the gaps, and columns of 0 and 1 mark them.

    Args:
        rows: the rows to train on.
        categories: an entry of `CATEGORIES`.
        missing: an entry of `MISSING`.
        has_classes: whether targets are classes.
        leaves_out: whether rows may be left out.
    """
    whole = ~rows.table.isna().any(axis=1).to_numpy()
    if missing == "impute" and leaves_out and _suffice(rows, whole, categories, has_classes=has_classes):
        found = _learned(rows, whole, categories, missing)
        if not _tell_of_target(found, rows, has_classes=has_classes):
            return found
    return _learned(rows, np.ones(len(whole), dtype=bool), categories, missing)


def _suffice(rows: Rows, whole: np.ndarray, categories: str, *, has_classes: bool) -> bool:
    """Return whether some rows have gaps, and the others suffice for a fit."""
    if whole.all() or rows.counts[whole].sum() < max(_FEWEST, _LEAST_SHARE * rows.counts.sum()):
        return False
    is_lost = has_classes and len(np.unique(rows.targets[whole])) < len(np.unique(rows.targets))
    texts = [name for name in rows.table if rows.table[name].dtype != np.float64]
    return not (is_lost or (categories == "ordinal" and rows.table[texts].isna().to_numpy().any()))


def _learned(rows: Rows, kept: np.ndarray, categories: str, missing: str) -> Learned:
    some, others = rows.where(kept), rows.table[~kept]
    lacking = [str(name) for name in others if others[name].isna().any()]
    encoder = Encoder.learn(some.table, categories, missing, some.weights, left_out=lacking, read=rows.read)
    if missing == "raise" and not encoder.onehot():
        return Learned(encoder, None, kept)
    weights = torch.from_numpy(some.counts)
    return Learned(encoder, Donors.of(torch.from_numpy(encoder.matrix(some.table)), weights, encoder.onehot()), kept)


def _tell_of_target(found: Learned, rows: Rows, *, has_classes: bool) -> bool:
    """Return whether targets of incomplete rows differ from what the complete ones foretell, for some column.

    The sum of errors of a regression on the complete rows is compared with its standard deviation, for the gaps of each
    column and each class. Whole numbers as weights are copies. Values that are missing at random leave a single one
    within 3; of several comparisons each has its share of that level (Bonferroni).
    """
    assert found.donors is not None  # values may be missing
    y = np.eye(int(rows.targets.max()) + 1)[rows.targets.astype(int)] if has_classes else rows.targets
    x = torch.from_numpy(found.encoder.matrix(rows.table))
    wanted = torch.from_numpy(np.asarray(y, dtype=np.float64).reshape(len(y), -1))
    kept, lacking = torch.from_numpy(found.kept), torch.from_numpy(~found.kept)
    is_copied = are_copies(torch.from_numpy(rows.counts))
    every = rows.counts if is_copied else rows.counts / rows.counts.mean()
    weights, counts = torch.from_numpy(every)[kept], every[~found.kept][:, None]
    errors, variances = found.donors.errors(x[kept], wanted[kept], x[lacking], wanted[lacking], weights=weights)
    share, squares = counts.sum() / float(weights.sum()), counts if is_copied else counts**2
    errors, variances = counts * errors.numpy(), squares * variances.numpy() * (1 + share)
    masks = [mask for mask in rows.table[~found.kept].isna().to_numpy().T if counts[mask].sum() >= _ENOUGH]
    most = NormalDist().inv_cdf(1 - _CHANCE / max(1, len(masks) * errors.shape[1]))
    return any(bool((np.abs(errors[mask].sum(0)) > most * variances[mask].sum(0) ** 0.5).any()) for mask in masks)
