"""From the columns of a table to a matrix of numbers, and what in new rows lies outside of what was learned."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd

from pyrobnn._core.errors import InputError, listed
from pyrobnn._core.settings import setting
from pyrobnn.tables.column_reader import ColumnReader
from pyrobnn.tables.schema import Categories, Column, Dates, Decimal, Input, Numbers, Reading
from pyrobnn.tables.table import Table, frame_of, read_columns


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


@setting
class Encoder:
    """From a table of numbers, dates and categories to a matrix of numbers, as learned from the rows of a fit.

    The matrix has the numbers, NaN in gaps, then marks of 0 and 1 for numbers with gaps in the fit, then the
    categories; an unknown category becomes zeros, or -1. Ordered categories are numbers, their places in the order.
    """

    categories: Literal["onehot", "ordinal"]
    missing: Literal["raise", "impute"]
    columns: dict[str, Column]  # with what was learned of each
    decimal: Decimal | None  # in texts; None for a point

    @classmethod
    def learn(cls, columns: pd.DataFrame, table: Table) -> Self:
        """Return the encoder that the columns of some rows of a table teach."""
        learned = {name: column.learned(columns[name]) for name, column in table.schema.items()}
        coding: Any = "ordinal" if "ordinal" in table.reading.categories else "onehot"
        return cls(coding, table.reading.missing, learned, table.reading.decimal)

    @classmethod
    def stored(cls, values: Mapping[str, Any] | None, names: Sequence[str] = ()) -> Self:
        """Return the encoder of which `dataclasses.asdict` made these values; without any, that of plain numbers."""
        if values is None:
            return cls("onehot", "raise", {name: Numbers() for name in names}, None)
        try:
            return cls(**values)
        except InputError as error:
            text = "The columns of this run were changed, or stored by an earlier version of pyrobnn: fit it again."
            raise InputError(f"{text} {error}") from None

    def widened(self, columns: pd.DataFrame) -> Self:
        """Return the encoder with ranges that have further rows of a fit too; its matrix is the same."""
        known = {name: column.widened(columns[name]) for name, column in self.columns.items()}
        return type(self)(self.categories, self.missing, known, self.decimal)

    def read(self, source: Any, *, sep: str | None = None, encoding: str | None = None) -> Table:
        """Return the columns of the fit in a file or a frame, read as in the fit."""
        # files are parsed by the mark that was told, or a point; what is still text by those that the fit stored
        written = Reading(sep=sep, decimal=self.decimal or ".", encoding=encoding)
        frame, file = frame_of(source, list(self.columns), written)
        as_in_fit = Reading(decimal=self.decimal, missing=self.missing)
        return read_columns(frame, self.columns, ColumnReader(as_in_fit, file, is_fit=False))

    def transform(self, X: Any) -> np.ndarray:
        """Return the matrix of a file or a frame with the columns of the fit."""
        return self.matrix(self.read(X).columns)

    def matrix(self, columns: pd.DataFrame) -> np.ndarray:
        """Return the matrix, float64 with NaN in gaps, of columns as `read` returned them."""
        made = {name: column.numbers(columns[name]) for name, column in self.columns.items()}
        categories = self._categories
        numbers = [values for name, values in made.items() if name not in categories]
        marks = [np.isnan(made[name]) for name, one in self.columns.items() if one.lacks and name not in categories]
        places = {name: np.arange(len(column.values)) for name, column in categories.items()}
        codes = [made[name] == places[name] if self.categories == "onehot" else made[name] for name in categories]
        return np.concatenate([*numbers, *marks, *codes], axis=1, dtype=np.float64)

    @property
    def _categories(self) -> dict[str, Categories]:
        """The columns of categories without an order."""
        return {name: one for name, one in self.columns.items() if isinstance(one, Categories) and not one.is_ordered}

    def layout(self) -> list[Input]:
        """Return what each column of the matrix is; a repeated name gets a number."""
        inputs = [
            Input(part, name, part, start=column.start if isinstance(column, Dates) else None)
            for name, column in self.columns.items()
            for part in column.names(name)
            if name not in self._categories
        ]
        inputs += [
            Input(f"missingindicator_{name}", column, f"{name!r} is missing", is_mark=True)
            for name, column, *_ in inputs
            if self.columns[column].lacks
        ]
        for name, categories in self._categories.items():
            words = {f"{name}_{value}": "missing" if value is None else value for value in categories.values}
            onehot = [Input(label, name, f"{name}: {word}", category=word) for label, word in words.items()]
            inputs += onehot if self.categories == "onehot" else [Input(name, name, name)]
        unique: dict[str, Input] = {}
        for made in inputs:
            numbered = (made.name if count == 1 else f"{made.name}_{count}" for count in itertools.count(1))
            name = next(candidate for candidate in numbered if candidate not in unique)
            unique[name] = made._replace(name=name)
        return [*unique.values()]

    def get_feature_names_out(self) -> np.ndarray:
        return np.array([made.name for made in self.layout()], dtype=object)

    def positions(self) -> dict[str, list[int]]:
        """Return for each column of the table the columns of the matrix that are made from it."""
        found: dict[str, list[int]] = {name: [] for name in self.columns}
        for position, made in enumerate(self.layout()):
            found[made.column].append(position)
        return found

    def onehot(self) -> list[list[int]]:
        """Return for each category the positions in the matrix of its columns of 0 and 1."""
        positions = self.positions()
        return [positions[name] for name in self._categories] if self.categories == "onehot" else []

    @property
    def notes(self) -> list[str]:
        """A line for each column of dates."""
        return [f"column {name!r}: read as {one.note}" for name, one in self.columns.items() if isinstance(one, Dates)]

    def outside(self, columns: pd.DataFrame, first: int = 0) -> Outside:
        """Return unknown categories, gaps where the fit had none, and numbers beyond those of the fit.

        A number is beyond if it lies outside of the range in the fit by more than half of that range. The table has a
        row for each column with any, the counts `unknown`, `missing` and `beyond`, an example `such_as`, the furthest,
        with its `row`, counted from `first`, and what the fit `had`.
        """
        found, names = dict[str, list[Any]](), list[np.ndarray]()
        for name, column in self.columns.items():
            unknown, missing, beyond = column.outside(columns[name])
            names.append(np.where(unknown | missing | (beyond > 0), name, ""))
            if names[-1].any():
                row = int(next(mask for mask in (beyond, unknown, missing) if mask.any()).argmax())
                value = columns[name].iloc[row]
                counts = [np.count_nonzero(mask) for mask in (unknown, missing, beyond)]
                found[name] = [*counts, "" if pd.isna(value) else column.said(value), first + row, column.had]
        heads = ["unknown", "missing", "beyond", "such_as", "row", "had"]
        table = pd.DataFrame.from_dict(found, orient="index", columns=heads).rename_axis("column")
        return Outside(table, [", ".join(filter(None, row)) for row in zip(*names, strict=True)])
