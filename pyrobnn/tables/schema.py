"""How a table is read, what its columns are, and how a fit makes numbers of them; without torch."""

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field

from pyrobnn._core.settings import setting

if TYPE_CHECKING:
    import pandas as pd

Decimal = Literal[".", ","]
Task = Literal["regression", "classification"]
Phase = Literal["year", "week", "hour"]
_PHASES = {"year": ("the day of the year", 366), "week": ("the weekday", 7), "hour": ("the time of day", 1)}
"""Phases in words, and the days that dates must span for each."""
_BEYOND = 0.5  # share of a column's range in the fit; further beyond it a smooth function may have turned


@setting
class Reading:
    """How a table is read: the arguments of `pyrobnn.datasets.load_table` with the same names.

    With missing="impute" numbers and dates stay NaN, and rows without a target are left out. No text is a category.
    """

    error_prefix: ClassVar[str] = ""  # an argument of `load_table` and a key of a spec are known by their names
    target: str | None = None
    task: Task | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()
    groups: str | None = None
    sep: str | None = None
    decimal: Decimal | None = None
    encoding: str | None = None
    categories: str | tuple[str, ...] = "onehot"
    missing: Literal["raise", "impute"] = "raise"

    @property
    def no_features(self) -> list[str]:
        return [name for name in (self.target, self.id, self.groups, *self.drop) if name is not None]

    @property
    def category_columns(self) -> list[str]:
        """The columns that are categories whatever they hold."""
        given = [self.categories] if isinstance(self.categories, str) else self.categories
        return [name for name in given if name not in ("onehot", "ordinal")]


@setting
class _Column:
    """What all columns know of the rows of a fit: whether some lack a value, and the range of their numbers."""

    lacks: bool = False
    range: tuple[float, float] | None = None

    def learned(self, column: "pd.Series") -> Self:
        """Return what the rows of a fit teach of it."""
        return dataclasses.replace(self.widened(column), lacks=bool(column.isna().any()))

    def widened(self, column: "pd.Series") -> Self:
        """Return the same column with a range that has further rows of a fit too."""
        values = np.append(self.numbers(column)[:, 0], self.range or ())
        known = values[~np.isnan(values)]
        return dataclasses.replace(self, range=(float(known.min()), float(known.max())) if len(known) else None)

    def names(self, name: str) -> list[str]:
        """Return names for `numbers`, of a column of that name."""
        return [name]

    def numbers(self, column: "pd.Series") -> np.ndarray:
        """Return a column (N,) as numbers (N, K), NaN in gaps."""
        return column.to_numpy(np.float64)[:, None]

    def outside(self, column: "pd.Series") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what is unknown, what is missing unlike in the fit, and how far numbers are beyond it, or 0: (N,)."""
        values, (low, high) = self.numbers(column)[:, 0], self.range or (0.0, 0.0)
        beyond = np.fmax(np.fmax(low - values, values - high) - (high - low) * _BEYOND, 0.0) * (high > low)
        return np.zeros(len(column), dtype=bool), column.isna().to_numpy() & (not self.lacks), beyond

    def said(self, value: Any) -> str:
        """Return a value in words."""
        return f"{value:g}"

    @property
    def had(self) -> str:
        """What the fit had, in words."""
        return " to ".join(map(self.said, self.range)) if self.range else "no value"


@setting
class Numbers(_Column):
    """A column of numbers, with their mark of decimals if they are texts."""

    decimal: Decimal | None = None
    kind: Literal["numbers"] = "numbers"


@setting
class Dates(_Column):
    """A column of dates, with their format if they are texts: days since `start`, and a sine and a cosine by phase."""

    format: str | None = None
    has_zone: bool | None = None
    start: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d")] = "1970-01-01"
    phases: tuple[Phase, ...] = ()
    kind: Literal["dates"] = "dates"

    def learned(self, column: "pd.Series") -> Self:
        present = column.dropna()
        days, found = (present.max() - present.min()).days, _phases(present)
        varied = (phase for phase in found if days >= _PHASES[phase][1] and found[phase].nunique() > 1)
        start = self.start if present.empty else str(present.min())
        known = dataclasses.replace(self, start=start, phases=tuple(varied), lacks=bool(column.isna().any()))
        return known.widened(column)

    def names(self, name: str) -> list[str]:
        waves = [f"{wave} of {phase}" for phase in self.phases for wave in ("sin", "cos")]
        return [f"{name} ({made})" for made in ("days", *waves)]

    def numbers(self, column: "pd.Series") -> np.ndarray:
        import pandas as pd

        days, phases = (column - pd.Timestamp(self.start)) / pd.Timedelta(days=1), _phases(column)
        waves = [wave(2 * np.pi * phases[phase]) for phase in self.phases for wave in (np.sin, np.cos)]
        return np.stack([days, *waves], axis=1)

    def said(self, value: Any) -> str:
        import pandas as pd

        date = pd.Timestamp(self.start) + pd.Timedelta(days=value) if isinstance(value, float) else value
        return str(date)[:10]

    @property
    def note(self) -> str:
        """How dates become numbers, in words."""
        waves = " and ".join(_PHASES[phase][0] for phase in self.phases)
        return f"days since {self.start[:10]}" + (f", and sine and cosine of {waves}" if waves else "")


@setting
class Categories(_Column):
    """A column of categories: `values`, in their order if they have one; their numbers are places there."""

    values: tuple[str | None, ...] = ()
    is_ordered: bool = False
    kind: Literal["categories"] = "categories"

    def learned(self, column: "pd.Series") -> Self:
        values = self.values if self.is_ordered else tuple(_sorted({*column}))
        return dataclasses.replace(self, lacks=bool(column.isna().any()), values=values)

    def widened(self, column: "pd.Series") -> Self:
        return self  # their numbers are places, which have no range

    def numbers(self, column: "pd.Series") -> np.ndarray:
        """Return the places (N, 1), -1 for others; those of an order are NaN in gaps."""
        import pandas as pd

        places = pd.Index(self.values, dtype=object).get_indexer(pd.Index(column, dtype=object)).astype(np.float64)
        return np.where(column.isna() & self.is_ordered, np.nan, places)[:, None]

    def outside(self, column: "pd.Series") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        unknown, missing = column.notna() & ~column.isin(self.values), column.isna() & (not self.lacks)
        return unknown.to_numpy(), missing.to_numpy(), np.zeros(len(column))

    def said(self, value: Any) -> str:
        return str(value)

    @property
    def had(self) -> str:
        return f"{len(self.values)} categories"


Column = Annotated[Numbers | Dates | Categories, Field(discriminator="kind")]


class Input(NamedTuple):
    """A column of a matrix, by a name of its own, the column of the table behind it, and what it is, in words.

    It has a `category`, whose rows have 1, or marks where a number is missing, or counts days from a `start`, or none.
    """

    name: str
    column: str
    said: str
    category: str | None = None
    is_mark: bool = False
    start: str | None = None


def _phases(dates: "pd.Series") -> "dict[Phase, pd.Series]":
    """Return the shares of year, week and day that have passed."""
    clock = (dates - dates.dt.normalize()).dt.total_seconds() / 86_400
    return {"year": (dates.dt.day_of_year - 1) / 365.25, "week": dates.dt.day_of_week / 7, "hour": clock}


def _sorted(values: set[str | None]) -> list[str | None]:
    """Return categories in order, as numbers where all are, and None last."""
    texts = sorted(value for value in values if value is not None)
    with suppress(ValueError):
        texts = sorted(texts, key=float)
    return [*texts, *({None} & values)]
