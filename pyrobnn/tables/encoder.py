"""From the columns of a table to a matrix of numbers, and what in new rows lies outside of what was learned."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from pyrobnn._core.errors import InputError
from pyrobnn.tables.cells import DATES, MARK, NUMBERS, TEXTS, expanded
from pyrobnn.tables.files import Dialect
from pyrobnn.tables.reading import Table, read_again
from pyrobnn.tables.texts import How, date_names, dates_in_words, day, learned_dates


class Outside(NamedTuple):
    """What lies outside of the rows of a fit: counts by column, and for each row its columns, joined by ", "."""

    table: pd.DataFrame
    rows: list[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """From a table of numbers, dates and categories to a matrix of numbers, as learned from the rows of a fit.

    The matrix has the numbers, NaN in gaps, then marks of 0 and 1 for numbers with gaps in the fit, then the
    categories; an unknown category becomes zeros, or -1. The fields are in JSON's types.

    Attributes:
        categories: "onehot" or "ordinal".
        missing: "raise" or "impute".
        columns: how each column is read, and what was learned of it.
        decimal: the mark of decimals in texts; None for a point.
    """

    categories: str
    missing: str
    columns: Mapping[str, How]
    decimal: str | None = None

    @classmethod
    def learn(
        cls, columns: pd.DataFrame, how: Mapping[str, How], *, categories: Any, missing: str, decimal: str | None = None
    ) -> Self:
        """Return the encoder that rows teach, of columns as `read` returns them."""
        learned = {name: one.copy() for name, one in how.items()}
        is_ordinal = "ordinal" in ([categories] if isinstance(categories, str) else categories)
        encoding = "ordinal" if is_ordinal else "onehot"
        for name, one in learned.items():
            if one["kind"] == DATES:
                one["start"], one["phases"] = learned_dates(columns[name])
            if one["kind"] == TEXTS and not (is_ordinal and "order" in one):
                one["values"] = _sorted(set(columns[name]))
        numbers = expanded(columns, learned)
        for name, one in learned.items():
            if "values" in one:
                continue
            column = numbers[f"{name} (days)" if one["kind"] == DATES else name]
            one["lack"] = bool(column.isna().any())
            if one["kind"] != TEXTS and len(present := column.dropna()):
                one["range"], one["margins"] = range_of(np.sort(present.to_numpy()))
        return cls(encoding, missing, learned, decimal)

    @classmethod
    def stored(cls, values: Mapping[str, Any] | None, names: Sequence[str] = ()) -> Self:
        """Return the encoder of which `dataclasses.asdict` made these values; without any, that of plain numbers."""
        if values is None:
            return cls("onehot", "raise", {name: {"kind": NUMBERS} for name in names})
        if {*values} != {field.name for field in dataclasses.fields(cls)}:
            raise InputError("The columns of this run were stored by an earlier version of pyrobnn: fit it again.")
        return cls(**values)

    def read(self, source: Any, *, sep: str | None = None, encoding: str | None = None) -> Table:
        """Return the columns of the fit in a file or a frame, read as in the fit."""
        return read_again(source, self.columns, self.missing, Dialect(sep, self.decimal, encoding))

    def transform(self, X: Any) -> np.ndarray:
        """Return the matrix of a file, a frame, or an array with as many columns as the fit."""
        if isinstance(X, np.ndarray):
            if X.shape[1] != len(self.columns):
                raise InputError(f"X has {X.shape[1]} columns, and the fit had {len(self.columns)}: pass those.")
            X = pd.DataFrame(X, columns=[*self.columns])
        return self.matrix(self.read(X).columns)

    def matrix(self, columns: pd.DataFrame) -> np.ndarray:
        """Return the matrix, float64 with NaN in gaps, of columns as `read` returned them."""
        return np.asarray(self._transformer.transform(expanded(columns, self.columns)), dtype=np.float64)

    @cached_property
    def _transformer(self) -> Any:
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import MissingIndicator
        from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

        numbers, values = self._numbers, self._values
        known = [np.array(each, dtype=object) for each in values.values()]
        onehot = OneHotEncoder(categories=known, handle_unknown="ignore", sparse_output=False)
        ordinal = OrdinalEncoder(categories=known, handle_unknown="use_encoded_value", unknown_value=-1)
        gaps = [part for name, part in numbers if self.columns[name].get("lack")]
        steps = [
            ("numbers", "passthrough", [part for _, part in numbers]),
            ("gaps", MissingIndicator(features="all"), gaps),
            ("categories", onehot if self.categories == "onehot" else ordinal, list(values)),
        ]
        row = {part: pd.Series([0.0]) for _, part in numbers}
        return ColumnTransformer(steps).fit(
            pd.DataFrame(row | {name: pd.Series(values[name][:1], dtype=object) for name in values})
        )

    @property
    def _values(self) -> dict[str, list[str | None]]:
        """The categories of each column of them."""
        return {name: how["values"] for name, how in self.columns.items() if "values" in how}

    @property
    def _numbers(self) -> list[tuple[str, str]]:
        """The columns of numbers, dates as several, and the columns of the table behind them."""
        columns = {name: how for name, how in self.columns.items() if "values" not in how}
        parts = {name: date_names(name, how) if how["kind"] == DATES else [name] for name, how in columns.items()}
        return [(name, part) for name in columns for part in parts[name]]

    def _layout(self) -> list[tuple[str, str]]:
        """Return for each column of the matrix the column of the table behind it, and a name."""
        numbers, is_onehot = self._numbers, self.categories == "onehot"
        gaps = [(name, f"{MARK}{part}") for name, part in numbers if self.columns[name].get("lack")]
        made = {name: [f"{name}_{one}" for one in each] if is_onehot else [name] for name, each in self._values.items()}
        return [*numbers, *gaps, *((name, one) for name, each in made.items() for one in each)]

    def get_feature_names_out(self) -> np.ndarray:
        """Return a name for each column of the matrix; a repeated name gets a number."""
        names: dict[str, None] = {}
        for _, name in self._layout():
            numbered = (name if count == 1 else f"{name}_{count}" for count in itertools.count(1))
            names[next(new for new in numbered if new not in names)] = None
        return np.array([*names], dtype=object)

    def positions(self) -> dict[str, list[int]]:
        """Return for each column of the table the columns of the matrix that are made from it."""
        found: dict[str, list[int]] = {name: [] for name in self.columns}
        for position, (name, _) in enumerate(self._layout()):
            found[name].append(position)
        return found

    def onehot(self) -> list[list[int]]:
        """Return for each category the positions in the matrix of its columns of 0 and 1."""
        return [self.positions()[name] for name in self._values] if self.categories == "onehot" else []

    def first_days(self) -> dict[str, str]:
        """Return for each column of dates the first date, from which its days count."""
        return {name: how["start"] for name, how in self.columns.items() if how["kind"] == DATES}

    @property
    def notes(self) -> list[str]:
        """A line for each column of dates."""
        return [f"column {name!r}: read as {dates_in_words(self.columns[name])}" for name in self.first_days()]

    def outside(self, columns: pd.DataFrame, first: int = 0) -> Outside:
        """Return unknown categories, gaps where the fit had none, and numbers beyond those of the fit.

        The table has a row for each column with any, the counts `unknown`, `missing` and `beyond`, an example `such_as`
        with its `row`, counted from `first`, and what the fit `had`.
        """
        found, marks = dict[str, dict[str, Any]](), list[np.ndarray]()
        numbers = expanded(columns, self.columns)
        for name, how in self.columns.items():
            values = numbers[f"{name} (days)" if how["kind"] == DATES else name]
            known = how.get("values", [])
            is_gap = values.isna() & (not how.get("lack", None in known))
            is_new = values.notna() & ("values" in how) & ~values.isin(known)
            low, high = how.get("range", [math.nan, math.nan])
            below, above = how.get("margins", [0.0, 0.0])
            is_far = (values < low - below) | (values > high + above) if "range" in how else is_gap & False
            marks.append(np.where(is_gap | is_new | is_far, name, ""))
            if marks[-1].any():
                row = int((is_new | is_far if (is_new | is_far).any() else is_gap).argmax())
                had = f"{len(known)} categories" if "values" in how else f"{_said(how, low)} to {_said(how, high)}"
                counts = {"unknown": is_new.sum(), "missing": is_gap.sum(), "beyond": is_far.sum()}
                found[name] = counts | {"such_as": _said(how, values.iloc[row]), "row": first + row, "had": had}
        heads = ["unknown", "missing", "beyond", "such_as", "row", "had"]
        table = pd.DataFrame.from_dict(found, orient="index", columns=heads).rename_axis("column")
        return Outside(table, [", ".join(filter(None, row)) for row in zip(*marks, strict=True)])


def range_of(ordered: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the ends of N values in order, and how far beyond them a new value is well outside.

    That is the distance at each end over which the outermost k = sqrt(N) spread: the scale of the tail. A new value of
    an exponential tail lies beyond with probability 2 / ((k + 1) (N + 1)), one of a shorter tail seldomer: the spacings
    of ordered values are independent (Renyi 1953).
    """
    low, high, count = float(ordered[0]), float(ordered[-1]), math.isqrt(len(ordered) - 1)
    margins = [float(ordered[count]) - low, high - float(ordered[-1 - count])]
    return [low, high], margins


def _said(how: How, value: Any) -> str:
    if pd.isna(value):
        return ""
    return day(how, value) if how["kind"] == DATES else f"{value:g}" if isinstance(value, float) else str(value)


def _sorted(values: set[str | None]) -> list[str | None]:
    """Return categories in order, as numbers where all are, and None last."""
    texts = [value for value in values if value is not None]
    try:
        texts.sort(key=lambda text: (float(text), text))
    except ValueError:
        texts.sort()
    return [*texts, *({None} & values)]
