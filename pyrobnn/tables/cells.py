"""Columns of users' tables as numbers, dates or categories, with the rows that cannot be read."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyrobnn._core.errors import InputError, counted, listed
from pyrobnn.tables.files import NAMELESS
from pyrobnn.tables.texts import How, date_columns, dates_of, in_utc, numbers_of

if TYPE_CHECKING:
    import pandas as pd

NUMBERS, DATES, TEXTS = "numbers", "dates", "texts"
"""Kinds of columns."""
MARK = "missingindicator_"
"""Start of the name of a column of 0 and 1 that marks where a number is missing."""
_OF_NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
_MOST_CATEGORIES, _MOST_NUMBERS = 20, 20
"""Different texts that a column may always hold (more must come back in every second row), and numbers among texts."""
_MOST_NAMED_ROWS, _MOST_WORDS = 5, 3
_IMPUTE = "missing='impute', --set data.missing=impute"


def with_marks(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of each column by its name, with the column that marks where it is missing."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        of = name.removeprefix(MARK)
        found.setdefault(of if of in found else name, []).append(place)
    return found


def input_name(made: str, column: str) -> str:
    """Return the name of an input, made from a column, in words: "'area' is missing" or "heating: gas"."""
    if made == f"{MARK}{column}":
        return f"{column!r} is missing"
    return f"{column}: {category_name(made, column)}" if made.startswith((f"{column}_", f"{column}=")) else made


def category_name(made: str, column: str) -> str:
    """Return the category that an input of 0 and 1, made from a column, stands for."""
    name = made.removeprefix(column).strip("=_ ")
    return "missing" if name == "None" else name


def rows_of(chosen: Any, first: int = 1) -> str:
    """Return which rows a mask has, counted from 1 below the names of the columns, or from another number."""
    numbers = [str(first + i) for i in np.flatnonzero(np.asarray(chosen, dtype=bool))]
    more = len(numbers) - _MOST_NAMED_ROWS
    shown = ", ".join(numbers[:_MOST_NAMED_ROWS]) + (f" and {more} more" if more > 0 else "")
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}"


def order_of(values: Any) -> list[Any] | None:
    """Return the categories of an ordered categorical, or of a frame of one, from first to last; None for others."""
    values = values.to_pandas() if hasattr(values, "to_pandas") else values
    kind: Any = getattr(values.iloc[:, 0] if hasattr(values, "columns") else values, "dtype", None)
    return [*kind.categories] if getattr(kind, "ordered", False) else None


def require_order(labels: Sequence[Any], num: int | None, *, is_ordered: bool) -> None:
    """Refuse labels for a likelihood of `num` ordered ones: texts without an order, and others than there are."""
    if num is not None and not is_ordered and len(labels) > 2 and isinstance(labels[0], str):
        raise InputError(
            f"Ordered labels need an order, and texts such as {labels[0]!r} and {labels[1]!r} have none: pass ordered "
            "categories, pd.Categorical(y, [first, ..., last], ordered=True), or the numbers 0, 1, ..."
        )
    if num not in (None, len(labels)):
        raise InputError(f"The likelihood has {num} ordered labels, got {len(labels)}: set `num_classes` to that.")


class Read(NamedTuple):
    """A column with its texts as numbers or dates where they are, how it was read, and a line about it, if any."""

    column: "pd.Series"
    how: How
    line: str = ""


@dataclasses.dataclass(frozen=True)
class Reader:
    """How the columns of a file or of a frame are read: its mark of decimals, and whether values may be missing.

    `is_new` tells the rows to train on from those to predict; `categories` are such columns whatever they hold.
    """

    is_file: bool
    is_new: bool
    decimal: str | None = None
    missing: str = "raise"
    categories: Sequence[str] = ()

    def rows(self, chosen: "pd.Series") -> str:
        """Return which rows a mask has, in words, by its index."""
        return rows_of(chosen.reindex(range(int(chosen.index[-1]) + 1), fill_value=False), int(self.is_file))

    def feature(self, column: "pd.Series", before: How | None) -> Read:
        """Return a column to predict from, numbers as float64; refuse gaps, infinite numbers and names of rows."""
        import pandas as pd

        name, label = str(column.name), f"Column {str(column.name)!r}"
        without = f"leave it out (--drop {shlex.quote(name)})" if self.is_file else "drop it"
        if self.is_file and name.startswith(NAMELESS):
            raise InputError(f"{label} has no name in the file: name it, or {without}.")
        column, how, line = self.read(column, label, before)
        present, is_text = column.dropna(), how["kind"] == TEXTS and "order" not in how
        count = present.nunique()
        is_named = self.is_new and is_text and name not in self.categories
        if is_named and count > max(_MOST_CATEGORIES, len(present) / 2):
            raise InputError(
                f"{label} holds {count} different texts in {len(column)} rows, such as {present.iloc[0]!r}, which are "
                "no categories: make numbers of it, such as 12.5 or 1,234.50, without a unit or a currency, or dates, "
                f"{without}, or say that they are categories (categories={[name]!r}, --categories)."
            )
        if how["kind"] == NUMBERS:
            column = pd.Series(column.to_numpy(dtype=np.float64, na_value=np.nan))
            if (infinite := np.isinf(column)).any():
                raise InputError(f"{label} must be finite, and is inf in {self.rows(infinite)}: drop those rows.")
        if self.missing == "raise" and not is_text:
            if self.is_new and present.empty:
                raise InputError(f"{label} has no value in any row (NaN): {without}.")
            self.refuse_gaps(column, label)
        return Read(column.reset_index(drop=True), how, line)

    def read(self, column: "pd.Series", label: str, before: How | None = None) -> Read:
        """Return a column as numbers, dates or texts with None; `before` is how training read it, `label` its name."""
        import pandas as pd

        name, expected = str(column.name), None if before is None else before["kind"]
        is_told = isinstance(column.dtype, pd.CategoricalDtype)
        if expected == TEXTS or (expected is None and (is_told or name in self.categories)):
            how = How(kind=TEXTS)
            if (order := order_of(column)) is not None:
                how["order"] = as_text(pd.Series(order)).tolist()
            return Read(as_text(column), how)
        column = column.astype(object) if is_told else column
        kind = pd.api.types.infer_dtype(column, skipna=True)
        if column.isna().all() and (expected is not None or kind == "string"):
            return Read(pd.Series(pd.NaT if expected == DATES else np.nan, column.index), How(kind=expected or NUMBERS))
        if kind in ("date", "datetime", "datetime64") and expected != NUMBERS:
            return Read(in_utc(pd.to_datetime(column, utc=True)), How(kind=DATES))
        if kind in ("string", "mixed", "mixed-integer"):
            texts = column.map(str, na_action="ignore")
            numbers = None if expected == DATES else self._as_numbers(texts, name, label, before)
            return numbers or self._as_dates(texts, name, label, before)
        if expected == DATES:
            raise InputError(f"{label} held dates in training, and now {column.dropna().iloc[0]}: write it alike.")
        is_number = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_complex_dtype(column.dtype)
        if not is_number and kind not in _OF_NUMBERS:
            raise InputError(f"{label} has dtype {column.dtype} ({kind}): turn it into numbers or text.")
        return Read(column, How(kind=NUMBERS))

    def _as_numbers(self, texts: "pd.Series", name: str, label: str, before: How | None) -> Read | None:
        """Return texts as numbers, by the mark of decimals that reads the most, the one told where both do.

        At least half must be numbers, else None. A column that both marks read, and nobody told, gets a line.
        """
        stored = None if before is None else before.get("decimal")
        told = stored or self.decimal or "."
        by = {mark: numbers_of(texts, mark) for mark in ([stored] if stored else [told, *{".", ","} - {told}])}
        mark = max(by, key=lambda each: by[each].notna().sum())
        numbers, other = by[mark], by["," if mark == "." and not stored else "." if not stored else mark]
        strange, is_open = texts[numbers.isna()].dropna(), stored is None and self.decimal is None
        such = next(iter(texts[numbers.ne(other) & numbers.notna()]), "")
        how = f"X[{name!r}].str.replace('.', '').str.replace(',', '.').astype(float)"
        how = "--decimal ," if self.is_file else how
        are_most = numbers.notna().sum() >= texts.notna().sum() / 2
        if is_open and mark == "," and are_most:
            raise InputError(f"{label} holds numbers with a decimal comma, such as {such!r}: say so, {how}.")
        are_numbers = are_most or numbers.nunique() > max(_MOST_NUMBERS, strange.nunique())
        if not are_numbers and (before is None or before["kind"] != NUMBERS):
            return None
        line = self._words(strange, numbers, name, label, "numbers, but text")
        if is_open and such and numbers.notna().equals(other.notna()) and not line:
            change = "its comma marks decimals" if "," in such else "its point marks thousands"
            line = (
                f"column {name!r}: {such.strip()!r} is read as {numbers[texts == such].iloc[0]:g}; if {change}: {how}"
            )
        is_whole = strange.empty and not texts.str.contains(mark, regex=False, na=True).any()
        return Read(numbers.astype(np.int64) if is_whole else numbers, How(kind=NUMBERS, decimal=mark), line)

    def _as_dates(self, texts: "pd.Series", name: str, label: str, before: How | None) -> Read:
        """Return texts as dates, where more than half are, else as categories."""
        try:
            dates, form = dates_of(texts, None if before is None else before.get("format"))
        except InputError as error:
            raise InputError(f"{label} holds {error}") from None
        if before is None and dates.notna().sum() <= texts.notna().sum() / 2:
            return Read(as_text(texts), How(kind=TEXTS))
        line = self._words(texts[dates.isna()].dropna(), dates, name, label, "dates, but other text")
        return Read(dates, How(kind=DATES, format=form), line)

    def _words(self, strange: "pd.Series", values: "pd.Series", name: str, label: str, most: str) -> str:
        """Return a line about texts unlike most of a column, which count as missing where gaps may be; else refuse."""
        if strange.empty:
            return ""
        found = [*map(repr, strange.value_counts().index)]
        such = " and ".join(found[:_MOST_WORDS]) + (" and others" if len(found) > _MOST_WORDS else "")
        where = self.rows(strange.notna())
        if self.missing == "impute" and values.notna().any():
            return f"column {name!r}: {such} in {where} counted as missing"
        advice = f"let it count as missing ({_IMPUTE})" if self.is_new else "drop those rows"
        raise InputError(f"{label} holds {most} in {where}, such as {such}: mend it, or {advice}.")

    def refuse_gaps(self, column: "pd.Series", label: str, advice: str = "") -> None:
        """Refuse a column with gaps."""
        if (gaps := column.isna()).any():
            drawn = f", or have them drawn ({_IMPUTE})" if self.is_new else f"; a fit with {_IMPUTE} can predict them"
            count = counted(int(gaps.sum()), "missing value")
            raise InputError(f"{label} has {count} (NaN), in {self.rows(gaps)}: {advice or f'drop those rows{drawn}'}.")


def as_text(column: "pd.Series") -> "pd.Series":
    """Return categories as text, None where they are missing; whole numbers read as 2 and 2.0 are the same."""
    import pandas as pd

    def text(value: Any) -> str:
        is_whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
        return str(int(value) if is_whole else value)

    named = [None if gap else text(value) for value, gap in zip(column, column.isna(), strict=True)]
    return pd.Series(named, dtype=object, index=column.index, name=column.name)


def expanded(columns: "pd.DataFrame", read: Mapping[str, How]) -> "pd.DataFrame":
    """Return columns with those of dates, and of ordered categories, as numbers."""
    import pandas as pd

    made: dict[str, pd.Series] = {}
    for name, how in read.items():
        column = columns[name]
        if "order" in how:
            places = column.map({value: float(at) for at, value in enumerate(how["order"])}).astype(np.float64)
            if len(odd := column[column.notna() & places.isna()]):
                order = listed(how["order"], " < ")
                raise InputError(f"Column {name!r} holds {odd.iloc[0]!r}, and its order is {order}: use those.")
            column = places
        new = date_columns(column, name, how) if how["kind"] == DATES else {name: column}
        if twice := sorted(made.keys() & new.keys()):
            raise InputError(f"The table has a column {twice[0]!r}, and its dates make one of this name: rename it.")
        made |= new
    return pd.DataFrame(made)


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
        kind = Reader(is_file=True, is_new=True, missing="impute").read(column, "").how["kind"]
    except InputError:  # not one kind of cells
        return ""
    are_names = kind == TEXTS and column.dropna().str.match(r"\W?\d").mean() <= 1 / 2
    return f"a text of its own in each of {len(column)} rows" if are_names else ""
