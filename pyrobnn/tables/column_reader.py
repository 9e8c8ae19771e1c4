"""Columns of users' tables as numbers, dates or categories, with the rows that cannot be read."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyrobnn._core.errors import counted, listed
from pyrobnn._core.remedies import advised
from pyrobnn.tables.reading import NAMELESS
from pyrobnn.tables.schema import Categories, Column, Dates, Decimal, Numbers, Reading
from pyrobnn.tables.texts import ISO, Fault, as_text, dates_of, in_utc, numbers_of

if TYPE_CHECKING:
    import pandas as pd

_OF_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
_MOST_CATEGORIES = 20  # different texts that a column may always hold; more must come back in every second row
_MOST_NUMBERS = 20  # different numbers among texts, from which on the texts are named
_MOST_NAMED_ROWS, _MOST_WORDS = 5, 3
_IMPUTE = "data.missing=impute"


def rows_of(numbers: Sequence[int]) -> str:
    """Return the numbers of rows in words, the first of many."""
    more = len(numbers) - _MOST_NAMED_ROWS
    shown = ", ".join(map(str, numbers[:_MOST_NAMED_ROWS])) + (f" and {more} more" if more > 0 else "")
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}"


def order_of(values: Any) -> list[Any] | None:
    """Return the categories of an ordered categorical, or of a frame of one, from first to last; None for others."""
    values = values.to_pandas() if hasattr(values, "to_pandas") else values
    kind: Any = getattr(values.iloc[:, 0] if hasattr(values, "columns") else values, "dtype", None)
    return [*kind.categories] if getattr(kind, "ordered", False) else None


class ReadColumn(NamedTuple):
    """A column with its texts as numbers or dates where they are, its schema, and a note on it, if any."""

    column: "pd.Series"
    schema: Column
    note: str = ""


@dataclasses.dataclass(frozen=True)
class ColumnReader:
    """Reads the columns of one file or frame, to fit (`is_fit`) or to predict for; a `Fault` does not name the column.

    Rows of a file count from 1, below the names; those of a frame, which has no `file`, from 0.
    """

    reading: Reading
    file: Path | None
    is_fit: bool

    @property
    def first_row(self) -> int:
        return int(self.file is not None)

    def rows(self, chosen: "pd.Series") -> str:
        """Return in words which rows a mask has, by its index."""
        return rows_of([self.first_row + int(i) for i in chosen.index[chosen]])

    def feature(self, column: "pd.Series", before: Column | None) -> ReadColumn:
        """Return a column to predict from, numbers as float64; refuse gaps, infinite numbers and names of rows."""
        import pandas as pd

        name = str(column.name)
        named = json.dumps([name], ensure_ascii=False)
        without = functools.partial(advised, "leave it out", f"data.drop={named}")
        if self.file is not None and name.startswith(NAMELESS):
            raise Fault(f"has no name in the file: name it, or {without()}.")
        if self.is_fit and column.isna().all():
            raise Fault(f"has no value in any row (NaN): {without()}.")
        column, schema, note = self.as_typed(column, before)
        column, present = column.reset_index(drop=True), column.dropna()
        zones = {one.has_zone for one in (before, schema) if isinstance(one, Dates)}
        if zones == {True, False}:
            raise Fault("has dates with a time zone in the fit or in these rows, not in both: write all alike.")
        if isinstance(schema, Categories) and not schema.is_ordered:
            count, is_told = present.nunique(), before is not None or name in self.reading.category_columns
            if not is_told and count > max(_MOST_CATEGORIES, len(present) / 2):
                such = f"holds {count} different texts in {len(column)} rows, such as {present.iloc[0]!r}"
                numbers = "make numbers of it, such as 12.5 or 1,234.50, without a unit or a currency, or dates"
                told = advised("say that they are categories", f"data.categories={named}")
                raise Fault(f"{such}, which are no categories: {numbers}, {without()}, or {told}.")
            return ReadColumn(column, schema, note)
        if isinstance(schema, Numbers):
            column = pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan))
            if (infinite := np.isinf(column)).any():
                raise Fault(f"must be finite, and is inf in {self.rows(infinite)}: drop those rows.")
        self.refuse_gaps(column)
        return ReadColumn(column, schema, note)

    def as_typed(self, column: "pd.Series", before: Column | None = None) -> ReadColumn:
        """Return a column as numbers, dates or texts with None; `before` is what it was in training."""
        import pandas as pd

        is_categorical = isinstance(column.dtype, pd.CategoricalDtype)
        is_told = is_categorical or column.name in self.reading.category_columns
        if isinstance(before, Categories) or (before is None and is_told):
            return self._as_categories(column, before)
        column = column.astype(object) if is_categorical else column
        kind = pd.api.types.infer_dtype(column, skipna=True)
        if before is not None and column.isna().all():
            return ReadColumn(pd.Series(pd.NaT if isinstance(before, Dates) else np.nan, column.index), before)
        if kind == "datetime64" and not isinstance(before, Numbers):
            has_zone = pd.to_datetime(column).dt.tz is not None
            return ReadColumn(in_utc(pd.to_datetime(column, utc=True)), Dates(has_zone=has_zone))
        if kind in ("date", "datetime") and not isinstance(before, Numbers):
            return self._as_dates(column.map(str, na_action="ignore"), Dates(format=ISO))  # str() writes ISO
        if kind in ("string", "mixed", "mixed-integer"):
            texts = column.map(str, na_action="ignore")
            numbers = None if isinstance(before, Dates) else self._as_numbers(texts, before)
            return numbers or self._as_dates(texts, before)
        if isinstance(before, Dates):
            raise Fault(f"held dates in training, and now {column.dropna().iloc[0]}: write it alike.")
        if column.dtype.kind not in "iufb" and kind not in _OF_NUMBERS:
            raise Fault(f"has dtype {column.dtype} ({kind}): turn it into numbers or text.")
        return ReadColumn(column, Numbers())

    def _as_categories(self, column: "pd.Series", before: Categories | None) -> ReadColumn:
        """Return categories as texts; one that is new to an order is refused."""
        order, texts = order_of(column), as_text(column)
        if before is None:
            names = () if order is None else tuple(as_text(column.cat.categories.to_series()))
            return ReadColumn(texts, Categories(values=names, is_ordered=order is not None))
        odd = texts.notna() & ~texts.isin(before.values)
        if before.is_ordered and odd.any():
            known = listed(before.values, " < ")
            raise Fault(f"holds {texts[odd].iloc[0]!r}, in {self.rows(odd)}, and its order is {known}: use those.")
        return ReadColumn(texts, before)

    def _as_numbers(self, texts: "pd.Series", before: Numbers | None) -> ReadColumn | None:
        """Return texts as numbers if half are, else None; note or refuse other texts, and note a doubtful mark."""
        is_open = self.reading.decimal is None and (before is None or before.decimal is None)
        mark, numbers, by_other_mark = self._by_mark(texts, before)
        strange = texts[numbers.isna()].dropna()
        are_most = numbers.notna().sum() >= texts.notna().sum() / 2
        if before is None and not are_most and numbers.nunique() <= max(_MOST_NUMBERS, strange.nunique()):
            return None
        ambiguous = next(iter(texts[numbers.ne(by_other_mark) & numbers.notna()]), "")
        comma = advised("say that commas mark decimals", "data.decimal=,")
        if is_open and mark == "," and are_most:
            raise Fault(f"holds numbers with a decimal comma, such as {ambiguous!r}: {comma}.")
        are_marked = mark == "." and len(strange) > 0 and bool(by_other_mark[strange.index].notna().all())
        note = self._note_or_refuse(strange, numbers, "numbers, but text", f", or {comma}" * are_marked)
        if is_open and ambiguous and numbers.notna().equals(by_other_mark.notna()) and not note:
            change = "its comma marks decimals" if "," in ambiguous else "its point marks thousands"
            value = numbers[texts == ambiguous].iloc[0]
            note = f"column {texts.name!r}: {ambiguous.strip()!r} is read as {value:g}; if {change}, {comma}"
        is_whole = strange.empty and not texts.str.contains(mark, regex=False, na=True).any()
        return ReadColumn(numbers.astype(np.int64) if is_whole else numbers, Numbers(decimal=mark), note)

    def _by_mark(self, texts: "pd.Series", before: Numbers | None) -> tuple[Decimal, "pd.Series", "pd.Series"]:
        """Return the mark of the fit, or else that which reads most texts, and numbers by it and by the other mark."""
        marks: tuple[Decimal, Decimal] = (",", ".") if self.reading.decimal == "," else (".", ",")
        by_mark = {mark: numbers_of(texts, mark) for mark in marks}
        stored = None if before is None else before.decimal
        mark = max(marks, key=lambda each: by_mark[each].notna().sum()) if stored is None else stored
        return mark, by_mark[mark], by_mark["," if mark == "." else "."]

    def _as_dates(self, texts: "pd.Series", before: Column | None) -> ReadColumn:
        """Return texts as dates, where more than half are, else as categories."""
        dates, form, has_zone = dates_of(texts, before.format if isinstance(before, Dates) else None)
        if before is None and dates.notna().sum() <= texts.notna().sum() / 2:
            return ReadColumn(as_text(texts), Categories())
        note = self._note_or_refuse(texts[dates.isna()].dropna(), dates, "dates, but other text")
        return ReadColumn(dates, Dates(format=form, has_zone=has_zone), note)

    def _note_or_refuse(self, strange: "pd.Series", values: "pd.Series", most: str, more: str = "") -> str:
        """Return a note on texts unlike most of a column, which count as missing where gaps may be; else refuse."""
        if strange.empty:
            return ""
        found = [*map(repr, strange.value_counts().index)]
        such = " and ".join(found[:_MOST_WORDS]) + (" and others" if len(found) > _MOST_WORDS else "")
        where = self.rows(strange.notna())
        if self.reading.missing == "impute" and values.notna().any():
            return f"column {strange.name!r}: {such} in {where} counted as missing"
        advice = advised("let it count as missing", _IMPUTE) if self.is_fit else "drop those rows"
        raise Fault(f"holds {most} in {where}, such as {such}: mend it, or {advice}{more}.")

    def refuse_gaps(self, column: "pd.Series", advice: str = "") -> None:
        """Refuse a column with gaps, unless they are drawn."""
        if self.reading.missing == "raise" and (gaps := column.isna()).any():
            drawn = advised(", or have them drawn" if self.is_fit else "; a fit could have them drawn", _IMPUTE)
            count = counted(int(gaps.sum()), "missing value")
            raise Fault(f"has {count} (NaN), in {self.rows(gaps)}: {advice or f'drop those rows{drawn}'}.")


def teaches_nothing(column: "pd.Series") -> str:
    """Return why nothing can be learned from a column, in words; empty where something may be.

    A column of texts, all different, and neither numbers nor dates, nor amounts with a unit, names the rows.
    """
    import pandas as pd

    if str(column.name).startswith(NAMELESS) or column.isna().all():
        return "it has no name, as a saved index" if str(column.name).startswith(NAMELESS) else "no value in any row"
    if not column.is_unique or pd.api.types.infer_dtype(column) != "string":
        return ""
    try:
        schema = ColumnReader(Reading(missing="impute"), file=None, is_fit=True).as_typed(column).schema
    except Fault:  # not one kind of cells
        return ""
    are_names = isinstance(schema, Categories) and column.dropna().str.match(r"\W?\d").mean() <= 1 / 2
    return f"a text of its own in each of {len(column)} rows" if are_names else ""
