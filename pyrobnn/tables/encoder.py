"""From the columns of a table to a matrix of numbers, and what in new rows lies outside of what was learned."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from pyrobnn._core.errors import InputError, listed
from pyrobnn.tables.cells import DATES, MARK, NUMBERS, TEXTS, expanded
from pyrobnn.tables.files import Dialect
from pyrobnn.tables.reading import Table, read_again
from pyrobnn.tables.texts import How, date_names, dates_in_words, day, learned_dates

_BEYOND = 0.5
"""Share of a column's range in the fit; further beyond it a smooth function may have turned."""


class Outside(NamedTuple):
    """What lies outside of the rows of a fit: counts by column, and for each row its columns, joined by ", "."""

    table: pd.DataFrame
    rows: list[str]

    @property
    def warning(self) -> str:
        """A sentence on numbers far from those of the fit, empty without any."""
        far = self.table.query("beyond > 0")
        if far.empty:
            return ""
        others = f", like {listed(map(repr, far.index[1:]))}" if len(far) > 1 else ""
        such_as, row, had = far.iloc[0][["such_as", "row", "had"]]
        such = f"Column {far.index[0]!r} has {such_as} in row {row}, far from the {had} of the fit{others}"
        return f"{such}: the data say little of predictions there."


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """From a table of numbers, dates and categories to a matrix of numbers, as learned from the rows of a fit.

    The matrix has the numbers, NaN in gaps, then marks of 0 and 1 for numbers with gaps in the fit, then the
    categories; an unknown category becomes zeros, or -1. Ordered categories are numbers, their places in the order.

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
        for name, one in learned.items():
            if one["kind"] == DATES:
                one["start"], one["phases"] = learned_dates(columns[name])
            if one["kind"] == TEXTS and "order" not in one:
                one["values"] = _sorted(set(columns[name]))
        numbers = expanded(columns, learned)
        for name, one in learned.items():
            if "values" not in one:
                column = numbers[f"{name} (days)" if one["kind"] == DATES else name]
                one["lack"] = bool(column.isna().any())
                if one["kind"] != TEXTS and not column.isna().all():
                    one["range"] = [float(column.min()), float(column.max())]
        told = [categories] if isinstance(categories, str) else categories
        return cls("ordinal" if "ordinal" in told else "onehot", missing, learned, decimal)

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
        """Return the matrix of a file or a frame with the columns of the fit."""
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
        known: Any = [np.array(each, dtype=object) for each in values.values()]
        onehot = OneHotEncoder(categories=known, handle_unknown="ignore", sparse_output=False)
        ordinal = OrdinalEncoder(categories=known, handle_unknown="use_encoded_value", unknown_value=-1)
        gaps = [part for name, part in numbers if self.columns[name].get("lack")]
        steps = [
            ("numbers", "passthrough", [part for _, part in numbers]),
            ("gaps", MissingIndicator(features="all"), gaps),
            ("categories", onehot if self.categories == "onehot" else ordinal, list(values)),
        ]
        row = {part: pd.Series([0.0]) for _, part in numbers}
        row |= {name: pd.Series(each[:1], dtype=object) for name, each in values.items()}
        return ColumnTransformer(steps).fit(pd.DataFrame(row))

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

        A number is beyond if it lies outside of the range in the fit by more than half of that range. The table has a
        row for each column with any, the counts `unknown`, `missing` and `beyond`, an example `such_as`, the furthest,
        with its `row`, counted from `first`, and what the fit `had`.
        """
        found, marks = dict[str, list[Any]](), list[np.ndarray]()
        numbers = expanded(columns, self.columns)
        for name, how in self.columns.items():
            values = numbers[f"{name} (days)" if how["kind"] == DATES else name]
            known = how.get("values", [])
            low, high = how.get("range", [-math.inf, math.inf])
            had = f"{len(known)} categories" if "values" in how else f"{_said(how, low)} to {_said(how, high)}"
            is_gap = values.isna() & (not how.get("lack", None in known))
            is_new = values.notna() & ("values" in how) & ~values.isin(known)
            excess = np.fmax(low - values, values - high) if "range" in how else is_new * 0.0
            is_beyond = excess > (high - low) * _BEYOND
            marks.append(np.where(is_gap | is_new | is_beyond, name, ""))
            if marks[-1].any():
                row = int((excess if is_beyond.any() else is_new if is_new.any() else is_gap).argmax())
                counts = [each.sum() for each in (is_new, is_gap, is_beyond)]
                found[name] = [*counts, _said(how, values.iloc[row]), first + row, had]
        heads = ["unknown", "missing", "beyond", "such_as", "row", "had"]
        table = pd.DataFrame.from_dict(found, orient="index", columns=heads).rename_axis("column")
        return Outside(table, [", ".join(filter(None, row)) for row in zip(*marks, strict=True)])


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
