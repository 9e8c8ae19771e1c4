"""From rows to numbers: checks of inputs, targets and weights by scikit-learn's rules, and how a fit codes them."""

import datetime
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import _check_sample_weight, _check_y, validate_data

from pyrobnn._core.checks import check_unmasked
from pyrobnn._core.errors import InputError, PoorFitWarning, listed, warn_user
from pyrobnn.data.imputed import Imputer, with_copies, with_targets
from pyrobnn.data.in_memory import Data, leaks
from pyrobnn.estimators.parameters import Parameters
from pyrobnn.inference.fit import tell_of_constants
from pyrobnn.inference.parts import Facts
from pyrobnn.likelihoods.base import with_offset
from pyrobnn.tables.encoder import Encoder
from pyrobnn.tables.schema import Reading
from pyrobnn.tables.table import FEWEST_ROWS, Table, framed, is_frame, read, require_known
from pyrobnn.verdict.finding import Finding

_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64, pd.Period, pd.Interval)

type PerRow = ArrayLike | None  # a value for each row, (N,)


def checked_inputs(estimator: Parameters, X: ArrayLike, known: Encoder | None = None) -> Table:
    """Return inputs as a table, read as in the fit if its encoder is known; scikit-learn checks names and number."""
    check_unmasked(X, "X")  # scikit-learn drops masks
    if is_frame(X):
        frame = framed(X)
        validate_data(estimator, X, reset=known is None, skip_check_array=True)
    else:
        odd = _first_odd(np.asarray(X) if isinstance(X, (pd.Series, list, tuple)) else X)
        if odd is not None:
            names = "its columns" if known is None else f"the columns of the fit, {listed(known.columns)}"
            said = f"X is an array with {str(odd)!r}, and arrays hold numbers"
            raise InputError(f"{said}: pass a data frame with {names}.")
        values = validate_data(estimator, X, reset=known is None, dtype=np.float64, ensure_all_finite=False)
        frame = pd.DataFrame(values, columns=[f"x{i}" for i in range(values.shape[1])])
    asked: Any = {"categories": estimator.categories, "missing": estimator.missing}
    table = read(frame, Reading(**asked)) if known is None else known.read(frame.set_axis([*known.columns], axis=1))
    for note in table.notes:
        warn_user(f"X as it was read: {note}.")
    return table


def checked_targets(y: ArrayLike, *, are_numbers: bool) -> np.ndarray:
    """Return targets (N,) or (N, K), or labels (N,); refuse gaps, dates, and text in place of numbers."""
    if y is None:
        raise InputError("A fit requires y to be passed, but the target y is None.")
    values = np.asarray(y)
    odd = values.flat[0] if values.dtype.kind == "U" and values.size else _first_odd(values)
    if isinstance(odd, _TIMES):
        nouns = "intervals" if isinstance(odd, pd.Interval) else "dates or times"
        raise InputError(f"`y` holds {nouns}, such as {str(odd)!r}: make numbers of them, as days or by pandas.cut.")
    if are_numbers and isinstance(odd, str):
        said = f"BNNRegressor predicts numbers, and `y` holds text such as {str(odd)!r}"
        raise InputError(f"{said}: use BNNClassifier for classes, or make numbers of text that stands for them.")
    check_unmasked(y, "y")
    require_known(y)
    return np.asarray(_check_y(y, multi_output=are_numbers, y_numeric=are_numbers))


def checked_weights(weight: PerRow, y: np.ndarray) -> np.ndarray | None:
    """Return the weights (N,) of examples, not negative; None where all count once."""
    if weight is None:
        return None
    check_unmasked(weight, "sample_weight")
    return np.asarray(_check_sample_weight(weight, y, dtype=np.float64, ensure_non_negative=True))


@dataclass(frozen=True, eq=False)
class TargetKind:
    """What targets are: the shape of predictions for a row, () or (K,), and the K classes, none for numbers."""

    shape: tuple[int, ...]
    classes: np.ndarray = field(default_factory=lambda: np.zeros(0))


class Targets(NamedTuple):
    """Targets as numbers, (N,) or (N, K), and what they are."""

    values: np.ndarray
    kind: TargetKind


@dataclass(frozen=True, eq=False)
class Coding:
    """From columns and targets to numbers, as learned from the rows of a fit; without an imputer nothing is drawn."""

    encoder: Encoder
    imputer: Imputer | None
    kind: TargetKind

    @classmethod
    def learn(cls, table: Table, columns: pd.DataFrame, y: np.ndarray, kind: TargetKind) -> Self:
        """Return the coding that rows of a table teach; values are drawn where some may be missing, or are unknown."""
        encoder = Encoder.learn(columns, table)
        if not encoder.onehot() and encoder.missing != "impute":
            return cls(encoder, None, kind)
        x = encoder.matrix(columns)
        both = with_targets(x, y, len(kind.classes))
        return cls(encoder, Imputer(both, encoder.onehot(), both.shape[1] - x.shape[1]), kind)

    def widened(self, columns: pd.DataFrame) -> Self:
        """Return the coding with the ranges of further rows."""
        return replace(self, encoder=self.encoder.widened(columns))

    def data(self, columns: pd.DataFrame, y: np.ndarray, **settings: Any) -> Data:
        """Return rows and their targets as numbers, with copies of those that lack values."""
        x = self.encoder.matrix(columns)
        settings["feature_names"] = self.encoder.get_feature_names_out().tolist()
        if self.imputer is None:
            return Data(x, y, **settings)
        return with_copies(x, y, len(self.kind.classes), self.imputer, **settings)


def warn_of_rows(data: Data, facts: Facts, encoder: Encoder) -> None:
    """Warn of inputs that never vary, of columns that give the targets away, and of few rows."""
    tell_of_constants(with_offset(facts.given.likelihood, data))
    for name, fault in leaks(data, encoder.positions()).items():
        leak = Finding(fault, "care", facts={"columns": repr(name)}).lead
        warn_user(f"{leak}: leave it out then.", PoorFitWarning)
    num_data = max(facts.num_data, round(data.total_weight))
    if 1 < num_data < FEWEST_ROWS and not facts.learns_on:
        say = f"There are {num_data} training examples: predictions rest on the prior. Collect"
        warn_user(f"{say} {FEWEST_ROWS} or more.", PoorFitWarning)


def _first_odd(values: object) -> object:
    """Return the first date, or text that is no number, of an array; None if there is none."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "OUMm":
        return None
    return next(filter(_is_odd, values.flat), None)


def _is_odd(value: object) -> bool:
    if not isinstance(value, str):
        return isinstance(value, _TIMES)
    try:
        float(value)
    except ValueError:
        return True
    return False
