"""Rows with missing values: left out of the fit where they are few and like the others, and predicted as mixtures."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from pyrobnn._core.columns import Encoder
from pyrobnn.posterior.prediction import Prediction

_QUANTILES = (np.arange(32) + 0.5) / 32
"""Levels of the values that stand for a missing number."""
_LEAST_SHARE, _FEWEST = 2 / 3, 20
"""Share and number of complete rows from which the others are left out."""
_ENOUGH = 10
_STRANGE = 3.0
"""Incomplete rows, and standard errors of their mean error, from which missing values tell of the target."""


class Rows(NamedTuple):
    """Checked rows.

    Attributes:
        table: inputs as `as_table` returns them.
        targets: targets as numbers.
        weights: positive weights, or None.
    """

    table: pd.DataFrame
    targets: np.ndarray
    weights: np.ndarray | None

    @property
    def counts(self) -> np.ndarray:
        """How often each row counts."""
        return np.ones(len(self.table)) if self.weights is None else self.weights

    def where(self, chosen: np.ndarray) -> "Rows":
        """Return some of the rows."""
        table = self.table[chosen].reset_index(drop=True)
        return Rows(table, self.targets[chosen], None if self.weights is None else self.weights[chosen])


def complete_rows(rows: Rows, categories: str, *, has_classes: bool) -> np.ndarray | None:
    """Return which rows have all values, if some have not and the others suffice for a fit; else None."""
    gaps = rows.table.isna()
    whole = ~gaps.any(axis=1).to_numpy()
    if whole.all() or rows.counts[whole].sum() < max(_FEWEST, _LEAST_SHARE * rows.counts.sum()):
        return None
    texts = [name for name in rows.table if rows.table[name].dtype == object]
    is_lost = has_classes and len(np.unique(rows.targets[whole])) < len(np.unique(rows.targets))
    if is_lost or (categories == "ordinal" and gaps[texts].to_numpy().any()):
        return None
    return whole


def learned(rows: Rows, categories: str, missing: str, left_out: pd.DataFrame | None) -> Encoder:
    """Return the encoder that rows teach, which knows where those that were left out have gaps."""
    encoder = Encoder.learn(rows.table, categories, missing, rows.weights)
    gaps = [] if left_out is None else [name for name in left_out if left_out[name].isna().any()]
    known = {name: {**one, "left_out": name in gaps} for name, one in encoder.columns.items()}
    return encoder if left_out is None else dataclasses.replace(encoder, columns=known)


def values_of(rows: Rows, encoder: Encoder) -> dict[int, np.ndarray]:
    """Return, for each input that is a number without an indicator, quantiles of its values."""
    places = {name: places[0] for name, places in encoder.places().items() if len(places) == 1}
    return {
        place: np.quantile(rows.table[name], _QUANTILES, method="inverted_cdf", weights=rows.weights)
        for name, place in places.items()
        if encoder.missing == "impute" and encoder.is_numeric(name)
    }


def inputs_of(table: pd.DataFrame, encoder: Encoder, values: dict[int, np.ndarray]) -> np.ndarray:
    """Return the matrix of a table, with NaN for missing numbers that `values` stand for."""
    inputs = encoder.matrix(table)
    for name, (place, *_) in encoder.places().items():
        if place in values:
            inputs[table[name].isna().to_numpy(), place] = np.nan
    return inputs


def are_strange(prediction: Prediction, rows: Rows) -> bool:
    """Return whether targets of rows with gaps differ from their prediction, a mixture over values of other rows.

    The sum of errors is compared with its standard deviation, for the gaps of each column and each class. Values that
    are missing at random leave it within 3.
    """
    found, counts = torch.as_tensor(rows.targets), rows.counts[:, None]
    mean, variance = prediction.mean.cpu(), prediction.variance.cpu()
    if prediction.is_classification:
        mean = prediction.class_probs.cpu()
        found, variance = torch.eye(mean.shape[1], dtype=mean.dtype)[found], mean * (1 - mean)
    errors, variances = (values.double().reshape(len(counts), -1).numpy() for values in (found - mean, variance))
    errors, variances = counts * errors, counts * variances
    masks = [mask for mask in rows.table.isna().to_numpy().T if rows.counts[mask].sum() >= _ENOUGH]
    return any(bool((np.abs(errors[mask].sum(0)) > _STRANGE * variances[mask].sum(0) ** 0.5).any()) for mask in masks)


def score(prediction: Prediction, rows: Rows) -> float:
    """Return the log score of rows."""
    return float(rows.counts @ prediction.log_prob(rows.targets).double().cpu().numpy())
